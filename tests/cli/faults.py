#!/usr/bin/env python3
"""More recordings, in the folder GDNSIM_EXTRA_DATA: explain names every planted fault of faults/answers.json, and fit finds every
contract of traces/.

faults.py ROOT PROGRAM
"""

import glob
import json
import os
import re
import resource
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from program import Checks, Program  # noqa: E402
from tap import Tap  # noqa: E402

PLACES = ("layer", "row", "block")
# The field of the contract that is another one in the fault set, where it is a matter of arithmetic. A field of a dot: any of it.
FIELDS = {"beta-bf16": "beta", "head-map": "head_map", "state-store-bf16": "state_store", "update-fma": "update", "exp": "exp",
          "dot-order": "state_dot", "qk-eps": "qk_eps", "norm-gate-order": "norm", "params-bf16": "params"}
LIMIT = 60  # seconds for a fit, on two free cores


def is_at(scope, answer):
    """Is the scope where the answer says? What it leaves open is not looked at."""
    if answer["step"] is not None and not scope.get("from_step") == scope.get("to_step") == answer["step"]:
        return False
    return all(answer[place] is None or scope.get(place) == answer[place] for place in PLACES)


def has_no_place(answer):
    return all(answer[place] is None for place in ("step", *PLACES))


def wrong(done, report, answer):
    """What is wrong with an explanation, in words."""
    code, verdict = (0, "match") if answer["id"] is None else (1, "diverged")
    found = report["mechanisms"]
    faults = [] if (done.code, report["verdict"]) == (code, verdict) else [f"exit {done.code}, {report['verdict']}"]
    faults += [f"not asked for: {m['id']}" for m in found if m["id"] != answer["id"]]
    if answer["id"] is None:
        return faults
    at = [is_at(m["scope"], answer) for m in found if m["id"] == answer["id"]]
    if not at or not all(at):
        faults.append(f"{answer['id']}: {at.count(True)} at that place, {at.count(False)} elsewhere")
    if has_no_place(answer) and [m["scope"] for m in found] != [{}]:
        faults.append("holds throughout, so it is one finding without a place")
    element = re.search(r"\belement \d+", answer["say"])
    if element and not any(f"{element[0]}," in m["says"] for m in found):
        faults.append(f"no {element[0]}")
    if any(m["proof"] == "pattern" or not m["says"] or not m["evidence"] for m in found):
        faults.append("not proven")
    return faults


def check_judge(tap):
    """The judge below can say no: another id, another place, a false alarm, a second mechanism."""
    answer = {"id": "wrong-block", "step": 5, "layer": 1, "row": 0, "block": 2, "say": ""}
    scope = {"from_step": 5, "to_step": 5, "layer": 1, "row": 0, "block": 2}
    good = {"id": "wrong-block", "scope": scope, "says": "a", "evidence": "b", "proof": "rerun"}
    done = type("Done", (), {"code": 1})

    def faults(*mechanisms):
        return wrong(done, {"verdict": "diverged", "mechanisms": list(mechanisms)}, answer)

    tap.check(not faults(good), "the right answer is right", faults(good))
    for name, mechanisms in [
        ("no mechanism", []),
        ("another id", [{**good, "id": "wrong-position"}]),
        ("another step", [{**good, "scope": {**scope, "from_step": 4}}]),
        ("another block", [{**good, "scope": {**scope, "block": 3}}]),
        ("an open end", [{**good, "scope": {key: value for key, value in scope.items() if key != "to_step"}}]),
        ("the same elsewhere too", [good, {**good, "scope": {**scope, "row": 1}}]),
        ("one more", [good, {**good, "id": "unexplained", "proof": "pattern"}]),
    ]:
        tap.check(faults(*mechanisms), f"judged wrong: {name}", mechanisms)


def check_faults(checks, folder):
    with open(os.path.join(folder, "answers.json"), encoding="utf-8") as stream:
        answers = json.load(stream)
    checks.tap.check(len(answers) > 0, "there are answers", folder)
    for answer in answers:
        path = os.path.join(folder, answer["file"])
        done = checks.program("explain", path, "--json", "-", "--quiet")
        name = f"{answer['file']}: {answer['id'] or 'match'}"
        if not checks.tap.check(done.code in (0, 1), f"{name}: there is a report", done):
            continue
        report = done.json  # held to its schema
        faults = wrong(done, report, answer)
        checks.tap.check(not faults, name, "\n".join([*faults, json.dumps(report["mechanisms"], indent=1)]))
        if answer["id"] in FIELDS:
            check_fit(checks, path, answer)


def check_fit(checks, path, answer):
    """fit knows the altered contract: the one field, or fields of the one dot."""
    done = checks.program("fit", path, "--json", "-", "--quiet")
    paths = done.json["paths"] if done.code in (0, 1) else []
    changed = {change.split(" = ")[0] for found in paths for change in found["changes"]}
    field = FIELDS[answer["id"]]
    right = done.code == 0 and changed and all(name.split(".")[0] == field for name in changed)
    checks.tap.check(right, f"{answer['file']}: fit finds its {field}", f"{changed}\n{done.err}")


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_traces(checks, folder):
    """Starting from nothing, fit finds the preset: the one of mixed steps where the file's name says so."""
    paths = sorted(glob.glob(os.path.join(folder, "*.h5")))
    checks.tap.check(bool(paths), "there are traces", folder)
    for path in paths:
        name = os.path.basename(path)
        before, begin = processor_seconds(), time.monotonic()
        done = checks.program("fit", path, "--json", "-", "--quiet")
        # What other programs took of a shared machine is not its time: it counts what it used itself, where that is less.
        took = min(time.monotonic() - begin, processor_seconds() - before)
        wanted = "triton-sm90-mixed" if "mixed" in name else "triton-sm90"
        found = [(f["nearest_preset"], f["changes"]) for f in done.json["paths"]] if done.code in (0, 1) else []
        exact = done.code == 0 and done.json["verdict"] == "match"
        checks.tap.check(exact and found == [(wanted, [])], f"{name}: fit finds {wanted}", f"{found}\n{done.err}")
        checks.tap.check(took < LIMIT, f"{name}: in {took:.1f} s", f"expected less than {LIMIT}")


def main():
    tap = Tap()
    checks = Checks(tap, Program(os.path.abspath(sys.argv[2])))
    check_judge(tap)
    extra = os.environ.get("GDNSIM_EXTRA_DATA")
    for name, check in (("faults", check_faults), ("traces", check_traces)):
        folder = os.path.join(extra or "", name)
        if not extra:
            tap.skip(f"recordings in {name}", "GDNSIM_EXTRA_DATA is not set")
        elif not os.path.isdir(folder):
            tap.skip(f"recordings in {name}", f"GDNSIM_EXTRA_DATA has no {name}")
        else:
            check(checks, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
