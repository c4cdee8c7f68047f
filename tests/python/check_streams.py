#!/usr/bin/env python3
"""Nothing in cuda/ uses the device's default stream, or waits for all of the device: host threads that share a device would wait for
one another there, and a call there fails while another thread records a graph.

    check_streams.py ROOT     checks cuda/, then itself: planted violations must be found
"""

import glob
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

FORBIDDEN = {
    "a call in the default stream": re.compile(r"\bcuda(Memcpy(2D|3D|Peer|To\w+|From\w+)?|Memset(2D|3D)?)\s*\("),
    "a wait for all of the device": re.compile(r"\bcuda(DeviceSynchronize|ThreadSynchronize)\b"),
    "a launch without a stream": re.compile(r"<<<(?:[^<>,]|<[^<>]*>|\((?:[^()]|\([^()]*\))*\))*,[^,>]*(?:,[^,>]*)?>>>"),
    "a stream that waits for the default one": re.compile(r"\bcudaStreamCreate\s*\(|cudaStreamLegacy|cudaStreamDefault"),
    "the default stream": re.compile(r"cudaEventRecord\s*\([^,()]*(?:,\s*0\s*)?\)|<<<[^;]*,\s*(?:0|nullptr)\s*>>>"),
}


# How many arguments these calls have with their stream, which is the last and has a default.
WITH_STREAM = {"cudaMemcpyAsync": 5, "cudaMemsetAsync": 4, "cudaGraphLaunch": 2, "cudaEventRecord": 2, "cudaStreamSynchronize": 1}
NO_STREAM = {"", "0", "nullptr", "NULL"}


def arguments_behind(text):
    """Those of the call whose parenthesis has just been opened."""
    depth, words = 0, [""]
    for letter in text:
        depth += letter in "([{"
        if letter in ")]}":
            depth -= 1
            if depth < 0:
                break
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words]


def without_stream(text):
    for call in re.finditer(r"\b(" + "|".join(WITH_STREAM) + r")\s*\(", text):
        given = arguments_behind(text[call.end() :])
        if len(given) < WITH_STREAM[call.group(1)] or given[-1] in NO_STREAM:
            yield "a call without its stream", f"{call.group(1)}({', '.join(given)})"


def found_in(text):
    text = re.sub(r"//[^\n]*", "", text)
    return [*((what, hit.group(0)) for what, pattern in FORBIDDEN.items() for hit in pattern.finditer(text)), *without_stream(text)]


def check_itself(tap):
    for planted in (
        "GDNSIM_CUDA(cudaMemcpy(to, from, 8, cudaMemcpyDefault));",
        "cudaMemset(data_, 0, bytes)",
        "cudaDeviceSynchronize();",
        "results_kernel<<<1024, kThreads>>>(which);",
        "kernel<<<blocks_for(tasks, 2), dim3(3, 4)>>>(view);",
        "kernel<<<grid, block, shared>>>(view);",
        "kernel<<<grid, block, shared, 0>>>(view);",
        "cudaStreamCreate(&stream_)",
        "cudaEventRecord(event_)",
        "cudaMemcpyAsync(to, from, size_of(a, b), cudaMemcpyDefault);",
        "cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, 0);",
        "cudaMemsetAsync(data_, 0, bytes)",
        "cudaGraphLaunch(graph_, nullptr)",
        "cudaStreamSynchronize(0)",
    ):
        tap.check(found_in(planted), f"self-test: {planted}")
    for right in (
        "cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream());",
        "kernel<<<blocks_for(tasks, kThreads), kThreads, 0, step.stream>>>(step);",
        "change_kernel<<<static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads, 0, stream>>>(\n",
        "GDNSIM_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));  // not cudaMemcpy()",
        "cudaEventRecord(event_, queue.stream())",
    ):
        tap.check(not found_in(right), f"self-test, allowed: {right.strip()}", found_in(right))


def main():
    tap = Tap()
    files = sorted(glob.glob(os.path.join(sys.argv[1], "cuda", "*.c*")) + glob.glob(os.path.join(sys.argv[1], "cuda", "*.h*")))
    wrong, launches = [], 0
    for name in files:
        with open(name, encoding="utf-8") as stream:
            text = stream.read()
        launches += text.count("<<<")
        wrong += [f"{os.path.basename(name)}: {what}: {hit}" for what, hit in found_in(text)]
    tap.check(not wrong, f"every one of {launches} launches, and every copy, is in a stream of its own", "\n".join(wrong))
    tap.check(len(files) > 40 and launches > 5, "the sources were read", f"{len(files)} files, {launches} launches")
    check_itself(tap)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
