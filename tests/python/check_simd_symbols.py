#!/usr/bin/env python3
"""The vector kernels share no code with the rest of the program: a linker keeps one copy of an inline function, and were it the
one that was compiled for AVX-512, an older CPU would meet it. So their archives may define their table and nothing else.

    check_simd_symbols.py NM ARCHIVE... -- COMPILER...     then checks itself: an object with an inline function must be found
"""

import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

TABLE = re.compile(r"gdnsim::golden::kernels_(sse2|avx2|avx512)\(\)$")
SANITIZER = re.compile(r"__odr_asan|__asan|__ubsan")
COEFFICIENTS = re.compile(r"gdnsim::golden::k(Ex2|Rcp|Sqrt|Rsqrt)$")  # data, the same at every level


def shared_symbols(nm, archive):
    """(what an archive defines for others to see but its table, the tables it has)."""
    listed = subprocess.run([nm, "-C", archive], capture_output=True, text=True, check=True).stdout
    found, tables = [], []
    for line in listed.splitlines():
        match = re.match(r"[0-9a-f]+ ([A-Za-z]) (.*)$", line)
        if not match or match.group(1) in "trdbn":
            continue
        name = match.group(2)
        tables += [name] if TABLE.match(name) else []
        if TABLE.match(name) or SANITIZER.match(name) or (COEFFICIENTS.match(name) and match.group(1) in "uVR"):
            continue
        found.append(name)
    return found, tables


def planted(cxx, nm):
    """What is found in an object with an inline function that the compiler had to emit."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "planted.cpp"), os.path.join(folder, "planted.o")
        with open(source, "w", encoding="utf-8") as stream:
            stream.write("inline int planted(int x) { return x + 1; }\nint (*kept)(int) = planted;\n")
        subprocess.run([*cxx, "-c", source, "-o", target], check=True)
        return shared_symbols(nm, target)


def main():
    end = sys.argv.index("--")
    nm, archives, cxx = sys.argv[1], sys.argv[2:end], sys.argv[end + 1:]
    tap = Tap()
    tap.check("planted(int)" in planted(cxx, nm)[0], "self-test: an inline function is found")
    for archive in archives:
        found, tables = shared_symbols(nm, archive)
        name = f"{os.path.basename(archive)} defines its table alone"
        tap.check(not found and len(tables) == 1, name, "\n".join(found) + f"\ntables: {tables}")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
