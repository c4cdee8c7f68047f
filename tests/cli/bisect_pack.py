"""bisect and pack: logs that part, a user's own test with a session, bundles that replay."""

import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

root, program = sys.argv[1:3]
tap = Tap()


def run(*args, code=None):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    if code is not None:
        tap.check(done.returncode == code, f"exit {code}: gdnsim {' '.join(map(str, args[:3]))}", done.stdout + done.stderr)
    return done


def read_json(*args, code=None):
    return json.loads(run(*args, "--json", "-", "--quiet", code=code).stdout or "null")


with tempfile.TemporaryDirectory() as folder:
    path = lambda name: os.path.join(folder, name)  # noqa: E731
    recipe = os.path.join(root, "traces", "recipes", "small_k64.json")

    # Two contracts: they part in the first step; each agrees with a fresh run of its own.
    for name, contract in (("a", "golden"), ("b", "triton-sm90")):
        run("run", recipe, "-o", path(name), "--contract", contract, "--state", "digest", "--checkpoint", "every:4",
            "--quiet", code=0)
    found = read_json("bisect", path("a"), path("b"), code=1)
    tap.check(found["verdict"] == "diverged" and found["first"]["step"] == 0, "other contracts part in step 0", found)
    tap.check([r["first"] for r in found["recomputed"]] == [None, None], "each log agrees with a run of its own", found)
    same = read_json("bisect", path("a"), path("a"), code=0)
    tap.check(same["first"] is None and same["layer_steps_run"] == 0, "a log and itself: nothing parts, nothing is run", same)
    alone = read_json("bisect", path("a"), code=0)
    tap.check(alone["layer_steps_run"] == alone["layer_steps_all"], "a whole log is proven by recomputing all of it", alone)
    other = read_json("bisect", path("a"), "--contract", "triton-sm90", code=1)
    tap.check(other["layer_steps_run"] < other["layer_steps_all"], "a log that differs is not run to its end", other)

    # What says nothing in this kind of search is refused, in one line that names it.
    def refused(name, words, *args):
        done = run(*args, code=2)
        right = done.stdout == "" and done.stderr.count("\n") == 1 and all(word in done.stderr for word in words)
        tap.check(right, name, done.stdout + done.stderr)

    whole = os.path.join(root, "traces", "h200_tp4_f32.h5")
    refused("--session without --check", ["--session", "--check"], "bisect", path("a"), "--session", path("s.json"))
    refused("--contract of two files", ["--contract"], "bisect", path("a"), path("b"), "--contract", "golden")
    refused("--check takes no --trace", ["--check", "--trace"], "bisect", path("a"), "--check", "true", "--trace", whole)
    refused("--trace of a recipe's log", ["--trace", path("a")], "bisect", path("a"), "--trace", whole)
    refused("--trace of two recipes' logs", ["--trace", path("a")], "bisect", path("a"), path("b"), "--trace", whole)
    refused("--trace of a trace", ["--trace", whole], "bisect", whole, "--trace", path("a"))
    refused("other models", [path("a"), whole, "num_k_heads"], "bisect", path("a"), whole)
    tap.check("diff" not in run("bisect", path("a"), whole).stderr, "and nobody speaks of a diff that was not asked for")

    # A test of one's own.
    sample = os.path.join(root, "traces", "h200_k64_3layers.h5")
    check = f"echo {{step}} >> {path('asked')}; test {{step}} -lt 10"
    found = read_json("bisect", sample, "--check", check, "--session", path("session"), code=1)
    asked = open(path("asked")).read().split()
    tap.check(found["first_bad"] == 10 and found["last_good"] == 9, "the first bad step", found)
    tap.check(len(asked) <= 6 and len(set(asked)) == len(asked), "log2(16) questions and one", asked)
    again = read_json("bisect", sample, "--check", check, "--session", path("session"), code=1)
    tap.check(again["first_bad"] == 10 and again["asked"] == 0, "the session knows every answer", again)
    run("bisect", sample, "--check", "true", "--session", path("session"), code=2)  # another search's session
    run("bisect", sample, "--check", "true", code=0)
    run("bisect", sample, "--check", "exit 125", code=2)
    run("bisect", sample, "--check", "exit 130", code=2)
    run("bisect", sample, "--check", "kill -9 $$", code=2)
    run("bisect", sample, "--check", "no-such-command-here", code=2)

    # Bundles.
    whole = read_json("replay", sample, "--contract", "golden", code=1)
    run("pack", sample, "-o", path("bundle"), "--contract", "golden", "--quiet", code=0)
    bundle = read_json("replay", path("bundle"), code=1)
    tap.check(bundle["contract"]["chosen_by"] == "the bundle says so", "a bundle carries its contract", bundle["contract"])
    keep = ("tap", "row", "block", "head", "element", "got_hex", "want_hex", "layer_id")
    tap.check([bundle["first"].get(k) for k in keep] == [whole["first"].get(k) for k in keep],
              "the same first divergence", (bundle["first"], whole["first"]))
    tap.check(os.path.getsize(path("bundle")) < os.path.getsize(sample) / 4, "and small", os.path.getsize(path("bundle")))
    run("pack", sample, "-o", path("none"), code=2)  # nothing to show
    tap.check(not os.path.exists(path("none")), "and nothing written")
    run("pack", sample, "-o", path("part"), "--layers", "1-2", "--steps", "5:13", "--quiet", code=0)
    part = read_json("replay", path("part"), code=0)
    tap.check(part["verdict"] == "match", "a slice from the middle replays", part["verdict"])
    run("pack", sample, "-o", path("part"), "--layers", "1", "--steps", "5:13", code=2)  # exists

sys.exit(tap.finish())
