"""How wide a CPU target's vector registers are, and how many it has. Schedules choose their tiles to fit them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.target import Target, codegen


@dataclass(frozen=True)
class VectorRegisters:
    """`bits` of one vector register, and the `count` of them."""

    bits: int
    count: int

    def lanes(self, dtype: str) -> int:
        """How many elements of `dtype` one register holds."""
        return self.bits // tvm.DataType(dtype).bits


def vector_registers(target: Target | str | dict) -> VectorRegisters:
    """The vector registers of an llvm target.

    On x86 they follow from the instruction sets of the target's `mcpu`, because `llvm_get_vector_width` says 512 bits
    for every x86 CPU, even without AVX-512. An x86 target without `mcpu` has SSE only.
    """
    target = Target(target)
    if codegen.llvm_cpu_has_features("avx512f", target):
        return VectorRegisters(512, 32)
    if codegen.llvm_cpu_has_features("avx2", target):
        return VectorRegisters(256, 16)
    if codegen.llvm_cpu_has_features("sse2", target):
        return VectorRegisters(128, 16)
    return VectorRegisters(codegen.llvm_get_vector_width(target), 32)


def fills_vectors(buffer: tirx.Buffer) -> bool:
    """Whether TVM compiles vectors of the elements of `buffer`: not of bool, of 8-bit floats, or of smaller types."""
    name = str(buffer.dtype)
    return buffer.dtype.bits >= 8 and name.startswith(
        ("int", "uint", "bfloat16", "float16", "float32", "float64")
    )
