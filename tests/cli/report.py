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
import schema  # noqa: E402
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


def wrong_divergence(found, where):
    """What the schema cannot say of a divergence: numbers and words agree, and so do its neighbours."""
    if found["class"] == "digest":
        return []
    wrong = []
    for side in ("got", "want"):
        if found["dtype"] != "f16" and not isinstance(found[side], str):
            if struct.pack("<f", found[side]) != struct.pack("<f", value_of(found["dtype"], found[side + "_hex"])):
                wrong.append(f"{where}: {side} {found[side]!r} is not {found[side + '_hex']}")
        near = found["near"]
        if near[side][found["element"] - near["from"]] != found[side + "_hex"]:
            wrong.append(f"{where}: {side} is not in the middle of {near}")
    same = [got == want for got, want in zip(near["got"], near["want"])]
    if len(near["got"]) != len(near["want"]) or not all(same[: found["element"] - near["from"]]):
        wrong.append(f"{where}: not the first of its neighbours: {near}")
    return wrong


def wrong_counts(count, where):
    """Histogram and classes add up to what differs."""
    classes, with_ulp = count["classes"], sum(count["ulp_histogram"])
    no_ulp = sum(count["classes"].get(name, 0) for name in ("nan", "nan-payload", "poison"))
    wrong = [] if sum(classes.values()) == count["differing"] else [f"{where}: classes {classes}"]
    if not count["differing"] - no_ulp <= with_ulp <= count["differing"]:
        wrong.append(f"{where}: histogram {count['ulp_histogram']} of {count['differing']}")
    if with_ulp and count["ulp_histogram"][-1] == 0:
        wrong.append(f"{where}: histogram ends in 0")
    if with_ulp and count["max_ulp"].bit_length() != len(count["ulp_histogram"]):
        wrong.append(f"{where}: max_ulp {count['max_ulp']} in {count['ulp_histogram']}")
    return wrong


def wrong_cells(summary, taps, where):
    """The cells add up to the mode's counts, tap by tap; a digest counts as one element of its state."""
    cells = summary["cells"]
    compared = sum(n * times for layer in cells["layers"] for n, times in layer["compared"])
    differing = sum(cell[2] for cell in cells["differing"])
    wrong = [f"{where}: {compared} compared in cells"] if compared != summary["compared"] else []
    wrong += [f"{where}: {differing} differ in cells"] if differing != summary["differing"] else []
    of_tap = {tap: sum(cell[4].get(tap, 0) for cell in cells["differing"]) for tap in TAPS}
    for tap, count in taps.items():
        if tap not in ("state", "conv_state") and of_tap[tap] != count["differing"]:
            wrong.append(f"{where}: {of_tap[tap]} of {tap} in cells, {count['differing']} counted")
    wrong += [f"{where}: cell {cell}" for cell in cells["differing"] if sum(cell[4].values()) != cell[2]]
    if summary["first"] and cells["differing"]:
        first = min((cell[1], cell[0]) for cell in cells["differing"])
        if first != (summary["first"]["step"], summary["first"]["layer"]):
            wrong.append(f"{where}: first cell {first}")
    return wrong


def wrong_report(report, command):
    """Everything in which a report differs from docs/divergence.md and its schema."""
    wrong = schema.wrong(report) + ([] if report["command"] == command else ["command"])
    for mode in ("carried", "local"):
        summary, taps = report["modes"][mode], report["taps"][mode]
        wrong += [f"{mode}: order {list(taps)}"] if list(taps) != [tap for tap in TAPS if tap in taps] else []
        for key in ("compared", "differing"):
            if summary[key] != sum(count[key] for count in taps.values()) + summary["digests_" + key]:
                wrong.append(f"{mode}: {key} is not the sum of the taps")
        for tap, count in taps.items():
            wrong += wrong_counts(count, f"{mode} {tap}")
        wrong += wrong_cells(summary, taps, mode)
        for found in [summary["first"], *summary["first_per_tap"].values()]:
            wrong += wrong_divergence(found, f"{mode} first") if found else []
        if (summary["first"] is None) != (summary["differing"] == 0):
            wrong.append(f"{mode}: first without a difference")
    first = {key: value for key, value in (report["first"] or {}).items() if key != "inner"}
    if first != (report["modes"]["carried" if report["modes"]["carried"]["done"] else "local"]["first"] or {}):
        wrong.append("first")
    return wrong


def check_strict(checks, report):
    """The schema would notice: a key too many, one too few, another word."""
    if schema.jsonschema is None:
        checks.tap.skip("the published schema", schema.MISSING)
        return
    first = report["first"]
    without = {key: value for key, value in first.items() if key != "near"}
    mechanism = {"id": "wrong-block", "scope": {"layer": 1}, "says": "", "evidence": "", "proof": "rerun"}
    searched = {**report, "command": "explain", "searched": True, "mechanisms": [mechanism], "tried": ["exp: none"]}
    checks.tap.check(not schema.wrong(searched), "the schema takes a report of explain", schema.wrong(searched))
    for name, broken in [
        ("a new key", {**report, "extra": 1}),
        ("a missing one", {key: value for key, value in report.items() if key != "tried"}),
        ("an unknown class", {**report, "first": {**first, "class": "odd"}}),
        ("words without neighbours", {**report, "first": without}),
        ("a mechanism without proof", {**report, "mechanisms": [{"id": "exp", "scope": {}, "says": "", "evidence": ""}]}),
        ("a match with a divergence", {**report, "verdict": "match"}),
    ]:
        checks.tap.check(schema.wrong(broken), f"the schema refuses {name}")


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
                report["verdict"] == ["match", "diverged"][code] and not report["searched"] and report["mechanisms"] == [],
                f"{command}, {name}: verdict, and no mechanism was looked for",
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


def check_inner(checks, folder):
    """Values inside the step are there without being recorded (golden/inner checks them bit by bit)."""
    wrong = write_contract(checks.program, os.path.join(folder, "bf16 beta"), {"beta": "bf16", "name": "wrong"})
    recipe, trace = write_recipe(os.path.join(folder, "inner.json")), os.path.join(folder, "inner.h5")
    checks.does("a trace of outputs alone", ["synth", recipe, "-o", trace, "--record", "--snapshots", "1"])
    first = checks.program("replay", trace, "--contract", wrong, "--json", "-", "--quiet").json["first"]
    values = {value["name"]: value for value in first["inner"]}
    wanted = {"beta", "g", "decay", "dot_k", "u", "q_norm", "k_norm", "core_out"}
    checks.tap.check(wanted <= values.keys(), "beta, g, decay, S.k, u and the norms were computed on the fly", values)
    checks.tap.check("recorded_hex" not in values["beta"], "none of which the trace has", values["beta"])
    checks.tap.check(values["beta"]["hex"].endswith("0000"), "under the contract of the replay: beta is bf16", values)
    checks.tap.check(values["u"]["head"] == first["head"], "at the head of the divergence", first)
    text = checks.program("replay", trace, "--contract", wrong, "--quiet").out
    inside = " ".join(text[text.index("  inside") : text.index("  inputs")].split())
    checks.tap.check(all(f"{name} " in inside for name in wanted), "the text has them too", text)


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


def check_slice_kept(checks, trace, logs):
    """The part that was looked at is looked at again: by the repro line, by the next one, of a match and of a divergence."""
    part = ["--layers", "1", "--steps", "2:5", "--rows", "0-2"]
    for name, words, code in [
        ("explain of a match", ["explain", trace, *part], 0),
        ("diff of a match", ["diff", logs[0], logs[0], *part], 0),
        ("diff", ["diff", *logs, *part], 1),
        ("replay", ["replay", trace, "--contract", "golden", *part], 1),
    ]:
        report = repeat(checks, name + " of a part", words, code)
        lines = [line for line in (report["repro"], report["next"]) if line]
        checks.tap.check(
            all("--rows 0-2" in line and "--layers 1" in line and "--steps" in line for line in lines),
            f"{name}: no line drops the part",
            lines,
        )
        checks.tap.check(code == 0 or " ".join(part) in report["next"], f"{name}: the next command keeps it", lines)
    report = checks.program("explain", trace, "--contract", "golden", "--steps", "0:3", "--json", "-", "--quiet").json
    checks.tap.check(
        "--layers 0 --steps 0:3" in report["repro"] and "--steps 0:3" in report["next"],
        "explain of a divergence: the first one's layer, and the steps that were asked for",
        report,
    )


def check_fed(checks, folder):
    """A recipe and the trace that synth made of it feed in the same; another seed does not."""
    recipe, trace = write_recipe(os.path.join(folder, "fed.json")), os.path.join(folder, "fed.h5")
    checks.does("a trace of a recipe", ["synth", recipe, "-o", trace])
    other = write_recipe(os.path.join(folder, "not fed.json"), inputs={"a": {"normal": [1, 1]}})
    logs = []
    for source in (recipe, trace, other):
        logs.append(source + ".log.h5")
        checks.does("a log", ["run", source, "-o", logs[-1], "--contract", "golden", "--quiet"])
    for part in ([], ["--steps", "0:3"]):
        for pair in ((logs[0], logs[1]), (logs[1], logs[0])):
            done = checks.ends("logs of a recipe and of its trace", ["diff", *pair, *part], 0, "match")
            checks.tap.check("fed the same" not in done.out, "are not said to have been fed something else", done)
    done = checks.program("diff", logs[1], logs[2])
    checks.tap.check("not fed the same" in done.line("note"), "a trace and another recipe: not fed the same", done)


def check_names(checks, folder):
    """A file's name is never an option, and never what a terminal obeys; the lines work as they stand."""
    recipe = write_recipe(os.path.join(folder, "named.json"))
    checks.does("a log", ["run", recipe, "-o", os.path.join(folder, "named"), "--contract", "golden", "--quiet"])
    before = os.getcwd()
    os.chdir(folder)
    try:
        for name in ("-h5", "a\nb", "newline\n", "two\n\n", "esc\033[31m %s\\n'", "caf\u00e9 x", "-\t"):
            os.link("named", name)
            done = checks.program("replay", "--contract", "triton-sm90", "--json", "-", "--quiet", "--", name)
            report = done.json if done.code == 1 else {"repro": "", "next": ""}
            for key in ("repro", "next"):
                line = report[key]
                checks.tap.check(line.isprintable(), f"{key} of {name!r}: fit for a terminal", repr(line))
                again = checks.program.shell(line + " --quiet --no-progress") if line else done
                checks.tap.check(again.code == 1, f"{key} of {name!r}: works as it stands", f"{line!r}\n{again}")
            os.remove(name)
    finally:
        os.chdir(before)


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
        check_strict(checks, checks.program("replay", trace, "--contract", "golden", "--json", "-", "--quiet").json)
        check_inner(checks, folder)
        check_repro(checks, trace, logs, folder)
        check_local(checks, folder)
        check_diff_inputs(checks, folder)
        check_slice_kept(checks, trace, logs)
        check_fed(checks, folder)
        check_names(checks, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
