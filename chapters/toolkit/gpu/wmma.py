"""Tensor cores as tensor intrinsics: 16 x 16 tiles that a warp loads, multiplies and stores together.

CUDA calls such a tile a fragment. It is spread over the registers of the 32 threads of a warp; which thread holds what
is nobody's business but the compiler's. A schedule reaches fragments through buffers of four scopes and through
`Schedule.tensorize`, which wants two functions of each intrinsic: what it computes, and how.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

TILE = 16
A_SCOPE, B_SCOPE, SUM_SCOPE = "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"


def fragment_index(buffer: tirx.Buffer, stride: Expr) -> Expr:
    """Which fragment of a buffer of fragments the tile `buffer` is: fragments are numbered along its rows.

    stride: the distance of two rows of the whole buffer, the first of the tile's strides.
    """
    row, column = buffer.elem_offset // stride, buffer.elem_offset % stride
    return row // TILE * (stride // TILE) + column // TILE


def load(scope: str, dtype: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """fragment = tile of shared memory. scope: A_SCOPE for a tile (i, k), B_SCOPE for a tile (j, k)."""
    layout = "col_major" if scope == B_SCOPE else "row_major"

    @T.prim_func(s_tir=True)
    def desc(source: T.handle, target: T.handle) -> None:
        S = T.match_buffer(source, (TILE, TILE), dtype, align=64, offset_factor=8, scope="shared")
        F = T.match_buffer(target, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=scope)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(F[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    F[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(source: T.handle, target: T.handle) -> None:
        row, one, f_row, f_one = T.int32(), T.int32(), T.int32(), T.int32()
        S = T.match_buffer(
            source,
            (TILE, TILE),
            dtype,
            align=64,
            offset_factor=8,
            scope="shared",
            strides=[row, one],
        )
        F = T.match_buffer(
            target,
            (TILE, TILE),
            dtype,
            align=64,
            offset_factor=TILE,
            scope=scope,
            strides=[f_row, f_one],
        )
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(F[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    F.data,
                    TILE,
                    TILE,
                    TILE,
                    fragment_index(F, f_row),
                    S.access_ptr("r"),
                    row,
                    layout,
                )
            )

    return desc, impl


def multiply_add(dtype: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """sums += a @ b.T, for fragments a and b of `dtype` and sums of float32."""

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(a, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=A_SCOPE)
        B = T.match_buffer(b, (TILE, TILE), dtype, align=64, offset_factor=TILE, scope=B_SCOPE)
        S = T.match_buffer(
            sums, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope=SUM_SCOPE
        )
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(S[0:TILE, 0:TILE])
            for i, j, k in T.grid(TILE, TILE, TILE):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    S[vi, vj] = S[vi, vj] + T.cast(A[vi, vk], "float32") * T.cast(
                        B[vj, vk], "float32"
                    )

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, b: T.handle, sums: T.handle) -> None:
        a_row, a_one, b_row, b_one = T.int32(), T.int32(), T.int32(), T.int32()
        s_row, s_one = T.int32(), T.int32()
        A = T.match_buffer(
            a,
            (TILE, TILE),
            dtype,
            align=64,
            offset_factor=TILE,
            scope=A_SCOPE,
            strides=[a_row, a_one],
        )
        B = T.match_buffer(
            b,
            (TILE, TILE),
            dtype,
            align=64,
            offset_factor=TILE,
            scope=B_SCOPE,
            strides=[b_row, b_one],
        )
        S = T.match_buffer(
            sums,
            (TILE, TILE),
            "float32",
            align=64,
            offset_factor=TILE,
            scope=SUM_SCOPE,
            strides=[s_row, s_one],
        )
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(S[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_mma_sync(
                    S.data,
                    fragment_index(S, s_row),
                    A.data,
                    fragment_index(A, a_row),
                    B.data,
                    fragment_index(B, b_row),
                    S.data,
                    fragment_index(S, s_row),
                )
            )

    return desc, impl


def store() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """tile of global memory = fragment of sums."""

    @T.prim_func(s_tir=True)
    def desc(sums: T.handle, target: T.handle) -> None:
        S = T.match_buffer(
            sums, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope=SUM_SCOPE
        )
        D = T.match_buffer(
            target, (TILE, TILE), "float32", align=64, offset_factor=TILE, scope="global"
        )
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(sums: T.handle, target: T.handle) -> None:
        s_row, s_one, row, one = T.int32(), T.int32(), T.int32(), T.int32()
        S = T.match_buffer(
            sums,
            (TILE, TILE),
            "float32",
            align=64,
            offset_factor=TILE,
            scope=SUM_SCOPE,
            strides=[s_row, s_one],
        )
        D = T.match_buffer(
            target,
            (TILE, TILE),
            "float32",
            align=64,
            offset_factor=TILE,
            scope="global",
            strides=[row, one],
        )
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    S.data,
                    TILE,
                    TILE,
                    TILE,
                    fragment_index(S, s_row),
                    D.access_ptr("w"),
                    row,
                    "row_major",
                )
            )

    return desc, impl


def register(name: str, functions: tuple[tirx.PrimFunc, tirx.PrimFunc]) -> str:
    """Register (what it computes, how) under `name`, which is returned."""
    TensorIntrin.register(name, *functions, override=True)
    return name
