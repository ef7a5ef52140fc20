"""Arithmetic on vectors of bfloat16 for LLVM, two elements in each 32-bit lane.

A bfloat16 is the upper half of a float32. Consider a pair in one 32-bit lane. Clear the lower half of the lane, and it
is the second element (the one at the higher address) as a float32; shift the lane left by 16 bits, and it is the first.
Element by element, LLVM would widen each element to its own lane and narrow it again: two more shuffles per element,
and a core does one shuffle per cycle. This assumes a little-endian processor, as do all targets of this course.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

UPPER = 0xFFFF0000  # the bits of a lane's second element


def to_bits(pairs: Expr, lanes: int) -> Expr:
    """A vector of 2 * lanes bfloat16 as `lanes` uint32, the bits of one pair in each."""
    return tirx.reinterpret(f"uint32x{lanes}", pairs)


def from_bits(bits: Expr, lanes: int) -> Expr:
    """The bits of `lanes` pairs as a vector of 2 * lanes bfloat16."""
    return tirx.reinterpret(f"bfloat16x{2 * lanes}", bits)


def even(bits: Expr, lanes: int) -> Expr:
    """The first element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{lanes}", bits << _broadcast(16, lanes))


def odd(bits: Expr, lanes: int) -> Expr:
    """The second element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{lanes}", bits & _broadcast(UPPER, lanes))


def join(first: Expr, second: Expr, lanes: int) -> Expr:
    """The bits of pairs of `first` and `second` (float32), each rounded to the nearest bfloat16, ties to even."""
    low = _round(first, lanes) >> _broadcast(16, lanes)
    return low | (_round(second, lanes) & _broadcast(UPPER, lanes))


def _round(value: Expr, lanes: int) -> Expr:
    """The bits of `value`, changed so that their upper half is the nearest bfloat16, as TVM's cast rounds."""
    bits = tirx.reinterpret(f"uint32x{lanes}", value)
    last = (bits >> _broadcast(16, lanes)) & _broadcast(1, lanes)
    return bits + (last + _broadcast(0x7FFF, lanes))


def _broadcast(constant: int, lanes: int) -> Expr:
    return tirx.Broadcast(tirx.const(constant, "uint32"), lanes)
