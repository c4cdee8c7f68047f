#!/usr/bin/env python3
"""The page of drift --html in a real browser: it loads cleanly, fetches nothing, and shows the result's numbers.

drift_page.py ROOT PROGRAM
"""

import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import browser  # noqa: E402
import needs_h5py  # noqa: E402, F401
from program import Checks, Program  # noqa: E402
from small_sweep import SWEEP, write_sweep  # noqa: E402
from tap import Tap  # noqa: E402

import h5py  # noqa: E402
import numpy as np  # noqa: E402

from drift_file import write_drift_file  # noqa: E402

DATA = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.S)
CURVES = """(() => [...document.querySelectorAll("path.curve")].map(e => [Number(e.dataset.cell), e.getAttribute("d").split("L").length,
  Number(e.getAttribute("d").split(" ").pop())]))()"""
ENDS = """(() => Object.fromEntries([...document.querySelectorAll("#curves [data-end]")].map(e => [e.dataset.cell, e.dataset.end])))()"""
REGIMES = """(() => [...document.querySelectorAll("#regimes td")].map(e => [e.dataset.class, Number(e.dataset.level)]))()"""
HEAT = """(() => [...document.querySelectorAll("#heat svg")].map(e => [Number(e.dataset.rows), e.querySelectorAll("rect").length,
  new Set([...e.querySelectorAll("rect")].map(r => r.getAttribute("fill"))).size]))()"""
CHOOSE = """(name => { const s = document.getElementById("quantity"); s.value = name; s.dispatchEvent(new Event("change")); return s.value; })"""


def medians(path, quantity):
    """The last point of each cell, over seeds and layers."""
    with h5py.File(path) as file:
        return np.median(file["curves"][quantity][..., -1].astype(float), axis=(1, 2))


def near(text, value):
    return abs(float(text) - value) <= 1e-3 * abs(value)


def check_numbers(tap, page, path, quantity):
    ends, wanted = page.value(ENDS), medians(path, quantity)
    tap.check(
        len(ends) == len(wanted) and all(near(ends[str(i)], value) for i, value in enumerate(wanted)),
        f"{quantity}: the curves end where the result's medians do",
        f"{ends}\n{wanted}",
    )


def check_made_up(tap, chrome, folder, program):
    """Known shapes: a plateau, a root, a line and nothing."""
    path, html = write_drift_file(os.path.join(folder, "made.h5"), steps=1200), os.path.join(folder, "made.html")
    done = program("drift", path, "--html", html)
    tap.check(done.code == 0, "a page from a result", done)
    page = chrome.open("file://" + html)
    tap.check(page.errors == [], "no error on the console", page.errors)
    tap.check(page.requests == ["file://" + html], "nothing was fetched but the page", page.requests)
    tap.check("made up </script><b>" in page.value("document.querySelector('header').textContent"), "the sweep's note is text, whatever it holds")
    curves = page.value(CURVES)
    tap.check([c[0] for c in curves] == [0, 1, 2] and all(50 < c[1] <= 160 for c in curves), "three curves, and none for the cell without a difference", curves)
    # Heights count from the top: 1.2e-2, 9e-3 and 3.5e-3.
    tap.check(curves[2][2] < curves[0][2] < curves[1][2], "the line ends above the plateau, and that above the root", curves)
    tap.check(page.value("document.querySelectorAll('path.band').length") == 3, "each with its band")
    check_numbers(tap, page, path, "state_relative")
    tap.check([r[0] for r in page.value(REGIMES)] == ["plateau", "power", "linear", "none"], "the regime map names the growth", page.value(REGIMES))
    heat = page.value(HEAT)
    tap.check(len(heat) == 4 and all(h[0] == 2 and h[1] >= 60 for h in heat), "a heat map for each cell, a row for each layer", heat)
    tap.check(heat[0][2] > 10 and heat[3][2] == 1, "in many colours, and in one where nothing differs", heat)
    tap.check(page.value(CHOOSE + "('norm_relative')") == "norm_relative", "another quantity is chosen")
    check_numbers(tap, page, path, "norm_relative")
    page.emulate(prefers_color_scheme="dark")
    tap.check(page.errors == [], "still no error", page.errors)


def check_real(tap, chrome, folder, program):
    """A sweep that was run."""
    path, result, html = (os.path.join(folder, name) for name in ("s.json", "s.h5", "s.html"))
    done = program("drift", write_sweep(path, note="what it is for"), "-o", result, "--html", html)
    tap.check(done.code == 0, "a sweep with its page", done)
    page = chrome.open("file://" + html)
    tap.check(page.errors == [], "a real sweep: no error on the console", page.errors)
    tap.check("what it is for" in page.value("document.querySelector('header').textContent"), "a real sweep: its note is on the page")
    check_numbers(tap, page, result, "state_relative")
    with open(html, encoding="utf-8") as stream:
        data = json.loads(DATA.search(stream.read()).group(1))
    again = os.path.join(folder, "again.html")
    program("drift", result, "--html", again)
    with open(html, "rb") as one, open(again, "rb") as two:
        tap.check(one.read() == two.read(), "the page of the sweep and of its result are the same")
    tap.check(data["steps"] == list(range(3, SWEEP["steps"], 4)), "every measured step", data["steps"])


def main():
    program = Program(sys.argv[2])
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        path = write_drift_file(os.path.join(folder, "x.h5"))
        Checks(tap, program).refused("a page over the result", ["drift", path, "--html", path, "--force"], "--html")
        if browser.find() is None:
            tap.skip("the page of drift in a browser", "no Chromium is installed")
            return tap.finish()
        with browser.Browser(browser.find()) as chrome:
            check_made_up(tap, chrome, folder, program)
            check_real(tap, chrome, folder, program)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
