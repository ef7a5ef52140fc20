"""Asks for memory before it is used."""

from __future__ import annotations

from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as I

CACHE_LINE = 64  # bytes


def prefetch(element: Expr) -> None:
    """Emit a statement that brings the cache line of `element`, a BufferLoad, into the nearest cache.

    It changes no value, and an address beyond the buffer does no harm.
    """
    read, keep, data = T.int32(0), T.int32(3), T.int32(1)
    address = T.address_of(element)
    I.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", address, read, keep, data))
