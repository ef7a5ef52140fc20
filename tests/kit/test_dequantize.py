"""Which kernels unpack a matrix: those that equal the kit's own, whatever their name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import te, tirx

from chapters.kit.quantized.blocks import Form
from chapters.kit.quantized.dequantize import form_of, int64s, kernel, weight

N, K = 48, 64
FORM = Form(4, 32, True, "float16", 16)

FORMS = [
    FORM,
    Form(4, 32, False, "float16", 8),
    Form(8, 32, False, "float16", 4),
    Form(8, 16, False, "float32", 1),
]


@pytest.mark.parametrize("name", ["dequantize", "another"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_kernel_that_unpacks_is_recognized(form, name):
    func = kernel(form, (N, K))
    assert form_of(func) == form
    assert form_of(func.with_attr("global_symbol", name).with_attr("op_pattern", 2)) == form


def test_the_smallest_matrix_is_recognized():
    form = Form(8, 4, False, "float16", 1)
    assert form_of(kernel(form, (1, 4))) == form


def unpacks(element: Callable, form: Form = FORM, *, words="int32", out="float32", shape=(N, K)):
    """The kernel whose element (j, k) is element(codes, scales, j, k), under the name that `kernel` gives it."""
    (codes, _), (scales, dtype) = form.shapes(N, K)
    arrays = [
        te.placeholder(int64s(codes), words, "codes"),
        te.placeholder(int64s(scales), dtype, "scales"),
    ]
    made = te.compute(
        int64s(shape), lambda j, k: element(*arrays, j, k).astype(out), name="dequantize"
    )
    return te.create_prim_func([*arrays, made]).without_attr("global_symbol")


def weights(form: Form) -> Callable:
    """The elements of `form` as `unpacks` takes them."""
    return lambda codes, scales, j, k: weight(form, codes, scales, j, k)


WITHOUT = Form(4, 32, False, "float16", 16)
CHANGED = {  # one of each: in what is computed, and in each buffer's dtype and shape
    "twice as much": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k) * 2.0),
    "another zero": unpacks(lambda c, s, j, k: weight(WITHOUT, c, s, j, k) + 1.0, WITHOUT),
    "the scale as minimum": unpacks(
        lambda c, s, j, k: weight(WITHOUT, c, s, j, k) + s[j // 16, k // 32, 0, j % 16], FORM
    ),
    "lanes backwards": unpacks(lambda c, s, j, k: weight(FORM, c, s, N - 1 - j, k)),
    "the next group": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, (k + 32) % K)),
    "float64": unpacks(weights(FORM), out="float64"),
    "float16": unpacks(weights(FORM), out="float16"),
    "unsigned words": unpacks(weights(FORM), words="uint32"),
    "half of the rows": unpacks(weights(FORM), shape=(N // 2, K)),
    "half of the steps": unpacks(weights(FORM), shape=(N, K // 2)),
    "transposed": unpacks(lambda c, s, j, k: weight(FORM, c, s, k, j), shape=(K, N)),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_kernel_written_out_is_recognized(form):
    """So the changes above are the reason why the others are not."""
    assert form_of(unpacks(weights(form), form)) == form


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_kernel_is_not_recognized(name):
    assert form_of(CHANGED[name]) is None


def test_other_kernels_are_not_recognized():
    n = te.placeholder((tirx.Var("n", "int64"), K))
    more = te.compute(n.shape, lambda *i: n(*i) + 1.0)
    for tensors in ([n, more], [n, n, more]):
        assert form_of(te.create_prim_func(tensors)) is None
    scalar = tirx.Var("a", "int64")
    func = kernel(FORM, (N, K))
    assert form_of(tirx.PrimFunc([*func.params, scalar], func.body)) is None
    assert form_of(tirx.PrimFunc([*func.params[:2], scalar], func.body)) is None
    assert form_of(tirx.PrimFunc(func.params, tirx.Evaluate(0))) is None
