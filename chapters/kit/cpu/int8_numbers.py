"""Operands of an int8 matrix product and its exact result, with NumPy only: baselines without TVM need them too."""

from __future__ import annotations

import numpy as np


def numbers(m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A (m, k) uint8, W (n, k) int8, not packed, and C (n,) int32."""
    random = np.random.default_rng(seed)
    a = random.integers(0, 256, (m, k), dtype=np.uint8)
    w = random.integers(-128, 128, (n, k), dtype=np.int8)
    return a, w, random.integers(-100_000, 100_000, n, dtype=np.int32)


def expected(a: np.ndarray, w: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The exact result A @ W.T + C (m, n), int64: float64 holds every sum of these products exactly."""
    return (a.astype("float64") @ w.astype("float64").T).astype("int64") + c
