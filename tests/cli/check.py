#!/usr/bin/env python3
"""gdnsim check: the batteries' table, JSON and exit codes, planted faults, and what a recording answers.

check.py ROOT PROGRAM
"""

import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import schema  # noqa: E402
from program import Checks, Program  # noqa: E402
from tap import Tap  # noqa: E402

try:
    import h5py
except ImportError:
    h5py = None

QUICK = ["check", "--backend", "golden", "--threads", "1", "--shape", "small", "--reduced", "--kernel", "own"]
STAGES = ["conv", "recurrent", "gated-norm", "rmsnorm"]
TILED = "triton-sm90-tiled-norm"
RECIPE = {
    "schema": "gdnsim.recipe/1",
    "seed": 3,
    "rows": 3,
    "model": {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 8, "head_v_dim": 8, "num_blocks": 6, "layer_ids": [0]},
}


def script(again):
    """Sequence 1 alone; among others, in another block and row; with `again`, alone once more."""
    load = lambda step, block, sequence: {"step": step, "kind": "load", "block": block, "sequence": sequence}  # noqa: E731
    steps = [
        {"index": [1, 0, 0], "sequence": [1, -1, -1], "rows": 1},
        {"index": [3, 2, 4], "sequence": [3, 1, 4]},
    ]
    events = [load(0, 1, 1), load(1, 2, 1), load(1, 3, 3), load(1, 4, 4)]
    if again:
        steps.append({"index": [1, 0, 0], "sequence": [1, -1, -1], "rows": 1})
        events.append(load(2, 1, 1))
    return {"steps": steps, "events": events}


def write(folder, name, recipe):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(recipe, stream)
    return path


def check_backend(tap, checks, folder):
    path = os.path.join(folder, "check.json")
    arguments = [*QUICK, "--battery", "L0,L2,accuracy", "--json", path]
    done = checks.ends("golden keeps its promises", arguments, 0, "match, gates held ")
    with open(path, encoding="utf-8") as stream:
        report = schema.checked(stream.read(), "gdnsim.check/1")
    gates = report["gates"]
    tap.check([s for s in STAGES if any(g["stage"] == s for g in gates)] == STAGES, "every stage is there", gates)
    tap.check({g["battery"] for g in gates} == {"L0", "L2", "accuracy"}, "the batteries asked for, and no others", gates)
    tap.check(
        all(g["compared"] > 0 and g["verdict"] in ("held", "measured") for g in gates), "each gate compared something", gates
    )
    rules = [g["shape"] for g in gates if g["name"] == "the rules written out"]
    tap.check(
        len(rules) == 34 and all(f"norm of {width} bf16" in " ".join(rules) for width in (1, 33, 100, 257, 128, 2048)),
        "golden's own norm is compared with its rules, at every width",
        rules,
    )
    tap.check(
        report["fields"]["norm"] == "vllm" and "CPU, 1 thread" in report["description"], "contract and device are in it", report
    )
    tap.check(
        all(any(g["name"] in line for line in done.out.splitlines()) for g in gates), "each gate is in the table", done.out
    )
    checks.refused("an output that exists", arguments, "check.json", "--force")


def check_violation(tap, checks):
    arguments = [*QUICK, "--stage", "gated-norm", "--battery", "L1", "--contract", TILED]
    done = checks.ends("lanes by rows are found out", arguments, 1, "diverged, gates held ")
    lines = [line for line in done.out.splitlines() if line.startswith("violated: gated-norm, L1, batch sizes (")]
    words = ["between 264 and 265 rows: rstd of row ", ", element 0: 0x", " ulp"]
    tap.check(len(lines) == 1 and all(w in lines[0] for w in words), "with both sizes, the place and both words", done.out)
    done = checks.program(*arguments, "--json", "-")
    first = [g["first"] for g in schema.checked(done.out, "gdnsim.check/1")["gates"] if g["name"] == "batch sizes"][0]
    tap.check(
        first["between"] == "264 and 265 rows" and first["tap"] == "rstd" and first["want"] != first["got"],
        "the JSON says the same",
        first,
    )


def check_nothing(tap, checks):
    arguments = [*QUICK, "--stage", "rmsnorm", "--contract", "triton-sm90"]
    done = checks.ends("a contract that is not defined for it: nothing was asked", arguments, 2, "inconclusive, gates held 0")
    tap.check("skipped: rmsnorm" in done.out and "not for the decoder's" in done.out, "and why", done.out)


def check_mutations(tap, checks):
    arguments = [*QUICK, "--mutate", "offset-zero"]
    done = checks.ends("a planted fault is caught", arguments, 0, "match, planted 1, caught 1, not asked 0")
    tap.check(
        "violated: gated-norm, L2, against golden" in done.out and "0x0000 (0) and 0x8000 (-0)" in done.out.replace(
            "0x8000 (-0) and 0x0000 (0)", "0x0000 (0) and 0x8000 (-0)"
        ),
        "by the sign of a zero",
        done.out,
    )
    done = checks.program(*arguments, "--json", "-")
    found = schema.checked(done.out, "gdnsim.check-mutations/1")["mutations"]
    tap.check(
        [(m["name"], m["asked"], m["caught"]) for m in found] == [("offset-zero", True, True)], "the JSON says the same", found
    )
    arguments = [*QUICK, "--mutate", "by-batch", "--contract", TILED]
    checks.ends("one that is there without the fault is not", arguments, 1, "diverged, planted 1, caught 0, not asked 0")
    arguments = [*QUICK, "--mutate", "root", "--contract", "triton-sm90"]
    done = checks.ends("one of a norm that the contract has not", arguments, 2, "inconclusive, planted 1, caught 0, not asked 1")
    tap.check("MISSED" not in done.out, "is not asked", done.out)


def check_files(tap, checks, folder):
    program = checks.program
    once, twice = write(folder, "once.json", {**RECIPE, "steps": 2, "script": script(False)}), None
    twice = {**RECIPE, "steps": 3, "script": script(True)}
    paths = {}
    wrong = {"kind": "contract", "field": "decay", "value": "none"}
    for name, recipe in [
        ("twice", twice),
        ("batch", {**twice, "faults": [{**wrong, "step": 1}]}),
        ("noise", {**twice, "faults": [{**wrong, "step": 2}]}),
    ]:
        paths[name] = os.path.join(folder, name + ".h5")
        source = write(folder, name + ".json", recipe)
        checks.does(f"{name}: recorded", ["synth", source, "--record", "--contract", "golden", "-o", paths[name]])
    done = checks.ends("a recording that repeats itself", ["check", paths["twice"]], 0, "match, compared ")
    tap.check(
        "L0: 1 rows were given the same again, in the same launch" in done.out
        and "L1: 1 rows were given the same again, in another launch" in done.out,
        "once in the same launch, once in another",
        done.out,
    )
    done = checks.ends("one whose bits depend on the batch", ["check", paths["batch"]], 1, "diverged, compared ")
    tap.check("L1 violated: layer 0, step 0 row 0 block 1 and step 1 row 1 block 2: " in done.out, "both places", done.out)
    done = checks.ends("one that is not repeatable", ["check", paths["noise"]], 1, "diverged, compared ")
    tap.check("L0 violated: layer 0, step 0 row 0 block 1 and step 2 row 0 block 1: " in done.out, "both places", done.out)
    report = schema.checked(program("check", paths["noise"], "--json", "-").out, "gdnsim.check-trace/1")
    tap.check(
        report["same_launch"] == 1 and report["other_launch"] == 1 and report["first"]["places"][1]["step"] == 2,
        "the JSON says the same",
        report,
    )
    log = os.path.join(folder, "log.h5")
    checks.does("a log of the first two steps", ["run", once, "--contract", "golden", "-o", log])
    done = checks.ends("a log is asked too", ["check", log], 0, "match, compared ")
    tap.check("L0: 0 rows" in done.out and "L1: 1 rows" in done.out, "what it holds", done.out)
    sample = os.path.join(sys.argv[1], "traces", "h200_k64_mixed.h5")
    done = checks.ends("nothing to compare is not a pass", ["check", sample], 2, "inconclusive, compared 0")
    tap.check("no row was given twice what another was given" in done.out, "and it says why", done.out)


def check_tokens(tap, checks, folder):
    """Two mixed steps of the same rows, beside a prefill of another length: rule N4 sums in other lanes, and that is no noise."""
    step = {"index": [1, 2, 3], "sequence": [1, 2, 3], "path": 1}
    events = [{"step": t, "kind": "load", "block": b, "sequence": b} for t in (0, 1) for b in (1, 2, 3)]
    recipe = {**RECIPE, "steps": 2, "script": {"steps": [step, step], "events": events}}
    recipe["model"] = {**RECIPE["model"], "head_k_dim": 128, "head_v_dim": 128}
    source, trace = write(folder, "tokens.json", recipe), os.path.join(folder, "tokens.h5")
    contract = ["--contract", "triton-sm90-mixed-tiled-norm"]
    checks.does("mixed steps: recorded", ["synth", source, "--record", *contract, "-o", trace])
    done = checks.ends("mixed steps whose tokens are not known", ["check", trace], 0, "match, compared ")
    tap.check("L0: 0 rows" in done.out and "L1: 3 rows" in done.out, "are no other's launch", done.out)
    for tokens, same, code, verdict in [([30, 30], 3, 0, "match"), ([3, 3000], 0, 1, "diverged")]:
        with h5py.File(trace, "r+") as file:
            if "launch_tokens" in file["steps"]:
                del file["steps/launch_tokens"]
            file["steps"].create_dataset("launch_tokens", data=tokens, dtype="i4")
        log = os.path.join(folder, f"tokens{tokens[1]}.h5")
        checks.does(f"{tokens} tokens: run", ["run", trace, *contract, "--taps", "rstd,norm_out", "-o", log])
        done = checks.ends(f"{tokens} tokens", ["check", log], code, verdict)
        tap.check(
            f"L0: {same} rows" in done.out and f"L1: {3 - same} rows" in done.out and ("L1 violated" in done.out) == bool(code),
            "in the same launch where there are as many",
            done.out,
        )
        done = checks.ends(f"{tokens} tokens: explain", ["explain", log, *contract], 0, "match")
        tap.check("not-repeatable" not in done.out, "what the contract gives is no noise", done.out)


def check_outputs(checks, tap, folder):
    """--json is tried before the work: the file that is there stays, and none is made by a run that fails."""
    kept = write(folder, "kept.json", {"kept": True})
    long_name = os.path.join(folder, "x" * 250)
    for name, arguments in [("check", [*QUICK]), ("a fault", [*QUICK, "--mutate", "taps"]), ("a file", ["check", "no.h5"])]:
        checks.refused(f"{name}: --json to where no file can be made", [*arguments, "--json", long_name], "--json", "cannot be written")
        checks.refused(f"{name}: --json to a file that is there", [*arguments, "--json", kept], "kept.json", "--force")
    checks.refused("a run that fails", [*QUICK[:-1], "banana", "--json", kept, "--force"], "'banana'")
    checks.refused("a run that fails, to a new file", [*QUICK[:-1], "banana", "--json", os.path.join(folder, "new.json")], "'banana'")
    with open(kept, encoding="utf-8") as stream:
        tap.check(json.load(stream) == {"kept": True}, "what was there is there")
    left = [name for name in os.listdir(folder) if "partial" in name or name in ("new.json", "x" * 250)]
    tap.check(not left, "and nothing else", left)


def check_refused(checks):
    checks.refused("an unknown stage", ["check", "--stage", "banana"], "--stage", "banana")
    checks.refused("an unknown battery", ["check", "--battery", "L9"], "--battery", "L9")
    checks.refused("an unknown shape", ["check", "--shape", "huge"], "--shape", "huge")
    checks.refused("an unknown kernel", [*QUICK[:-1], "banana"], "--kernel: expected all, own, plain", "'banana'")
    checks.refused("an unknown fault", [*QUICK, "--mutate", "banana"], "--mutate", "squares", "'banana'")
    checks.refused("an unknown backend", ["check", "--backend", "banana"], "'banana'")
    checks.refused("a contract that is none", ["check", "--contract", "banana"], "'banana'")
    checks.refused("a file that is none", ["check", "missing.h5"], "missing.h5")
    checks.refused("steps of no file", ["check", "--steps", "0:1"], "need a FILE")
    checks.refused("a file without a name", ["check", ""], "FILE: expected a value, found ''")
    checks.refused("a fault without a name", [*QUICK, "--mutate", ""], "--mutate: expected a value, found ''")
    sample = os.path.join(sys.argv[1], "traces", "h200_k64_mixed.h5")
    checks.refused("a trace of a trace", ["check", sample, "--trace", "nofile"], "--trace nofile", "is no log")
    checks.refused("a level and a kernel", ["check", "--cpu-level", "plain", "--kernel", "plain"], "--cpu-level plain with --kernel plain")
    for option in ["--stage=conv", "--battery=L0", "--contract=golden", "--shape=tp1", "--state=f32", "--kernel=own", "--reduced",
                   "--mutate=all", "--backend=banana", "--device=3", "--threads=1", "--cpu-level=sse9"]:
        checks.refused(f"{option} of a file", ["check", "my.h5", option], "FILE", option.split("=")[0])
    for option in ["--stage=conv", "--battery=L0"]:
        checks.refused(f"{option} of a fault", [*QUICK, "--mutate", "taps", option], "--mutate", option.split("=")[0])


def main():
    tap, checks = Tap(), None
    checks = Checks(tap, Program(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        check_backend(tap, checks, folder)
        check_violation(tap, checks)
        check_nothing(tap, checks)
        check_mutations(tap, checks)
        check_files(tap, checks, folder)
        if h5py is None:
            tap.skip("mixed steps of other lengths", "python3-h5py is not installed")
        else:
            check_tokens(tap, checks, folder)
        check_outputs(checks, tap, folder)
        check_refused(checks)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
