"""An x86 tensor intrinsic: sixteen 4-element dot products in one instruction, `vpdpbusd`.

TVM 0.27.0.post1 has one too (`tvm.s_tir.tensor_intrin.x86`), written for an older LLVM: it does not compile with the
LLVM of this release, where the instruction's operands are 64 bytes and no longer 16 words. Importing TVM's package also
parses all of its GPU intrinsics, which takes seconds.
"""

from __future__ import annotations

from functools import cache, partial

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import codegen

from chapters.kit.ir.parse_alone import parse_alone
from chapters.kit.machine import llvm_host

NAME = "fusion_by_hand.dot_16x4_vnni"
# the parameters of both functions
STEPS = partial(T.Buffer, (4,), "uint8", offset_factor=1)
WEIGHTS = partial(T.Buffer, (16, 4), "int8", offset_factor=1)
SUMS = partial(T.Buffer, (16,), "int32", offset_factor=1)


@cache
@parse_alone
def register() -> str:
    """Register the intrinsic for `Schedule.tensorize`; returns its name."""

    @T.prim_func(s_tir=True)
    def description(A: STEPS, B: WEIGHTS, C: SUMS) -> None:
        """What the intrinsic computes: C[i] += A[k] * B[i, k]."""
        with T.sblock("root"):
            T.reads(C[0:16], A[0:4], B[0:16, 0:4])
            T.writes(C[0:16])
            for i in range(16):
                for k in range(4):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    @T.prim_func(s_tir=True)
    def implementation(A: STEPS, B: WEIGHTS, C: SUMS) -> None:
        """How it is computed: four bytes of A, repeated sixteen times, against sixteen rows of B."""
        with T.sblock("root"):
            T.reads(C[0:16], A[0:4], B[0:16, 0:4])
            T.writes(C[0:16])
            four = T.reinterpret("int32", A.vload([0], dtype="uint8x4"))
            C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
                "int32x16",
                "llvm.x86.avx512.vpdpbusd.512",
                C.vload([0], dtype="int32x16"),
                T.reinterpret("uint8x64", T.broadcast(four, 16)),
                B.vload([0, 0], dtype="int8x64"),
            )

    TensorIntrin.register(NAME, description, implementation, override=True)
    return NAME


def target() -> tvm.target.Target:
    """An x86 processor with the instruction. Code for it compiles if `compiles_here()`, and runs if `runs_here()`."""
    host = codegen.llvm_get_system_triple() if runs_here() else "x86_64-unknown-linux-gnu"
    return tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "mtriple": host})


def compiles_here() -> bool:
    """Whether TVM's LLVM generates code for x86 processors."""
    return any("x86" in str(name) for name in codegen.llvm_get_targets())


def runs_here() -> bool:
    """Whether this processor has the instruction."""
    if not codegen.llvm_get_system_triple().startswith("x86_64"):
        return False
    return bool(codegen.llvm_cpu_has_features("avx512vnni", llvm_host()["target"]))
