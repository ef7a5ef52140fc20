"""One instruction, or two, that add up products of bytes: what each processor offers, as TVM expressions.

A vector of codes holds four unsigned bytes for each of `lanes` rows of a matrix. Each row's four are multiplied by the
same four signed bytes of x, and their sum is added to the row's int32 sum.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.target import Target, codegen

from chapters.kit.cpu.vector_registers import vector_registers

Pair = tuple[Expr, Expr]  # codes: int32 x lanes, four bytes each; x: one int32, four signed bytes


@dataclass(frozen=True)
class DotProducts:
    """How a processor adds up products of bytes.

    lanes: rows whose sums are one register. add(sums, pairs, bits): `sums`, int32 x lanes, plus the dot products of all
    pairs; bits: how many bits of a code may be set. rows: rows of x whose sums fit in registers.
    """

    lanes: int
    rows: int
    add: Callable[[Expr, Sequence[Pair], int], Expr]


def dot_products(target: Target) -> DotProducts | None:
    """The dot products of an llvm target; None if it has no instruction for them."""

    def has(*features: str) -> bool:
        return all(codegen.llvm_cpu_has_features(feature, target) for feature in features)

    if has("avx512vnni"):
        return DotProducts(16, 8, _vpdpbusd("llvm.x86.avx512.vpdpbusd.512", 16))
    if has("avxvnni"):
        return DotProducts(8, 4, _vpdpbusd("llvm.x86.avx512.vpdpbusd.256", 8))
    if has("avx2"):
        return DotProducts(8, 4, _vpmaddubsw)
    if has("dotprod"):
        return DotProducts(4, 8, _sdot)
    return None


def in_vectors(lanes: int) -> DotProducts:
    """The dot products of a processor without an instruction for them: bytes become vectors of int32."""

    def add(sums: Expr, pairs: Sequence[Pair], _bits: int) -> Expr:
        for codes, x in pairs:
            for byte in range(4):
                code = (codes >> T.broadcast(T.int32(8 * byte), lanes)) & T.broadcast(
                    T.int32(255), lanes
                )
                step = (x << T.int32(24 - 8 * byte)) >> T.int32(24)
                sums = sums + code * T.broadcast(step, lanes)
        return sums

    return DotProducts(lanes, 4, add)


def lanes_of(target: Target) -> int:
    """How many rows of a quantized matrix lie side by side: as many as a CPU's register has sums; 1 on a GPU."""
    if target.kind.name != "llvm":
        return 1
    dots = dot_products(target)
    return dots.lanes if dots else vector_registers(target).lanes("float32")


def _as_bytes(words: Expr, lanes: int, kind: str) -> Expr:
    return T.reinterpret(f"{kind}x{4 * lanes}", words)


def _vpdpbusd(name: str, lanes: int) -> Callable:
    def add(sums: Expr, pairs: Sequence[Pair], _bits: int) -> Expr:
        for codes, x in pairs:
            steps = _as_bytes(T.broadcast(x, lanes), lanes, "int8")
            sums = T.call_llvm_pure_intrin(
                f"int32x{lanes}", name, sums, _as_bytes(codes, lanes, "uint8"), steps
            )
        return sums

    return add


def _vpmaddubsw(sums: Expr, pairs: Sequence[Pair], bits: int) -> Expr:
    """vpmaddubsw adds two products in 16 bits; eight such sums of 4-bit codes cannot overflow, one of 8-bit codes can.

    15 * 127 * 2 * 8 = 30480. Codes of 8 bits are multiplied in 16 bits instead, even and odd bytes apart.
    """
    ones = T.broadcast(tirx.const(1, "int16"), 16)
    if bits == 4:
        for at in range(0, len(pairs), 8):
            products = [
                T.call_llvm_pure_intrin(
                    "int16x16",
                    "llvm.x86.avx2.pmadd.ub.sw",
                    _as_bytes(codes, 8, "uint8"),
                    _as_bytes(T.broadcast(x, 8), 8, "int8"),
                )
                for codes, x in pairs[at : at + 8]
            ]
            total = functools.reduce(operator.add, products)
            sums = sums + T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", total, ones)
        return sums
    for codes, x in pairs:
        both = T.reinterpret("int16x16", codes), T.reinterpret("int16x16", T.broadcast(x, 8))
        byte, eight = (T.broadcast(tirx.const(n, "int16"), 16) for n in (255, 8))
        even = both[0] & byte, (both[1] << eight) >> eight
        odd = (both[0] >> eight) & byte, both[1] >> eight
        for one, other in (even, odd):
            sums = sums + T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx2.pmadd.wd", one, other)
    return sums


def _sdot(sums: Expr, pairs: Sequence[Pair], bits: int) -> Expr:
    """sdot multiplies signed bytes: an 8-bit code is taken as 128 less, and 128 times the steps of x is added again."""
    name = "llvm.aarch64.neon.sdot"
    top = T.broadcast(tirx.const(-0x7F7F7F80, "int32"), 4)  # the highest bit of each byte
    # added twice, since 128 does not fit in a signed byte
    all_64 = T.broadcast(tirx.const(0x40404040, "int32"), 4)
    for codes, x in pairs:
        steps = _as_bytes(T.broadcast(x, 4), 4, "int8")
        terms = [codes] if bits == 4 else [codes ^ top, all_64, all_64]
        for term in terms:
            sums = T.call_llvm_pure_intrin("int32x4", name, sums, _as_bytes(term, 4, "int8"), steps)
    return sums
