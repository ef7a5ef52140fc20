"""Which kernels unpack a matrix: those that equal the kit's own, whatever their name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import te, tirx

from chapters.kit.quantized.blocks import Form
from chapters.kit.quantized.dequantize import form_of, kernel, weight

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


def unpacks(element: Callable, form: Form = FORM, dtypes=("int32", None, "float32"), shape=(N, K)):
    """The kernel whose element (j, k) is element(codes, scales, j, k), under the name that `kernel` gives it."""
    dtypes = (dtypes[0], dtypes[1] or form.scale, dtypes[2])
    arrays = [
        te.placeholder([tirx.IntImm("int64", one) for one in extents], dtype, name)
        for (extents, _), dtype, name in zip(
            form.shapes(N, K), dtypes, ("codes", "scales"), strict=False
        )
    ]
    extents = [tirx.IntImm("int64", one) for one in shape]
    out = te.compute(extents, lambda j, k: element(*arrays, j, k), name="dequantize")
    return te.create_prim_func([*arrays, out]).without_attr("global_symbol")


def changed(
    form: Form = FORM,
    *,
    panel=lambda j, k: j // 16,
    lane=lambda j, k: j % 16,
    group=lambda j, k: k // 32,
    word=lambda k: k % 16 // 4,
    shift=lambda k: k % 4 * 8 + k % 32 // 16 * 4,
    mask=15,
    zero=8,
    combine=lambda scale, code, minimum: scale * code.astype("float32") + minimum,
    of_scale=lambda at: at,
    kinds=(0, 1),
) -> tirx.PrimFunc:
    """The kernel of a form of 4 bits, written out, with one of its parts replaced."""

    def element(codes, scales, j, k):
        at = panel(j, k), group(j, k)
        code = codes[(*at, word(k), lane(j, k))] >> shift(k).astype("int32") & mask
        numbers = [
            scales[(*of_scale(at), kind, lane(j, k))].astype("float32")
            for kind in kinds[: 1 + form.has_minimum]
        ]
        if form.has_minimum:
            return combine(numbers[0], code, numbers[1])
        return numbers[0] * (code - zero).astype("float32")

    return unpacks(element, form)


WITHOUT = Form(4, 32, False, "float16", 16)
CHANGED = {
    "the nibbles swapped": changed(shift=lambda k: k % 4 * 8 + (1 - k % 32 // 16) * 4),
    "neighbouring nibbles": changed(
        word=lambda k: k % 32 // 8, shift=lambda k: k % 8 // 2 * 8 + k % 2 * 4
    ),
    "bytes from the top": changed(shift=lambda k: (3 - k % 4) * 8 + k % 32 // 16 * 4),
    "five bits": changed(mask=31),
    "the minimum forgotten": changed(combine=lambda s, c, m: s * c.astype("float32")),
    "the minimum subtracted": changed(combine=lambda s, c, m: s * c.astype("float32") - m),
    "the minimum scaled": changed(combine=lambda s, c, m: s * (c.astype("float32") + m)),
    "a zero besides the minimum": changed(
        combine=lambda s, c, m: s * (c - 8).astype("float32") + m
    ),
    "scale and minimum exchanged": changed(kinds=(1, 0)),
    "the scale as minimum": changed(kinds=(0, 0)),
    "a zero of 7": changed(WITHOUT, zero=7),
    "a zero of 9": changed(WITHOUT, zero=9),
    "no zero": changed(WITHOUT, zero=0),
    "lanes backwards": changed(lane=lambda j, k: 15 - j % 16),
    "lanes far apart": changed(panel=lambda j, k: j % 3, lane=lambda j, k: j // 3),
    "the next group": changed(group=lambda j, k: (k // 32 + 1) % 2),
    "the scale of the next group": changed(of_scale=lambda at: (at[0], (at[1] + 1) % 2)),
    "the scale of the first group": changed(of_scale=lambda at: (at[0], at[1] * 0)),
    "the scale of the first panel": changed(of_scale=lambda at: (at[0] * 0, at[1])),
    "float64": unpacks(
        lambda c, s, j, k: weight(FORM, c, s, j, k).astype("float64"),
        dtypes=("int32", None, "float64"),
    ),
    "float16": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k).astype("float16")),
    "unsigned words": unpacks(
        lambda c, s, j, k: weight(FORM, c, s, j, k), dtypes=("uint32", None, "float32")
    ),
    "half of the rows": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k), shape=(N // 2, K)),
    "half of the steps": unpacks(lambda c, s, j, k: weight(FORM, c, s, j, k), shape=(N, K // 2)),
    "transposed": unpacks(lambda c, s, j, k: weight(FORM, c, s, k, j), shape=(K, N)),
}


def test_the_kernel_written_out_is_recognized():
    """So the changes below are the reason why the others are not."""
    assert form_of(changed()) == FORM
    assert form_of(changed(WITHOUT)) == WITHOUT


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_kernel_is_not_recognized(name):
    assert form_of(CHANGED[name]) is None


def test_other_kernels_are_not_recognized():
    codes, scales = (te.placeholder(s, d) for s, d in FORM.shapes(N, K))
    sums = te.compute((N, K), lambda j, k: weight(FORM, codes, scales, j, k) * 2.0)
    n = te.placeholder((tirx.Var("n", "int64"), K))
    for tensors in (
        [codes, scales, sums],
        [n, te.compute(n.shape, lambda *i: n(*i) + 1.0)],
        [n, n, te.compute(n.shape, lambda *i: n(*i) + 1.0)],
    ):
        assert form_of(te.create_prim_func(tensors)) is None
    scalar = tirx.Var("a", "int64")
    func = kernel(FORM, (N, K))
    assert form_of(tirx.PrimFunc([*func.params, scalar], func.body)) is None
    assert form_of(tirx.PrimFunc([*func.params[:2], scalar], func.body)) is None
    assert form_of(tirx.PrimFunc(func.params, tirx.Evaluate(0))) is None
