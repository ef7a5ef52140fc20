"""An int8 matrix product with a bias on AMX, Intel's matrix tiles: eight registers of 16 rows by 64 bytes.

One instruction, `tdpbusd`, multiplies two tiles and adds to a third, 16 by 16 sums. There is no tensor intrinsic for
tiles in TVM, so the kernel is written in TVMScript with LLVM's own intrinsics. The point of it: a tile can be *loaded*,
and with a stride of 0 between its rows, one row of the bias fills all sixteen. The sums then begin as the bias.
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


def runs_here(instructions: str = "amx_int8") -> bool:
    """Whether this processor has tiles with these instructions and lets us use them (Linux asks to be asked)."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    if instructions not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def target() -> tvm.target.Target:
    """An x86 processor with AMX."""
    return tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids"})


def configuration() -> np.ndarray:
    """What `ldtilecfg` reads: palette 1, all eight tiles of full size."""
    bytes_ = np.zeros(64, np.uint8)
    bytes_[0] = 1
    bytes_[16:32].view(np.uint16)[:] = TILE_BYTES
    bytes_[48:56] = TILE_ROWS
    return bytes_


def pack(w: np.ndarray) -> np.ndarray:
    """Weights (n, k) as tiles: for 16 outputs and 64 steps, 16 rows of 4 steps times 16 outputs."""
    n, k = w.shape
    tiles = w.reshape(n // 16, 16, k // 64, 16, 4).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(tiles).reshape(n // 16, k // 64, 16, 64)


def _tile(name: str, *arguments) -> tirx.Expr:
    return T.call_llvm_intrin("int32", f"llvm.x86.{name}", *arguments)


def _number(tile: int) -> tirx.Expr:
    return tirx.const(tile, "int8")


def product(m: int, n: int, k: int, way: str) -> tirx.PrimFunc:
    """D = A @ W + C: A (m, k) uint8, W packed, C (n,) and D (m, n) int32; m and n multiples of 32, k of 64.

    The last two arguments are `configuration()` and a buffer like D for the sums of "separate". While the steps run,
    tiles 0 to 3 hold 32 by 32 sums. "fused": they are loaded from C. "separate": they start at 0, and a second pass
    adds C to what they leave in memory. "without bias": they start at 0, and C is left out.
    """
    fused, separate = way == "fused", way == "separate"
    zero = tirx.const(0, "int64")

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
                T.reads(
                    A[0:m, 0:k],
                    W[vj * 2 : vj * 2 + 2, 0 : k // 64, 0:16, 0:64],
                    C[vj * 32 : vj * 32 + 32],
                    setup[0:64],
                )
                T.writes(D[0:m, vj * 32 : vj * 32 + 32], temp[0:m, vj * 32 : vj * 32 + 32])
                T.evaluate(_tile("ldtilecfg", T.address_of(setup[0])))
                for rows in T.serial(m // 32):
                    if fused:
                        T.evaluate(_load(0, C[vj * 32], zero))
                        T.evaluate(_load(1, C[vj * 32 + 16], zero))
                        T.evaluate(_load(2, C[vj * 32], zero))
                        T.evaluate(_load(3, C[vj * 32 + 16], zero))
                    else:
                        T.evaluate(_tile("tilezero", _number(0)))
                        T.evaluate(_tile("tilezero", _number(1)))
                        T.evaluate(_tile("tilezero", _number(2)))
                        T.evaluate(_tile("tilezero", _number(3)))
                    for step in T.serial(k // 64):
                        T.evaluate(_load(4, A[rows * 32, step * 64], T.int64(k)))
                        T.evaluate(_load(5, A[rows * 32 + 16, step * 64], T.int64(k)))
                        T.evaluate(_load(6, W[vj * 2, step, 0, 0], T.int64(64)))
                        T.evaluate(_load(7, W[vj * 2 + 1, step, 0, 0], T.int64(64)))
                        T.evaluate(_multiply(0, 4, 6))
                        T.evaluate(_multiply(1, 4, 7))
                        T.evaluate(_multiply(2, 5, 6))
                        T.evaluate(_multiply(3, 5, 7))
                    if separate:
                        T.evaluate(_store(0, temp[rows * 32, vj * 32], n))
                        T.evaluate(_store(1, temp[rows * 32, vj * 32 + 16], n))
                        T.evaluate(_store(2, temp[rows * 32 + 16, vj * 32], n))
                        T.evaluate(_store(3, temp[rows * 32 + 16, vj * 32 + 16], n))
                    else:
                        T.evaluate(_store(0, D[rows * 32, vj * 32], n))
                        T.evaluate(_store(1, D[rows * 32, vj * 32 + 16], n))
                        T.evaluate(_store(2, D[rows * 32 + 16, vj * 32], n))
                        T.evaluate(_store(3, D[rows * 32 + 16, vj * 32 + 16], n))
        if separate:
            for row in T.serial(m):
                for group in T.serial(n // 16):
                    for lane in T.vectorized(16):
                        with T.sblock("bias"):
                            vi = T.axis.spatial(m, row)
                            vj = T.axis.spatial(n, group * 16 + lane)
                            D[vi, vj] = temp[vi, vj] + C[vj]

    return main.with_attr("global_symbol", "main")


def _tile(name: str, *arguments) -> tirx.Expr:
    return T.call_llvm_intrin("int32", f"llvm.x86.{name}", *arguments)


def _number(tile: int) -> tirx.Expr:
    return tirx.const(tile, "int8")


def _load(tile: int, element, stride) -> tirx.Expr:
    """Fill a tile from `element` on, its rows `stride` bytes apart."""
    return _tile("tileloadd64", _number(tile), T.address_of(element), stride)


def _store(tile: int, element, columns: int) -> tirx.Expr:
    """Write a tile of 32-bit sums into a matrix of `columns` columns."""
    return _tile("tilestored64", _number(tile), T.address_of(element), T.int64(4 * columns))


def _multiply(total: int, rows: int, columns: int) -> tirx.Expr:
    """Unsigned rows times signed columns, added to `total`."""
    return _tile("tdpbusd", _number(total), _number(rows), _number(columns))
