#!/usr/bin/env python3
"""Starts a command with the capture of vLLM's gated delta layers switched on, and finishes its traces
(docs/capture.md).

    pip install ./tools
    tools/capture_vllm.py -o rollout.h5 -- vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --enforce-eager
    tools/capture_vllm.py -o rollout.h5 --steps 200 -- python3 my_rollout.py
    tools/capture_vllm.py --check-sources path/to/vllm-checkout

With several ranks each writes a file of its own: rollout.tp0of4.h5, ...
In a script: `from gdnsim_trace.vllm_plugin import capture`.
"""

import argparse
import glob
import importlib.metadata
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gdnsim_trace.model import TraceError  # noqa: E402
from gdnsim_trace.recorder import Options  # noqa: E402
from gdnsim_trace.recover import recover  # noqa: E402
from gdnsim_trace.vllm_targets import check_sources  # noqa: E402

PLUGIN = "gdnsim_capture"


def check(root, version):
    version, problems = check_sources(root, version)
    for problem in problems:
        print(problem)
    print(f"vLLM {version}: {f'{len(problems)} names are missing' if problems else 'every name is there'}")
    return 1 if problems else 0


def require_plugin():
    found = importlib.metadata.entry_points()
    group = (
        found.select(group="vllm.general_plugins")
        if hasattr(found, "select")
        else found.get("vllm.general_plugins", ())
    )
    if not any(point.name == PLUGIN for point in group):
        raise TraceError("the plugin is not installed: pip install ./tools")


def environment(arguments):
    """What the command inherits."""
    chosen = {"GDNSIM_CAPTURE": os.path.abspath(arguments.output)}
    for name in ("rows", "budget", "steps", "snapshots"):
        if getattr(arguments, name) is not None:
            chosen[f"GDNSIM_CAPTURE_{name.upper()}"] = str(getattr(arguments, name))
    if arguments.force:
        chosen["GDNSIM_CAPTURE_FORCE"] = "1"
    Options.from_environment(chosen)
    found = {**os.environ, **chosen}
    if found.get("VLLM_PLUGINS") is not None and PLUGIN not in found["VLLM_PLUGINS"].split(","):
        found["VLLM_PLUGINS"] += f",{PLUGIN}"
    return found


def traces_of(output):
    """The files that the ranks wrote or left unfinished."""
    stem, ending = os.path.splitext(os.path.abspath(output))
    names = glob.glob(glob.escape(stem) + ".*of*" + ending) + glob.glob(
        glob.escape(stem) + ".*of*" + ending + ".partial"
    )
    names += [name for name in (stem + ending, stem + ending + ".partial") if os.path.exists(name)]
    return sorted(names)


def run(arguments):
    require_plugin()
    found = environment(arguments)
    left = [name for name in traces_of(arguments.output) if name.endswith(".partial") or not arguments.force]
    if left:
        raise TraceError(f"{left[0]}: exists" + ("" if left[0].endswith(".partial") else " (--force replaces it)"))
    child = subprocess.Popen(arguments.command, env=found)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command gets it too, and ends the capture
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    for name in traces_of(arguments.output):
        if name.endswith(".partial"):
            try:
                print(f"{name[: -len('.partial')]}: {recover(name, arguments.force)} steps recovered", file=sys.stderr)
            except TraceError as problem:
                print(f"capture_vllm: {problem}", file=sys.stderr)
    if not any(not name.endswith(".partial") for name in traces_of(arguments.output)):
        raise TraceError(f"{arguments.output}: nothing was captured (the command ended with exit code {code})")
    return code if code >= 0 else 128 - code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="the trace; ranks and stages add their number")
    parser.add_argument(
        "--rows", type=int, help="most decode rows of a step (default 16); a step with more is not replayable"
    )
    parser.add_argument("--budget", help="stop after so many bytes, per rank (default 2GiB; 0: no limit)")
    parser.add_argument("--steps", type=int, help="stop after so many steps (default: no limit)")
    parser.add_argument(
        "--snapshots", type=int, metavar="N", help="record states after every N steps (default 16; 0: none)"
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument(
        "--check-sources", metavar="DIR", help="does this vLLM source tree have the names that the hook needs"
    )
    parser.add_argument("--version", help="of that tree, when it does not say")
    parser.add_argument("command", nargs="*", help="after --: what to run")
    arguments = parser.parse_args()
    try:
        if arguments.check_sources:
            return check(arguments.check_sources, arguments.version)
        if not arguments.output or not arguments.command:
            parser.error("expected -o FILE -- COMMAND, or --check-sources DIR")
        return run(arguments)
    except (TraceError, OSError) as problem:
        print(f"capture_vllm: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
