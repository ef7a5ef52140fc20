"""Schedules for a CPU: numbers stay what they were, also on odd sizes, and what cannot be scheduled is left alone.

References are NumPy in float64. Results start as NaN between guard zones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

from chapters.ch09_the_compiler.check_queries import has_loop
from chapters.checking.programs import kernels
from chapters.kit.cases.guard_zones import QUICK, QUICK_HERE, run_compiled
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.apply_cpu_fallback import ApplyCPUFallback, schedule_any
from chapters.kit.schedules.reduction_once import ReductionOnce, repeats_reduction
from chapters.kit.schedules.run_small_kernels_serially import RunSmallKernelsSerially, count_steps
from chapters.kit.schedules.tile_products import choose_tile_shape, tile_product
from chapters.kit.schedules.unscheduled import is_made_of_blocks
from chapters.kit.schedules.vectorize_rows import vectorize_sums
from chapters.kit.schedules.warn_of_fallback import trace_schedulers
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases
from tests.support.kernels import KERNELS, after_phases, draw, run_kernel, run_main

# --- the fallback, on kernels by hand -------------------------------------------------------------

REMAP = 'vi, vk = T.axis.remap("SR", [i, k])'
PIPELINE = fusion_pipeline(QUICK)


def assert_same(func: tirx.PrimFunc, scheduled: tirx.PrimFunc) -> None:
    """Both do the same to random arrays."""
    random = np.random.default_rng(0)
    shapes = [[int(extent) for extent in buffer.shape] for buffer in func.params]
    arrays = [np.asarray(random.standard_normal(shape) * 4, "float32") for shape in shapes]
    found = (
        run_compiled(tvm.IRModule({"main": one.with_attr("global_symbol", "main")}), arrays)
        for one in (func, scheduled)
    )
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def reduce_columns(dtype: str, kind: str) -> tvm.IRModule:
    """A reduction over the rows of (5, 16)."""
    return relax_module(f'def main(x: (5, 16, "{dtype}")): out = R.{kind}(x, axis=[0])')


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "float16"])
def test_columns_of_every_dtype(dtype, kind):
    x = (np.arange(80).reshape(5, 16) % 3).astype(dtype)
    found = run_main(reduce_columns(dtype, kind), x, target=QUICK)
    expected = getattr(x.astype("float32"), kind)(axis=0)
    np.testing.assert_array_equal(found.astype("float32"), expected)


def test_columns_of_bool_compile():
    tvm.compile(reduce_columns("bool", "mean"), QUICK, relax_pipeline=PIPELINE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_matrix_as_it_is_stored_compiles(dtype):
    matrix = f'(16, 16, "{dtype}")'
    mod = relax_module(f"def main(x: {matrix}, w: {matrix}): out = R.matmul(x, w)")
    tvm.compile(mod, QUICK, relax_pipeline=PIPELINE)


def sum_kernel(
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


REPEATED = sum_kernel((8, 8), (8,), "vi", "vi, vk", "for _step, i, k in T.grid(3, 8, 8):")


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


TRIANGLE = sum_kernel((8, 8), (8,), "vi", "vk, vi", "for i in range(8):", "for k in range(i + 1):")
THREE = 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])'
PARALLEL = ("for i in T.parallel(6):", "for j in T.serial(8):", "for k in T.vectorized(4):")
THIRD = "vi = T.axis.spatial(16, i); vk = T.axis.reduce(9, k + 3)"
MAY = f"{REMAP}; T.where(k >= 3)"
OTHER_SUMS = {
    "into a number": sum_kernel((8,), (), "()", "vk", "for i, k in T.grid(1, 8):"),
    "of a triangle": TRIANGLE,
    "vectors already": sum_kernel((6, 4, 8), (6, 8), "vi, vj", "vi, vk, vj", *PARALLEL, axes=THREE),
    "of nothing": sum_kernel((4, 0), (0,), "vi", "vk, vi", "for i, k in T.grid(0, 4):"),
    "from the third": sum_kernel(
        (9, 16), (16,), "vi", "vk, vi", "for i, k in T.grid(16, 6):", axes=THIRD
    ),
    "where it may": sum_kernel(
        (9, 16), (16,), "vi", "vk, vi", "for i, k in T.grid(16, 9):", axes=MAY
    ),
}


@pytest.mark.parametrize("func", OTHER_SUMS.values(), ids=list(OTHER_SUMS))
def test_sums_of_other_shapes(func):
    scheduled = ApplyCPUFallback()(tvm.IRModule({"main": func}))
    assert_same(func, RunSmallKernelsSerially({"i": 4})(scheduled)["main"])


def test_steps_of_a_triangle_and_of_int32_dimensions_are_not_known():
    n = tirx.Var("n", "int32")
    x = te.placeholder((n, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((n, 8), lambda i, j: x[i, j] + 1.0, "y")])
    assert count_steps(func, {}) == count_steps(TRIANGLE, {}) == float("inf")
    assert count_steps(func, {"n": 3}) == 24


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
    assert count_steps(two_roots, {}) == float("inf")


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


# --- the fallback, on what tests make ------------------------------------------------------------------

ROWS = tirx.Var("n", "int64")


@T.prim_func
def without_blocks(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in T.parallel(4):
        y[i] = x[i]


def elementwise_kernel(rows: int | tirx.Var) -> tirx.PrimFunc:
    """Two elementwise blocks over (rows, 8)."""
    x = te.placeholder((rows, 8), "float32", "x")
    y = te.compute((rows, 8), lambda i, j: x[i, j] + 1.0, name="y")
    return te.create_prim_func([x, te.compute((rows, 8), lambda i, j: y[i, j] * 2.0, name="z")])


def test_cpu_fallback_inlines_and_parallelizes():
    result = ApplyCPUFallback()(
        tvm.IRModule({"main": elementwise_kernel(4), "other": without_blocks})
    )
    main = result["main"]
    assert has_loop(main, tirx.ForKind.PARALLEL) and not main.body.block.alloc_buffers
    assert "tirx.is_scheduled" in main.attrs
    other = result["other"]
    assert other.same_as(without_blocks) or "tirx.is_scheduled" not in other.attrs
    (x,) = draw((4, 8))
    np.testing.assert_allclose(run_kernel(main, x, shape=x.shape), (x + 1) * 2, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, ROWS])
def test_a_norm_is_computed_once(rows):
    text = "def main(x: (1, rows, 24), w: (24,)):\n    out = R.nn.rms_norm(x, w, axes=[-1])"
    lowered = relax.transform.LegalizeOps()(relax_module(text, rows=rows))["rms_norm"]
    func = ReductionOnce().apply(lowered, QUICK, False).mod["main"]
    assert not repeats_reduction(func)
    many = rows if isinstance(rows, int) else 3
    x, w = draw((1, many, 24), (24,))
    exact = x.astype("float64")
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(run_kernel(func, x, w, shape=x.shape), exact, rtol=1e-5)


@pytest.mark.parametrize("how", ["sum", "max"])
@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 5), (3, 48, 7), (2, 7, 9), (1, 1, 4), (5, 40, 1)]
)
def test_neighbours_are_added_up_side_by_side(spec, how, m, n, k):
    sizes = {"m": m, "n": n, "k": k}
    func = schedule_any(einsum_kernel(spec, sizes, reduce=getattr(te, how)))
    assert has_loop(func, tirx.ForKind.VECTORIZED) is ("kn" in spec and n > 1)
    arrays = draw(*([sizes[c] for c in index] for index in spec[:5].split(",")), seed=n)
    products = np.einsum(f"{spec}k", *(array.astype("float64") for array in arrays))
    found = run_kernel(func, *arrays, shape=(m, n))
    np.testing.assert_allclose(found, getattr(products, how)(-1), rtol=1e-4, atol=1e-5)


def test_rows_are_not_found_again_by_dividing_by_a_symbolic_extent():
    x = te.placeholder((6, ROWS, 8), "float32", "x")
    func = te.create_prim_func([x, te.compute((6, ROWS, 8), lambda i, j, k: x[i, j, k] + 1.0, "y")])
    loops = nodes(schedule_any(func).body, tirx.For)
    parallel = [int(loop.extent) for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    assert parallel == [6]


FEW = [(4, {}, False), (ROWS, {"n": 64}, False)]
MANY = [(1 << 20, {}, True), (ROWS, {}, True), (ROWS, {"n": 1 << 20}, True)]


@pytest.mark.parametrize(("rows", "bounds", "threads"), FEW + MANY)
def test_small_kernels_lose_their_threads(rows, bounds, threads):
    mod = ApplyCPUFallback()(
        tvm.IRModule({"main": elementwise_kernel(rows), "other": without_blocks})
    )
    result = RunSmallKernelsSerially(bounds)(mod)
    assert has_loop(result["main"], tirx.ForKind.PARALLEL) is threads
    decides = "a kernel without blocks decides for itself"
    assert has_loop(result["other"], tirx.ForKind.PARALLEL), decides
    assert has_loop(mod["main"], tirx.ForKind.PARALLEL), "the module given has changed"


@pytest.mark.parametrize("bounds", [{}, {"n": 8}])
def test_sorts_and_scans_compile(bounds):
    """TVM makes them one block around code that no schedule can see into, and does not call it "root"."""
    mod = relax_module("""
@bare
def main(x: ("n", 6)):
    sums, ordered, places = R.cumsum(x, -1), R.sort(x, -1), R.argsort(x, -1)
    return sums, ordered, places
""")
    pipeline = fusion_pipeline(QUICK, variable_bounds=bounds)
    (given,) = draw((5, 6))
    sums, ordered, places = run_main(mod, given, target=QUICK, pipeline=pipeline)
    np.testing.assert_allclose(sums, np.cumsum(given, -1), rtol=1e-5)
    assert (ordered == np.sort(given, -1)).all()
    assert (places == np.argsort(given, -1)).all()


# --- products that chapter 5's schedules do not take ----------------------------------------------

SPECS = [
    "bmk,bkn->bmn",  # attention's values
    "bhmk,bhnk->bhmn",  # attention's scores
    "mk,kn->mn",  # a matrix as it is stored
    "bmk,kn->bmn",
    "bkm,bkn->bmn",
    "mbk,bnk->mbn",
]
SIZES = [
    {"b": 2, "h": 3, "m": 17, "n": 9, "k": 5},
    {"b": 1, "h": 1, "m": 4, "n": 64, "k": 33},
    {"b": 3, "h": 2, "m": 2, "n": 50, "k": 16},
]


def einsum_kernel(
    spec: str, sizes: dict, *, factor="float32", result="float32", reduce=te.sum, **around
) -> tirx.PrimFunc:
    """The two factors and the result of numpy.einsum(spec, …) as a kernel.

    around: before(a, *index) in the place of the first factor's element; after(y, *index), a block behind it.
    """
    first, second, out = spec.replace("->", ",").split(",")
    a, b = (
        te.placeholder([sizes[one] for one in index], factor, name)
        for name, index in (("a", first), ("b", second))
    )
    left = a
    if "before" in around:
        left = te.compute(a.shape, lambda *at: around["before"](a, *at), name="before")
    k = te.reduce_axis((0, sizes["k"]), "k")

    def element(*index):
        at = dict(zip(out, index, strict=True)) | {"k": k}
        one, other = (
            t[tuple(at[c] for c in i)].astype(result) for t, i in ((left, first), (b, second))
        )
        return reduce(one * other, axis=k)

    y = te.compute([sizes[one] for one in out], element, name="matmul")
    if "after" in around:
        y = te.compute(y.shape, lambda *at: around["after"](y, *at), name="after")
    return te.create_prim_func([a, b, y], "int64")


def check_tiled(func: tirx.PrimFunc, arrays: list, exact: np.ndarray) -> tirx.PrimFunc:
    """`func` after it is tiled; it then computes `exact`."""
    tiled = tile_product(func, QUICK_HERE)
    assert "tirx.is_scheduled" in tiled.attrs
    found = run_kernel(tiled, *arrays, shape=exact.shape)
    # sums of up to 33 products of size 1 in float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    return tiled


def check_product(
    func: tirx.PrimFunc, spec: str, sizes: dict, before=None, after=None, dtype="float32"
) -> None:
    """`func` is tiled, and computes what numpy.einsum does, and what comes before and after it."""
    first, second, _ = ([sizes[c] for c in index] for index in spec.replace("->", ",").split(","))
    a, b = draw(first, second, dtype=dtype)
    left, right = a.astype("float64"), b.astype("float64")
    exact = np.einsum(spec, before(left) if before else left, right)
    tiled = check_tiled(func, [a, b], after(exact) if after else exact)
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in nodes(tiled.body, tirx.For))


@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mn", "mnk", "b"])
@pytest.mark.parametrize("spec", SPECS[:3])
def test_sizes_may_be_symbolic(spec, symbolic):
    unknown = {name: tirx.Var(name, "int64") for name in symbolic if name in spec}
    check_product(einsum_kernel(spec, SIZES[0] | unknown), spec, SIZES[0])


@pytest.mark.parametrize("spec", SPECS[:3])
def test_narrow_factors_are_summed_in_float32(spec):
    check_product(einsum_kernel(spec, SIZES[0], factor="float16"), spec, SIZES[0], dtype="float16")


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: str(sizes["m"]))
@pytest.mark.parametrize("spec", SPECS)
def test_what_stands_around_the_product_is_part_of_the_kernel(spec, sizes):
    func = einsum_kernel(
        spec,
        sizes,
        before=lambda a, *at: a[at] * 0.5 + 1.0,
        after=lambda y, *at: te.exp(y[at] * 0.125),
    )
    check_product(func, spec, sizes, lambda a: a * 0.5 + 1, lambda y: np.exp(y / 8))


@pytest.mark.parametrize("rows", [5, 6, 48])
def test_a_mask_and_a_bias_are_added_to_each_tile(rows):
    mod = relax_module(f"""
def main(x: (3, {rows}, 7), y: (3, 7, 24), b: (24,), m: ({rows}, 24)):
    mask = R.multiply(m, R.const(2.0))
    out = R.add(R.add(R.matmul(x, y), b), mask)
""")
    found = phases(QUICK_HERE)
    _, by = trace_schedulers(mod, [one for name in KERNELS for one in found[name]], QUICK_HERE)
    assert set(by.values()) == {"TileProducts"}
    x, y, b, m = arrays = draw((3, rows, 7), (3, 7, 24), (24,), (rows, 24))
    exact = x.astype("float64") @ y + b + 2 * m.astype("float64")
    np.testing.assert_allclose(run_main(mod, *arrays), exact, rtol=1e-5, atol=1e-5)


# kernels with computed indices, by their Relax operators: what PyTorch would compute is spelled out in NumPy
CONVOLUTIONS = [
    ("R.nn.conv2d(x, w)", (2, 3, 9, 14), (5, 3, 3, 2), {}),
    ("R.nn.conv2d(x, w, padding=[1, 2, 1, 2])", (1, 4, 7, 7), (6, 4, 3, 3), {"padding": (1, 2)}),
    ("R.nn.conv2d(x, w, strides=[2, 3])", (1, 3, 11, 12), (9, 3, 2, 4), {"strides": (2, 3)}),
]


def convolve(x: np.ndarray, w: np.ndarray, padding=(0, 0), strides=(1, 1)) -> np.ndarray:
    """Cross-correlation of (n, c, y, x) with (o, c, r, s), in float64."""
    (up, left), (down, right) = padding, strides
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), (up, up), (left, left)])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("ncyxrs,ocrs->noyx", windows[:, :, ::down, ::right], w.astype("float64"))


@pytest.mark.parametrize(("call", "x", "w", "options"), CONVOLUTIONS)
def test_a_convolution_is_a_product_whose_columns_are_windows(call, x, w, options):
    mod = relax.transform.LegalizeOps()(relax_module(f"def main(x: {x}, w: {w}): out = {call}"))
    (func,) = kernels(mod).values()
    arrays = draw(x, w)
    check_tiled(func, arrays, convolve(*arrays, **options))


@pytest.mark.parametrize("rows", [7, tirx.Var("m", "int64")])
def test_two_heads_of_queries_may_share_a_head_of_keys(rows):
    q, keys = te.placeholder((4, rows, 5), name="q"), te.placeholder((2, 9, 5), name="keys")
    k = te.reduce_axis((0, 5), "k")
    shape, element = (4, rows, 9), lambda h, i, j: te.sum(q[h, i, k] * keys[h // 2, j, k], axis=k)
    a, b = draw((4, 7, 5), (2, 9, 5))
    exact = np.einsum("hik,hjk->hij", a.astype("float64"), b[[0, 0, 1, 1]].astype("float64"))
    check_tiled(te.create_prim_func([q, keys, te.compute(shape, element)]), [a, b], exact)


SQUARE = {"b": 2, "h": 1, "m": 24, "n": 24, "k": 5}
KEPT = {
    "one row": einsum_kernel("mk,kn->mn", SIZES[0] | {"m": 1}),
    "a dot product": einsum_kernel("bk,bk->b", SIZES[0]),
    "transposed": einsum_kernel("mk,kn->mn", SQUARE, after=lambda y, i, j: y[j, i] + 1),
    "the next row": einsum_kernel("mk,kn->mn", SQUARE, after=lambda y, i, j: y[(i + 1) % 24, j]),
    "booleans": einsum_kernel("mk,kn->mn", SQUARE, factor="bool", result="int32"),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_kernels_stay_as_they_are(name):
    assert tile_product(KEPT[name], QUICK_HERE).same_as(KEPT[name])


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("extents", [(1, 1), (17, 17), (384, 64), (None, None), (5, 1000)])
def test_a_tile_fits_the_registers(extents, registers):
    rows, vectors = choose_tile_shape(extents, 8, registers)
    assert rows * vectors + vectors + 1 <= registers
    if extents == (17, 17):
        assert math.ceil(17 / rows) * rows <= 18


# --- kernels that reduce rows ---------------------------------------------------------------------


def layer_norm(x, g, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


LAYER_NORM = "R.nn.layer_norm(x, g, b, axes=[-1])"
ROW_KERNELS = {  # name: (in Relax, in NumPy)
    "softmax": ("R.nn.softmax(x)", lambda x, g, b: softmax(x)),
    "layer_norm": (LAYER_NORM, layer_norm),
    "rms_norm": (
        "R.nn.rms_norm(x, g, axes=[-1])",
        lambda x, g, b: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g,
    ),
    "mean": ("R.mean(x, axis=[-1])", lambda x, g, b: x.mean(-1)),
    "largest": ("R.max(x, axis=[-1])", lambda x, g, b: x.max(-1)),
    "squares": ("R.sum(R.multiply(x, x), axis=[-1])", lambda x, g, b: (x**2).sum(-1)),
    "a sum and its row": (  # two kernels
        "R.subtract(x, R.sum(R.exp(x), axis=[-1], keepdims=True))",
        lambda x, g, b: x - np.exp(x).sum(-1, keepdims=True),
    ),
}
# the dimensions of x before the last, as its type says them and as it is called; and the last
SHAPES = [
    ((1,), (1,), 64),
    ((5,), (5,), 24),
    ((2, 3), (2, 3), 40),
    (("n",), (7,), 16),
    ((3,), (3,), 9),
]


def row_module(said, terms: int, value: str) -> tvm.IRModule:
    return relax_module(
        f"def main(x: {(*said, terms)}, g: ({terms},), b: ({terms},)): out = {value}"
    )


def kernel_of(mod: tvm.IRModule) -> tirx.PrimFunc:
    """The kernel that the operators of `mod` become."""
    *_, found = kernels(after_phases(mod, QUICK_HERE, "graph and lower")).values()
    return found


@pytest.mark.parametrize("name", ROW_KERNELS)
@pytest.mark.parametrize(("said", "rows", "terms"), SHAPES)
def test_rows_are_reduced_with_right_numbers(said, rows, terms, name):
    value, exact = ROW_KERNELS[name]
    mod = row_module(said, terms, value)
    arrays = draw((*rows, terms), terms, terms)
    expected = exact(*(a.astype("float64") for a in arrays))
    # sums of up to 64 terms of size 1, and a polynomial for exp
    np.testing.assert_allclose(run_main(mod, *arrays), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("name", [name for name in ROW_KERNELS if name != "a sum and its row"])
@pytest.mark.parametrize("said", [(5,), (2, 3), ("n",)])
def test_the_terms_of_a_row_are_reduced_by_vectors(said, name):
    func = kernel_of(row_module(said, 48, ROW_KERNELS[name][0]))
    body = vectorize_sums(func, QUICK_HERE).mod["main"].body
    loops = nodes(body, tirx.For)
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops) == 1
    updates = [
        block for block in nodes(body, tvm.s_tir.SBlock) if block.name_hint.endswith("_rf_update")
    ]
    assert updates
    for block in updates:
        around = [loop for loop in loops if block in nodes(loop, tvm.s_tir.SBlock)]
        assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in around)


@pytest.mark.parametrize(
    "text",
    [
        "def main(x: (5, 'n')): out = R.nn.softmax(x)",  # vectors may not divide the row
        "def main(x: (5, 48)): out = R.mean(x, axis=[0])",  # the terms of a column are far apart
        "def main(x: (5, 48)): out = R.variance(x, axis=[-1])",
        "def main(x: (5, 48)): out = R.argmax(x, axis=1)",
        "def main(x: (48,)): out = R.sum(x)",  # no rows
        "def main(x: (5, 48)): out = R.exp(x)",
    ],
)
def test_other_kernels_are_declined(text):
    assert vectorize_sums(kernel_of(relax_module(text)), QUICK_HERE) is None
