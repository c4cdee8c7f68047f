"""TAP output for the Python tests: numbered `ok` lines that Meson checks against the plan and tools/test counts.

    tap = Tap()
    tap.check(value == 3, "three", f"found {value}")
    tap.skip("needs a device", "no GPU")
    sys.exit(tap.finish())
"""

import os

NO_GPU = "no GPU"


def without_gpu(backend):
    """Why there is no GPU, from the entry of `gdnsim backends`. Only a machine without a device may skip in CI."""
    return "built without CUDA" if "no CUDA backend" in backend["detail"] else NO_GPU


class Tap:
    def __init__(self):
        self.count = 0
        self.failed = 0

    def check(self, passed, name, detail=""):
        self.count += 1
        self.failed += not passed
        print(f"{'ok' if passed else 'not ok'} {self.count} - {name}", flush=True)
        if not passed:
            for line in str(detail).splitlines():
                print(f"# {line}", flush=True)
        return passed

    def skip(self, name, reason):
        """A skip; with GDNSIM_CI=1 every reason but "no GPU" is a failure."""
        if os.environ.get("GDNSIM_CI") == "1" and reason != NO_GPU:
            self.check(False, name, f"skipped where no skip is allowed (GDNSIM_CI=1): {reason}")
            return
        self.count += 1
        print(f"ok {self.count} - {name} # SKIP {reason}", flush=True)

    def finish(self):
        """Prints the plan; returns the exit code. A script that checked nothing has failed."""
        if self.count == 0:
            self.check(False, "at least one check ran")
        print(f"1..{self.count}", flush=True)
        return 1 if self.failed else 0
