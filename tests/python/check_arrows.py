#!/usr/bin/env python3
"""Checks who includes whom, that no tracked file names a place outside the repository, and no script a module of Python's own.

    check_arrows.py ROOT     checks the repository, then itself: planted violations must be found
"""

import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

# The lower layers of src/core and of the public headers, bottom up; every header not named here is in the top one (trace, stream, pool, log, backend, ...).
LAYERS = [{"version", "error", "refused", "types", "clones", "source_place", "regular_file"}, {"contract", "arith", "order", "digest"}]
# The rooms of src, bottom up: a file includes private headers of its own room and of those in front of it.
ROOMS = ["core", "file", "log", "synth", "trace", "replay", "report", "fit", "explain", "check", "drift"]
# A package and the only places that may include it.
PACKAGES = {
    r"hdf5\w*\.h|H5\w+\.h": re.compile(r"src/file/hdf5_io(_\w+)?\.(cpp|hpp)$"),
    r"Eigen/.*": re.compile(r"golden/"),
    r"CLI/.*": re.compile(r"tools/"),
    r"cuda\w*\.h(pp)?|cooperative_groups.*|cuda/[^.]+|cub/.*|nv\w+\.h": re.compile(r"cuda/"),
    r"doctest.*": re.compile(r"tests/"),
    r"mpfr\.h|gmp\.h": re.compile(r"tests/"),
    r"mpi\.h": re.compile(r"tools/mpi_ranks\.cpp$"),
}
CODE_FOLDERS = ("src", "golden", "cuda", "tools", "tests")
CODE = re.compile(r"\.(cpp|hpp|cu|cuh|h|c)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# Places that are not the project's: absolute paths of some machine, and the folder that only .ci/run may look for.
OUTSIDE = [
    (re.compile(r"(?<![\w.$/{}*-])/(work|home|root|mnt|opt|srv|scratch)(?=/)"), None),
    (re.compile(r"(?<![\w.$/{}*-])/tmp(?=/)"), re.compile(r".*\.md$")),  # a reader's example may use it
    (re.compile(r"(?<![\w-])shared/(traces|faults|sfu|spec)\b"), None),
    (re.compile(r"\.\./shared\b"), re.compile(r"\.ci/run$")),
]


def files_of(root):
    """Tracked and new files that git does not ignore; without git, all files."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return sorted(name for name in set(listed.stdout.splitlines()) if os.path.isfile(os.path.join(root, name)))
    found = [os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names]
    return sorted(name for name in found if not name.startswith((".git/", "build")))


def text_of(root, name):
    """The text of a file, or None for a binary one."""
    with open(os.path.join(root, name), "rb") as stream:
        data = stream.read()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def layer_of(stem):
    """0 is the lowest. A .cpp file belongs to the header whose name it begins with: contract_text.cpp to contract."""
    for rank, stems in enumerate(LAYERS):
        if any(stem == known or stem.startswith(known + "_") for known in stems):
            return rank
    return len(LAYERS)


def folder_problem(name, quoted, target):
    """What a file of one folder may not include from another."""
    folder = name.split("/")[0]
    first = target.split("/")[0]
    is_private = quoted and first != "gdnsim" and not target.startswith("gdnsim/")
    if folder == "src" and first in ("golden", "cuda", "tools", "tests", "support"):
        return "src never sees another folder"
    if folder in ("golden", "cuda", "tools") and is_private and first in {"golden", "cuda", "tools", "tests", "support", "src"} - {folder}:
        return f"{folder} sees <gdnsim/...> and its own files only"
    if name.startswith("src/include/") and quoted and first != "gdnsim":
        return "a public header includes public headers only"
    if re.search(r"\.cpp$|\.cu$", target):
        return "a source file is never included"
    return None


def package_problem(name, target):
    for pattern, allowed in PACKAGES.items():
        if re.fullmatch(pattern, target) and not allowed.match(name):
            return f"only {allowed.pattern} may include it"
    return None


def layer_problem(name, target):
    """Inside src a file includes its own layer or a lower one."""
    if not name.startswith("src/") or target.startswith(("std", "sys/")):
        return None
    low = re.match(r"src/(include/gdnsim|core)/", name)
    own = layer_of(os.path.splitext(os.path.basename(name))[0]) if low else len(LAYERS)
    if target.startswith("gdnsim/"):
        other = layer_of(os.path.splitext(os.path.basename(target))[0])
        if other > own:
            return f"a file of layer {own} includes layer {other}"
    return None


def room_problem(name, quoted, target):
    """Inside src, "room/name.hpp" is of the file's own room or of a lower one; no other quoted name but gdnsim/... is a header there."""
    room, other = name.split("/")[1], target.split("/")[0]
    if not name.startswith("src/") or room == "include" or not quoted or other == "gdnsim" or target.endswith(".inc"):
        return None
    if room not in ROOMS or other not in ROOMS:
        return "a private header is included as \"room/name.hpp\", and a file of src lies in a room"
    return f"the room {room} is below {other}" if ROOMS.index(other) > ROOMS.index(room) else None


def private_problem(root, name, quoted, target):
    """golden, cuda and tools reach src through <gdnsim/...>: a quoted name must be a file of their own folder."""
    folder = name.split("/")[0]
    if not quoted or folder not in ("golden", "cuda", "tools"):
        return None
    here = [os.path.join(root, os.path.dirname(name), target), os.path.join(root, folder, target), os.path.join(root, target)]
    own = any(os.path.isfile(path) for path in here)
    if not own and os.path.isfile(os.path.join(root, "src", target)):
        return f"{folder} sees <gdnsim/...> and its own files only"
    return None


def include_problems(root, names):
    for name in names:
        if not CODE.search(name) or name.split("/")[0] not in CODE_FOLDERS:
            continue
        for mark, target in INCLUDE.findall(text_of(root, name) or ""):
            quoted = mark == '"'
            problem = (folder_problem(name, quoted, target) or package_problem(name, target) or layer_problem(name, target)
                       or room_problem(name, quoted, target)
                       or private_problem(root, name, quoted, target))
            if problem:
                yield f"{name} includes {target}: {problem}"


def cycle_problems(root, names):
    """Public headers include each other without a cycle."""
    headers = {name[len("src/include/"):]: name for name in names if re.match(r"src/include/gdnsim/\w+\.hpp$", name)}
    arrows = {short: [target for _, target in INCLUDE.findall(text_of(root, name) or "") if target in headers]
              for short, name in headers.items()}
    done, path = set(), []

    def visit(header):
        if header in path:
            yield "include cycle: " + " -> ".join(path[path.index(header):] + [header])
        elif header not in done:
            path.append(header)
            for target in arrows[header]:
                yield from visit(target)
            path.pop()
            done.add(header)

    for header in sorted(headers):
        yield from visit(header)


def outside_problems(root, names):
    for name in names:
        text = text_of(root, name)
        if text is None:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, allowed in OUTSIDE:
                if pattern.search(line) and not (allowed and allowed.match(name)):
                    yield f"{name}:{number}: names a place outside the repository: {line.strip()[:100]}"


def shadow_problems(_, names):
    """Scripts of one folder see each other first: one named html.py is what the standard library's own modules import."""
    for name in names:
        stem, ending = os.path.splitext(os.path.basename(name))
        if ending == ".py" and stem in sys.stdlib_module_names:
            yield f"{name}: has the name of a module of the standard library"


CHECKS = [
    ("includes follow the layers", include_problems),
    ("public headers have no include cycle", cycle_problems),
    ("no file names a place outside the repository", outside_problems),
    ("no script stands before a module of the standard library", shadow_problems),
]

# (what is planted, file, its text, which check must find it)
PLANTED = [
    ("a low layer includes a high one", "src/include/gdnsim/types.hpp", '#include "gdnsim/stream.hpp"\n', 0),
    ("a .cpp of a low layer includes a high one", "src/core/contract_text.cpp", '#include "gdnsim/trace.hpp"\n', 0),
    ("hdf5.h outside hdf5_io", "src/trace/read.cpp", "#include <hdf5.h>\n", 0),
    ("Eigen outside golden", "src/core/order.cpp", "  #  include <Eigen/Core>\n", 0),
    ("CLI11 outside tools", "golden/norm.cpp", "#include <CLI/CLI.hpp>\n", 0),
    ("CUDA outside cuda", "golden/norm.cpp", "#include <cuda_runtime.h>\n", 0),
    ("doctest outside tests", "tools/main.cpp", "#include <doctest/doctest.h>\n", 0),
    ("mpi.h outside mpi_ranks", "tools/cmd_replay.cpp", "#include <mpi.h>\n", 0),
    ("golden sees cuda", "golden/norm.cpp", '#include "cuda/table.hpp"\n', 0),
    ("cuda sees golden", "cuda/norm.cu", '#include "golden/sfu.hpp"\n', 0),
    ("src sees golden", "src/core/backend.cpp", '#include "golden/norm.hpp"\n', 0),
    ("tools sees a private header of src", "tools/main.cpp", '#include "file/schema.hpp"\n', 0),
    ("a public header includes a private one", "src/include/gdnsim/log.hpp", '#include "file/schema.hpp"\n', 0),
    ("a room sees a higher one", "src/file/schema.hpp", '#include "log/chain.hpp"\n', 0),
    ("a file of src outside the rooms", "src/schema.cpp", '#include "file/schema.hpp"\n', 0),
    ("a private header without its room", "src/file/model_io.cpp", '#include "schema.hpp"\n', 0),
    ("a cycle", "src/include/gdnsim/pool.hpp", '#include "gdnsim/stream.hpp"\n', 1),
    # Spelled in two halves, so that this file itself is clean.
    ("an absolute path", "docs/index.md", "see `/wo" "rk/notes.md`\n", 2),
    ("a temporary path", "tools/cmd_run.cpp", 'open("/t' 'mp/x.h5");\n', 2),
    ("the outside folder", "tests/unit/trace_test.cpp", 'auto dir = "../sha' 'red/traces";\n', 2),
    ("the outside folder named alone", "tools/test", "cd ../sha" "red\n", 2),
    ("the outside folder without dots", "docs/index.md", "from sha" "red/traces\n", 2),
    ("a script like a module of Python's", "tests/cli/bisect.py", "", 3),
]
CLEAN = {
    "src/include/gdnsim/types.hpp": "#include <vector>\n",
    "src/include/gdnsim/stream.hpp": '#include "gdnsim/pool.hpp"\n#include "gdnsim/types.hpp"\n',
    "src/include/gdnsim/pool.hpp": '#include "gdnsim/types.hpp"\n',
    "src/file/schema.hpp": "",
    "src/file/hdf5_io.cpp": "#include <hdf5.h>\n",
    "golden/norm.cpp": '#include <Eigen/Core>\n#include <gdnsim/stream.hpp>\n#include "norm.hpp"\n',
    "golden/norm.hpp": "",
    "tests/unit/schema_test.cpp": '#include <doctest/doctest.h>\n#include "file/schema.hpp"\n',
    ".ci/run": "../sha" "red\n",
    "README.md": "see https://example.org/work/tmp/page and <path/to/opt/x> and build/tmp/x\n",
}


def plant(directory, files):
    for name, text in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)


def check_self(tap):
    """A clean miniature passes; each planted violation is found by its check."""
    with tempfile.TemporaryDirectory() as directory:
        plant(directory, CLEAN)
        found = [problem for _, check in CHECKS for problem in check(directory, files_of(directory))]
        tap.check(not found, "self-test: a clean tree passes", "\n".join(found))
    for what, name, text, which in PLANTED:
        with tempfile.TemporaryDirectory() as directory:
            plant(directory, {**CLEAN, name: text})
            found = list(CHECKS[which][1](directory, files_of(directory)))
            tap.check(len(found) >= 1, f"self-test: found {what}", "nothing was found")


def main():
    root = os.path.abspath(sys.argv[1])
    tap = Tap()
    names = files_of(root)
    tap.check(any(name.startswith("src/include/gdnsim/") for name in names), "there are files to check", root)
    for what, check in CHECKS:
        found = list(check(root, names))
        tap.check(not found, what, "\n".join(found))
    check_self(tap)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
