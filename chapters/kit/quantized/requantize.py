"""Round float32 weights to codes of a type of GGUF file, as llama.cpp does, and write codes as the blocks of a file.

`read_codes` goes the other way. The gguf package's `gguf.quants.quantize` gives the same bytes.

Each group of 32 weights gets a float16 scale. The codes are computed from the scale before it is rounded to float16,
as in llama.cpp's quantize_row_q4_0_ref, quantize_row_q4_1_ref and quantize_row_q8_0_ref.
"""

from __future__ import annotations

import numpy as np

from chapters.kit.quantized.blocks import Codes

GROUP = 32  # weights that share a scale
SMALLEST = np.finfo("float32").tiny  # a smaller scale counts as zero: 1 / scale must be finite
LARGEST = np.finfo("float16").max  # of a scale or a minimum

Quantized = tuple[int, np.ndarray, np.ndarray, np.ndarray | None]  # bits, codes, scales, minima


def quantize(kind: str, rows: np.ndarray) -> Codes:
    """`rows`, float32 (n, k), rounded to the type `kind`, one of ROUNDINGS.

    Raises ValueError if k is not a multiple of GROUP, if a weight is not finite, or if a group's scale or minimum is
    too large for float16.
    """
    n, k = rows.shape
    if k % GROUP:
        raise ValueError(f"A row of {k} weights cannot be cut into groups of {GROUP}.")
    if not np.isfinite(rows).all():
        raise ValueError("A weight is infinite or NaN; only finite weights can be rounded.")
    bits, codes, scales, minima = ROUNDINGS[kind](rows.astype("float32").reshape(n, -1, GROUP))
    if any(np.abs(one).max(initial=0) > LARGEST for one in (scales, minima) if one is not None):
        raise ValueError(f"A weight is too large for {kind}: its scale must fit float16.")
    halves = [None if one is None else one[..., 0].astype("float16") for one in (scales, minima)]
    return Codes(bits, codes.astype("uint8").reshape(n, k), *halves)


def _inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scale, or 0 for a scale that counts as zero: then all weights of the group are rounded to 0."""
    zero = np.abs(scales) < SMALLEST
    return np.where(zero, np.float32(0), 1 / np.where(zero, np.float32(1), scales))


def _q4_0(groups: np.ndarray) -> Quantized:
    """Codes 0 to 15 stand for -8 to 7. The weight of largest magnitude gets -8, so a scale may be negative."""
    at = np.abs(groups).argmax(axis=-1, keepdims=True)
    scales = np.take_along_axis(groups, at, axis=-1) / np.float32(-8)
    return 4, np.minimum(np.trunc(groups * _inverse(scales) + np.float32(8.5)), 15), scales, None


def _q4_1(groups: np.ndarray) -> Quantized:
    """Codes 0 to 15 divide the range from the smallest to the largest weight into 15 steps."""
    minima, maxima = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scales = (maxima - minima) / np.float32(15)
    codes = np.trunc((groups - minima) * _inverse(scales) + np.float32(0.5))
    return 4, np.minimum(codes, 15), scales, minima


def _q8_0(groups: np.ndarray) -> Quantized:
    """Codes stand for -127 to 127, and are 128 more. Halves are rounded away from zero."""
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    steps = groups * _inverse(scales)
    whole = np.floor(np.abs(steps))
    rounded = whole + (np.abs(steps) - whole >= 0.5)
    return 8, np.copysign(rounded, steps) + 128, scales, None


ROUNDINGS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}  # type -> how groups are rounded


def write_codes(matrix: Codes) -> np.ndarray:
    """The blocks of a GGUF file for `matrix`: uint8 (n, bytes per row).

    matrix: as `quantize` gives it, with groups of GROUP and float16 scales. A block is the scale, the minimum if there
    is one, then the codes: bytes, or the first half of the group in the low four bits and the second in the high ones.
    """
    n, groups = matrix.scales.shape
    codes = matrix.codes.reshape(n, groups, GROUP)
    first, second = np.split(codes, 2, axis=-1)
    codes = first | second << 4 if matrix.bits == 4 else codes ^ 128  # 8 bits: as int8
    numbers = [one for one in (matrix.scales, matrix.minima) if one is not None]
    halves = [one.astype("<f2")[..., None].view("uint8") for one in numbers]
    return np.concatenate([*halves, codes], axis=-1).reshape(n, -1)
