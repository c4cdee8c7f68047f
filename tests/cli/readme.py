#!/usr/bin/env python3
"""Examples in the README and in docs/ are what the program prints: each shown line, in order; `...` stands for lines left out. A
block may hold several commands; files that they name in /tmp, and those of the pages, go to a folder of the test's own. Of examples
that are not run - too slow, or of files that nobody has -, subcommands and options exist.

readme.py ROOT PROGRAM
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

ROOT, PROGRAM = map(os.path.abspath, sys.argv[1:3])

TMP = "/" + "tmp/"  # as a page writes it

# Pages whose examples are run, and how many of them: those of which all files are there.
PAGES = {"contracts.md": 5, "bisect-and-pack.md": 3, "recipes.md": 3, "log-format.md": 2, "bug-reports.md": 2, "pool-checks.md": 2,
         "mechanisms.md": 2, "trace-format.md": 2, "check.md": 1}
# Slow (golden/check runs all of a backend's batteries and faults), of a GPU, or of more layers and steps than the stand-in has.
LEFT_OUT = re.compile(r"gdnsim fit |.* traces/recipes/long_drift.json |.* --layers |gdnsim check( --b.*|.* --reduced( --mutate all)?)?$")
# Files that pages speak of as a user's own, and what stands for them.
STAND_INS = {"rollout.h5": "traces/h200_k64_mixed.h5", "FILE": "traces/h200_k64_mixed.h5", "recipe.json": "traces/recipes/small_k64.json"}
OUTPUTS = ("-o", "--json", "--html", ">")


def examples(text):
    """(command, shown lines) of each prompt in the fenced blocks that start with one."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, shown


def command_of(line):
    """The command of an indented line, without prompt and remark; None when it is something else."""
    found = re.match(r"    (?:\$ )?((?:build/tools/)?gdnsim .*|tools/[a-z_.]+ .*)", line)
    return re.split(r" {2,}| # ", found[1])[0] if found else None


def indented_examples(text):
    """(command, shown lines) of blocks that are indented by four columns. An empty line may stand before what is printed."""
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text.replace("\\\n", " "), re.M):
        found = []
        for line in block.splitlines():
            command = command_of(line)
            if command:
                found.append((command, []))
            elif found and line.strip() and not line.startswith("    #"):
                found[-1][1].append(line[4:])
        yield from found


def first_missing(shown, printed):
    """The first shown line that does not come after those before it, or None."""
    rest = iter(printed)
    return next((line for line in shown if line.strip() != "..." and line not in rest), None)


def run(command, folder, cwd=ROOT):
    """The lines that a command prints where the README is, with the program under test; and how it ended, when that is wrong."""
    words = [word.replace(TMP, folder + "/") for word in shlex.split(command)]
    target = os.path.join(cwd, words.pop()) if words[-2] == ">" else None
    words = words[:-1] if target else words
    if words[0] in ("gdnsim", "build/tools/gdnsim"):
        words[0] = PROGRAM
    elif words[0].endswith(".py"):
        words.insert(0, sys.executable)
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if target:
        with open(target, "w", encoding="utf-8") as stream:
            stream.write(done.stdout)
    lines = done.stdout.replace(folder + "/", TMP).splitlines()
    expected = 1 if any(line.startswith("verdict: diverged") for line in lines) else 0
    fault = "" if done.returncode == expected else f"exit {done.returncode}, expected {expected}\n"
    return lines, fault, done.stdout + done.stderr


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as stream:
        return stream.read()


def check_shown(tap, where, command, shown, folder, cwd=ROOT):
    printed, fault, everything = run(command, folder, cwd)
    missing = first_missing(shown, printed)
    tap.check(missing is None and not fault, f"{where}: {command}: prints what the page shows", f"{fault}missing: {missing}\n{everything}")


def can_run(command, folder):
    """Are the files that it reads there?"""
    words = shlex.split(command)
    outputs = {word for before, word in zip(words, words[1:]) if before in OUTPUTS}
    names = [word for word in words[1:] if word not in outputs and re.search(r"\.(h5|json|contract)$|^[A-Z]+$", word)]
    return words[0] == "gdnsim" and not LEFT_OUT.match(command) and all(os.path.exists(os.path.join(folder, name)) for name in names)


def check_page(tap, page, expected):
    """The examples of one page, in their order, in a folder of their own with what they need."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("traces", "tools"):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
        for name, source in STAND_INS.items():
            os.symlink(source, os.path.join(folder, name))
        if page == "bisect-and-pack.md":
            for name in ("A", "B", "LOG"):
                run(f"gdnsim run traces/recipes/tiny.json -o {name} --contract golden", folder, folder)
            os.remove(os.path.join(folder, "FILE"))
            broken = "tools/break_trace.py rollout.h5 FILE --tap core_out --step 5"
            fault, said = run(broken, folder, folder)[1:]
            assert not fault, said
        done = 0
        for command, shown in indented_examples(read("docs", page)):
            if can_run(command, folder):
                check_shown(tap, page, command, shown, folder, folder)
                done += 1
        tap.check(done == expected, f"{page}: {expected} examples were run", f"run: {done}")


def commands_of(text):
    """Every command of a page: in examples, and in the text between backticks."""
    for line in text.replace("\\\n", " ").splitlines():
        found = re.match(r"(?:    )?\$ (\S.*)", line)
        example = command_of(line) or (found[1] if found else None)
        yield from [example] if example else re.findall(r"`((?:gdnsim [a-z]+|tools/[a-z_.]+)(?: [^`]*)?)`", line)


def unknown_words(command, helps):
    """Subcommands and options of a command that do not exist."""
    words = command.split()
    if words[0].startswith("tools/"):
        path = os.path.join(ROOT, words[0])
        if not os.path.isfile(path):
            return [] if os.path.isdir(path) else [words[0]]
        known = read(words[0])
    elif os.path.basename(words[0]) == "gdnsim" and re.fullmatch("[a-z]+", (words + [""])[1]):
        if words[1] not in helps:
            helps[words[1]] = subprocess.run([PROGRAM, words[1], "--help"], capture_output=True, text=True, check=False)
        known = helps[words[1]].stdout
        if f"Usage: gdnsim {words[1]} " not in known:
            return [words[1]]
    else:
        return []
    return [word for word in re.findall(r"(?<=[ \[])--?[a-z][a-z-]*", command) if not re.search(rf"(?<![\w-]){word}(?![\w-])", known)]


def check_words(tap):
    """No example of any page names a subcommand or an option that is not there."""
    pages = ["README.md", *(os.path.join("docs", name) for name in sorted(os.listdir(os.path.join(ROOT, "docs"))) if name.endswith(".md"))]
    helps, found, seen = {}, [], 0
    for page in pages:
        for command in commands_of(read(page)):
            unknown = unknown_words(command, helps)
            found += [f"{page}: {command}: no {', '.join(unknown)}"] if unknown else []
            seen += 1
    tap.check(not found, f"subcommands and options of {len(pages)} pages exist", "\n".join(found))
    tap.check(seen > 100 and len(helps) >= 14, "that was asked of many commands, and of every subcommand", (seen, sorted(helps)))
    for wrong, words in (("gdnsim replay x.h5 --contracts golden", ["--contracts"]), ("gdnsim repaly x.h5", ["repaly"]),
                         ("tools/cut_trace.py a b --step 1", ["--step"])):
        tap.check(unknown_words(wrong, helps) == words, f"caught: {wrong}")


def main():
    tap = Tap()
    found = list(examples(read("README.md")))
    tap.check(len(found) >= 2, "the README has examples", found)
    page = [(command, shown) for command, shown in indented_examples(read("docs", "divergence.md")) if shown]
    tap.check(len(page) == 1 and len(page[0][1]) > 20, "divergence.md has an example", page)
    found += page
    with tempfile.TemporaryDirectory() as folder:
        for command, shown in found:
            program = command.split()[0]
            if TMP in command and h5py is None:
                tap.skip(command, "python3-h5py is not installed")
                continue
            known = program in ("gdnsim", "build/tools/gdnsim") or os.path.isfile(os.path.join(ROOT, program))
            tap.check(known, f"{command}: names a program of ours", program)
            check_shown(tap, "README.md, divergence.md", command, shown, folder)
    for name, expected in PAGES.items():
        if name == "bisect-and-pack.md" and h5py is None:
            tap.skip(name, "python3-h5py is not installed")
        else:
            check_page(tap, name, expected)
    check_words(tap)
    tap.check(first_missing(["a", "...", "c"], ["a", "b", "c"]) is None, "left-out lines are allowed")
    tap.check(first_missing(["c", "a"], ["a", "b", "c"]) == "a", "another order is caught")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
