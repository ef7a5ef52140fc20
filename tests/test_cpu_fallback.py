"""The CPU fallback on kernels by hand: numbers stay what they were, and what cannot be scheduled is left alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T
from tvm.target import Target

from chapters.toolkit.ir.tensor_ir import nodes
from chapters.toolkit.pipeline.cpu_fallback import (
    CPUFallback,
    is_made_of_blocks,
    schedule_any,
)
from chapters.toolkit.pipeline.reduction_once import ReductionOnce
from chapters.toolkit.pipeline.small_kernels import SmallKernelsAlone, steps
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

TARGET = Target("llvm")


def run(func: tirx.PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What `arrays` are after a call of `func` with copies of them."""
    kernel = tvm.compile(func.with_attr("global_symbol", "main"), target=TARGET)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]


def random_arrays(func: tirx.PrimFunc) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [[int(extent) for extent in buffer.shape] for buffer in func.params]
    return [
        np.asarray(random.standard_normal(s) * 4, str(buffer.dtype))
        for s, buffer in zip(shapes, func.params, strict=True)
    ]


def kinds(func: tirx.PrimFunc) -> list[int]:
    return [loop.kind for loop in nodes(func.body, tirx.For)]


def columns(dtype: str, n: int, kind: str = "sum") -> tvm.IRModule:
    """A sum, or another reduction, over the rows of (5, n)."""
    x = relax.Var("x", relax.TensorType((5, n), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(getattr(relax.op, kind)(x, axis=[0])))
    return builder.get()


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "float16"])
def test_columns_of_every_dtype(dtype, kind):
    x = (np.arange(80).reshape(5, 16) % 3).astype(getattr(ml_dtypes, dtype, dtype))
    kernel = tvm.compile(columns(dtype, 16, kind), TARGET, relax_pipeline=fusion_pipeline(TARGET))
    found = relax.VirtualMachine(kernel, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    expected = getattr(x.astype("float32"), kind)(axis=0)
    np.testing.assert_array_equal(found.astype("float32"), expected)


def test_columns_of_bool_compile():
    tvm.compile(columns("bool", 16, "mean"), TARGET, relax_pipeline=fusion_pipeline(TARGET))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_matrix_as_it_is_stored_compiles(dtype):
    x, w = (relax.Var(name, relax.TensorType((16, 16), dtype)) for name in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    tvm.compile(builder.get(), TARGET, relax_pipeline=fusion_pipeline(TARGET))


@T.prim_func(s_tir=True)
def iteration(A: T.Buffer((8, 8), "float32"), x: T.Buffer((8,), "float32")):
    y = T.sblock_alloc_buffer((8,), "float32")
    for _step in range(3):
        for i, k in T.grid(8, 8):
            with T.sblock("product"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + A[vi, vk] * x[vk]
        for i in range(8):
            with T.sblock("back"):
                vi = T.axis.spatial(8, i)
                x[vi] = T.tanh(y[vi])


@T.prim_func(s_tir=True)
def repeated(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for _step, i, k in T.grid(3, 8, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func(s_tir=True)
def one_scratch(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    row = T.sblock_alloc_buffer((8,), "float32")
    for i in range(6):
        for j in range(8):
            with T.sblock("fill"):
                vi, vj = T.axis.remap("SS", [i, j])
                row[vj] = A[vi, vj] + T.float32(1)
        for j in range(8):
            with T.sblock("use"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = row[7 - vj]


@pytest.mark.parametrize("func", [iteration, repeated, one_scratch])
def test_turns_that_share_memory_stay_in_order(func):
    scheduled = schedule_any(func)
    assert tirx.ForKind.PARALLEL not in kinds(scheduled)
    arrays = random_arrays(func)
    for a, b in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@T.prim_func(s_tir=True)
def own_scratch(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    row = T.sblock_alloc_buffer((6,), "float32")
    for i in range(6):
        for k in range(8):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    row[vi] = T.float32(0)
                row[vi] = row[vi] + A[vi, vk]
        for j in range(8):
            with T.sblock("use"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] - row[vi]


def test_turns_that_share_nothing_run_in_parallel():
    scheduled, arrays = schedule_any(own_scratch), random_arrays(own_scratch)
    assert tirx.ForKind.PARALLEL in kinds(scheduled)
    for a, b in zip(run(own_scratch, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@T.prim_func(s_tir=True)
def number(A: T.Buffer((8,), "float32"), C: T.Buffer((), "float32")):
    for i, k in T.grid(1, 8):
        with T.sblock("sum"):
            _vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[()] = T.float32(0)
            C[()] = C[()] + A[vk]


@T.prim_func(s_tir=True)
def triangle(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
    for i in range(8):
        for k in range(i + 1):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vk, vi]


@T.prim_func(s_tir=True)
def vectors_already(A: T.Buffer((6, 4, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    for i in T.parallel(6):
        for j in T.serial(8):
            for k in T.vectorized(4):
                with T.sblock("sum"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk, vj]


@T.prim_func(s_tir=True)
def nothing(A: T.Buffer((4, 0), "float32"), C: T.Buffer((0,), "float32")):
    for j, k in T.grid(0, 4):
        with T.sblock("sum"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vk, vj]


@T.prim_func(s_tir=True)
def adds_from_the_third(A: T.Buffer((9, 16), "float32"), C: T.Buffer((16,), "float32")):
    for j, k in T.grid(16, 6):
        with T.sblock("sum"):
            vj = T.axis.spatial(16, j)
            vk = T.axis.reduce(9, k + 3)
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vk, vj]


@T.prim_func(s_tir=True)
def adds_where_it_may(A: T.Buffer((9, 16), "float32"), C: T.Buffer((16,), "float32")):
    for j, k in T.grid(16, 9):
        with T.sblock("sum"):
            vj, vk = T.axis.remap("SR", [j, k])
            T.where(k >= 3)
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vk, vj]


OTHER_SUMS = [number, triangle, vectors_already, nothing, adds_from_the_third, adds_where_it_may]


@pytest.mark.parametrize("func", OTHER_SUMS)
def test_sums_of_other_shapes(func):
    scheduled = SmallKernelsAlone({"i": 4})(CPUFallback()(tvm.IRModule({"main": func})))["main"]
    arrays = random_arrays(func)
    for a, b in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_steps_of_a_triangle_and_of_int32_dimensions_are_not_known():
    n = tirx.Var("n", "int32")
    x = te.placeholder((n, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((n, 8), lambda i, j: x[i, j] + 1.0, "y")])
    assert steps(func, {}) == steps(triangle, {}) == float("inf")
    assert steps(func, {"n": 3}) == 24


@T.prim_func(s_tir=True)
def two_roots(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
    for i in range(4):
        with T.sblock("root"):
            vi = T.axis.spatial(4, i)
            for j in range(8):
                with T.sblock("inner"):
                    vj = T.axis.spatial(8, j)
                    C[vi * 8 + vj] = A[vi * 8 + vj] + T.float32(1)


def test_a_second_root_is_left_alone():
    mod = tvm.IRModule({"main": two_roots})
    assert not is_made_of_blocks(two_roots)
    assert CPUFallback()(mod)["main"].same_as(mod["main"]) and steps(two_roots, {}) == float("inf")


@T.prim_func(s_tir=True)
def norm_and_its_sums(
    A: T.Buffer((6, 8), "float32"), sums: T.Buffer((6,), "float32"), C: T.Buffer((6, 8), "float32")
):
    for i, k in T.grid(6, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                sums[vi] = T.float32(0)
            sums[vi] = sums[vi] + A[vi, vk] * A[vi, vk]
    for i, j in T.grid(6, 8):
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] / (sums[vi] + T.float32(1))


@T.prim_func(s_tir=True)
def norm_in_place(A: T.Buffer((6, 8), "float32")):
    sums = T.sblock_alloc_buffer((6,), "float32")
    for i, k in T.grid(6, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                sums[vi] = T.float32(0)
            sums[vi] = sums[vi] + A[vi, vk] * A[vi, vk]
    for i, j in T.grid(6, 8):
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = A[vi, vj] / (sums[vi] + T.float32(1))


@pytest.mark.parametrize("func", [norm_and_its_sums, norm_in_place])
def test_what_dlight_cannot_finish_is_declined(func):
    assert ReductionOnce().apply(func, TARGET, False) is None
