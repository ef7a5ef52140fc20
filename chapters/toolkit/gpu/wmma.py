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


def _tile(handle: tirx.Var, dtype: str, scope: str, strided: bool = False) -> tirx.Buffer:
    """The parameter `handle` of an intrinsic's function as a (16, 16) tile.

    strided: `tile.strides` are variables, which the buffer the tile is cut from decides. A function that says how needs
    them; what it computes is said without.
    """
    return T.match_buffer(
        handle,
        (TILE, TILE),
        dtype,
        scope=scope,
        align=64,
        offset_factor=8 if scope == "shared" else TILE,  # rows in shared memory are padded by 8
        strides=[tirx.Var("row", "int32"), tirx.Var("one", "int32")] if strided else None,
    )


def load(scope: str, dtype: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """fragment = tile of shared memory. scope: A_SCOPE for a tile (i, k), B_SCOPE for a tile (j, k)."""
    layout = "col_major" if scope == B_SCOPE else "row_major"

    @T.prim_func(s_tir=True)
    def desc(source: T.handle, target: T.handle) -> None:
        S = _tile(source, dtype, "shared")
        F = _tile(target, dtype, scope)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(F[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    F[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(source: T.handle, target: T.handle) -> None:
        S = _tile(source, dtype, "shared", strided=True)
        F = _tile(target, dtype, scope, strided=True)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(F[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    F.data,
                    *(TILE, TILE, TILE),
                    fragment_index(F, F.strides[0]),
                    S.access_ptr("r"),
                    S.strides[0],
                    layout,
                )
            )

    return desc, impl


def multiply_add(dtype: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """sums += a @ b.T, for fragments a and b of `dtype` and sums of float32."""

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = _tile(a, dtype, A_SCOPE)
        B = _tile(b, dtype, B_SCOPE)
        S = _tile(sums, "float32", SUM_SCOPE)
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
        A = _tile(a, dtype, A_SCOPE, strided=True)
        B = _tile(b, dtype, B_SCOPE, strided=True)
        S = _tile(sums, "float32", SUM_SCOPE, strided=True)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(S[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_mma_sync(
                    *(S.data, fragment_index(S, S.strides[0])),
                    *(A.data, fragment_index(A, A.strides[0])),
                    *(B.data, fragment_index(B, B.strides[0])),
                    *(S.data, fragment_index(S, S.strides[0])),
                )
            )

    return desc, impl


def store() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """tile of global memory = fragment of sums."""

    @T.prim_func(s_tir=True)
    def desc(sums: T.handle, target: T.handle) -> None:
        S = _tile(sums, "float32", SUM_SCOPE)
        D = _tile(target, "float32", "global")
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(sums: T.handle, target: T.handle) -> None:
        S = _tile(sums, "float32", SUM_SCOPE, strided=True)
        D = _tile(target, "float32", "global", strided=True)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    S.data,
                    *(TILE, TILE, TILE),
                    fragment_index(S, S.strides[0]),
                    D.access_ptr("w"),
                    D.strides[0],
                    "row_major",
                )
            )

    return desc, impl


def register(name: str, functions: tuple[tirx.PrimFunc, tirx.PrimFunc]) -> str:
    """Register (what it computes, how) under `name`, which is returned."""
    TensorIntrin.register(name, *functions, override=True)
    return name
