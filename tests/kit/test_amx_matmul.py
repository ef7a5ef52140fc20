"""NT_matmul on AMX gives float64's numbers, however its rows are taken; it refuses sizes that are no whole tiles."""

from __future__ import annotations

import numpy as np
import pytest

from chapters.kit.bench.numpy_memory import in_numpy_memory
from chapters.kit.cpu import amx
from chapters.kit.cpu.amx_matmul import amx_matmul, build_amx_matmul, runs_here

SIZES = [
    (32, 32, 32),
    (96, 160, 96),  # three pairs of tiles: all rows at once
    (160, 128, 64),  # five: no few at a time divide them
    (192, 224, 32),
    (224, 64, 160),
    (256, 96, 64),  # twice four
    (384, 32, 96),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_numbers(size):
    if not runs_here():
        pytest.skip("this processor has no AMX")
    m, n, k = size
    random = np.random.default_rng(m * n + k)
    x, w = (random.standard_normal(shape).astype("bfloat16") for shape in ((m, k), (n, k)))
    out = np.full((m, n), np.nan, "float32")
    arrays = w.view("uint16"), x.view("uint16"), amx.configuration(), out
    tensors = [in_numpy_memory(array) for array in arrays]
    build_amx_matmul(m, n, k)(*tensors)
    expected = x.astype("float64") @ w.astype("float64").T
    # products of bfloat16 are exact in float32; k of them are added, each with half a unit of the last place
    assert np.abs(tensors[-1].numpy() - expected).max() < k * 2.0**-24 * np.abs(expected).max()


@pytest.mark.parametrize("size", [(16, 32, 32), (32, 40, 32), (32, 32, 48)], ids=str)
def test_refuses_parts_of_tiles(size):
    with pytest.raises(ValueError, match="multiples of 32"):
        amx_matmul(*size)
