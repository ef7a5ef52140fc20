"""Tensor cores as tensor intrinsics: 16 x 16 tiles that a warp loads, multiplies and stores together.

CUDA calls such a tile a fragment. It is spread over the registers of the 32 threads of a warp; only the compiler knows
which thread holds which element. A schedule reaches fragments through buffers of the scopes below and through
`Schedule.tensorize`, which takes two functions for each intrinsic: what it computes, and how.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

Intrinsic = tuple[tirx.PrimFunc, tirx.PrimFunc]  # what it computes, and how
TILE = 16
A_SCOPE, B_SCOPE, SUM_SCOPE = "wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"
# A device function: it loads a tile whose rows lie 0 elements apart, so that all 16 rows are the same 16 numbers.
START_FROM_ROW = """
template <class Fragment> __device__ void start_from_row(Fragment* sums, int n, const float* row) {
  nvcuda::wmma::load_matrix_sync(sums[n], row, 0, nvcuda::wmma::mem_row_major);
}
"""


def fragment_index(fragment: tirx.Buffer) -> Expr:
    """Which fragment of its buffer a `strided` tile is. Fragments are numbered along the rows of the whole buffer."""
    stride = fragment.strides[0]  # from one row of the whole buffer to the next
    row, column = fragment.elem_offset // stride, fragment.elem_offset % stride
    return row // TILE * (stride // TILE) + column // TILE


def tile(handle: tirx.Var, dtype: str, scope: str, strided: bool = False) -> tirx.Buffer:
    """Declare the parameter `handle` of an intrinsic's function as a tile (16, 16) of a larger buffer.

    strided: the tile's strides are variables, because the larger buffer decides them. An implementation needs them, a
    description does not.
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


def _make_move(
    source_scope: str, target_scope: str, dtype: str, instruction: Callable
) -> Intrinsic:
    """(desc, impl) of target = source, for two tiles; `instruction(source, target)` is the call that does it."""

    @T.prim_func(s_tir=True)
    def desc(source: T.handle, target: T.handle) -> None:
        S = tile(source, dtype, source_scope)
        D = tile(target, dtype, target_scope)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            for i, j in T.grid(TILE, TILE):
                with T.sblock("move"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def impl(source: T.handle, target: T.handle) -> None:
        S = tile(source, dtype, source_scope, strided=True)
        D = tile(target, dtype, target_scope, strided=True)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE])
            T.writes(D[0:TILE, 0:TILE])
            T.evaluate(instruction(S, D))

    return desc, impl


def load(scope: str, dtype: str) -> Intrinsic:
    """(desc, impl) of fragment = tile of shared memory. scope: A_SCOPE for a tile (i, k), B_SCOPE for a tile (j, k)."""
    layout = "col_major" if scope == B_SCOPE else "row_major"

    def instruction(shared, fragment) -> Expr:
        place = shared.access_ptr("r"), shared.strides[0]
        number = fragment_index(fragment)
        return T.tvm_load_matrix_sync(fragment.data, TILE, TILE, TILE, number, *place, layout)

    return _make_move("shared", scope, dtype, instruction)


def store() -> Intrinsic:
    """(desc, impl) of tile of global memory = fragment of sums, float32."""

    def instruction(sums, target) -> Expr:
        place = target.access_ptr("w"), target.strides[0]
        number = fragment_index(sums)
        return T.tvm_store_matrix_sync(sums.data, TILE, TILE, TILE, number, *place, "row_major")

    return _make_move(SUM_SCOPE, "global", "float32", instruction)


def multiply_add(dtype: str) -> Intrinsic:
    """(desc, impl) of sums += a @ b.T, for fragments a and b of `dtype` and sums of float32."""

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = tile(a, dtype, A_SCOPE)
        B = tile(b, dtype, B_SCOPE)
        S = tile(sums, "float32", SUM_SCOPE)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(S[0:TILE, 0:TILE])
            for i, j, k in T.grid(TILE, TILE, TILE):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    S[vi, vj] += T.cast(A[vi, vk], "float32") * T.cast(B[vj, vk], "float32")

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = tile(a, dtype, A_SCOPE, strided=True)
        B = tile(b, dtype, B_SCOPE, strided=True)
        S = tile(sums, "float32", SUM_SCOPE, strided=True)
        with T.sblock("root"):
            T.reads(S[0:TILE, 0:TILE], A[0:TILE, 0:TILE], B[0:TILE, 0:TILE])
            T.writes(S[0:TILE, 0:TILE])
            places = T.meta_var([(one.data, fragment_index(one)) for one in (S, A, B)])
            T.evaluate(T.tvm_mma_sync(*places[0], *places[1], *places[2], *places[0]))

    return desc, impl


def register(name: str, functions: Intrinsic) -> str:
    """Register (desc, impl), what an intrinsic computes and how, under `name`; returns `name`."""
    TensorIntrin.register(name, *functions, override=True)
    return name
