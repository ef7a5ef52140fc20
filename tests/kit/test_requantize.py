"""Weights rounded to 4 and 8 bits are, byte for byte, those of the gguf package."""

from __future__ import annotations

import numpy as np
import pytest

from chapters.kit.quantized.blocks import read_codes
from chapters.kit.quantized.requantize import GROUP, ROUNDINGS, quantize, write_codes


def rows_of_all_kinds() -> np.ndarray:
    """Random rows, with groups of zeros, of equal weights, of steps of one half, and of tiny and of large weights."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((64, 6 * GROUP)).astype("float32")
    rows[:, :GROUP] *= np.logspace(-6, 3, 64, dtype="float32")[:, None]
    rows[3, GROUP : 2 * GROUP] = 0
    rows[4] = 0
    rows[5, GROUP : 2 * GROUP] = 0.7
    rows[6, GROUP : 2 * GROUP] = -0.7
    rows[7, :GROUP] = np.arange(GROUP) / 2 - 8  # quotients end in .5 where the scale is 1
    rows[8, :GROUP] = np.r_[127, np.arange(GROUP - 1) - 15.5]
    return rows


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_the_bytes_are_those_of_the_gguf_package(kind):
    gguf = pytest.importorskip("gguf")
    rows = rows_of_all_kinds()
    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(write_codes(quantize(kind, rows)), expected, strict=True)


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_read_codes_reads_what_write_codes_wrote(kind):
    codes = quantize(kind, rows_of_all_kinds())
    again = read_codes(kind, write_codes(codes))
    for name in ("codes", "scales", "minima"):
        np.testing.assert_array_equal(getattr(again, name), getattr(codes, name), strict=True)


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_a_weight_moves_by_half_a_step_at_most(kind):
    """In Q4_0 by a whole step, if it is the opposite of the largest: there is a code for -8, and none for 8."""
    rows = np.random.default_rng(1).standard_normal((32, 4 * GROUP)).astype("float32")
    codes = quantize(kind, rows)
    steps = np.abs(codes.scales.astype("float32")).repeat(GROUP, axis=1)
    most = 1.01 if kind == "Q4_0" else 0.57  # a float16 scale is off by 2**-11, times 127 steps
    assert (np.abs(codes.floats() - rows) <= most * steps).all()


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_groups_too_small_for_a_scale_become_zeros(kind):
    rows = np.full((1, GROUP), 1e-40, "float32")
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        assert np.abs(quantize(kind, rows).floats()).max() == 0


def test_rows_that_cannot_be_rounded_are_refused():
    with pytest.raises(ValueError, match="33 weights"):
        quantize("Q4_0", np.zeros((2, 33), "float32"))
    with pytest.raises(ValueError, match="infinite or NaN"):
        quantize("Q8_0", np.full((2, 32), np.inf, "float32"))
