"""What may follow a product y, in Relax and in NumPy; b is a vector, r a matrix, and DTYPE stands for their dtype."""

from __future__ import annotations

import math

import numpy as np

ERF = np.vectorize(math.erf, otypes=[float])


def sigmoid(y):
    return 1 / (1 + np.exp(-y))


EPILOGUES = {
    "none": ("y", lambda y, b, r: y),
    "bias": ("R.add(y, b)", lambda y, b, r: y + b),
    "gelu": ("R.nn.gelu(R.add(y, b))", lambda y, b, r: (y + b) * (0.5 + 0.5 * ERF((y + b) / 2**0.5))),
    "bias and residual": ("R.add(R.add(y, b), r)", lambda y, b, r: y + b + r),
    "residual first, then bias": ("R.add(R.add(r, y), b)", lambda y, b, r: y + b + r),
    "residual": ("R.add(r, y)", lambda y, b, r: y + r),
    "silu": ("R.nn.silu(R.add(b, y))", lambda y, b, r: (y + b) * sigmoid(y + b)),
    "gate": ("R.multiply(R.nn.silu(y), r)", lambda y, b, r: y * sigmoid(y) * r),
    "softcap": (
        'R.multiply(R.tanh(R.divide(y, R.const(3.0, "DTYPE"))), R.const(3.0, "DTYPE"))',
        lambda y, b, r: 3 * np.tanh(y / 3),
    ),
    "two vectors": (
        'R.multiply(R.add(y, b), R.tanh(R.add(y, R.const(1.0, "DTYPE"))))',
        lambda y, b, r: (y + b) * np.tanh(y + 1),
    ),
    "read twice": ("R.multiply(R.add(y, b), R.add(y, r))", lambda y, b, r: (y + b) * (y + r)),
}  # fmt: skip
