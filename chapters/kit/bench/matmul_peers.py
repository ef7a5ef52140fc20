"""Operands for the benches of x times w transposed, and the check of a result.

TVM is imported only where it is used, because a peer may run in an interpreter without it.
"""

from __future__ import annotations

import numpy as np

TOLERANCE = 1e-5  # of the largest result, in float32


def numbers(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random x (rows, k) and w (n, k), float32."""
    random = np.random.default_rng(seed)
    shapes = (rows, k), (n, k)
    return tuple(random.standard_normal(shape, dtype="float32") for shape in shapes)


def checked(out: np.ndarray, x: np.ndarray, w: np.ndarray) -> float:
    """The largest error of some rows of `out` against float64, relative to the largest result.

    Raises ValueError unless it is below TOLERANCE.
    """
    some = np.unique(np.linspace(0, len(x) - 1, 6).astype(int))
    expected = x[some].astype("float64") @ w.astype("float64").T
    off = np.abs(out.reshape(len(x), -1)[some] - expected).max()
    error = float(off / np.abs(expected).max())
    if not error < TOLERANCE:  # also true for NaN
        raise ValueError(f"wrong numbers: relative error {error:.1e}, not below {TOLERANCE:.1e}")
    return error


def operands(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, list]:
    """x and w, and TVM's tensors (w, x, out), with an `out` full of NaN."""
    from chapters.kit.bench.numpy_memory import in_numpy_memory

    x, w = numbers(rows, n, k, seed)
    out = np.full((rows, n), np.nan, "float32")
    return x, w, [in_numpy_memory(array) for array in (w, x, out)]
