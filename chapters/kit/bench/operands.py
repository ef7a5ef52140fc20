"""What candidates of benches share: random operands in memory of NumPy, kernels for this CPU, the check of a result.

TVM is imported only where it is used, because a baseline may run in an interpreter without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from chapters.kit.cpu.aligned import aligned_bytes

if TYPE_CHECKING:
    import tvm

TOLERANCE = 1e-5  # of the largest result, in float32


def draw_arrays(seed: int, *shapes: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Random float32 arrays of these shapes."""
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape, dtype="float32") for shape in shapes)


def draw_tensors(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, list]:
    """Random x (rows, k) and w (n, k), float32, and TVM's tensors (w, x, out), with an `out` full of NaN."""
    x, w = draw_arrays(seed, (rows, k), (n, k))
    out = np.full((rows, n), np.nan, "float32")
    return x, w, [in_numpy_memory(array) for array in (w, x, out)]


def compile_here(program, **options) -> Callable:
    """`main` of a PrimFunc or a module, compiled for this CPU. options: of tvm.compile."""
    import tvm
    from tvm import relax

    from chapters.kit.machine import llvm_host

    built = tvm.compile(program, target=llvm_host()["target"], **options)
    in_machine = isinstance(built, relax.VMExecutable)
    return (relax.VirtualMachine(built, tvm.cpu()) if in_machine else built)["main"]


def in_numpy_memory(array: np.ndarray) -> tvm.runtime.Tensor:
    """A copy of `array`, of any dtype that TVM and NumPy (with ml_dtypes) share, as a tensor on the CPU.

    All baselines of a bench must read the same kind of memory. For arrays of several megabytes NumPy asks Linux for
    huge pages, and PyTorch's tensors made from such arrays share them; TVM's allocator does not ask. A kernel that only
    reads a large matrix is an eighth slower on small pages, because the processor has to look up many more of them.
    """
    import tvm

    held = aligned_bytes(array.nbytes)
    held[...] = np.ascontiguousarray(array).reshape(-1).view("uint8")
    # NumPy cannot export bfloat16 by DLPack, so export bytes, and view them as the dtype
    return tvm.runtime.from_dlpack(held)._create_view(array.shape, str(array.dtype))


def check_error(
    found: np.ndarray, exact: np.ndarray, limit: float = TOLERANCE, what: str = "the result"
) -> float:
    """The largest error of `found`, relative to the largest of the `exact` numbers, which are float64.

    Raises ValueError, naming `what`, unless it is below `limit`.
    """
    error = float(np.abs(found - exact).max() / np.abs(exact).max())
    if not error < limit:  # also true for NaN
        raise ValueError(
            f"wrong numbers: the relative error of {what} is {error:.1e}, not below {limit:.1e}"
        )
    return error


def check_product(out: np.ndarray, x: np.ndarray, w: np.ndarray) -> float:
    """`check_error` for some rows of `out`, which must be x times w transposed."""
    some = np.unique(np.linspace(0, len(x) - 1, 6).astype(int))
    return check_error(
        out.reshape(len(x), -1)[some], x[some].astype("float64") @ w.astype("float64").T
    )
