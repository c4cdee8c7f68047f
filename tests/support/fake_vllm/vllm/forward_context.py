"""What the layers of the running step find out about it."""

import types

current = types.SimpleNamespace(attn_metadata=None, no_compile_layers={})


def get_forward_context():
    return current
