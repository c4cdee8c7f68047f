#!/usr/bin/env python3
"""Usage: help, bad arguments, --config.

What is asked for wrongly ends in one line and exit code 2 and leaves nothing behind.

usage.py ROOT PROGRAM
"""

import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, contents, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

COMMANDS = ["run", "replay", "diff", "bisect", "explain", "fit", "check", "drift", "synth", "split", "merge", "pack", "info", "verify",
            "contracts", "backends", "bench"]


def check_help(tap, program):
    for command in COMMANDS:
        done = program(command, "--help")
        tap.check(
            done.code == 0 and f"Example: gdnsim {command}" in done.out and done.err == "",
            f"{command} --help shows an example",
            done,
        )
    done = program("--help")
    tap.check(
        done.code == 0 and sorted(re.findall(r"^  ([a-z]+)  ", done.out.partition("Subcommands:")[2], re.M)) == sorted(COMMANDS),
        "--help lists every command",
        done,
    )
    done = program("--version")
    tap.check(
        done.code == 0 and done.out.startswith("gdnsim ") and done.out.count("\n") == 1, "--version is one line", done
    )


def check_words(checks):
    checks.refused("no command", [], "subcommand")
    checks.refused("an unknown command is named", ["frobnicate"], "frobnicate")
    checks.refused("also when it is asked for help", ["repaly", "--help"], "repaly", "no such command")
    checks.refused("an unknown option before the command is named", ["--frobnicate"], "frobnicate")
    for command in COMMANDS:
        checks.refused(f"{command}: an unknown option is named, whatever else is missing", [command, "--frobnicate"], "--frobnicate")
    for command in ["run", "replay", "diff", "synth", "info", "verify"]:
        checks.refused(f"{command} without a file", [command], "is required")
    checks.refused("diff with one file", ["diff", "a.h5"], "B is required")
    checks.refused("run without -o", ["run", "a.json"], "--output is required")
    checks.refused("a file too many", ["replay", "a.h5", "b.h5"], "b.h5")


def check_values(checks, trace, recipe, folder):
    """(option, value, words): each on replay unless the first word is another command."""
    log = os.path.join(folder, "never.h5")
    replay = [
        ("--steps", "3", "A:B", "'3'"),
        ("--steps", ":", "A:B"),
        ("--steps", "", "--steps"),
        ("--steps", "-1:2", "A:B"),
        ("--steps", "1:2:3", "A:B"),
        ("--steps", "x:2", "'x'"),
        ("--steps", "4:4", "no steps selected"),
        ("--steps", "5:4", "no steps selected"),
        ("--steps", "0:9", "0:9", "0:8"),
        ("--steps", "99999999999999999999:", "A:B"),
        ("--layers", "2", "layer 2", "2 layers"),
        ("--layers", "x", "'x'"),
        ("--layers", "", "--layers"),
        ("--layers", "1-0", "'1-0'"),
        ("--layers", "-1", "--layers"),
        ("--layers", "0,,1", "--layers"),
        ("--layers", "0-99999", "0-99999"),
        ("--mode", "banana", "local, carried or both", "'banana'"),
        ("--mode", "", "''"),
        ("--backend", "banana", "auto, golden or cuda", "'banana'"),
        ("--backend", "", "''"),
        ("--contract", "banana", "golden", "triton-sm90", "'banana'"),
        ("--contract", "", "''"),
        ("--contract", trace, trace, "gdnsim-contract 1"),
        ("--contract", folder, folder),
        ("--threads", "0", "--threads"),
        ("--threads", "x", "--threads", "x"),
        ("--threads", "1025", "--threads"),
        ("--device", "-1", "--device", "-1"),
        ("--json", "", "--json"),
        ("--json", folder, folder, "directory"),
        ("--json", os.path.join(folder, "no", "report.json"), "cannot be written"),
    ]
    for option, value, *words in replay:
        if option == "--json" and words[0].startswith("cannot"):
            done = checks.program("replay", trace, option, value)
            checks.tap.check(
                done.code == 2 and words[0] in done.err and value in done.err,
                "--json in a folder that is not there",
                done,
            )
        else:
            shown = value.replace(folder, "FOLDER")
            checks.refused(f"replay {option} '{shown}'", ["replay", trace, option, value], *words)
    for option, value, *words in [
        ("--state", "banana", "every:N", "'banana'"),
        ("--state", "every:0", "every:N"),
        ("--state", "every:x", "every:N"),
        ("--taps", "banana", "'banana'"),
        ("--taps", "state", "--state"),
        ("--taps", "", "--taps"),
        ("--sync", "-1", "--sync"),
    ]:
        checks.refused(f"run {option} '{value}'", ["run", recipe, "-o", log, "--quiet", option, value], *words)
    for option, value in [
        ("--seed", "-1"),
        ("--seed", "18446744073709551616"),
        ("--seed", "0x1"),
        ("--seed", "1.5"),
        ("--seed", ""),
        ("--snapshots", "0"),
    ]:
        checks.refused(f"synth {option} '{value}'", ["synth", recipe, "-o", log, option, value], option)
    checks.refused("contracts --show of nothing known", ["contracts", "--show", "banana"], "'banana'")


def check_files(checks, trace, recipe, folder):
    missing, log = os.path.join(folder, "missing.h5"), os.path.join(folder, "never.h5")
    for arguments in (
        ["replay", missing],
        ["info", missing],
        ["verify", missing],
        ["diff", trace, missing],
        ["diff", missing, trace],
        ["run", missing, "-o", log],
        ["synth", missing, "-o", log],
    ):
        checks.refused(f"{arguments[0]}: a missing file is named", arguments, missing)
    checks.refused("a folder is no file", ["replay", folder], folder)
    checks.refused("replay of a recipe", ["replay", recipe], recipe, "no recorded outputs")
    checks.refused("diff with a recipe", ["diff", trace, recipe], recipe)
    checks.refused("synth of a trace", ["synth", trace, "-o", log], trace, "recipe")
    checks.refused(
        "run into a folder that is not there",
        ["run", recipe, "-o", os.path.join(folder, "no", "x.h5"), "--quiet"],
        "no/x.h5",
    )
    checks.refused(
        "synth into a folder that is not there", ["synth", recipe, "-o", os.path.join(folder, "no", "x.h5")], "no/x.h5"
    )


def check_names(checks, trace, folder):
    """Names that lead nowhere, too long ones, and files of another command: said as what they are."""
    sweep = os.path.join(sys.argv[1], "traces", "recipes", "drift", "gallery.json")
    long, new = "a" * 300, os.path.join(folder, "new.h5")
    for name, arguments, *words in [
        ("a contract file that is not there", ["replay", trace, "--contract", "./my.contrct"], "./my.contrct", "No such file"),
        ("a name too long: --json", ["replay", trace, "--json", os.path.join(folder, long)], long, "too long"),
        ("a name too long: pack", ["pack", trace, "-o", os.path.join(folder, long), "--contract", "golden"], long, "too long"),
        ("a name too long: fit", ["fit", trace, "-o", os.path.join(folder, long)], long, "too long"),
        ("a name too long: drift", ["drift", sweep, "-o", os.path.join(folder, long), "--quiet"], long, "too long"),
        ("a sweep is no recipe", ["info", sweep], "gdnsim drift"),
        ("a trace given twice", ["merge", trace, trace, "-o", new], trace, "twice"),
    ]:
        checks.refused(name, arguments, *words)
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    checks.refused("drift of a pipe", ["drift", pipe, "-o", new], pipe, "regular file")
    os.remove(pipe)
    for name, device in [("drift", ["drift", "/dev/null", "-o", new]), ("info", ["info", "/dev/null"]),
                         ("a contract", ["replay", trace, "--contract", "/dev/null"])]:
        checks.refused(f"{name}: a device", device, "/dev/null: expected a regular file")


def check_verify(checks, trace, recipe):
    """Each kind of file that --help names is taken."""
    tap, program = checks.tap, checks.program
    text = program("verify", "--help").out
    tap.check("a log, a trace or a recipe" in text, "verify --help: all three kinds", text)
    for path, words in ((trace, ": trace, every dataset readable"), (recipe, ": recipe, valid\n")):
        done = program("verify", path)
        tap.check(done.code == 0 and path + words in done.out, f"verify{words}", done)


def write(path, text):
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path


def check_config(checks, trace, recipe, folder):
    tap, program, path = checks.tap, checks.program, os.path.join(folder, "options.ini")
    write(path, '[replay]\nmode = "carried"\nsteps = "2:4"\nquiet = true\n[run]\nstate = "every:3"\nlayers = "1"\n')
    done = program("--config", path, "replay", trace)
    tap.check(
        done.code == 0 and "steps 2:4" in done.out and "local" not in done.out,
        "--config: a section's values reach its command",
        done,
    )
    done = program("--config", path, "replay", trace, "--steps", "0:8", "--mode", "both")
    tap.check(
        done.code == 0 and "steps 0:8" in done.out and "\nlocal" in done.out,
        "the command line wins over --config",
        done,
    )
    log = os.path.join(folder, "configured.log.h5")
    done = program("--config", path, "run", recipe, "-o", log, "--quiet")
    info = program("info", log, "--json", "-")
    tap.check(
        done.code == 0
        and info.code == 0
        and info.json["log"]["state"] == "every:3"
        and info.json["log"]["layers"] == [1],
        "another section's values reach its own command",
        f"{done}\n{info}",
    )
    done = program("--config", path, "info", trace)
    tap.check(done.code == 0, "sections of other commands are no hindrance", done)
    os.remove(log)
    for name, text, key, word in [
        ("an unknown key", "[replay]\nfrobnicate = 1\n", "replay.frobnicate", "no such option"),
        ("a key outside the sections", "contract = golden\n", "contract", "no such option"),
        ("an unknown section", "\n[frobnicate]\nx = 1\n", "frobnicate", "no such command"),
        ("a line that is no setting", "[replay]\nfrobnicate\n", "replay.frobnicate", "no such option"),
        ("a bad value", "[run]\nlayers = 1\n[replay]\nmode = banana\n", "replay.mode", "banana"),
        ("a bad flag", "[replay]\n# said twice\n\nquiet = banana\n", "replay.quiet", "banana"),
        ("a value out of range", "[replay]\nthreads = 0\n", "replay.threads", "--threads"),
        ("a value that the command refuses", "[run]\nsteps = '0:2'\n[replay]\nsteps = 'banana'\n", "replay.steps", "--steps"),
        ("a value of another command", "[run]\nquiet = true\nlayers = [1,\n2]\n[replay]\nsteps = '0:2'\n", "run.layers", "--layers"),
        ("an unknown key of another command", "[run]\nfrobnicate = 1\n", "run.frobnicate", "no such option"),
        ("a comment behind a list", "[run]\ntaps = [core_out] # two\n[replay]\nmode = banana\n", "replay.mode", "banana"),
        ("a dotted key", "[run]\nquiet = true\n[default]\nreplay.mode = banana\n", "replay.mode", "banana"),
        ("a dotted key that the command refuses", "run.steps = 0:2\nreplay.steps = banana\n", "replay.steps", "--steps"),
        ("an unknown dotted key", "replay.frobnicate = 1\n", "replay.frobnicate", "no such option"),
        ("double brackets", "[[replay]]\nmode = banana\n", "replay.mode", "banana"),
    ]:
        checks.refused(f"--config: {name}", ["--config", write(path, text), "replay", trace], f"{path}: {key}: ", word)
    write(path, "[replay]\nmode = local\nsteps = 0:2\n")
    for name, words in (("mode", ["--mode", "banana"]), ("steps", ["--steps=banana"])):
        done = checks.refused(f"--config: the command line's own {name}", ["--config", path, "replay", trace, *words], "banana")
        tap.check(path not in done.err, "is not said to be the file's", done)
    write(path, "[run]\noutput = x.h5\n")
    done = checks.refused("--config: an option that the command line lacks", ["--config", path, "synth", recipe], "--output is required")
    tap.check(path not in done.err, "is not said to be another command's", done)
    os.remove(path)
    checks.refused("--config: a missing file is named", ["--config", path, "replay", trace], path)


def main():
    tap = Tap()
    program = Program(sys.argv[2])
    checks = Checks(tap, program)
    check_help(tap, program)
    check_words(checks)
    with tempfile.TemporaryDirectory() as folder:
        recipe, trace = write_recipe(os.path.join(folder, "recipe.json")), os.path.join(folder, "trace.h5")
        checks.does("a trace to work on", ["synth", recipe, "-o", trace, "--record"])
        before = contents(folder)
        check_values(checks, trace, recipe, folder)
        check_files(checks, trace, recipe, folder)
        check_names(checks, trace, folder)
        check_verify(checks, trace, recipe)
        check_config(checks, trace, recipe, folder)
        tap.check(contents(folder) == before, "none of these wrote or changed a file", f"{before}\n{contents(folder)}")
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
