#!/usr/bin/env python3
"""The page of --html in a real browser: it loads cleanly, fetches nothing, shows the report's numbers and runs no one's text.

html_report.py ROOT PROGRAM
"""

import json
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import browser  # noqa: E402
from program import Checks, Program, contents, write_contract, write_recipe  # noqa: E402
from tap import Tap  # noqa: E402

DATA = re.compile(r'(<script type="application/json" id="report">)(.*?)(</script>)', re.S)
NUMBERS = """(() => {
  const box = document.getElementById("cell"), read = key => [...box.querySelectorAll("[data-" + key + "]")];
  return {title: box.querySelector("strong")?.textContent,
    sums: Object.fromEntries(read("key").map(e => [e.dataset.key, Number(e.dataset.value)])),
    taps: Object.fromEntries(read("tap").map(e => [e.dataset.tap, Number(e.dataset.value)])), text: box.textContent};
})()"""
FOCUS = "(({layer, step}) => [Number(layer), Number(step)])(document.activeElement.dataset)"
# Some steps differ under these, some do not.
CHANGES = {"state_dot.order": "swapped", "state_dot.lane": "2", "name": "wrong"}
# Texts that would run, end the script they stand in, or load something, if the page took them for markup.
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<!--<script>alert(3)//",
    '"><svg onload=alert(4)>',
    "<link rel=stylesheet href=http://127.0.0.1:9/x>",
]


def cells_of(report, mode="carried"):
    """{(layer, step): (compared, differing, max_ulp, taps)} from the JSON."""
    cells = {}
    for layer in report["modes"][mode]["cells"]["layers"]:
        step = layer["first_step"]
        for compared, times in layer["compared"]:
            for _ in range(times):
                cells[layer["layer"], step] = (compared, 0, 0, {})
                step += layer["steps_per_cell"]
    for layer, step, differing, max_ulp, taps in report["modes"][mode]["cells"]["differing"]:
        cells[layer, step] = (cells[layer, step][0], differing, max_ulp, taps)
    return cells


def cell_selector(layer, step):
    return f"#map [data-layer='{layer}'][data-step='{step}']"


def check_cell(tap, page, name, wanted):
    shown = page.value(NUMBERS)
    compared, differing, max_ulp, taps = wanted
    sums = {"compared": compared, "differing": differing, **({"max_ulp": max_ulp} if differing else {})}
    tap.check(shown["sums"] == sums and shown["taps"] == taps, name, f"{shown}\nwanted {sums} {taps}")
    digits = shown["text"].replace(",", "")
    tap.check(str(compared) in digits and str(differing) in digits, f"{name}: in digits too", shown["text"])


def check_clean(tap, page, address, name):
    tap.check(page.errors == [], f"{name}: no error on the console", page.errors)
    tap.check(page.requests == [address], f"{name}: nothing was fetched but the page", page.requests)


def check_clicks(tap, page, report):
    """A real click on a cell shows that cell's numbers: one that differs in one layer, and one that does not in another."""
    cells = cells_of(report)
    places = [next(place for place in sorted(cells, reverse=True) if cells[place][1] > 0)]
    places.append(next(place for place in sorted(cells) if cells[place][1] == 0 and cells[place][0] > 0))
    tap.check(places[0] != places[1], "there are cells to choose from", cells)
    for layer, step in places:
        page.click(cell_selector(layer, step))
        check_cell(tap, page, f"click on layer {layer}, step {step}", cells[layer, step])
        title = page.value(NUMBERS)["title"]
        tap.check(f"layer {layer} " in title and title.endswith(f"step {step}"), "the cell is named", title)
    page.click("input[value=local]")
    layer, step = places[0]
    page.click(cell_selector(layer, step))
    check_cell(tap, page, "local cells have numbers of their own", cells_of(report, "local")[layer, step])
    page.click("input[value=carried]")


def check_keyboard(tap, page, report):
    cells = cells_of(report)
    layer, step = min((place for place in cells), key=lambda place: (place[1], place[0]))
    page.click(cell_selector(layer, step))
    for key, move in (("ArrowRight", (0, 1)), ("ArrowDown", (1, 0)), ("ArrowLeft", (0, -1)), ("ArrowRight", (0, 1))):
        page.key(key)
        layer, step = layer + move[0], step + move[1]
        tap.check(page.value(FOCUS) == [layer, step], f"{key} moves to layer {layer}, step {step}", page.value(FOCUS))
    page.key("Enter")
    check_cell(tap, page, "Enter shows the focused cell", cells[layer, step])
    outline = page.value("getComputedStyle(document.activeElement).outlineStyle")
    tap.check(outline != "none", "the focus is visible", outline)
    page.key("End")
    last = max(place[1] for place in cells)
    tap.check(page.value(FOCUS) == [layer, last], "End goes to the last step", page.value(FOCUS))
    page.value("document.activeElement.blur(), document.body.focus()")
    reached = set()
    for _ in range(12):
        page.key("Tab")
        reached.add(page.value("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
    tap.check({"gridcell", "INPUT"} <= reached, "Tab reaches the map and the choice of comparison", reached)


def check_roles(tap, page, report):
    cells = page.value("document.querySelectorAll('#map[role=grid] > [role=row] > [role=gridcell][aria-label]').length")
    tap.check(cells == len(cells_of(report)), "every cell has its role and its label", cells)
    labelled = page.value("document.querySelector('#map').getAttribute('aria-label') && document.documentElement.lang")
    tap.check(labelled == "en", "the map has a name and the page a language", labelled)
    label = page.value(f"document.querySelector({json.dumps(cell_selector(0, 0))}).ariaLabel")
    tap.check(label.startswith("layer 0, step 0: "), "a label says where and how much", label)


def check_text(tap, page, report):
    text = page.value("document.body.innerText")
    first = report["first"]
    wanted = [first["got_hex"], first["want_hex"], f"tap {first['tap']}", f"step {first['step']}", report["repro"], report["next"]]
    wanted += [value["hex"] for value in first["inner"] if "hex" in value] + first["near"]["got"]
    missing = [word for word in wanted if word not in text]
    tap.check(not missing, "the first divergence, its neighbours, inner values and commands are there", f"{missing}\n{text}")
    tap.check(page.value("document.getElementById('verdict').textContent") == "diverged", "and the verdict")


def luminance(colour):
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def check_dark(tap, page):
    """Dark where the reader asks for it, and text stays readable: contrast 4.5 to 1 at least."""
    colours = """[...document.querySelectorAll("body, .soft, tr.differs td, .diverged, dl.pairs dt, #cell dt, button, code")]
      .map(e => [getComputedStyle(e).color, (function up(n) { const c = getComputedStyle(n).backgroundColor;
        return c === "rgba(0, 0, 0, 0)" ? up(n.parentElement) : c; })(e)])"""
    backs = {}
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        backs[scheme] = luminance(page.value("getComputedStyle(document.body).backgroundColor"))
        pairs = [sorted((luminance(text), luminance(back))) for text, back in page.value(colours)]
        worst = min((high + 0.05) / (low + 0.05) for low, high in pairs)
        tap.check(worst >= 4.5, f"{scheme}: text has contrast", worst)
    tap.check(backs["light"] > 0.8 and backs["dark"] < 0.1, "the page is dark where dark is asked for", backs)


def with_report(page_text, report):
    """The program's page with another report in it."""
    text = json.dumps(report).replace("<", "\\u003c")
    return DATA.sub(lambda match: match[1] + text + match[3], page_text)


def big(report):
    """36 layers x 4096 steps, every 7th cell differing."""
    layers = [
        {"layer": i, "layer_id": i, "first_step": 0, "steps_per_cell": 1, "compared": [[1000, 4096]]} for i in range(36)
    ]
    differing = [[i, step, 1 + step % 5, 3, {"core_out": 1 + step % 5}] for i in range(36) for step in range(0, 4096, 7)]
    mode = {**report["modes"]["carried"], "cells": {"layers": layers, "differing": differing}}
    return {**report, "first": None, "modes": {"carried": mode, "local": {**mode, "done": False}}}


def check_big(tap, chrome, page_text, report, folder):
    path = os.path.join(folder, "big.html")
    large = big(report)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(with_report(page_text, large))
    page = chrome.open("file://" + path)
    check_clean(tap, page, "file://" + path, "36 x 4096")
    count = page.value("document.querySelectorAll('#map [role=gridcell]').length")
    tap.check(count == 36 * 128, "36 x 4096 steps are 36 x 128 cells of 32 steps", count)
    took = page.value("performance.getEntriesByType('navigation')[0].loadEventEnd")
    tap.check(took < 10000, "and load in time", f"{took} ms")
    page.click(cell_selector(20, 64))
    differ = {step: 1 + step % 5 for step in range(0, 4096, 7)}
    total = sum(differ.get(step, 0) for step in range(64, 96))
    check_cell(tap, page, "a cell of many steps shows their sum", (32000, total, 3, {"core_out": total}))
    page.click("#zoom")
    count = page.value("document.querySelectorAll('#map [role=gridcell]').length")
    tap.check(count == 36 * 32, "and opens into its steps", count)
    page.click(cell_selector(20, 70))
    check_cell(tap, page, "one by one", (1000, differ[70], 3, {"core_out": differ[70]}))
    page.key("Escape")
    tap.check(page.value("document.querySelectorAll('#map [role=gridcell]').length") == 36 * 128, "Escape goes back")


def hostile(report):
    """The report with hostile texts wherever a text comes from a file or from an option."""
    texts = iter(HOSTILE * 4)
    mechanism = {"id": next(texts), "scope": {}, "says": next(texts), "evidence": next(texts), "proof": "rerun"}
    return {
        **report,
        "files": [next(texts)],
        "subject": next(texts),
        "backend": next(texts),
        "contract": {**report["contract"], "name": next(texts), "chosen_by": next(texts)},
        "notes": HOSTILE,
        "repro": next(texts),
        "next": next(texts),
        "mechanisms": [mechanism],
        "tried": HOSTILE,
    }


def check_hostile(tap, chrome, checks, trace, wrong, page_text, report, folder):
    """A file's own name and a contract's name, through the program; every other text, through the page's data."""
    name = "<img src=x onerror=alert(5)> <script>alert(6)<!--.h5"  # as near to </script> as a file's name can be
    os.symlink(trace, os.path.join(folder, name))
    out = os.path.join(folder, "hostile.html")
    done = checks.program("replay", name, "--contract", wrong, "--html", out, "--quiet", cwd=folder)
    tap.check(done.code == 1, "a trace with a hostile name", done)
    with open(out, encoding="utf-8") as stream:
        data = DATA.search(stream.read())[2]
    tap.check("<" not in data and json.loads(data)["files"] == [name], "its name is in the data, without markup", data[:300])
    every = os.path.join(folder, "every.html")
    with open(every, "w", encoding="utf-8") as stream:
        stream.write(with_report(page_text, hostile(report)))
    for path, words in ((out, [name]), (every, HOSTILE)):
        page = chrome.open("file://" + path)
        check_clean(tap, page, "file://" + path, os.path.basename(path))
        text = page.value("document.body.innerText")
        tap.check(all(word in text for word in words), "hostile texts are shown as they are", text)
        made = page.value("document.querySelectorAll('#page img, #page script, #page svg, #page link').length")
        tap.check(made == 0, "and made no element", made)
    page = chrome.open("file://" + every)
    page.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=document.title=1>')")
    page.value("(() => { const s = document.createElement('script'); s.textContent = 'document.title = 2';"
               " document.body.append(s); })()")
    tap.check(page.value("document.title") not in ("1", "2"), "even markup in the page could not run", page.value("document.title"))
    tap.check(page.errors, "and the console says so (so that an error would have been seen above)")


def check_files(checks, trace, wrong, folder):
    """--html never overwrites, never goes where another file of the command is."""
    out = os.path.join(folder, "report.html")
    replay = ["replay", trace, "--contract", wrong, "--quiet"]
    checks.ends("replay --html", [*replay, "--html", out], 1, "diverged")
    before = contents(folder)
    checks.refused("a second time", [*replay, "--html", out], "exists already")
    checks.refused("over the trace", [*replay, "--html", trace, "--force"], "another file")
    checks.refused("and the JSON in one file", [*replay, "--html", out, "--json", out, "--force"], "another file")
    checks.refused("to stdout", [*replay, "--html", "-"], "expected a file")
    checks.refused("in no folder", [*replay, "--html", os.path.join(folder, "none", "x.html")], "no folder")
    checks.tap.check(contents(folder) == before, "nothing was written meanwhile")
    checks.ends("--force", [*replay, "--html", out, "--force"], 1, "diverged")
    checks.tap.check(contents(folder) == before, "the same page again, byte for byte")
    with open(out, encoding="utf-8") as stream:
        return out, stream.read()


def check_page(tap, chrome, path, report):
    page = chrome.open("file://" + path)
    check_roles(tap, page, report)
    check_text(tap, page, report)
    check_clicks(tap, page, report)
    check_keyboard(tap, page, report)
    check_dark(tap, page)
    check_clean(tap, page, "file://" + path, "after all of it")


def check_others(tap, chrome, checks, trace, logs, folder):
    """A match, and a diff."""
    for name, words, code in (("match", ["replay", trace], 0), ("diff", ["diff", *logs], 1)):
        path = os.path.join(folder, name + ".html")
        done = checks.program(*words, "--html", path, "--json", "-", "--quiet")
        page = chrome.open("file://" + path)
        verdict = page.value("document.getElementById('verdict').textContent")
        tap.check(done.code == code and verdict == done.json["verdict"], f"{name}: {verdict}", done)
        check_clean(tap, page, "file://" + path, name)


def main():
    tap = Tap()
    checks = Checks(tap, Program(os.path.abspath(sys.argv[2])))
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(os.path.join(folder, "recipe.json"), steps=12)
        trace = os.path.join(folder, "trace.h5")
        checks.does("a trace", ["synth", recipe, "-o", trace, "--record", "--snapshots", "3"])
        wrong = write_contract(checks.program, os.path.join(folder, "wrong"), CHANGES)
        logs = [os.path.join(folder, f"{name}.log.h5") for name in ("golden", "wrong")]
        for log, contract in zip(logs, ("golden", wrong)):
            checks.does("a log", ["run", recipe, "-o", log, "--contract", contract, "--quiet"])
        path, page_text = check_files(checks, trace, wrong, folder)
        report = json.loads(DATA.search(page_text)[2])
        again = checks.program("replay", trace, "--contract", wrong, "--json", "-", "--quiet").json
        tap.check(report == again, "the page holds the very report of --json")
        if browser.find() is None:
            tap.skip("the page in a browser", "chromium is not installed")
            return tap.finish()
        with browser.Browser(browser.find()) as chrome:
            check_page(tap, chrome, path, report)
            check_others(tap, chrome, checks, trace, logs, folder)
            check_big(tap, chrome, page_text, report, folder)
            check_hostile(tap, chrome, checks, trace, wrong, page_text, report, folder)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
