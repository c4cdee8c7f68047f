"""Imported for its effect, before anything that needs h5py: without h5py the script ends in one skip."""

import importlib.util
import sys

from tap import Tap

if importlib.util.find_spec("h5py") is None:
    tap = Tap()
    tap.skip("toy traces", "python3-h5py is not installed")
    sys.exit(tap.finish())
