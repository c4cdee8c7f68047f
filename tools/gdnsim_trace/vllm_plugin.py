"""vLLM's plugin entry point: does nothing unless GDNSIM_CAPTURE names a file. Each worker process writes a trace of its
own.

Modules are patched when vLLM itself imports them, so loading the plugin imports nothing and touches no GPU.
"""

import importlib.abc
import importlib.util
import os
import sys

from .model import TraceError
from .recorder import Options
from .vllm_hook import GRAPHS, Session, wrap
from .vllm_targets import RUNNERS, target_of


class WhenImported(importlib.abc.MetaPathFinder):
    """Calls works[name](module) after that module was imported."""

    def __init__(self, works):
        self.works, self.looking = works, False

    def find_spec(self, name, path=None, target=None):
        if name not in self.works or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return None
        run, work = spec.loader.exec_module, self.works[name]

        def exec_module(module):
            run(module)
            work(module)

        spec.loader.exec_module = exec_module
        return spec

    def install(self):
        for name in list(self.works):
            if name in sys.modules:
                self.works.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)


def patch_runner(session, module):
    wrap(
        module.GPUModelRunner,
        "__init__",
        lambda original, runner, *args, **kwargs: begin_runner(session, original, runner, args, kwargs),
    )
    wrap(
        module.GPUModelRunner,
        "execute_model",
        lambda original, runner, *args, **kwargs: run_step(session, original, runner, args, kwargs),
    )
    if hasattr(module.GPUModelRunner, "prepare_inputs"):
        wrap(module.GPUModelRunner, "prepare_inputs", keep_batch)


def begin_runner(session, original, runner, args, kwargs):
    """Refuses what cannot be captured when the engine starts, not at the first request."""
    config = args[0] if args else kwargs["vllm_config"]
    if not config.model_config.enforce_eager:
        raise TraceError(GRAPHS)
    session.expected = True
    return original(runner, *args, **kwargs)


def keep_batch(original, runner, *args, **kwargs):
    runner.gdnsim_batch = original(runner, *args, **kwargs)
    return runner.gdnsim_batch


def run_step(session, original, runner, args, kwargs):
    if kwargs.get("dummy_run") or session.recorder.stopped:
        return original(runner, *args, **kwargs)
    session.runner = runner
    session.begin()
    try:
        return original(runner, *args, **kwargs)
    finally:
        session.end()


def start(path=None, environment=None, **changes):
    """Takes hold of vLLM in this process. `path` and `changes` override the environment's options."""
    import vllm

    environment = dict(os.environ if environment is None else environment)
    if path is not None:
        environment["GDNSIM_CAPTURE"] = str(path)
    options = Options.from_environment(environment)
    for name, value in changes.items():
        setattr(options, name, value)
    target = target_of(vllm.__version__)
    session = Session(target, options, vllm.__version__)
    works = {target.layer_module: session.patch_layers}
    for name in RUNNERS:
        works[name] = lambda module: patch_runner(session, module)
    WhenImported(works).install()
    return session


started = []


def capture(path, **options):
    """The one call of a script, before it makes its engine: worker processes inherit what it sets. Options: rows,
    budget, steps, snapshots, force, as in the environment."""
    os.environ["GDNSIM_CAPTURE"] = str(path)
    for name, value in options.items():
        os.environ[f"GDNSIM_CAPTURE_{name.upper()}"] = str(int(value) if isinstance(value, bool) else value)
    Options.from_environment()
    register()


def register():
    if os.environ.get("GDNSIM_CAPTURE") and not started:
        started.append(start())
