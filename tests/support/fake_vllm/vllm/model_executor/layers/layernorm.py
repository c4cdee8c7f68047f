"""The gated norm, a module with forward hooks."""

import numpy as np
from toy_step import GOLDEN, gated_norm


class RMSNormGated:
    def __init__(self, model, weight):
        self.model = model
        self.weight = weight
        self.eps = model.norm_eps
        self.activation = "swish"
        self.hooks = []

    def register_forward_hook(self, hook):
        self.hooks.append(hook)

    def __call__(self, x, z):
        with np.errstate(all="ignore"):
            rows = [gated_norm(self.model, GOLDEN, self.weight, core, gate)[1] for core, gate in zip(x, z)]
        out = np.stack(rows)
        for hook in self.hooks:
            hook(self, (x, z), out)
        return out
