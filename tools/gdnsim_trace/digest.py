"""The digests of docs/log-format.md, over numpy arrays and torch tensors alike (a block on a GPU is digested there).

Everything is a signed 64-bit integer that wraps; only operators are used, so both kinds of array work.
"""

import numpy as np

from .bits import is_tensor


def signed(value):
    return value - (1 << 64) if value >= 1 << 63 else value


C = 0x9E3779B97F4A7C15
FIRST, SECOND = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
LOW = 0xFFFFFFFF


def shifted(z, n):
    """A logical shift to the right."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def mix(z):
    z = (z ^ shifted(z, 30)) * FIRST
    z = (z ^ shifted(z, 27)) * SECOND
    return z ^ shifted(z, 31)


def numbered(count, like):
    """(1 .. count) as 64-bit integers beside `like`."""
    if is_tensor(like):
        import torch

        return torch.arange(1, count + 1, dtype=torch.int64, device=like.device)
    return np.arange(1, count + 1, dtype=np.int64)


def long_words(lines):
    """[..., bytes of a line] as [..., 64-bit words], the last one padded with zeros."""
    if is_tensor(lines):
        import torch

        data = lines.contiguous().view(torch.uint8)
        rest = -data.shape[-1] % 8
        return (torch.nn.functional.pad(data, (0, rest)) if rest else data).contiguous().view(torch.int64)
    data = np.ascontiguousarray(lines).view(np.uint8)
    rest = -data.shape[-1] % 8
    return np.pad(data, [(0, 0)] * (data.ndim - 1) + [(0, rest)]).view(np.int64) if rest else data.view(np.int64)


def line_digests(lines):
    """r(v) of [..., lines, width]: [..., lines]."""
    x = long_words(lines)
    keyed = x ^ mix(numbered(x.shape[-1], x))
    total = (x + (keyed & LOW) * shifted(keyed, 32)).sum(-1)
    return mix(total + numbered(x.shape[-2], x) * signed(C))


def head_digests(recurrent):
    """[HV, V, K] -> [HV]."""
    return line_digests(recurrent).sum(-1)


def conv_digest(conv):
    """[W-1, dim] -> a number."""
    return line_digests(conv).sum(-1)


def block_digest(recurrent, conv):
    """One block's digest as an unsigned Python integer."""
    heads = head_digests(recurrent)
    heads = mix(heads + numbered(heads.shape[0], heads) * signed(C)).sum()
    window = (int(conv_digest(conv)) + C) % (1 << 64)
    return (int(heads) + plain_mix(window)) % (1 << 64)


def plain_mix(z):
    mask = (1 << 64) - 1
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31
