"""Matrices whose rows are stored in groups of small integers, called codes, with a scale per group.

A weight is `scale * (code - zero)` or, if each group also has a minimum, `scale * code + minimum`. The codes of `lanes`
neighbouring rows lie side by side, as one vector register takes them: see `PackedLayout`. Files store the same numbers
row by row, in blocks of a type such as Q4_1; `pack` changes the order and keeps each number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PackedLayout:
    """How an (n, k) matrix is stored, as two arrays.

    codes: int32 (n / lanes, k / group, group * bits / 32, lanes). A word holds `32 / bits` codes of one row. With 8
    bits, byte c of word q is step `4 q + c` of its group. With 4 bits, that byte holds two codes: the low half step
    `4 q + c` and the high half step `group / 2 + 4 q + c`.
    scales: (n / lanes, k / group, 2, lanes) of dtype `scale`, first the scales of a group, then its minima; or
    (n / lanes, k / group, 1, lanes) if the form has no minima.
    """

    bits: int  # 4 or 8
    group: int  # weights of a row that share a scale
    has_minimum: bool
    scale: str  # dtype of the scales: float16 or float32
    lanes: int  # rows side by side

    @property
    def zero(self) -> int:
        """The code of weight 0, if the form has no minimum."""
        return 1 << (self.bits - 1)

    @property
    def words(self) -> int:
        """The words of a row in a group."""
        return self.group * self.bits // 32

    def shapes(self, n: int, k: int) -> list[tuple[tuple[int, ...], str]]:
        """(shape, dtype) of the codes and of the scales of an (n, k) matrix.

        Raises ValueError if k is not a multiple of `group`, or n of `lanes`.
        """
        if k % self.group or n % self.lanes:
            raise ValueError(
                f"A matrix of shape ({n}, {k}) cannot be stored in groups of {self.group} steps and {self.lanes} rows: "
                "both must divide its shape."
            )
        panels, groups = n // self.lanes, k // self.group
        codes = (panels, groups, self.words, self.lanes)
        return [(codes, "int32"), ((panels, groups, 1 + self.has_minimum, self.lanes), self.scale)]

    def whole_panels(self, n: int) -> int:
        """`n` rows rounded up to a multiple of `lanes`."""
        return -(-n // self.lanes) * self.lanes

    def bytes_of(self, n: int, k: int) -> int:
        """The bytes of an (n, k) matrix."""
        return sum(
            int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self.shapes(n, k)
        )


@dataclass(frozen=True)
class QuantizedRows:
    """A matrix in groups, row by row: codes uint8 (n, k), scales and minima (n, k / group); minima may be None."""

    bits: int
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None

    def form(self, lanes: int) -> PackedLayout:
        """The form that stores this matrix with `lanes` rows side by side."""
        group = self.codes.shape[1] // self.scales.shape[1]
        return PackedLayout(
            self.bits, group, self.minima is not None, str(self.scales.dtype), lanes
        )

    def floats(self) -> np.ndarray:
        """The weights, float32 (n, k)."""
        n, groups = self.scales.shape
        codes = self.codes.reshape(n, groups, -1).astype("float32")
        scales = self.scales.astype("float32")[..., None]
        if self.minima is None:
            weights = scales * (codes - (1 << (self.bits - 1)))
        else:
            weights = scales * codes + self.minima.astype("float32")[..., None]
        return weights.reshape(n, -1)


def stack_rows(parts: list[QuantizedRows]) -> QuantizedRows:
    """The rows of several matrices, one after the other, as one matrix. All have the same bits, groups and dtypes."""
    minima = None if parts[0].minima is None else np.concatenate([part.minima for part in parts])
    codes, scales = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "scales")
    )
    return QuantizedRows(parts[0].bits, codes, scales, minima)


def pack(matrix: QuantizedRows, form: PackedLayout) -> list[np.ndarray]:
    """The codes and the scales of `matrix` as `form` stores them, with rows of 0 up to a multiple of `form.lanes`."""
    n, k = matrix.codes.shape
    missing = form.whole_panels(n) - n
    if missing:
        none = [
            a if a is None else np.zeros((missing, a.shape[1]), a.dtype)
            for a in (matrix.codes, matrix.scales, matrix.minima)
        ]
        matrix, n = stack_rows([matrix, QuantizedRows(matrix.bits, *none)]), n + missing
    panels, groups, lanes = n // form.lanes, k // form.group, form.lanes
    by_group = matrix.codes.reshape(panels, lanes, groups, form.group)
    if form.bits == 4:
        half = form.group // 2
        by_group = by_group[..., :half] | by_group[..., half:] << 4
    words = np.ascontiguousarray(by_group).view("<i4")  # (panels, lanes, groups, words)
    codes = np.ascontiguousarray(words.transpose(0, 2, 3, 1))
    others = [matrix.scales] if matrix.minima is None else [matrix.scales, matrix.minima]
    scales = np.stack([one.reshape(panels, lanes, groups) for one in others])
    return [codes, np.ascontiguousarray(scales.transpose(1, 3, 0, 2))]


# --- the blocks of files --------------------------------------------------------------------------


def _halves(raw: np.ndarray) -> np.ndarray:
    """The two bytes at the end of the last dimension as one float16 each, without that dimension."""
    return np.ascontiguousarray(raw).view("<f2")[..., 0]


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """(…, b) bytes as (…, 2 b) codes: first all low halves, then all high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _unpack_q4_0(raw: np.ndarray):
    return 4, _nibbles(raw[..., 2:]), _halves(raw[..., :2]), None


def _unpack_q4_1(raw: np.ndarray):
    return 4, _nibbles(raw[..., 4:]), _halves(raw[..., :2]), _halves(raw[..., 2:4])


def _unpack_q8_0(raw: np.ndarray):
    return 8, raw[..., 2:] ^ 128, _halves(raw[..., :2]), None  # int8 as 128 more than it is


def _unpack_q4_k(raw: np.ndarray):
    """256 weights with eight scales and eight minima of 6 bits, each times a float16 of the block."""
    d, least = (_halves(raw[..., at : at + 2]).astype("float32") for at in (0, 2))
    packed = raw[..., 4:16]
    first, second, last = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=-1)
    codes = _nibbles(raw[..., 16:].reshape(*raw.shape[:-1], 4, 32))
    codes = codes.reshape(*raw.shape[:-1], 8, 32)
    return 4, codes, d[..., None] * scales, -least[..., None] * minima


def _unpack_q6_k(raw: np.ndarray):
    """256 weights of 6 bits with sixteen scales of 8 bits, times a float16 of the block; stored with 8 bits."""
    low, high, scales = raw[..., :128], raw[..., 128:192], raw[..., 192:208].view("i1")
    d = _halves(raw[..., 208:]).astype("float32")
    low = _nibbles(low.reshape(*raw.shape[:-1], 2, 64)).reshape(*raw.shape[:-1], 2, 4, 32)
    high = high.reshape(*raw.shape[:-1], 2, 1, 32) >> np.arange(0, 8, 2, "u1")[:, None] & 3
    codes = (low | high << 4) + np.uint8(128 - 32)
    return 8, codes.reshape(*raw.shape[:-1], 16, 16), d[..., None] * scales, None


# type -> elements and bytes of a block, how to read blocks (…, bytes)
BLOCKS: dict[str, tuple[int, int, Callable]] = {
    "Q4_0": (32, 18, _unpack_q4_0),
    "Q4_1": (32, 20, _unpack_q4_1),
    "Q8_0": (32, 34, _unpack_q8_0),
    "Q4_K": (256, 144, _unpack_q4_k),
    "Q6_K": (256, 210, _unpack_q6_k),
}


def read_quantized_rows(kind: str, raw: np.ndarray) -> QuantizedRows:
    """Rows of blocks of the type `kind`, one of BLOCKS, as codes. raw: uint8 (n, bytes of a row)."""
    _, size, read = BLOCKS[kind]
    n = raw.shape[0]
    bits, codes, scales, minima = read(raw.reshape(n, -1, size))
    return QuantizedRows(
        bits,
        codes.reshape(n, -1),
        scales.reshape(n, -1),
        None if minima is None else minima.reshape(n, -1),
    )


def read_floats(kind: str, raw: np.ndarray) -> np.ndarray:
    """Rows of the type `kind`, one of BLOCKS or F32, F16 or BF16, as float32 (n, k). raw: uint8 (n, bytes of a row)."""
    if kind in BLOCKS:
        return read_quantized_rows(kind, raw).floats()
    raw = np.ascontiguousarray(raw)
    if kind == "BF16":
        return (raw.view("<u2").astype("uint32") << 16).view("float32")
    return raw.view({"F32": "<f4", "F16": "<f2"}[kind]).astype("float32", copy=False)
