"""Tensor maps without a driver: those that TVM's host code asks CUDA to encode are checked and packed for an engine.

Host code calls the global function `runtime.cuTensorMapEncodeTiled` of TVM's CUDA runtime, which calls the driver. Here
a Python function stands in for it. CUDA does not document the 128 bytes of its maps; ours are laid out as
hopper_on_cpu.hpp declares them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
from collections.abc import Iterator

import numpy as np
import tvm_ffi

from chapters.kit.gpu.limits import ITEM_BYTES

NAME = "runtime.cuTensorMapEncodeTiled"
BYTES = 128
MOST = 5  # dimensions
_PACKED = struct.Struct("<Q5Q4Q5IIII")


def pack_map(
    dtype: str, base: int, size: list[int], pitches: list[int], box: list[int], swizzle: int
):
    """The bytes of a map of rank 2 to MOST. Raises ValueError where CUDA's driver would refuse.

    base: address of the array. size, box: elements, the innermost dimension first. pitches: bytes that a step takes in
    each dimension after the first. swizzle: 0 for none, else log2 of its width in units of 16 bytes.
    """
    item = ITEM_BYTES[dtype]
    inner = box[0] * item
    rules = {
        f"the array begins at {base}, which is no multiple of 16": base % 16,
        f"rows are {pitches} bytes apart, which are no multiples of 16": any(
            p % 16 or not p for p in pitches
        ),
        f"a side of the box {box} is 0 or more than 256": not all(0 < b <= 256 for b in box),
        f"a row of the box is {inner} bytes, which is no multiple of 16": inner % 16,
        f"a row of the box is {inner} bytes, and the swizzle is {16 << swizzle} wide": swizzle
        and inner > 16 << swizzle,
    }
    for problem, broken in rules.items():
        if broken:
            raise ValueError(f"A tensor map cannot be encoded: {problem}.")
    rank = len(size)
    size, box = ([*given, *[1] * (MOST - rank)] for given in (size, box))
    pitches = [*pitches, *[0] * (MOST - rank)]
    return _PACKED.pack(base, *size, *pitches, *box, item, swizzle, rank).ljust(BYTES, b"\0")


def _encode(to, dtype, rank, base, *numbers) -> None:
    if not 2 <= rank <= MOST:
        raise ValueError(f"A tensor map has rank {rank}; ranks 2 to {MOST} are supported here.")
    left = iter(map(int, numbers))
    size, pitches, box, steps = (
        list(itertools.islice(left, n)) for n in (rank, rank - 1, rank, rank)
    )
    _interleave, swizzle = itertools.islice(left, 2)
    if set(steps) != {1}:
        raise ValueError(f"A tensor map has steps {steps}; only steps of 1 are supported here.")
    if to.value % 64:
        raise ValueError(f"A tensor map is stored at {to.value}, which is not a multiple of 64.")
    data = pack_map(str(dtype), base.value, size, pitches, box, swizzle)
    ctypes.memmove(to.value, data, BYTES)


@contextlib.contextmanager
def replace_encoder() -> Iterator[None]:
    """While entered, host code that encodes tensor maps calls `_encode`; afterwards CUDA's encoder again, if any."""
    real = tvm_ffi.get_global_func(NAME, allow_missing=True)
    tvm_ffi.register_global_func(NAME, _encode, override=True)
    try:
        yield
    finally:
        if real is not None:
            tvm_ffi.register_global_func(NAME, real, override=True)


def copy_map(address: int) -> np.ndarray:
    """A copy of the 128 bytes of the map at `address`, which is on the host code's stack."""
    return np.frombuffer(ctypes.string_at(address, BYTES), "uint8").copy()
