"""Memory from NumPy at addresses that TVM's compiled code can rely on."""

from __future__ import annotations

import numpy as np

ALIGNED = 64  # bytes: what TVM's kernels expect, and NumPy does not promise


def aligned_bytes(count: int) -> np.ndarray:
    """`count` bytes, uninitialized, at an address that is a multiple of ALIGNED."""
    room = np.empty(count + ALIGNED, "uint8")
    start = -room.ctypes.data % ALIGNED
    return room[start : start + count]
