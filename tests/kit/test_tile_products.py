"""Products that chapter 5's schedules do not take: they are tiled, and right on sizes that do not fit the tiles.

The reference is numpy.einsum in float64. Results start as NaN between guard zones.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from chapters.kit.cases.guard_zones import QUICK_HERE, run_compiled
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.schedules.tile_products import tile_product, tile_shape
from chapters.kit.schedules.warn_of_fallback import scheduled_by
from solutions.ch09_the_compiler.pipeline import phases
from tests.support.compiled import KERNELS, draw, run_main

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


def product(
    spec: str, sizes: dict, *, factor="float32", result="float32", **around
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
        return te.sum(one * other, axis=k)

    y = te.compute([sizes[one] for one in out], element, name="matmul")
    if "after" in around:
        y = te.compute(y.shape, lambda *at: around["after"](y, *at), name="after")
    return te.create_prim_func([a, b, y], "int64")


def check(
    func: tirx.PrimFunc, spec: str, sizes: dict, before=None, after=None, dtype="float32"
) -> None:
    """`func` is tiled, and computes what numpy.einsum does, and what comes before and after it."""
    tiled = tile_product(func, QUICK_HERE)
    assert "tirx.is_scheduled" in tiled.attrs
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in nodes(tiled.body, tirx.For))
    first, second, out = ([sizes[c] for c in index] for index in spec.replace("->", ",").split(","))
    a, b = draw(first, second, dtype=dtype)
    poison = np.full(out, np.nan, str(func.params[-1].dtype))
    *_, found = run_compiled(tvm.IRModule({"main": tiled}), [a, b, poison], QUICK_HERE)
    left, right = a.astype("float64"), b.astype("float64")
    exact = np.einsum(spec, before(left) if before else left, right)
    exact = after(exact) if after else exact
    # sums of up to 33 products of size 1 in float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_a_product_is_tiled_with_right_numbers(spec):
    check(product(spec, SIZES[0]), spec, SIZES[0])


@pytest.mark.parametrize("symbolic", ["m", "n", "k", "mn", "mnk", "b"])
@pytest.mark.parametrize("spec", SPECS[:3])
def test_sizes_may_be_symbolic(spec, symbolic):
    unknown = {name: tirx.Var(name, "int64") for name in symbolic if name in spec}
    check(product(spec, SIZES[0] | unknown), spec, SIZES[0])


@pytest.mark.parametrize("spec", SPECS[:3])
def test_narrow_factors_are_summed_in_float32(spec):
    check(product(spec, SIZES[0], factor="float16"), spec, SIZES[0], dtype="float16")


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: str(sizes["m"]))
@pytest.mark.parametrize("spec", SPECS)
def test_what_stands_around_the_product_is_part_of_the_kernel(spec, sizes):
    func = product(
        spec,
        sizes,
        before=lambda a, *at: a[at] * 0.5 + 1.0,
        after=lambda y, *at: te.exp(y[at] * 0.125),
    )
    check(func, spec, sizes, lambda a: a * 0.5 + 1, lambda y: np.exp(y / 8))


@pytest.mark.parametrize("rows", [5, 6, 48])
def test_a_mask_and_a_bias_are_added_to_each_tile(rows):
    mod = relax_module(f"""
def main(x: (3, {rows}, 7), y: (3, 7, 24), b: (24,), m: ({rows}, 24)):
    mask = R.multiply(m, R.const(2.0))
    out = R.add(R.add(R.matmul(x, y), b), mask)
""")
    found = phases(QUICK_HERE)
    _, by = scheduled_by(mod, [one for name in KERNELS for one in found[name]], QUICK_HERE)
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


def convolved(x: np.ndarray, w: np.ndarray, padding=(0, 0), strides=(1, 1)) -> np.ndarray:
    """Cross-correlation of (n, c, y, x) with (o, c, r, s), in float64."""
    (up, left), (down, right) = padding, strides
    x = np.pad(x.astype("float64"), [(0, 0), (0, 0), (up, up), (left, left)])
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.einsum("ncyxrs,ocrs->noyx", windows[:, :, ::down, ::right], w.astype("float64"))


@pytest.mark.parametrize(("call", "x", "w", "options"), CONVOLUTIONS)
def test_a_convolution_is_a_product_whose_columns_are_windows(call, x, w, options):
    mod = relax.transform.LegalizeOps()(relax_module(f"def main(x: {x}, w: {w}): out = {call}"))
    (func,) = (f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    tiled = tile_product(func, QUICK_HERE)
    assert "tirx.is_scheduled" in tiled.attrs
    arrays = draw(x, w)
    exact = convolved(*arrays, **options)
    poison = np.full(exact.shape, np.nan, "float32")
    kernel = tvm.IRModule({"main": tiled.with_attr("global_symbol", "main")})
    *_, found = run_compiled(kernel, [*arrays, poison], QUICK_HERE)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [7, tirx.Var("m", "int64")])
def test_two_heads_of_queries_may_share_a_head_of_keys(rows):
    q, keys = te.placeholder((4, rows, 5), name="q"), te.placeholder((2, 9, 5), name="keys")
    k = te.reduce_axis((0, 5), "k")
    shape, element = (4, rows, 9), lambda h, i, j: te.sum(q[h, i, k] * keys[h // 2, j, k], axis=k)
    tiled = tile_product(te.create_prim_func([q, keys, te.compute(shape, element)]), QUICK_HERE)
    assert "tirx.is_scheduled" in tiled.attrs
    a, b = draw((4, 7, 5), (2, 9, 5))
    poison = np.full((4, 7, 9), np.nan, "float32")
    *_, found = run_compiled(tvm.IRModule({"main": tiled}), [a, b, poison], QUICK_HERE)
    exact = np.einsum("hik,hjk->hij", a.astype("float64"), b[[0, 0, 1, 1]].astype("float64"))
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


SQUARE = {"b": 2, "h": 1, "m": 24, "n": 24, "k": 5}
KEPT = {
    "one row": product("mk,kn->mn", SIZES[0] | {"m": 1}),
    "a dot product": product("bk,bk->b", SIZES[0]),
    "transposed": product("mk,kn->mn", SQUARE, after=lambda y, i, j: y[j, i] + 1),
    "the next row": product("mk,kn->mn", SQUARE, after=lambda y, i, j: y[(i + 1) % 24, j]),
    "booleans": product("mk,kn->mn", SQUARE, factor="bool", result="int32"),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_kernels_stay_as_they_are(name):
    assert tile_product(KEPT[name], QUICK_HERE).same_as(KEPT[name])


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("extents", [(1, 1), (17, 17), (384, 64), (None, None), (5, 1000)])
def test_a_tile_fits_the_registers(extents, registers):
    rows, vectors = tile_shape(extents, 8, registers)
    assert rows * vectors + vectors + 1 <= registers
    if extents == (17, 17):
        assert math.ceil(17 / rows) * rows <= 18
