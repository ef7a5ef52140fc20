"""Tensor maps without a driver: what TVM's host code asks CUDA to encode, checked and packed for an engine.

Host code calls the global function `runtime.cuTensorMapEncodeTiled` of TVM's CUDA runtime, which calls the driver. Here
a Python function stands in for it. CUDA does not say what its map's 128 bytes mean; ours are hopper_on_cpu.hpp's.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Iterator

import numpy as np
import tvm_ffi

from chapters.kit.gpu.limits import ITEM_BYTES

NAME = "runtime.cuTensorMapEncodeTiled"
BYTES = 128
_PACKED = struct.Struct("<QQQQIIII")


def packed(dtype: str, base: int, size: list[int], pitch: int, box: list[int], swizzle: int):
    """The bytes of a map of rank 2, sizes from the innermost. Raises ValueError where CUDA's driver would refuse."""
    item = ITEM_BYTES[dtype]
    inner = box[0] * item
    rules = {
        f"the array begins at {base}, which is no multiple of 16": base % 16,
        f"rows are {pitch} bytes apart, which is no multiple of 16": pitch % 16,
        f"a box of {box} has a side of more than 256 or none": not all(0 < b <= 256 for b in box),
        f"a row of the box is {inner} bytes, which is no multiple of 16": inner % 16,
        f"a row of the box is {inner} bytes, and the swizzle is {16 << swizzle} wide": swizzle
        and inner > 16 << swizzle,
    }
    for problem, broken in rules.items():
        if broken:
            raise ValueError(f"A tensor map cannot be encoded: {problem}.")
    return _PACKED.pack(base, *size, pitch, *box, item, swizzle).ljust(BYTES, b"\0")


def _encode(to, dtype, rank, base, *numbers) -> None:
    if rank != 2:
        raise ValueError(f"A tensor map of rank {rank}; only rank 2 is known here.")
    *sizes, _interleave, swizzle, _promotion, _fill = map(int, numbers[:11])
    (width, height, pitch), box, steps = sizes[:3], sizes[3:5], sizes[5:7]
    if steps != [1, 1]:
        raise ValueError(f"A tensor map with steps {steps}; only steps of 1 are known here.")
    if to.value % 64:
        raise ValueError(f"A tensor map at {to.value}, which is no multiple of 64.")
    data = packed(str(dtype), base.value, [width, height], pitch, box, swizzle)
    ctypes.memmove(to.value, data, BYTES)


@contextlib.contextmanager
def encoder() -> Iterator[None]:
    """For as long as it is entered, host code that encodes tensor maps finds ours; afterwards the real one, if any."""
    real = tvm_ffi.get_global_func(NAME, allow_missing=True)
    tvm_ffi.register_global_func(NAME, _encode, override=True)
    try:
        yield
    finally:
        if real is not None:
            tvm_ffi.register_global_func(NAME, real, override=True)


def copied(address: int) -> np.ndarray:
    """The 128 bytes of the map at `address`, which host code has on its stack."""
    return np.frombuffer(ctypes.string_at(address, BYTES), "uint8").copy()
