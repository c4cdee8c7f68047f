#!/usr/bin/env python3
"""Turns the report's page into a C++ string, and lets it run its own script and no other.

The page's policy names the SHA-256 of its script in place of SCRIPT_HASH, so that nothing that gets into the page by way of
a file's texts can run.

embed_page.py PAGE OUTPUT
"""

import base64
import hashlib
import re
import sys

LONGEST = 60000  # compilers need not take longer literals


def with_hash(page):
    script = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(script) == 1, "the page has one script of its own"
    assert page.count("SCRIPT_HASH") == 1 and page.count("REPORT_JSON") == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    return page.replace("SCRIPT_HASH", "sha256-" + digest)


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as stream:
        page = with_hash(stream.read())
    assert ')page"' not in page
    pieces = [page[at : at + LONGEST] for at in range(0, len(page), LONGEST)]
    with open(sys.argv[2], "w", encoding="utf-8", newline="") as stream:
        for piece in pieces:
            stream.write(f'R"page({piece})page"\n')


if __name__ == "__main__":
    main()
