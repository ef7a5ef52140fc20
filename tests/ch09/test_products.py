"""Products with what surrounds them: which get chapter 5's schedules with their epilogue, and that all are right.

The reference is NumPy in float64. Results start as NaN between guard zones, on shapes that do not fit the tiles.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from chapters.ch09_the_compiler.check_queries import unscheduled
from chapters.checking.programs import kernels
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from solutions.ch09_the_compiler.pipeline import ScheduleMatmuls
from tests.support.kernels import (
    EPILOGUES,
    LOWER,
    after_phases,
    draw,
    linear_module,
    run_kernel,
    run_main,
    sigmoid,
)

K, N = 33, 50


MORE = {
    "relu": ("R.nn.relu(R.add(y, b))", lambda y, b, r: np.maximum(y + b, 0)),
    "scale and clip": (
        'R.clip(R.multiply(y, R.const(0.5, "float32")), -1.0, 1.0)',
        lambda y, b, r: np.clip(y / 2, -1, 1),
    ),
    "cast": ('R.astype(R.add(y, b), "float16")', lambda y, b, r: y + b),
}
# the dimensions of x before the last: few rows, many, and other forms
FEW, MANY, OTHERS = (3,), (64,), [(1,), (1, 21), ("n",)]
CASES = [(name, rows) for name in [*EPILOGUES, *MORE] for rows in (FEW, MANY)]
CASES += [("read twice", rows) for rows in OTHERS]


def all_products_are_scheduled(lowered: tvm.IRModule) -> bool:
    """Whether each kernel of a module is a product that chapter 5's schedules take, with its epilogue."""
    return unscheduled(ScheduleMatmuls(QUICK_HERE)(lowered)) == []


@pytest.mark.parametrize(("name", "said"), CASES)
def test_a_product_and_its_epilogue_are_one_scheduled_kernel_with_right_numbers(name, said):
    text, exact = {**EPILOGUES, **MORE}[name]
    rows = [37 if dim == "n" else dim for dim in said]
    lowered = after_phases(linear_module(said, text, "float32", N, K), QUICK_HERE, *LOWER)
    assert all_products_are_scheduled(lowered)
    scheduled = after_phases(lowered, QUICK_HERE, "schedule")
    (call,) = (c for c in calls_in(scheduled["main"]) if isinstance(c.args[0], tvm.ir.GlobalVar))
    x, w, b, r = arrays = draw((*rows, K), (N, K), (N,), (*rows, N))
    given = dict(zip((p.name for p in scheduled["main"].params), arrays, strict=True))
    values = [given[arg.name] for arg in call.args[1]]
    got = run_kernel(scheduled[call.args[0]], *values, shape=(*rows, N))
    y = x.astype("float64") @ w.astype("float64").T
    # of float16, and of a sum of 33 products in float32
    tolerance = 1e-3 if name == "cast" else 1e-5
    np.testing.assert_allclose(got, exact(y, b, r), tolerance, tolerance)


@pytest.mark.parametrize("rows", [1, 8, 19, 64, "n"])
@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("out = R.add(x, R.matmul(x, R.permute_dims(w)))", lambda x, y, g: x + y),
        (
            "out = R.multiply(R.matmul(x, R.permute_dims(w)), R.sigmoid(x))",
            lambda x, y, g: y * sigmoid(x),
        ),
        (
            "s = R.nn.silu(g)\n    out = R.multiply(s, R.matmul(x, R.permute_dims(w)))",
            lambda x, y, g: g * sigmoid(g) * y,
        ),
    ],
)
def test_an_epilogue_may_read_x_and_what_is_computed_before_the_product(text, exact, rows):
    mod = relax_module(f"def main(x: {(rows, 48)}, w: (48, 48), g: {(rows, 48)}):\n    {text}\n")
    assert all_products_are_scheduled(after_phases(mod, QUICK_HERE, *LOWER))
    count = 37 if rows == "n" else rows
    x, w, g = draw((count, 48), (48, 48), (count, 48))
    x64, w64, g64 = (a.astype("float64") for a in (x, w, g))
    expected = exact(x64, x64 @ w64.T, g64)
    # sums of 48 terms of size 1, in another order
    np.testing.assert_allclose(run_main(mod, x, w, g), expected, rtol=0, atol=2e-5)


# --- the dtype of sums ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("rows", [1, 19])
def test_narrow_products_are_summed_in_float32(dtype, transposed, rows):
    w = "R.permute_dims(w)" if transposed else "w"
    shape = (N, 8192) if transposed else (8192, N)
    text = (
        f'def main(x: ({rows}, 8192, "{dtype}"), w: {(*shape, dtype)}):\n    y = R.matmul(x, {w})'
    )
    random = np.random.default_rng(rows)
    # positive: the result's last place is not lost to cancellation
    x, w = (random.uniform(0, 1, s).astype(dtype) for s in ((rows, 8192), shape))
    exact = x.astype("float64") @ (w.T if transposed else w).astype("float64")
    got = run_main(relax_module(text), x, w)
    assert str(got.dtype) == dtype
    ulp = 2.0 ** (np.floor(np.log2(exact)) - (10 if dtype == "float16" else 7))
    assert (np.abs(got.astype("float64") - exact) < ulp).all()


def test_a_result_that_is_asked_for_in_another_dtype_has_it():
    text = 'def main(x: (2, 8, "float16"), w: (3, 8, "float16")):\n'
    text += '    y = R.matmul(x, R.permute_dims(w), out_dtype="float32")'
    x, w = np.full((2, 8), 0.1, "float16"), np.full((3, 8), 0.3, "float16")
    got = run_main(relax_module(text), x, w)
    assert str(got.dtype) == "float32"
    np.testing.assert_allclose(got, x.astype("float64") @ w.astype("float64").T, 1e-6)
    assert "cast" not in " ".join(kernels(after_phases(relax_module(text), QUICK_HERE)))


LOCAL = {  # the parameters of a function inside, and what main returns
    "a function inside": ("y: R.Tensor((4, 6)), w: R.Tensor((5, 6))", "R.add(inner(x, w), x1)"),
    "a function that uses a variable around it": ("y: R.Tensor((4, 6))", "inner(x)"),
}


@pytest.mark.parametrize("name", LOCAL)
def test_functions_defined_inside_of_others_run(name):
    parameters, result = LOCAL[name]
    parameters = parameters.replace("))", '), "float32")')
    mod = relax_module(
        f"""
def main(x: (4, 6), w: (5, 6), x1: (4, 5)):
    @R.function
    def inner({parameters}) -> R.Tensor((4, 5), "float32"):
        product = R.matmul(y, R.permute_dims(w))
        return R.add(product, product)
    out = {result}
    return out
"""
    )
    x, w, x1 = draw((4, 6), (5, 6), (4, 5))
    expected = 2 * (x @ w.T) + (x1 if "x1" in result else 0)
    np.testing.assert_allclose(run_main(mod, x, w, x1), expected, 1e-5, 1e-5)
