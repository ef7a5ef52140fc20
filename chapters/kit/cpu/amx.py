"""AMX, Intel's matrix tiles: its instructions as functions, and an int8 matrix product with a bias.

A tile is a register of 16 rows by 64 bytes, and there are eight. One instruction multiplies two tiles and adds the
product to a third, 16 by 16 sums. TVM has no tensor intrinsic for tiles, so kernels are written in TVMScript. Each
instruction is a function here, which calls LLVM's intrinsic; its docstring gives the instruction's name in Intel's
manual (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2).

The int8 product shows how to start from a bias: a tile can be *loaded*, and with a stride of 0 between its rows, one
row of the bias fills all sixteen. The sums then start as the bias.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

TILE_ROWS, TILE_BYTES = 16, 64
WAYS = ("separate", "fused", "without bias")
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def runs_here() -> bool:
    """Whether this processor multiplies tiles of int8; asks Linux for permission to use them."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if "amx_int8" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def target() -> tvm.target.Target:
    """A target with AMX."""
    return tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"})


def configuration() -> np.ndarray:
    """The 64 bytes (uint8) that LDTILECFG reads: palette 1, all eight tiles of full size."""
    bytes_ = np.zeros(64, np.uint8)
    bytes_[0] = 1
    bytes_[16:32].view(np.uint16)[:] = TILE_BYTES
    bytes_[48:56] = TILE_ROWS
    return bytes_


def pack(w: np.ndarray) -> np.ndarray:
    """int8 weights (n, k) as tiles (n // 16, k // 64, 16, 64): row r has steps 4 r to 4 r + 3 of each of 16 outputs."""
    n, k = w.shape
    tiles = w.reshape(n // 16, 16, k // 64, 16, 4).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(tiles).reshape(n // 16, k // 64, 16, 64)


def _call(name: str, *arguments) -> tirx.Expr:
    return T.call_llvm_intrin("int32", f"llvm.x86.{name}", *arguments)


def _tile(tile: int) -> tirx.Expr:
    return tirx.const(tile, "int8")


def configure_tiles(first) -> tirx.Expr:
    """LDTILECFG: set the sizes of all tiles from the 64 bytes of a `configuration`, which begin at `first`.

    Each thread has its own tiles, and configures them before it uses them.
    """
    return _call("ldtilecfg", T.address_of(first))


def zero_tile(tile: int) -> tirx.Expr:
    """TILEZERO: all bytes of a tile become 0."""
    return _call("tilezero", _tile(tile))


def load_tile(tile: int, first, stride: int) -> tirx.Expr:
    """TILELOADD: fill a tile from memory; its rows begin `stride` bytes apart, the first at the element `first`."""
    return _call("tileloadd64", _tile(tile), T.address_of(first), T.int64(stride))


def store_tile(tile: int, first, stride: int) -> tirx.Expr:
    """TILESTORED: write a tile to memory; its rows begin `stride` bytes apart, the first at the element `first`."""
    return _call("tilestored64", _tile(tile), T.address_of(first), T.int64(stride))


def multiply_int8(sums: int, rows: int, columns: int) -> tirx.Expr:
    """TDPBUSD: sums (16, 16) int32 += rows (16, 64) uint8 times columns (64, 16) int8.

    Each row of the tile `columns` has four steps of the reduction, for one column after the other.
    """
    return _call("tdpbusd", _tile(sums), _tile(rows), _tile(columns))


def product(m: int, n: int, k: int, way: str) -> tirx.PrimFunc:
    """D = A @ W + C: A (m, k) uint8, W packed, C (n,) and D (m, n) int32; m and n multiples of 32, k of 64.

    The last two arguments are `configuration()` and a buffer like D for the sums of "separate". While the steps run,
    tiles 0 to 3 hold 32 by 32 sums. "fused": they are loaded from C. "separate": they start at 0, and a second pass
    adds C to the stored sums. "without bias": they start at 0, and C is not added. Raises ValueError for another way
    and for other sizes.
    """
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; it must be one of {', '.join(map(repr, WAYS))}.")
    if m % 32 or n % 32 or k % 64:
        raise ValueError(f"(m, n, k) is {(m, n, k)}; m and n must be multiples of 32, k of 64.")
    fused, separate = way == "fused", way == "separate"

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), "uint8"),
        W: T.Buffer((n // 16, k // 64, 16, 64), "int8"),
        C: T.Buffer((n,), "int32"),
        D: T.Buffer((m, n), "int32"),
        setup: T.Buffer((64,), "uint8"),
        temp: T.Buffer((m, n), "int32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for columns in T.serial(n // 32):
            with T.sblock("tiles"):
                vj = T.axis.spatial(n // 32, columns)
                column = T.meta_var(vj * 32)
                weights = T.meta_var(W[vj * 2 : vj * 2 + 2, 0 : k // 64, 0:16, 0:64])
                T.reads(A[0:m, 0:k], weights, C[column : column + 32], setup[0:64])
                T.writes(D[0:m, column : column + 32], temp[0:m, column : column + 32])
                configure_tiles(setup[0])
                for rows in T.serial(m // 32):
                    row = T.meta_var(rows * 32)
                    if fused:  # a stride of 0 gives each row of a tile the same 16 elements
                        load_tile(0, C[column], 0)
                        load_tile(1, C[column + 16], 0)
                        load_tile(2, C[column], 0)
                        load_tile(3, C[column + 16], 0)
                    else:
                        zero_tile(0)
                        zero_tile(1)
                        zero_tile(2)
                        zero_tile(3)
                    for step in T.serial(k // 64):
                        load_tile(4, A[row, step * 64], k)
                        load_tile(5, A[row + 16, step * 64], k)
                        load_tile(6, W[vj * 2, step, 0, 0], 64)
                        load_tile(7, W[vj * 2 + 1, step, 0, 0], 64)
                        multiply_int8(0, 4, 6)
                        multiply_int8(1, 4, 7)
                        multiply_int8(2, 5, 6)
                        multiply_int8(3, 5, 7)
                    out = T.meta_var(temp if separate else D)
                    store_tile(0, out[row, column], 4 * n)
                    store_tile(1, out[row, column + 16], 4 * n)
                    store_tile(2, out[row + 16, column], 4 * n)
                    store_tile(3, out[row + 16, column + 16], 4 * n)
        if separate:
            for row, group in T.grid(m, n // 16):
                for lane in T.vectorized(16):
                    with T.sblock("bias"):
                        vi = T.axis.spatial(m, row)
                        vj = T.axis.spatial(n, group * 16 + lane)
                        D[vi, vj] = temp[vi, vj] + C[vj]

    return main.with_attr("global_symbol", "main")
