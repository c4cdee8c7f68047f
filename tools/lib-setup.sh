# shellcheck shell=bash
# What tools/quickstart and tools/test share: find or install the packages, set up build/. Sourced, never run.
# Messages go to stderr; stdout belongs to the command that was asked for.

export LC_ALL=C.UTF-8
build=build

# What the program needs: Debian package, then a command that succeeds when it (or another source of the same) is there.
# shellcheck disable=SC2034  # used by both
program_needs=(
  "g++|command -v c++"
  "python3|command -v python3"
  "meson|command -v meson"
  "ninja-build|command -v ninja"
  "pkg-config|command -v pkg-config"
  "libhdf5-dev|pkg-config --exists hdf5-serial || pkg-config --exists hdf5"
  "libcli11-dev|pkg-config --exists CLI11"
  "libeigen3-dev|pkg-config --exists eigen3"
  "nlohmann-json3-dev|pkg-config --exists nlohmann_json"
  "libxxhash-dev|pkg-config --exists libxxhash"
  "zlib1g-dev|pkg-config --exists zlib"
)
# What the tests need besides.
# shellcheck disable=SC2034  # used by tools/test
test_needs=(
  "doctest-dev|test -e /usr/include/doctest/doctest.h"
  "libmpfr-dev|pkg-config --exists mpfr"
  "clang|command -v clang++"
  "libclang-rt-dev|echo 'extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null"
  "libomp-dev|echo '#include <omp.h>' | clang++ -fopenmp -fsyntax-only -x c++ -"
  "python3-h5py|python3 -c 'import h5py'"
  "python3-numpy|python3 -c 'import numpy'"
  "python3-jsonschema|python3 -c 'import jsonschema'"
  "chromium|command -v chromium"
)
# What a few tests need, which are skipped without it: some 70 MB to fetch.
# shellcheck disable=SC2034  # used by tools/test
more_test_needs=(
  "libopenmpi-dev|pkg-config --exists ompi-c"
  "openmpi-bin|command -v mpirun"
  "python3-matplotlib|python3 -c 'import matplotlib'"
)

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$(basename "$0"): $*"
  exit 2
}

installed() {  # PACKAGE PROBE
  bash -c "$2" >/dev/null 2>&1 && return 0
  # A Python module counts only for the python3 that is used; everything else counts when Debian has it installed.
  [[ $1 != python3-* ]] && command -v dpkg-query >/dev/null && dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -n true 2>/dev/null || [[ -t 0 ]] || return 1
    sudo "$@"
  else
    return 1
  fi
}

# Another python3 may come before Debian's and lack the modules that Debian's has: then Debian's is taken.
take_python_with() {  # MODULES, comma separated
  if ! python3 -c "import $1" 2>/dev/null && /usr/bin/python3 -c "import $1" 2>/dev/null; then
    export PATH=/usr/bin:$PATH
  fi
}

# Installs the packages of NEED... that are missing. Where that cannot be done, says what to install and goes on: the build
# itself shows whether it was essential.
install_missing() {  # NEED...
  local missing=() need
  for need in "$@"; do
    installed "${need%%|*}" "${need#*|}" || missing+=("${need%%|*}")
  done
  [[ ${#missing[@]} -eq 0 ]] && return 0
  say "missing: ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    say "this is not Debian or Ubuntu: install what these packages provide (C++20 compiler, meson >= 1.0, HDF5, ...) and run this again"
  elif ! as_root apt-get update >&2 || ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >&2; then
    say "could not install them; by hand: sudo apt-get install ${missing[*]}"
  fi
}

# What reads the machine code of the CUDA kernels, for one test: from pip into build/, where nvcc is there and they are not.
install_cuda_tools() {
  PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null || return 0
  PATH=$PATH:/usr/local/cuda/bin command -v cuobjdump nvdisasm >/dev/null && return 0
  compgen -G "$build/cuda-tools/nvidia/c*/bin/cuobjdump" >/dev/null && return 0
  python3 -m pip install -q --no-deps --target "$build/cuda-tools" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm >&2 ||
    say "could not install cuobjdump and nvdisasm with pip: the test of the machine code is skipped"
}

# True when build/ was set up, for this very source directory.
build_is_ours() {
  [[ -f $build/build.ninja ]] && python3 - "$build/meson-info/meson-info.json" "$PWD" <<'EOF' 2>/dev/null
import json, os, sys
sys.exit(not os.path.samefile(json.load(open(sys.argv[1]))["directories"]["source"], sys.argv[2]))
EOF
}

build_option() {  # NAME: its value in build/
  meson introspect --buildoptions "$build" 2>/dev/null |
    python3 -c 'import json, sys; print(next(str(o["value"]).lower() for o in json.load(sys.stdin) if o["name"] == sys.argv[1]))' "$1"
}

# Sets up build/ when there is none (or a moved or half made one); later changes of the build files are ninja's business.
set_up_build() {  # MESON_OPTION...
  command -v meson >/dev/null || die "meson is not installed"
  build_is_ours && return 0
  local fresh=()
  [[ -e $build/meson-private ]] && fresh=(--wipe)
  if ! meson setup "${fresh[@]}" "$build" --buildtype=release "$@" >&2; then
    die "meson setup failed: the lines above and $build/meson-logs/meson-log.txt say why"
  fi
}

switch_on() {  # NAME of a boolean option
  [[ $(build_option "$1") == true ]] || meson configure "$build" "-D$1=true" >&2
}

compile() {  # TARGET... (none: everything)
  ninja -C "$build" -j "$(nproc)" "$@" >&2
}
