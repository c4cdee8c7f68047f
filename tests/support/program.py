"""Running gdnsim from the Python tests: one call, its exit code and what it said.

program = Program(sys.argv[2])
done = program("replay", path)
done.code, done.out, done.err, done.verdict
"""

import collections
import json
import os
import subprocess

import schema

Result = collections.namedtuple("Result", "code out err")


class Done(Result):
    @property
    def verdict(self):
        """The last line of stdout."""
        return (self.out.splitlines() or [""])[-1]

    @property
    def json(self):
        """The report on stdout, which must be what its schema says."""
        return schema.checked(self.out)

    def line(self, key):
        """What a report's line with that key says, or an empty text."""
        for line in self.out.splitlines():
            words = line.split(None, 1)
            if words and words[0] == key:
                return words[1].strip() if len(words) > 1 else ""
        return ""

    def __str__(self):
        return f"exit {self.code}\nstdout:\n{self.out}\nstderr:\n{self.err}"


class Program:
    def __init__(self, path):
        self.path = os.path.abspath(path)
        # Idle threads sleep: the tests start many short runs, often side by side.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def __call__(self, *arguments, **options):
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
        return Done(done.returncode, done.stdout, done.stderr)

    def shell(self, command):
        """A printed `gdnsim ...` line, executed as a user would paste it."""
        assert command.startswith("gdnsim "), command
        environment = {**os.environ, "GDNSIM_UNDER_TEST": self.path}
        text = '"$GDNSIM_UNDER_TEST"' + command[len("gdnsim") :]
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False, env=environment)
        return Done(done.returncode, done.stdout, done.stderr)


class Checks:
    """Frequent expectations, each one TAP line."""

    def __init__(self, tap, program):
        self.tap, self.program = tap, program

    def refused(self, name, arguments, *words):
        """Exit 2, nothing on stdout, one line on stderr that holds every word."""
        done = self.program(*arguments)
        one_line = done.err.count("\n") == 1 and done.err.startswith("gdnsim: ")
        missing = [word for word in words if word not in done.err]
        self.tap.check(
            done.code == 2 and done.out == "" and one_line and not missing,
            name,
            f"wanted {words}, missing {missing}\n{done}",
        )
        return done

    def ends(self, name, arguments, code, verdict):
        """That exit code and a last line that begins with "verdict: VERDICT"."""
        done = self.program(*arguments)
        self.tap.check(
            done.code == code and done.verdict.startswith("verdict: " + verdict),
            name,
            f"wanted {code}, {verdict}\n{done}",
        )
        return done

    def does(self, name, arguments):
        done = self.program(*arguments)
        self.tap.check(done.code == 0, name, done)
        return done


def contents(folder):
    """Name and bytes of every file of a folder, to show that nothing was written."""
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as stream:
                found[name] = hash(stream.read())
    return found


def read_bytes(path):
    with open(path, "rb") as stream:
        return stream.read()


def write_recipe(path, **changes):
    """A small recipe that every contract is defined for: two layers of width 32, sequences that come and go."""
    recipe = {
        "schema": "gdnsim.recipe/1",
        "seed": 5,
        "steps": 8,
        "rows": 3,
        "model": {
            "num_k_heads": 1,
            "num_v_heads": 2,
            "head_k_dim": 32,
            "head_v_dim": 32,
            "num_blocks": 6,
            "layer_ids": [3, 7],
        },
        "schedule": {"running": 2, "length": [3, 6], "shuffle": 0.5},
    }
    model = changes.pop("model", {})
    recipe.update(changes)
    recipe["model"] = {**recipe["model"], **model}
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(recipe, stream)
    return path


def write_contract(program, path, changes, base="golden"):
    """A contract file: a preset with some fields changed, each of which must have been another."""
    lines = program("contracts", "--show", base).out.splitlines()
    for field, value in changes.items():
        at = [i for i, line in enumerate(lines) if line.split(" = ")[0] == field]
        assert at and all(lines[i] != f"{field} = {value}" for i in at), (field, value)
        for i in at:
            lines[i] = f"{field} = {value}"
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return path
