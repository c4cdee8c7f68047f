#!/usr/bin/env python3
"""What replay and diff say of a divergence.

The JSON's schema, the place, the repro line executed, local and carried apart, what diff may claim of inputs.

report.py ROOT PROGRAM
"""

import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program, write_contract, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

TAPS = [
    "conv_acc",
    "conv_out",
    "conv_state",
    "q",
    "k",
    "beta",
    "g",
    "decay",
    "dot_k",
    "u",
    "state",
    "core_out",
    "rstd",
    "norm_out",
]
PLACE = [
    "step",
    "layer",
    "layer_id",
    "tap",
    "row",
    "sequence",
    "block",
    "head",
    "element",
    "dtype",
    "got",
    "want",
    "got_hex",
    "want_hex",
    "ulp",
    "class",
]


def value_of(dtype, text):
    """The number behind a word's hex."""
    word = int(text, 16)
    return struct.unpack("<f", struct.pack("<I", word if dtype == "f32" else word << 16))[0]


def wrong_keys(found, wanted, where):
    """Keys of `found` that are missing, unknown or of another type; a key ending in "?" may be absent."""
    known = {key.rstrip("?"): kind for key, kind in wanted.items()}
    wrong = [f"{where}: missing {key}" for key in wanted if not key.endswith("?") and key not in found]
    wrong += [f"{where}: unknown {key}" for key in found if key not in known]
    wrong += [
        f"{where}: {key} is {found[key]!r}"
        for key in found
        if key in known
        and (not isinstance(found[key], known[key]) or (isinstance(found[key], bool) and known[key] is not bool))
    ]
    return wrong


def wrong_divergence(found, where):
    wrong = wrong_keys(
        found,
        {
            "step": int,
            "layer": int,
            "layer_id": int,
            "tap": str,
            "row?": int,
            "sequence?": int,
            "block?": int,
            "head?": int,
            "element?": int,
            "dtype?": str,
            "got?": (int, float, str),
            "want?": (int, float, str),
            "got_hex?": str,
            "want_hex?": str,
            "ulp?": (int, type(None)),
            "class": str,
            "inputs_matched": str,
            "from_step": int,
        },
        where,
    )
    if found["class"] == "digest":
        return wrong + [
            f"{where}: a digest has no {key}" for key in ("dtype", "got", "want", "ulp", "element") if key in found
        ]
    for side in ("got", "want"):
        if isinstance(found[side], str):
            wrong += [] if found[side] in ("nan", "inf", "-inf") else [f"{where}: {side} is {found[side]}"]
        elif found["dtype"] != "f16" and struct.pack("<f", found[side]) != struct.pack(
            "<f", value_of(found["dtype"], found[side + "_hex"])
        ):
            wrong.append(f"{where}: {side} {found[side]!r} is not {found[side + '_hex']}")
    return wrong


def wrong_report(report, command):
    """Everything in which a report differs from docs/divergence.md."""
    replay = {"contract": dict, "backend": str} if command == "replay" else {}
    wrong = wrong_keys(
        report,
        {
            "schema": str,
            "command": str,
            "files": list,
            "subject": str,
            "verdict": str,
            "because?": str,
            **replay,
            "first": (dict, type(None)),
            "taps": dict,
            "modes": dict,
            "mechanisms": list,
            "notes": list,
            "repro": str,
            "next": str,
        },
        "report",
    )
    wrong += [] if (report["schema"], report["command"]) == ("gdnsim.report/1", command) else ["schema or command"]
    if command == "replay":
        wrong += wrong_keys(
            report["contract"],
            {"name": str, "chosen_by": str, "fields": dict, "mixed?": dict, "tried": list},
            "contract",
        )
    for mode in ("carried", "local"):
        summary, taps = report["modes"][mode], report["taps"][mode]
        wrong += wrong_keys(
            summary,
            {
                "done": bool,
                "compared": int,
                "differing": int,
                "snapshots": int,
                "digests_compared": int,
                "digests_differing": int,
                "note?": str,
                "first": (dict, type(None)),
                "first_per_tap": dict,
            },
            mode,
        )
        wrong += [f"{mode}: order {list(taps)}"] if list(taps) != [tap for tap in TAPS if tap in taps] else []
        for tap, count in taps.items():
            wrong += wrong_keys(
                count,
                {"compared": int, "differing": int, "not_compared": int, "max_ulp": int, "max_abs": (int, float, str)},
                f"{mode} {tap}",
            )
        for key in ("compared", "differing"):
            if summary[key] != sum(count[key] for count in taps.values()) + summary["digests_" + key]:
                wrong.append(f"{mode}: {key} is not the sum of the taps")
        for found in [summary["first"], *summary["first_per_tap"].values()]:
            wrong += wrong_divergence(found, f"{mode} first") if found else []
        wrong += (
            [f"{mode}: first without a difference"] if (summary["first"] is None) != (summary["differing"] == 0) else []
        )
    wrong += (
        []
        if report["first"] == report["modes"]["carried" if report["modes"]["carried"]["done"] else "local"]["first"]
        else ["first"]
    )
    return wrong


def check_schema(checks, trace, logs):
    for name, command, words, code in [
        ("a match", "replay", [trace], 0),
        ("a divergence", "replay", [trace, "--contract", "golden"], 1),
        ("carried only", "replay", [trace, "--contract", "golden", "--mode", "carried"], 1),
        ("local only", "replay", [trace, "--contract", "golden", "--mode", "local"], 1),
        ("a log", "replay", [logs[0]], 0),
        ("digests", "replay", [logs[1], "--contract", "golden"], 1),
        ("a match", "diff", [trace, trace], 0),
        ("a divergence", "diff", logs, 1),
    ]:
        done = checks.program(command, *words, "--json", "-", "--quiet")
        if checks.tap.check(done.code == code, f"{command}, {name}: exit {code}", done):
            report = done.json
            wrong = wrong_report(report, command)
            checks.tap.check(not wrong, f"{command}, {name}: the JSON is as documented", "\n".join(wrong))
            checks.tap.check(
                report["verdict"] == ["match", "diverged"][code] and report["mechanisms"] == [],
                f"{command}, {name}: verdict and no mechanism",
                done,
            )


def repeat(checks, name, words, code=1):
    """Runs a command that diverges, executes its repro line, and compares the first divergences."""
    done = checks.program(*words, "--json", "-", "--quiet")
    if not checks.tap.check(done.code == code, f"{name}: exit {code}", done):
        return None
    report = done.json
    again = checks.program.shell(report["repro"] + " --json - --quiet")
    if (
        checks.tap.check(again.code == code, f"{name}: its repro line ends the same way", f"{report['repro']}\n{again}")
        and code == 1
    ):
        first, second = report["first"], again.json["first"]
        different = [key for key in PLACE if first.get(key) != second.get(key)]
        checks.tap.check(
            not different,
            f"{name}: and shows the same first divergence",
            f"{report['repro']}\n{different}\n{first}\n{second}",
        )
        checks.tap.check(
            again.json["taps"]["carried"].keys() <= report["taps"]["carried"].keys(), f"{name}: on a slice of it"
        )
    return report


def check_repro(checks, trace, logs, folder):
    custom = write_contract(checks.program, os.path.join(folder, "my contract"), {"softplus": "log", "name": "custom"})
    repeat(checks, "replay under another contract", ["replay", trace, "--contract", "golden"])
    repeat(checks, "replay under a contract file with a blank in its name", ["replay", trace, "--contract", custom])
    for mode in ("local", "carried"):
        repeat(checks, f"replay --mode {mode}", ["replay", trace, "--contract", "golden", "--mode", mode])
    late = repeat(
        checks, "replay from step 4 on", ["replay", trace, "--contract", "golden", "--steps", "4:", "--layers", "1"]
    )
    checks.tap.check(
        late is not None and late["first"]["step"] >= 4 and late["first"]["layer"] == 1,
        "and the slice was kept",
        late and late["first"],
    )
    repeat(
        checks,
        "replay --mode local from step 4 on",
        ["replay", trace, "--contract", "golden", "--mode", "local", "--steps", "4:"],
    )
    for name, log in zip(("full", "digests"), logs):
        repeat(checks, f"replay of a log, {name}", ["replay", log, "--contract", custom])
    repeat(checks, "diff", ["diff", *logs])
    mixed = write_recipe(
        os.path.join(folder, "mixed recipe.json"), schedule={"mixed": 0.5, "length": [3, 6], "running": 2}
    )
    log = os.path.join(folder, "custom's.log.h5")
    checks.does("a log under a contract of one's own", ["run", mixed, "-o", log, "--contract", custom, "--quiet"])
    match = repeat(checks, "replay of a log under its own contract", ["replay", log, "--steps", "2:5"], 0)
    checks.tap.check(
        match is not None and "--steps 2:5" in match["repro"],
        "a match's repro line has the slice",
        match and match["repro"],
    )
    repeat(checks, "replay of it under another", ["replay", log, "--contract", "golden+triton-sm90-mixed"])


def check_local(checks, folder):
    """With a snapshot after every step, a wrong rule shows locally where it is; carried, its errors stay."""
    trace = os.path.join(folder, "every_step.h5")
    long = write_recipe(os.path.join(folder, "long.json"), steps=40, schedule={"running": 2})
    checks.does(
        "a trace with a snapshot after every step", ["synth", long, "-o", trace, "--record", "--snapshots", "1"]
    )
    wrong = write_contract(
        checks.program,
        os.path.join(folder, "wrong"),
        {"state_dot.order": "swapped", "state_dot.lane": "2", "name": "wrong"},
    )
    done = checks.program("replay", trace, "--contract", wrong, "--json", "-", "--quiet")
    if checks.tap.check(done.code == 1, "replay under a wrong rule diverges", done):
        carried, local = done.json["taps"]["carried"]["state"], done.json["taps"]["local"]["state"]
        checks.tap.check(
            0 < local["differing"] < carried["differing"],
            "the state differs less locally than carried",
            f"{local}\n{carried}",
        )
        checks.tap.check(local["compared"] == carried["compared"] > 0, "of the same elements")
        late = checks.program("replay", trace, "--contract", wrong, "--json", "-", "--quiet", "--steps", "30:31")
        taps = late.json["taps"]
        counts = [taps[mode]["state"]["differing"] for mode in ("local", "carried")]
        checks.tap.check(counts[0] < counts[1], "a slice starts locally from the state recorded before it", counts)
        both = done.json["modes"]
        checks.tap.check(both["local"]["first"] == both["carried"]["first"], "both begin at the same place", both)


def check_diff_inputs(checks, folder):
    """diff sees no inputs; it calls them equal only where that follows: same source, nothing written before."""
    logs = {}
    for mean, contract in ((0, "golden"), (0, "triton-sm90"), (1, "golden")):
        steady = {"schedule": {"running": 3}, "inputs": {"a": {"normal": [mean, 1]}}}
        recipe = write_recipe(os.path.join(folder, "steady.json"), **steady)
        logs[mean, contract] = os.path.join(folder, f"{mean}{contract}.log.h5")
        words = ["-o", logs[mean, contract], "--contract", contract, "--quiet"]
        checks.does(f"a log, gates around {mean}, {contract}", ["run", recipe, *words])
    same, other = [(0, "golden"), (0, "triton-sm90")], [(0, "golden"), (1, "golden")]
    found = {}
    for name, pair in (("same", same), ("other", other)):
        done = checks.program("diff", *(logs[key] for key in pair), "--json", "-", "--quiet")
        found[name] = done.json
        checks.tap.check(
            done.code == 1 and done.json["first"]["step"] == 0, f"diff, {name} source: step 0 differs", done
        )
    first = found["same"]["first"]
    checks.tap.check(first["inputs_matched"] == "equal", "same source: the inputs of step 0 are equal", first)
    checks.tap.check("element" in first and first["class"] != "digest", "full states name the element", first)
    firsts = [found["other"]["first"], *found["other"]["modes"]["carried"]["first_per_tap"].values()]
    claims = [at for at in firsts if at["inputs_matched"] == "equal"]
    checks.tap.check(not claims, "another source: nothing is said to have had equal inputs", claims)
    checks.tap.check(
        "not fed the same" in " ".join(found["other"]["notes"]), "and a note says why", found["other"]["notes"]
    )
    done = checks.program("diff", *(logs[key] for key in same), "--json", "-", "--quiet", "--steps", "3:")
    first = done.json["first"] if done.code == 1 else {}
    checks.tap.check(
        first.get("tap") == "state" and first["inputs_matched"] != "equal", "later steps claim nothing", done
    )


def main():
    tap = Tap()
    checks = Checks(tap, Program(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(os.path.join(folder, "recipe.json"))
        trace = os.path.join(folder, "it's a trace.h5")
        checks.does(
            "a trace", ["synth", recipe, "-o", trace, "--record", "--contract", "triton-sm90", "--snapshots", "1"]
        )
        logs = []
        for contract, state in (("golden", "full"), ("triton-sm90", "digest")):
            logs.append(os.path.join(folder, f"{state}.log.h5"))
            checks.does(
                f"a log, {state}", ["run", recipe, "-o", logs[-1], "--contract", contract, "--state", state, "--quiet"]
            )
        check_schema(checks, trace, logs)
        check_repro(checks, trace, logs, folder)
        check_local(checks, folder)
        check_diff_inputs(checks, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
