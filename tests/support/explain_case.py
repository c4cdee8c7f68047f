"""One fault, one trace, one question to `gdnsim explain`: which mechanisms, where.

    cases = Cases(tap, program, folder, keep)
    cases.ask("lost write", path, [Want("write-missing", step=6, layer=1, row=1)])

With `keep` (a folder) the trace of every failing case is copied there, and expected.json lists them.
"""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile

import numpy as np
from program import Program
from tap import Tap
from toy_engine import run_engine
from toy_trace import DEFAULT_TAPS, write_trace

ABSENT = -1


@dataclasses.dataclass
class Want:
    """A mechanism and its scope. A field that is None is not looked at; ABSENT means that it must hold for all."""

    id: str | tuple  # several: the bits cannot tell them apart (the case says why)
    step: int | None = None  # exactly this one
    since: int | None = None  # from this step on: the scope is open, or ends with the trace
    within: tuple | None = None  # (first, last) steps the data allow; the scope lies inside, or names no step
    layer: int | None = None
    row: int | None = None
    block: int | None = None
    head: int | None = None

    def ids(self):
        return (self.id,) if isinstance(self.id, str) else self.id

    def steps_fit(self, scope, steps):
        begin, end = scope.get("from_step", ABSENT), scope.get("to_step", ABSENT)
        if self.step == ABSENT:
            return begin in (ABSENT, 0) and end in (ABSENT, steps - 1)
        if self.step is not None:
            return begin == end == self.step
        if self.since is not None:
            return begin == self.since and end in (ABSENT, steps - 1)
        if self.within is not None:
            return begin == end == ABSENT or self.within[0] <= begin <= end <= self.within[1]
        return True

    def fits(self, mechanism, steps):
        scope = mechanism["scope"]
        places = all(
            want is None or scope.get(name, ABSENT) == want
            for name, want in (("layer", self.layer), ("row", self.row), ("block", self.block), ("head", self.head))
        )
        return mechanism["id"] in self.ids() and places and self.steps_fit(scope, steps)

    def shown(self):
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


def everywhere(name):
    return Want(name, step=ABSENT, layer=ABSENT, row=ABSENT, block=ABSENT, head=ABSENT)


def judge(mechanisms, wants, steps, also=()):
    """What is wrong with an answer; an empty list: nothing. `also`: ids that may stand beside the wanted ones."""
    left, wrong = list(mechanisms), []
    for want in wants:
        found = [m for m in left if want.fits(m, steps)]
        if found:
            left.remove(found[0])
        else:
            wrong.append(f"missing {want.shown()}")
    wrong += [f"not asked for: {m['id']} {m['scope']}" for m in left if m["id"] not in also]
    return wrong


def first_is(**wanted):
    """A check of a report: where the first divergence is."""

    def check(report):
        first = report["first"] or {}
        return [f"first {first}, wanted {wanted}"] if any(first.get(k) != v for k, v in wanted.items()) else []

    return check


def says(*parts):
    """Every part is in the sentence of some mechanism, each part in turn."""

    def check(report):
        sentences = [m["says"] for m in report["mechanisms"]]
        return [f"nobody says {part!r}" for part in parts if not any(part in sentence for sentence in sentences)]

    return check


@dataclasses.dataclass
class Case:
    name: str
    stream: object
    hooks: object = None
    wants: tuple = ()
    snapshots: object = "every"
    taps: tuple = DEFAULT_TAPS
    also: tuple = ()
    change: object = None  # called with (run, stream) after the run
    check: object = None
    code: int = 1
    options: tuple = ()


def row_of(stream, sequence):
    return int(np.argwhere(stream.sequence == sequence)[0, 1])


def block_of(stream, sequence):
    return int(stream.index[stream.sequence == sequence][0])


def unused(stream):
    """A block that no row ever names; every block holds a loaded state of its own."""
    return next(b for b in range(1, stream.model.blocks) if not (stream.index == b).any())


class Cases:
    def __init__(self, tap, program, folder, keep=None):
        self.tap, self.program, self.folder, self.keep = tap, program, folder, keep
        self.kept = []

    def path(self, name):
        return os.path.join(self.folder, name.replace(" ", "-") + ".h5")

    def run(self, name, stream, hooks=None, wants=(), snapshots="every", taps=DEFAULT_TAPS, run=None, **more):
        """Makes the trace of a toy engine (or of a run at hand) and asks."""
        path = write_trace(self.path(name), stream, run or run_engine(stream, hooks), taps, snapshots)
        return self.ask(name, path, wants, stream.shape[0], **more)

    def ask_case(self, case):
        run = run_engine(case.stream, case.hooks)
        if case.change:
            case.change(run, case.stream)
        more = {"also": case.also, "code": case.code, "check": case.check, "options": case.options}
        self.run(case.name, case.stream, None, case.wants, case.snapshots, case.taps, run, **more)

    def clean(self, name, stream, **more):
        return self.run(name, stream, code=0, **{"wants": (), **more})

    def explain(self, path, *options):
        done = self.program("explain", path, "--json", "-", *options)
        try:
            return done, done.json
        except ValueError:
            return done, None  # no report: what it said instead is in `done`

    def ask(self, name, path, wants, steps, also=(), options=(), code=1, check=None):
        """Asserts exit code, verdict and mechanisms; `check(report)` may return more complaints."""
        done, report = self.explain(path, *options)
        wrong = []
        if report is None or done.code != code:
            wrong.append(f"exit {done.code}, wanted {code}: {done.err[-300:]}")
        if report is not None:
            if report["verdict"] != {0: "match", 1: "diverged"}[code]:
                wrong.append(f"verdict {report['verdict']}")
            wrong += judge(report["mechanisms"], wants, steps, also)
            wrong += check(report) if check else []
        said = (
            ""
            if report is None
            else "\n".join(f"said: {m['id']} {m['scope']} {m['says']} [{m['evidence']}]" for m in report["mechanisms"])
        )
        good = self.tap.check(not wrong, name, "\n".join(wrong) + "\n" + said)
        if not good and self.keep:
            self.keep_case(name, path, wants, wrong, options)
        os.remove(path)
        return good

    def keep_case(self, name, path, wants, wrong, options):
        os.makedirs(self.keep, exist_ok=True)
        file = os.path.basename(path)
        shutil.copyfile(path, os.path.join(self.keep, file))
        self.kept.append(
            {"file": file, "name": name, "wants": [w.shown() for w in wants], "options": list(options), "wrong": wrong}
        )
        with open(os.path.join(self.keep, "expected.json"), "w", encoding="utf-8") as stream:
            json.dump(self.kept, stream, indent=1)


def main(questions):
    """A test script: `questions(cases)` gives (name, ask) pairs; ROOT PROGRAM [--keep FOLDER] [--only TEXT]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--keep")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(tap, Program(options.program), folder, options.keep)
        for name, ask in questions(cases):
            if options.only in name:
                ask()
    sys.exit(tap.finish())
