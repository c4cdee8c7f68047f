#!/usr/bin/env python3
"""The machine code of the recurrence multiplies and adds as its contract says (docs/arithmetic.md, rule A2.5): under golden no
product is fused with a sum; under the Triton contracts every one but the decay, the first of each lane and beta's is.

    check_machine_code.py NVCC BUILD OBJECT...

Read are the kernels that are the recurrence alone (resident, streamed), and of the fused step's kernel what comes behind its last
barrier, which is the recurrence. Not read: the plain kernels, which take a contract's words at run time, so that both orders lie
in their code; the conv, the norms and the gates, whose correctly rounded functions are themselves made of fused products. Their
bits are what the kernel tests compare with golden's.

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
# The whole step: types of the state and of the conv state, K; a thread has one row, 32 elements of it.
FUSED = re.compile(r"fused_kernel<\(\S*Book\)(\d), \(\S*DType\)(\d), \(\S*DType\)\d, (\d+)>")
# Any kernel that is the recurrence alone, or has it at its end.
RECURRENCE = re.compile(r"(resident|streamed|recurrence|fused)_kernel<\(\S*Book\)(\d)")
GOLDEN, ELEMENTS = "0", 32
LEAST = {"fused": 20, "resident": 20, "streamed": 4}  # kernels for an architecture
LANE = {"0": 4, "1": 8}  # elements of f32 and bf16 that a Triton lane sums first


def tools_in(nvcc, build):
    """The folder of cuobjdump and nvdisasm, or None."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + [os.path.dirname(os.path.realpath(nvcc))]
    for root in (os.path.join(build, "cuda-tools"), sysconfig.get_paths()["purelib"], *sys.path):
        folders += glob.glob(os.path.join(root, "nvidia", "c*", "bin"))
    found = [f for f in folders if all(os.access(os.path.join(f, t), os.X_OK) for t in ("cuobjdump", "nvdisasm"))]
    return found[0] if found else None


def instructions_in(text):
    """{(architecture, mangled function): [instruction]} of a disassembly; a packed one ends with 2."""
    found, arch, now = {}, "", None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\S+)", line):
            arch = match.group(1)
        elif match := re.search(r"Function : (\S+)", line):
            now = found.setdefault((arch, match.group(1)), [])
        elif now is not None and (match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z]+2?)[.\s]", line)):
            now.append(match.group(1))
    return found


def counts_of(instructions):
    """How many of each kind that is counted; a packed one counts twice."""
    counts = collections.Counter({what: 0 for what in COUNTED})
    for name in instructions:
        if name.rstrip("2") in COUNTED:
            counts[name.rstrip("2")] += 2 if name.endswith("2") else 1
    return counts


def behind_the_last_barrier(instructions):
    """From the last barrier of the block to where its threads end; functions that are called lie behind that."""
    barriers = [at for at, name in enumerate(instructions) if name == "BAR"]
    if not barriers or "EXIT" not in instructions[barriers[-1] :]:
        return []
    return instructions[barriers[-1] : instructions.index("EXIT", barriers[-1])]


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


def wrong(name, instructions):
    """Why a kernel's counts cannot be, or None; a loop body may be unrolled some times."""
    if re.search(r"(fused|resident)_kernel<", name) and not FUSED.search(name) and not RESIDENT.search(name):
        return "its template is another one than this test knows"
    count = counts_of(behind_the_last_barrier(instructions) if FUSED.search(name) else instructions)
    if match := FUSED.search(name):
        want = expected(match.group(1), match.group(2), int(match.group(3)), 1)
        if any(count[what] != number for what, number in want.items()):
            return f"found {dict(count)} behind the last barrier, expected {want}"
    elif match := RESIDENT.search(name):
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
        found = instructions_in(disassembled(folder, name))
        names = plain_names([function for _, function in found])
        for (arch, function), instructions in found.items():
            plain = names[function]
            if not RECURRENCE.search(plain):
                continue
            seen[arch, RECURRENCE.search(plain).group(1)] += 1
            why = wrong(plain, instructions)
            if why:
                tap.check(False, f"{arch}: {RECURRENCE.search(plain).group(0)}", f"{plain}\n{why}")
    tap.check(bool(seen), "there are kernels of the recurrence", objects)
    for arch in sorted({arch for arch, _ in seen}):
        kernels = {kind: number for (where, kind), number in sorted(seen.items()) if where == arch}
        text = ", ".join(f"{number} {kind}" for kind, number in kernels.items())
        tap.check(
            all(kernels.get(kind, 0) >= least for kind, least in LEAST.items()),
            f"{arch}: kernels that multiply and add as their contracts say: {text}",
            f"expected at least {LEAST}",
        )


PLANTED = """
	arch = sm_90
		Function : golden_one
        /*0010*/                   FMUL R1, R2, R3 ;
        /*0020*/               @P0 FADD.FTZ R1, R2, R3 ;
        /*0030*/              @!P1 FFMA2 R1, R2, R3, R4 ;
        /*0040*/                   FFMA.RM R1, R2, R3, R4 ;
"""


def check_itself(tap):
    found = counts_of(instructions_in(PLANTED)[("sm_90", "golden_one")])
    tap.check(found == {"FMUL": 1, "FADD": 1, "FFMA": 3}, "self-test: instructions are counted", found)
    kernel = "void resident_kernel<(gdnsim::cuda::Book)0, (gdnsim::DType)0, 128, 4>(x)"
    step = "void fused_kernel<(gdnsim::cuda::Book)0, (gdnsim::DType)0, (gdnsim::DType)1, 128>(x)"
    before = ["FFMA"] * 9 + ["BAR"]
    behind = ["EXIT", "FFMA"]
    tap.check(wrong(kernel.replace(", 4>", ", 4, 1>"), []) is not None, "self-test: an unknown template is no weaker rule")
    for name, rows, around in ((kernel, 4, lambda x: x), (step, 1, lambda x: before + x + behind)):
        triton = name.replace("Book)0", "Book)1")
        code = lambda fma, mul, add: around(["FFMA"] * fma + ["FMUL"] * mul + ["FADD"] * add)  # noqa: E731, B023
        kind = name.split("_")[0].split()[-1]
        right = code(80 * rows, 49 * rows, 19 * rows)
        tap.check(wrong(triton, right) is None, f"self-test, {kind}: what the contract says passes", wrong(triton, right))
        right = code(0, 129 * rows, 101 * rows)
        tap.check(wrong(name, right) is None, f"self-test, {kind}: and what golden says", wrong(name, right))
        fused = code(1, 129 * rows - 1, 101 * rows - 1)
        tap.check(wrong(name, fused) is not None, f"self-test, {kind}: one product that was fused is found")
        split = code(80 * rows - 1, 49 * rows + 1, 19 * rows + 1)
        tap.check(wrong(triton, split) is not None, f"self-test, {kind}: one product that was not fused is found")


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
