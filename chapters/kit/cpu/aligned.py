"""Memory from NumPy at addresses that TVM's compiled code can rely on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ALIGNED = 64  # bytes: what TVM's kernels expect, and NumPy does not promise


def aligned_bytes(count: int) -> np.ndarray:
    """`count` zero bytes at an address that is a multiple of ALIGNED.

    For some megabytes and more NumPy asks Linux for large pages; memory is taken where it is touched.
    """
    room = np.zeros(count + ALIGNED, "uint8")
    start = -room.ctypes.data % ALIGNED
    return room[start : start + count]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy of `array` at such an address."""
    copy = aligned_array(array.shape, str(array.dtype))
    copy[...] = array
    return copy


def aligned_array(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Zeros at such an address."""
    return aligned_bytes(math.prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
