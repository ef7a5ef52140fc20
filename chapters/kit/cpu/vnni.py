"""An x86 tensor intrinsic of our own: sixteen 4-element dot products in one instruction, `vpdpbusd`.

TVM 0.27.0.post1 has one too (`tvm.s_tir.tensor_intrin.x86`), written for an older LLVM: with the LLVM of this release
it does not compile, because the instruction's operands are now 64 bytes and no longer 16 words. Importing that package
also parses every GPU intrinsic there is, which takes seconds.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import codegen

NAME = "fusion_by_hand.dot_16x4_vnni"


@T.prim_func(s_tir=True)
def description(
    A: T.Buffer((4,), "uint8", offset_factor=1),
    B: T.Buffer((16, 4), "int8", offset_factor=1),
    C: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
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
def implementation(
    A: T.Buffer((4,), "uint8", offset_factor=1),
    B: T.Buffer((16, 4), "int8", offset_factor=1),
    C: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    """How: four bytes of A, repeated sixteen times, against sixteen rows of B."""
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


def register() -> str:
    """Make the intrinsic known to `Schedule.tensorize`; returns its name."""
    TensorIntrin.register(NAME, description, implementation, override=True)
    return NAME


def target() -> tvm.target.Target:
    """An x86 processor that has the instruction. Code for it compiles anywhere and runs where `runs_here()`."""
    host = "x86_64-unknown-linux-gnu" if not runs_here() else codegen.llvm_get_system_triple()
    return tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake", "mtriple": host})


def compiles_here() -> bool:
    """Whether TVM's LLVM writes code for x86 processors."""
    return any("x86" in str(name) for name in codegen.llvm_get_targets())


def runs_here() -> bool:
    """Whether this processor has the instruction."""
    if not codegen.llvm_get_system_triple().startswith("x86_64"):
        return False
    host = tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})
    return bool(codegen.llvm_cpu_has_features("avx512vnni", host))
