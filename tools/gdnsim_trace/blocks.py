"""Finds state blocks that something else wrote: prefill, a prefix cache, a preemption that gave the block to another
request.

An engine's own state writes cannot be seen from outside. But a block whose digest before a step is not the digest that
it had after the last step seen was written in between; its contents then go into the trace as a `load` event.
"""

from .digest import block_digest


class BlockWatch:
    """Digests by (layer, block) as last seen. All blocks of a trace start as zeros, so an unseen block of zeros is no
    event.
    """

    def __init__(self, writer=None):
        self.writer, self.seen, self.loads = writer, {}, 0
        self.zeros = None

    def before(self, layer, block, recurrent, conv):
        """Call before a step for each block that it reads. True when the block had changed: then a load was written."""
        found = block_digest(recurrent, conv)
        if found == self.seen.get((layer, block), self.zero_digest(recurrent, conv)):
            return False
        self.writer.load(layer, block, recurrent, conv)
        self.loads += 1
        return True

    def after(self, layer, block, recurrent, conv):
        """Call after the step, with the state that it left."""
        self.seen[layer, block] = block_digest(recurrent, conv)

    def zero_digest(self, recurrent, conv):
        if self.zeros is None:
            self.zeros = block_digest(zero_like(recurrent), zero_like(conv))
        return self.zeros


def zero_like(value):
    """Zero bits of the same shape; a NaN times zero is none."""
    if hasattr(value, "new_zeros"):
        return value.new_zeros(value.shape)
    import numpy as np

    return np.zeros(value.shape, value.dtype)
