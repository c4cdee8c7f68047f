#!/usr/bin/env python3
"""tools/plot: pictures that are valid, not blank, the same each time, and show what the result holds.

plot_test.py ROOT
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import Tap  # noqa: E402

NEEDS = ("h5py", "matplotlib")
DEBIAN = "/usr/bin/python3"  # where Debian's packages are, when another python3 comes first


def python_with_needs():
    """Goes on in a Python that has what is needed, or says what is missing."""
    if all(importlib.util.find_spec(name) for name in NEEDS):
        return
    if os.path.exists(DEBIAN) and os.path.realpath(sys.executable) != os.path.realpath(DEBIAN):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    tap = Tap()
    tap.skip("pictures of drift", "python3-h5py or python3-matplotlib is not installed")
    sys.exit(tap.finish())


def load(path):
    loader = importlib.machinery.SourceFileLoader("plot_tool", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot_tool", loader))
    sys.path.insert(0, os.path.dirname(path))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def run(plot, *arguments):
    """Exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = plot.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def bytes_of(path):
    with open(path, "rb") as stream:
        return stream.read()


def check_png(tap, path, colours):
    """Decodes, has a sensible size, and at least that many colours beside the paper's."""
    import matplotlib.image
    import numpy as np

    picture = matplotlib.image.imread(path)
    pixels = np.unique((picture[..., :3] * 255).astype(int).reshape(-1, 3), axis=0)
    inked = float(np.mean(np.any(picture[..., :3] < 0.98, axis=-1)))
    name = os.path.basename(path)
    tap.check(min(picture.shape[:2]) > 150 and len(pixels) > colours and 0.01 < inked < 0.95, f"{name} is a picture of something", f"{picture.shape}, {len(pixels)} colours, {inked:.1%} inked")


def check_svg(tap, path, *words):
    root = xml.etree.ElementTree.parse(path).getroot()
    texts = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    paths = sum(element.tag.endswith("path") for element in root.iter())
    missing = [word for word in words if word not in texts]
    tap.check(root.tag.endswith("svg") and paths > 5 and not missing, f"{os.path.basename(path)} is a picture with its words", f"{paths} paths, missing {missing} in {texts}")


def ends_of(path):
    """Where each thick line of the curves ends: heights on the page, in the order drawn."""
    found = []
    for element in xml.etree.ElementTree.parse(path).getroot().iter():
        if element.tag.endswith("path") and "stroke-width: 1.4" in element.get("style", "") and element.get("d", "").count("L") > 8:
            found.append(float(re.findall(r"[-\d.]+", element.get("d"))[-1]))
    return found


def check_pictures(tap, plot, folder, result):
    prefix = os.path.join(folder, "p")
    code, out, err = run(plot, result, "-o", prefix, "--title", "a title")
    names = [f"{prefix}.{kind}.{form}" for kind in ("curves", "heat", "regimes") for form in ("png", "svg")]
    tap.check(code == 0 and out.split() == names and err == "", "six pictures", f"{code}\n{out}{err}")
    for name in names[::2]:
        check_png(tap, name, 40)
    check_svg(tap, names[1], "bf16 state", "A_log=-9", "step", "relative error of the state", "a title", "(0 throughout)")
    check_svg(tap, names[3], "layer 3", "layer 4", "A_log=-4, beta")
    check_svg(tap, names[5], "plateau", "linear", "none", "9.0e-03", "A_log=-4", "bf16 state")
    # Heights count from the top: the plateau at 9e-3 lies above the root at 8e-4, and that above the line at 6e-4.
    ends = ends_of(names[1])
    tap.check(len(ends) == 3 and ends[0] < ends[1] < ends[2], "the curves end in the order of their values", ends)
    other = os.path.join(folder, "q")
    code, _, err = run(plot, result, "-o", other, "--title", "a title", "--only", "curves")
    same = all(bytes_of(f"{prefix}.curves.{form}") == bytes_of(f"{other}.curves.{form}") for form in ("png", "svg"))
    tap.check(code == 0 and same and not os.path.exists(other + ".heat.png"), "the same again has the same bytes, and only what was asked for", err)
    code, _, err = run(plot, result, "-o", other, "--only", "heat", "--format", "svg", "--cells", "-9", "--quantity", "norm_relative")
    tap.check(code == 0 and not os.path.exists(other + ".heat.png"), "some cells, another quantity", err)
    text = bytes_of(other + ".heat.svg").decode()
    tap.check("A_log=-4" not in text and "relative error of norm_out" in text, "shows those cells and that quantity")


def check_edges(tap, plot, folder, write):
    """One layer, one seed, one cell, one measured step; and a cell whose values are not there."""
    import h5py

    small = write(os.path.join(folder, "small.h5"), layers=1, seeds=1, steps=1, regimes=("only",), pairs=("one",))
    code, out, err = run(plot, small, "--format", "svg")
    tap.check(code == 0 and len(out.split()) == 3, "the smallest result", err)
    check_svg(tap, os.path.join(folder, "small.heat.svg"), "seed 1")
    with h5py.File(small, "r+") as file:
        file["curves/norm_relative"][...] = float("nan")
    code, out, err = run(plot, small, "-o", os.path.join(folder, "new") + "/", "--format", "svg", "--quantity", "norm_relative")
    tap.check(code == 0 and sorted(os.listdir(os.path.join(folder, "new"))) == [f"small.{kind}.svg" for kind in ("curves", "heat", "regimes")], "a quantity that no cell has, into a new folder", out + err)


def check_refused(tap, plot, folder, result):
    import h5py

    with h5py.File(os.path.join(folder, "other.h5"), "w") as file:
        file.attrs["format"] = "gdnsim-trace"
    for name, arguments, words in [
        ("another file", [os.path.join(folder, "other.h5")], "other.h5: expected the result of a drift sweep"),
        ("no file", [os.path.join(folder, "absent.h5")], "absent.h5: cannot be read"),
        ("no such quantity", [result, "--quantity", "state"], "--quantity: expected core_bf16_changed"),
        ("no such format", [result, "--format", "png,gif"], "--format: expected png, svg, found 'gif'"),
        ("no such cell", [result, "--cells", "A_log=3"], "no cell's name holds 'A_log=3'"),
        ("no such folder", [result, "-o", os.path.join(folder, "absent", "x"), "--only", "regimes"], "No such file or directory"),
    ]:
        code, out, err = run(plot, *arguments)
        tap.check(code == 2 and out == "" and err.count("\n") == 1 and words in err, f"refused: {name}", f"{code} {out} {err}")


def main():
    python_with_needs()
    from drift_file import write_drift_file

    tap = Tap()
    plot = load(os.path.join(sys.argv[1], "tools", "plot"))
    with tempfile.TemporaryDirectory() as folder:
        result = write_drift_file(os.path.join(folder, "result.h5"))
        check_pictures(tap, plot, folder, result)
        check_edges(tap, plot, folder, write_drift_file)
        check_refused(tap, plot, folder, result)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
