"""Kernels that only move bytes: how fast a CPU can read two arrays and write two, with plain and with streaming stores.

No kernel that reads two tensors and writes two of the same size can be faster, if both are measured in the same minute.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.script import tirx as T
from tvm.target import Target

from chapters.kit.cpu.cache_control import llvm_text, store_line, stores_done

LANES = 16  # 4-byte elements: one cache line
UNROLLED = 4
CHUNK = 1024  # elements a task works on at a time


def two_in_two_out(streaming: bool, target: Target) -> Callable:
    """A kernel (a, b, larger, smaller) of four float32 arrays of shape (any, CHUNK).

    It writes the larger and the smaller of each two elements: a plain copy would become a call of memcpy.
    """
    copy_chunk = _streamed if streaming else _plain

    @T.prim_func
    def copy(p_a: T.handle, p_b: T.handle, p_larger: T.handle, p_smaller: T.handle):
        T.func_attr({"tirx.noalias": True, "global_symbol": "copy"})
        chunks = T.int64()
        a = T.match_buffer(p_a, (chunks, CHUNK), "float32")
        b = T.match_buffer(p_b, (chunks, CHUNK), "float32")
        larger = T.match_buffer(p_larger, (chunks, CHUNK), "float32")
        smaller = T.match_buffer(p_smaller, (chunks, CHUNK), "float32")
        with T.attr(T.int32(0), "pragma_import_llvm", llvm_text("float32")):
            for i in T.parallel(chunks):
                copy_chunk(a, b, larger, smaller, i)

    return tvm.compile(copy, target=target)["copy"]


@T.inline
def _plain(a, b, larger, smaller, i):
    for j in T.serial(CHUNK // (LANES * UNROLLED)):
        for u in T.unroll(UNROLLED):
            first = T.meta_var((j * UNROLLED + u) * LANES)
            for v in T.vectorized(LANES):
                larger[i, first + v] = T.max(a[i, first + v], b[i, first + v])
            for v in T.vectorized(LANES):
                smaller[i, first + v] = T.min(a[i, first + v], b[i, first + v])


@T.inline
def _streamed(a, b, larger, smaller, i):
    for j in T.serial(CHUNK // LANES):
        line = T.meta_var(T.ramp(j * LANES, 1, LANES))
        store_line(larger[i, j * LANES], T.max(a[i, line], b[i, line]), "float32")
        store_line(smaller[i, j * LANES], T.min(a[i, line], b[i, line]), "float32")
    stores_done()
