#!/usr/bin/env python3
"""Damaged files: each gives an error or a right answer, in seconds and within plausible memory; verify finds every flip that it covers.

    flips.py ROOT PROGRAM READER COUNT [SEED]

COUNT copies of small traces and logs, cut or with bits flipped, through READER (tests/fuzz/read_many), and each 20th through the
program's own commands. What is right, by the place of the flips:

    log, covered data      never whole: a fault, or refused          trace, data          any answer: the data is another
    elsewhere              refused, or the values of the whole file (a gap, provenance)
"""

import bisect
import collections
import os
import random
import select
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "fuzz")]
from program import Program, read_bytes  # noqa: E402
from tap import Tap  # noqa: E402

import seeds  # noqa: E402

if seeds.has_h5py():
    import h5py

HANG = 5  # seconds
Answer = collections.namedtuple("Answer", "reception steps text")


class Reader:
    """read_many as a partner that is started again when it dies."""

    def __init__(self, path):
        self.path, self.running = path, None

    def start(self):
        self.running = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, encoding="latin-1")

    def ask(self, name, limit):
        """The answer; reception "crash" or "hang" when there is none."""
        if self.running is None:
            self.start()
        self.running.stdin.write(name + "\n")
        self.running.stdin.flush()
        ready = select.select([self.running.stdout], [], [], limit)[0]
        line = self.running.stdout.readline() if ready else ""
        if line.endswith("\n"):
            return Answer(*line[:-1].split("\t", 2))
        self.running.kill()
        _, said = self.running.communicate()
        what = Answer("crash" if ready else "hang", -1, f"exit {self.running.returncode}: {said[-300:]}")
        self.running = None
        return what

    def stop(self):
        if self.running:
            self.running.stdin.close()
            self.running.wait()


class Sample:
    """A whole file: its bytes, what reading it gives, and where its data lies."""

    def __init__(self, path, reader):
        self.name, self.bytes = os.path.basename(path), read_bytes(path)
        self.is_log, self.answer = self.name.startswith("log"), reader.ask(path, 60)
        self.starts, self.ends = [], []
        # HDF5's older headers carry no checksum: a flip there may name other values.
        self.sealed = self.is_log or self.name in ("trace.h5", "trace-inputs.h5")
        with h5py.File(path, "r") as file:
            places, self.declared = [], file["commit"].shape[0] if self.is_log else 0
            file.visititems(lambda name, item: self.add(places, name, item))
        for start, end in sorted(places):
            self.starts.append(start)
            self.ends.append(end)

    def add(self, places, name, item):
        data = ("events/before", "events/after", "out/", "state/recurrent", "state/conv", "digest/", "commit", "checkpoint/recurrent", "checkpoint/conv")
        if not isinstance(item, h5py.Dataset) or item.id.get_offset() is None or self.is_log and not name.startswith(data):
            return
        entries = item.shape[0] if item.shape else 1
        # Data of a step without a record is not covered; the place of its record is.
        count = entries * int(self.answer.steps) // self.declared if self.is_log and name != "commit" else entries
        size = item.id.get_storage_size() * count // max(1, entries)
        if size:
            places.append((item.id.get_offset(), item.id.get_offset() + size))

    def in_data(self, at):
        found = bisect.bisect_right(self.starts, at) - 1
        return found >= 0 and at < self.ends[found]

    def damaged(self, chance):
        """(bytes, words, places of the flips or None for a cut)"""
        if chance.random() < 0.2:
            end = chance.randrange(len(self.bytes))
            return self.bytes[:end], f"cut to {end} of {len(self.bytes)}", None
        count = chance.choice((1, 1, 1, 2, 8, 64))
        # Half of them close together, which is what a bad sector or a lost write looks like.
        start = chance.randrange(len(self.bytes)) if chance.random() < 0.5 else None
        data, places = bytearray(self.bytes), set()
        if self.is_log and chance.random() < 0.6:  # its data is a small part of it
            which = chance.randrange(len(self.starts))
            start = chance.randrange(self.starts[which], self.ends[which])
            count = min(count, 2)
        for _ in range(count):
            near = chance.randrange(256) if count > 1 else 0
            at = chance.randrange(len(data)) if start is None else min(len(data) - 1, start + near)
            bit = 1 << chance.randrange(8)
            data[at] ^= bit
            places.symmetric_difference_update({(at, bit)})
        return bytes(data), f"bits flipped at {sorted(places)[:8]}", sorted({at for at, _ in places})

    def mistake(self, answer, places):
        """What is wrong with the answer, or nothing."""
        if answer.reception in ("crash", "hang", "untidy"):
            return answer.reception
        if answer.reception == "refused":
            return ""
        same = answer.text == self.answer.text and answer.reception == self.answer.reception
        if places is None:
            return "" if same and not self.is_log else "a cut file was read"
        inside = any(map(self.in_data, places))
        if self.is_log and inside:
            return "" if answer.reception == "faulty" else "covered data changed, and no fault"
        return "" if inside or same or not self.sealed else "other values, though no data was changed"


def by_program(program, path):
    """What the program's own commands make of it, or nothing when that is in order."""
    wrong = []
    for command in ("info", "verify", "replay"):
        try:
            done = program(command, path, timeout=60)
        except subprocess.TimeoutExpired:
            wrong.append(f"{command}: hangs")
            continue
        except UnicodeDecodeError as text:
            wrong.append(f"{command}: says what is no text: {text.object!r}")
            continue
        lines = done.err.splitlines()
        # A report is whole, or there is one line that says why not.
        tidy = done.code in (0, 1) or done.code == 2 and ("verdict: " in done.out or len(lines) == 1 and lines[0].startswith("gdnsim: "))
        if not tidy or "internal error" in done.err:
            wrong.append(f"{command}: {done}")
    return "\n".join(wrong)


def sweep(samples, reader, program, folder, count, seed):
    """Mistakes as text, and how often each answer was given."""
    chance, path, wrong, counts = random.Random(seed), os.path.join(folder, "damaged.h5"), [], collections.Counter()
    for n in range(count):
        sample = samples[n % len(samples)]
        data, words, places = sample.damaged(chance)
        if data == sample.bytes:
            continue
        with open(path, "wb") as stream:
            stream.write(data)
        answer = reader.ask(path, HANG)
        inside = sample.is_log and places is not None and any(map(sample.in_data, places))
        counts["log, covered data" if inside else "log, elsewhere" if sample.is_log else "trace", answer.reception] += 1
        mistake = sample.mistake(answer, places)
        if not mistake and n % 20 == 0:
            mistake = by_program(program, path)
        if mistake:
            wrong.append(f"{sample.name}, {words}: {mistake}: {answer}")
            keep = os.environ.get("GDNSIM_KEEP")
            if keep:
                with open(os.path.join(keep, f"{n}-{sample.name}"), "wb") as stream:
                    stream.write(data)
    return wrong, counts


def main():
    tap, program, count = Tap(), Program(sys.argv[2]), int(sys.argv[4])
    if not seeds.has_h5py():
        tap.skip("damaged files", "python3-h5py is not installed")
        return tap.finish()
    reader = Reader(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        seeds.write(program.path, os.path.join(folder, "whole"))
        paths = sorted(os.path.join(folder, "whole", name) for name in os.listdir(os.path.join(folder, "whole")) if name.endswith(".h5"))
        samples = [Sample(path, reader) for path in paths]
        received = {sample.name: sample.answer.reception for sample in samples}
        tap.check(all(got == ("incomplete" if "incomplete" in name else "whole") for name, got in received.items()),
                  f"{len(samples)} whole files are read", received)
        wrong, counts = sweep(samples, reader, program, folder, count, int(sys.argv[5]) if len(sys.argv) > 5 else 1)
        told = ", ".join(f"{kind}: {reception} {n}" for (kind, reception), n in sorted(counts.items()))
        tap.check(not wrong, f"{sum(counts.values())} damaged files: {told}", f"{len(wrong)} mistakes\n" + "\n".join(wrong[:20]))
        found = counts["log, covered data", "faulty"] + counts["log, covered data", "refused"]
        tap.check(found > count // 20, "many flips fell into covered data of logs, and were found", counts)
        seeds.found_before(os.path.join(folder, "known"))  # files that once took a reader down
        known = sorted(os.listdir(os.path.join(folder, "known")))
        tap.check(len(known) >= seeds.FOUND, f"{len(known)} files that were found before are there", known)
        for name in known:
            mistake = by_program(program, os.path.join(folder, "known", name))
            tap.check(not mistake, f"found before: {name}", mistake)
    reader.stop()
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
