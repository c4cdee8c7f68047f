#!/usr/bin/env python3
"""docs/mechanisms.md has every id that explain can say, and no other; and its table of fields is the program's.

check_mechanisms.py ROOT
"""

import glob
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

ROOT = sys.argv[1]
NOT_IDS = {"gate-first"}  # values of contract fields that look like ids
ONE_WORD = {"unexplained"}  # ids without a dash that stand outside the table of fields


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as stream:
        return stream.read()


def ids_of_source(texts):
    """Ids are the quoted words with dashes in src/explain, and the right side of its table {field, id}."""
    found = set(ONE_WORD)
    for text in texts:
        found |= set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)+)"', text))
    return found - NOT_IDS | set(fields_of_source(texts).values())


def fields_of_source(texts):
    """{field: id} from the table `ids` of explain/rounding.cpp."""
    for text in texts:
        table = re.search(r"\bids\(\) \{(.*?)\};", text, re.S)
        if table:
            return dict(re.findall(r'\{"(\w+)",\s*"([\w-]+)"\}', table[1]))
    return {}


def rows_of_page(page):
    """(ids of the first column, last column) of each table row that starts with an id."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| `") else []
        if cells:
            yield re.findall(r"`([a-z0-9-]+)`", cells[0]), cells[-1].rstrip(" |")


def ids_of_page(page):
    """Ids in tables before `How the search goes`, and those that a paragraph starts with."""
    page = page.split("\n## How the search goes")[0]
    found = {name for names, _ in rows_of_page(page) for name in names}
    return found | set(re.findall(r"^`([a-z-]+)` \(a pattern\)", page, re.M))


def wrong_fields(page, fields):
    """Fields whose id's row does not name them."""
    named = {}
    for names, last in rows_of_page(page.split("\n## States and blocks")[0]):
        for name in names:
            named[name] = set(re.findall(r"\w+", last))
    return [f"{field}: {name}" for field, name in sorted(fields.items()) if field not in named.get(name, ())]


def main():
    tap = Tap()
    texts = [read(path) for path in sorted(glob.glob(os.path.join(ROOT, "src", "explain", "*.cpp")))]
    page, fields = read("docs", "mechanisms.md"), fields_of_source(texts)
    said, written = ids_of_source(texts), ids_of_page(page)
    tap.check(len(said) > 30 and len(fields) > 15, "the ids are found", f"{said}\n{fields}")
    tap.check(said <= written, "every id is on the page", sorted(said - written))
    tap.check(written <= said, "and no other is", sorted(written - said))
    tap.check(not wrong_fields(page, fields), "fields are with their ids", wrong_fields(page, fields))
    shorter = page.replace("`write-missing`", "`write-lost`")
    tap.check(ids_of_page(shorter) ^ written == {"write-missing", "write-lost"}, "a renamed one would be seen")
    moved = page.replace("| conv_taps |", "| conv |")
    tap.check(wrong_fields(moved, fields) == ["conv_taps: conv-taps"], "so would a field in the wrong row", wrong_fields(moved, fields))
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
