"""The CPU fallback on kernels by hand: numbers stay what they were, and what cannot be scheduled is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from chapters.ch09_the_compiler.check_queries import has_loop
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.schedules.apply_cpu_fallback import ApplyCPUFallback, schedule_any
from chapters.kit.schedules.reduction_once import ReductionOnce
from chapters.kit.schedules.run_small_kernels_serially import RunSmallKernelsSerially, steps
from chapters.kit.schedules.unscheduled import is_made_of_blocks
from solutions.ch09_the_compiler.pipeline import fusion_pipeline
from tests.support.compiled import run_main

REMAP = 'vi, vk = T.axis.remap("SR", [i, k])'
PIPELINE = fusion_pipeline(QUICK)


def run(func: tirx.PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What `arrays` are after a call of `func` with copies of them."""
    kernel = tvm.compile(func.with_attr("global_symbol", "main"), target=QUICK)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return [tensor.numpy() for tensor in tensors]


def assert_same(func: tirx.PrimFunc, scheduled: tirx.PrimFunc) -> None:
    """Both do the same to random arrays."""
    random = np.random.default_rng(0)
    shapes = [[int(extent) for extent in buffer.shape] for buffer in func.params]
    arrays = [np.asarray(random.standard_normal(shape) * 4, "float32") for shape in shapes]
    for a, b in zip(run(func, arrays), run(scheduled, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def columns(dtype: str, kind: str) -> tvm.IRModule:
    """A reduction over the rows of (5, 16)."""
    return relax_module(f'def main(x: (5, 16, "{dtype}")): out = R.{kind}(x, axis=[0])')


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "float16"])
def test_columns_of_every_dtype(dtype, kind):
    x = (np.arange(80).reshape(5, 16) % 3).astype(dtype)
    found = run_main(columns(dtype, kind), x, target=QUICK)
    expected = getattr(x.astype("float32"), kind)(axis=0)
    np.testing.assert_array_equal(found.astype("float32"), expected)


def test_columns_of_bool_compile():
    tvm.compile(columns("bool", "mean"), QUICK, relax_pipeline=PIPELINE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_matrix_as_it_is_stored_compiles(dtype):
    matrix = f'(16, 16, "{dtype}")'
    mod = relax_module(f"def main(x: {matrix}, w: {matrix}): out = R.matmul(x, w)")
    tvm.compile(mod, QUICK, relax_pipeline=PIPELINE)


def sums(
    a: tuple[int, ...], c: tuple[int, ...], to: str, of: str, *loops: str, axes: str = REMAP
) -> tirx.PrimFunc:
    """A block with `axes` in `loops` that sums A[of] into C[to], for A of shape `a` and C of shape `c` in float32."""
    head = f'def main(A: T.Buffer({a}, "float32"), C: T.Buffer({c}, "float32")):'
    around = [head, *loops, 'with T.sblock("sum"):']
    block = [*axes.split("; "), "with T.init():", f" C[{to}] = 0.0", f"C[{to}] = C[{to}] + A[{of}]"]
    lines = [" " * min(n, len(around)) + line for n, line in enumerate([*around, *block])]
    return from_source("\n".join(["@T.prim_func(s_tir=True)", *lines]))


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


REPEATED = sums((8, 8), (8,), "vi", "vi, vk", "for _step, i, k in T.grid(3, 8, 8):")


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


@pytest.mark.parametrize("func", [iteration, REPEATED, one_scratch])
def test_turns_that_share_memory_stay_in_order(func):
    scheduled = schedule_any(func)
    assert not has_loop(scheduled, tirx.ForKind.PARALLEL)
    assert_same(func, scheduled)


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
    scheduled = schedule_any(own_scratch)
    assert has_loop(scheduled, tirx.ForKind.PARALLEL)
    assert_same(own_scratch, scheduled)


TRIANGLE = sums((8, 8), (8,), "vi", "vk, vi", "for i in range(8):", "for k in range(i + 1):")
THREE = 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])'
PARALLEL = ("for i in T.parallel(6):", "for j in T.serial(8):", "for k in T.vectorized(4):")
THIRD = "vi = T.axis.spatial(16, i); vk = T.axis.reduce(9, k + 3)"
MAY = f"{REMAP}; T.where(k >= 3)"
OTHER_SUMS = {
    "into a number": sums((8,), (), "()", "vk", "for i, k in T.grid(1, 8):"),
    "of a triangle": TRIANGLE,
    "vectors already": sums((6, 4, 8), (6, 8), "vi, vj", "vi, vk, vj", *PARALLEL, axes=THREE),
    "of nothing": sums((4, 0), (0,), "vi", "vk, vi", "for i, k in T.grid(0, 4):"),
    "from the third": sums(
        (9, 16), (16,), "vi", "vk, vi", "for i, k in T.grid(16, 6):", axes=THIRD
    ),
    "where it may": sums((9, 16), (16,), "vi", "vk, vi", "for i, k in T.grid(16, 9):", axes=MAY),
}


@pytest.mark.parametrize("func", OTHER_SUMS.values(), ids=list(OTHER_SUMS))
def test_sums_of_other_shapes(func):
    scheduled = ApplyCPUFallback()(tvm.IRModule({"main": func}))
    assert_same(func, RunSmallKernelsSerially({"i": 4})(scheduled)["main"])


def test_steps_of_a_triangle_and_of_int32_dimensions_are_not_known():
    n = tirx.Var("n", "int32")
    x = te.placeholder((n, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((n, 8), lambda i, j: x[i, j] + 1.0, "y")])
    assert steps(func, {}) == steps(TRIANGLE, {}) == float("inf")
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
    assert ApplyCPUFallback()(mod)["main"].same_as(mod["main"])
    assert steps(two_roots, {}) == float("inf")


NORM = """
@T.prim_func(s_tir=True)
def main({parameters}):
    {sums}
    for i, k in T.grid(6, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                sums[vi] = T.float32(0)
            sums[vi] = sums[vi] + A[vi, vk] * A[vi, vk]
    for i, j in T.grid(6, 8):
        with T.sblock("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            {out}[vi, vj] = A[vi, vj] / (sums[vi] + T.float32(1))
"""
MATRIX, COLUMN = 'T.Buffer((6, 8), "float32")', 'T.Buffer((6,), "float32")'
AND_ITS_SUMS = {"parameters": f"A: {MATRIX}, sums: {COLUMN}, C: {MATRIX}", "sums": "", "out": "C"}
ALLOCATED = 'sums = T.sblock_alloc_buffer((6,), "float32")'
IN_PLACE = {"parameters": f"A: {MATRIX}", "sums": ALLOCATED, "out": "A"}


@pytest.mark.parametrize("how", [AND_ITS_SUMS, IN_PLACE], ids=["and its sums", "in place"])
def test_what_dlight_cannot_finish_is_declined(how):
    func = from_source(NORM.format(**how))
    assert ReductionOnce().apply(func, QUICK, False) is None
