"""Arithmetic on vectors of bfloat16 for LLVM, two elements in each 32-bit lane.

A bfloat16 is the upper half of a float32. Of a pair in one lane the second element, at the higher address, is therefore
a float32 already, but for its lower half, and the first is one shift away from it. Element by element, each would be
widened to a lane of its own and narrowed again: two shuffles more an element, of which a core does one a cycle. For
little-endian processors, which are all that LLVM is asked for here.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

UPPER = 0xFFFF0000  # the bits of a lane's second element


def loaded(pairs: Expr, lanes: int) -> Expr:
    """`lanes` pairs as bits, uint32. pairs: bfloat16, 2 * lanes elements."""
    return tirx.reinterpret(f"uint32x{lanes}", pairs)


def stored(bits: Expr, lanes: int) -> Expr:
    """The 2 * lanes elements of bfloat16 that `bits` are."""
    return tirx.reinterpret(f"bfloat16x{2 * lanes}", bits)


def even(bits: Expr, lanes: int) -> Expr:
    """The first element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{lanes}", bits << _all(16, lanes))


def odd(bits: Expr, lanes: int) -> Expr:
    """The second element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{lanes}", bits & _all(UPPER, lanes))


def joined(first: Expr, second: Expr, lanes: int) -> Expr:
    """The bits of pairs of `first` and `second` (float32), each rounded to the nearest bfloat16, ties to even."""
    low = _rounded(first, lanes) >> _all(16, lanes)
    return low | (_rounded(second, lanes) & _all(UPPER, lanes))


def _rounded(value: Expr, lanes: int) -> Expr:
    """The bits of a float32 with the nearest bfloat16 in their upper half, as TVM's cast rounds."""
    bits = tirx.reinterpret(f"uint32x{lanes}", value)
    last = (bits >> _all(16, lanes)) & _all(1, lanes)
    return bits + (last + _all(0x7FFF, lanes))


def _all(constant: int, lanes: int) -> Expr:
    return tirx.Broadcast(tirx.const(constant, "uint32"), lanes)
