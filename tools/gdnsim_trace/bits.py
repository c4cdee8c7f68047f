"""Stored words of arrays and tensors. No value is ever converted: bits move, or the type is refused.

bf16 comes as a torch.bfloat16 tensor, an ml_dtypes.bfloat16 array, or uint16/int16 words; f16 and f32 as numpy or torch
floats. Words are little-endian numpy arrays: uint16 for bf16, float16 and float32 for the others.
"""

import numpy as np

from .model import TraceError

WORD = {"bf16": np.dtype("<u2"), "f16": np.dtype("<f2"), "f32": np.dtype("<f4")}


def is_tensor(value):
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach")


def host(value):
    """A tensor's words as a numpy array, copied off its device; an array as it is. bf16 becomes uint16."""
    if not is_tensor(value):
        value = np.asarray(value)
        return value.view(np.uint16) if value.dtype.name == "bfloat16" else value
    value = value.detach()
    if str(value.dtype) == "torch.bfloat16":
        import torch

        return value.contiguous().view(torch.int16).cpu().numpy().view(np.uint16)
    return value.cpu().contiguous().numpy()


def copied(value):
    """`host`, in memory of its own: engines reuse theirs."""
    return np.array(host(value), copy=True)


def type_of(value):
    """bf16, f16 or f32; None for anything else. Plain 16-bit words say nothing about themselves."""
    name = str(value.dtype).replace("torch.", "")
    return {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(name)


def words(value, kind, shape=None, where="value"):
    """The words of `value`, which must be of that type (and shape)."""
    if not is_tensor(value):
        value = np.asarray(value)
    plain = kind == "bf16" and str(value.dtype).replace("torch.", "") in ("uint16", "int16")
    if type_of(value) != kind and not plain:
        raise TraceError(f"{where}: expected {kind}, found {str(value.dtype).replace('torch.', '')}")
    if shape is not None and tuple(value.shape) != tuple(shape):
        raise TraceError(f"{where}: expected shape {tuple(shape)}, found {tuple(value.shape)}")
    found = host(value)
    if found.dtype.kind in "iu":
        found = found.view(np.uint16)
    return np.ascontiguousarray(found.astype(WORD[kind], copy=False))


def has_nan(found, kind):
    if kind != "bf16":
        return bool(np.isnan(found).any())
    return bool(((found & 0x7FFF) > 0x7F80).any())


def signed_zeros(found, kind):
    """Zeros with the signs of these words."""
    return found & np.uint16(0x8000) if kind == "bf16" else np.copysign(np.zeros_like(found), found)


def bf16_to_f32(found):
    """Exactly; for parameters that a trace stores as f32."""
    return (found.astype(np.uint32) << 16).view(np.float32)


def widened(value, where="value"):
    """f32 words of an f32, f16 or bf16 value: exact."""
    kind = type_of(value) if is_tensor(value) else type_of(np.asarray(value))
    if kind is None:
        raise TraceError(f"{where}: expected f32, bf16 or f16, found {value.dtype}")
    found = words(value, kind, where=where)
    return bf16_to_f32(found) if kind == "bf16" else found.astype(np.float32)


def narrowed(value, kind, where="value"):
    """Words of that type, which must hold every value exactly."""
    if type_of(value) == kind:
        return words(value, kind, where=where)
    full = widened(value, where)
    if kind == "f32":
        return full
    if kind == "f16":
        found, back = full.astype(np.float16), full.astype(np.float16).astype(np.float32)
    else:
        found = (full.view(np.uint32) >> 16).astype(np.uint16)
        back = bf16_to_f32(found)
    if not np.array_equal(back.view(np.uint32), full.view(np.uint32)):
        raise TraceError(f"{where}: expected {kind}, found {type_of(value)} values that {kind} cannot hold")
    return found
