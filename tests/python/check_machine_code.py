#!/usr/bin/env python3
"""The machine code of the recurrence multiplies and adds as its contract says (docs/arithmetic.md, rule A2.5): under golden no
product is fused with a sum; under the Triton contracts every one but the decay, the first of each lane and beta's is.

    check_machine_code.py NVCC BUILD OBJECT...

OBJECTs are compiled .cu files. Needs cuobjdump and nvdisasm: on the path, beside NVCC, in BUILD/cuda-tools, or where pip puts
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

import collections
import glob
import os
import re
import subprocess
import sys
import sysconfig

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

COUNTED = ("FFMA", "FMUL", "FADD")
# The whole state in registers: K, and how many V rows a thread has. 32 elements of each.
RESIDENT = re.compile(r"resident_kernel<\(\S*Book\)(\d), \(\S*DType\)(\d), (\d+), (\d+)>")
# Any kernel that is the recurrence alone.
RECURRENCE = re.compile(r"(resident|streamed|recurrence)_kernel<\(\S*Book\)(\d)")
GOLDEN, ELEMENTS = "0", 32
LANE = {"0": 4, "1": 8}  # elements of f32 and bf16 that a Triton lane sums first


def tools_in(nvcc, build):
    """The folder of cuobjdump and nvdisasm, or None."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + [os.path.dirname(os.path.realpath(nvcc))]
    for root in (os.path.join(build, "cuda-tools"), sysconfig.get_paths()["purelib"], *sys.path):
        folders += glob.glob(os.path.join(root, "nvidia", "c*", "bin"))
    found = [f for f in folders if all(os.access(os.path.join(f, t), os.X_OK) for t in ("cuobjdump", "nvdisasm"))]
    return found[0] if found else None


def counts_in(text):
    """{(architecture, mangled function): {instruction: count}} of a disassembly; a packed one counts twice."""
    counts, arch, now = {}, "", None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.search(r"Function : (\S+)", line):
            now = counts.setdefault((arch, match.group(1)), collections.Counter())
        elif now is not None and (match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z]+)(2?)[.\s]", line)):
            now[match.group(1)] += 2 if match.group(2) else 1
    return counts


def disassembled(folder, name):
    environment = dict(os.environ, PATH=folder + os.pathsep + os.environ.get("PATH", ""))
    command = [os.path.join(folder, "cuobjdump"), "-sass", name]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def plain_names(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.splitlines()))


def expected(book, state, K, rows):
    """What one visit of a thread with so many rows takes; K / 32 threads share a row."""
    threads = K // ELEMENTS
    if book == GOLDEN:  # two sums of all products, then of the threads' in order; the update; v less its prediction
        return {"FFMA": 0, "FMUL": rows * (4 * ELEMENTS + 1), "FADD": rows * (3 * ELEMENTS - 1 + 2 * (threads - 1))}
    firsts = 2 * ELEMENTS // LANE[state]  # the first product of each lane, for k and for q
    return {
        "FFMA": rows * (3 * ELEMENTS - firsts),
        "FMUL": rows * (ELEMENTS + firsts + 1),
        "FADD": rows * (firsts - 1 + 2 * (threads.bit_length() - 1)),  # of lanes, then threads by exchange
    }


def wrong(name, count):
    """Why a kernel's counts cannot be, or None; a loop body may be unrolled some times."""
    if match := RESIDENT.search(name):
        want = expected(match.group(1), match.group(2), int(match.group(3)), int(match.group(4)))
        times = max(1, round(count["FMUL"] / want["FMUL"]))
        if any(count[what] != times * number for what, number in want.items()):
            return f"found {dict(count)}, expected {want}, or so many times that"
    elif (match := RECURRENCE.search(name)) and (match.group(2) == GOLDEN) != (count["FFMA"] == 0):
        return f"found {dict(count)}"
    return None


def check_objects(tap, folder, objects):
    seen = collections.Counter()
    for name in objects:
        counts = counts_in(disassembled(folder, name))
        names = plain_names([function for _, function in counts])
        for (arch, function), count in counts.items():
            plain = names[function]
            if not RECURRENCE.search(plain):
                continue
            seen[arch] += 1
            some = collections.Counter({what: count[what] for what in COUNTED})
            why = wrong(plain, some)
            if why:
                tap.check(False, f"{arch}: {RECURRENCE.search(plain).group(0)}", f"{plain}\n{why}")
    for arch, kernels in sorted(seen.items()):
        tap.check(kernels >= 4, f"{arch}: {kernels} kernels of the recurrence multiply and add as their contracts say", seen)
    return seen


PLANTED = """
	arch = sm_90
		Function : golden_one
        /*0010*/                   FMUL R1, R2, R3 ;
        /*0020*/               @P0 FADD.FTZ R1, R2, R3 ;
        /*0030*/              @!P1 FFMA2 R1, R2, R3, R4 ;
        /*0040*/                   FFMA.RM R1, R2, R3, R4 ;
"""


def check_itself(tap):
    found = counts_in(PLANTED)[("sm_90", "golden_one")]
    tap.check(found == {"FMUL": 1, "FADD": 1, "FFMA": 3}, "self-test: instructions are counted", found)
    golden = "void resident_kernel<(gdnsim::cuda::Book)0, (gdnsim::DType)0, 128, 4>(x)"
    triton = golden.replace("Book)0", "Book)1")
    right = collections.Counter({"FFMA": 320, "FMUL": 196, "FADD": 76})
    tap.check(wrong(triton, right) is None, "self-test: what the contract says passes", wrong(triton, right))
    fused = collections.Counter({"FFMA": 1, "FMUL": 515, "FADD": 403})
    tap.check(wrong(golden, fused) is not None, "self-test: one product that was fused is found")
    split = collections.Counter({"FFMA": 319, "FMUL": 197, "FADD": 77})
    tap.check(wrong(triton, split) is not None, "self-test: one product that was not fused is found")


def main():
    nvcc, build, objects = sys.argv[1], sys.argv[2], sys.argv[3:]
    tap = Tap()
    check_itself(tap)
    folder = tools_in(nvcc, build)
    if folder is None:
        tap.skip("machine code", "no cuobjdump and nvdisasm")
    else:
        check_objects(tap, folder, objects)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
