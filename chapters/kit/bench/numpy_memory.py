"""Arrays for TVM in memory that NumPy has allocated, so that every peer of a bench reads the same kind of memory.

For arrays of several megabytes NumPy asks Linux for huge pages, and PyTorch's tensors made from such arrays share them;
TVM's allocator does not ask. A kernel that only reads a large matrix is an eighth slower on small pages, because the
processor has to look up many more of them.
"""

from __future__ import annotations

import numpy as np
import tvm

from chapters.kit.cpu.aligned import aligned_bytes


def in_numpy_memory(array: np.ndarray) -> tvm.runtime.Tensor:
    """A copy of `array`, of any dtype that TVM and NumPy (with ml_dtypes) share, as a tensor on the CPU."""
    held = aligned_bytes(array.nbytes)
    held[...] = np.ascontiguousarray(array).reshape(-1).view("uint8")
    # NumPy cannot export bfloat16 by DLPack, so export bytes, and view them as the dtype
    return tvm.runtime.from_dlpack(held)._create_view(array.shape, str(array.dtype))
