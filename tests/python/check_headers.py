#!/usr/bin/env python3
"""Each public header compiles alone, without a warning, and twice over.

    check_headers.py INCLUDE_DIR COMPILER...
"""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402


def compile_text(compiler, include, text):
    command = [*compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", include, "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def main():
    include, compiler = sys.argv[1], sys.argv[2:]
    tap = Tap()
    passed, _ = compile_text(compiler, include, "std::vector<int> v;\n")
    tap.check(not passed, "self-test: a missing include is an error")
    headers = [os.path.relpath(os.path.join(folder, name), include) for folder, _, names in os.walk(include) for name in names]
    tap.check("gdnsim/backend.hpp" in headers and len(headers) > 20, f"{len(headers)} headers are found", headers)
    for header in sorted(headers):
        compiles, messages = compile_text(compiler, include, f"#include <{header}>\n" * 2)
        tap.check(compiles, header, messages)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
