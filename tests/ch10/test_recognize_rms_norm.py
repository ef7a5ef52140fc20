"""RecognizeRMSNorm finds the spellings of exporters, and leaves alone what is another computation."""

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.ch10_imported_models.check_graphs import (
    NORM,
    NOT_WEIGHTS,
    OTHERS,
    ROUNDED_FIRST,
    ROUNDED_LAST,
    SPELLINGS,
    arguments,
    edited,
    exact_norm,
    names,
)
from chapters.kit.cases.guarded import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from solutions.ch10_imported_models.imported_models import RecognizeRMSNorm


def run(mod: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("spelling", ["as exported", *SPELLINGS])
def test_fires(spelling):
    mod = edited(NORM, *SPELLINGS.get(spelling, ()))
    before = mod.clone()
    after = RecognizeRMSNorm()(mod)
    assert tvm_ffi.structural_equal(mod, before)
    assert relax.analysis.check_well_formed(after)
    assert set(names(after)) <= {"nn.rms_norm", "add"} and names(after).count("nn.rms_norm") == 1
    x, w = arguments(mod)
    expected = exact_norm(x, w, spelling)
    np.testing.assert_allclose(run(after, [x, w]), expected, rtol=1e-5, atol=1e-5)
    assert tvm_ffi.structural_equal(RecognizeRMSNorm()(after), after)


@pytest.mark.parametrize("other", OTHERS)
def test_does_not_fire(other):
    mod = edited(NORM, *OTHERS[other])
    assert tvm_ffi.structural_equal(RecognizeRMSNorm()(mod), mod)


@pytest.mark.parametrize("factor", NOT_WEIGHTS)
def test_other_factors_stay_outside(factor):
    mod = edited(NORM, *NOT_WEIGHTS[factor])
    after = RecognizeRMSNorm()(mod)
    assert names(after) == ["nn.rms_norm", "multiply"]
    x, w = arguments(mod)
    np.testing.assert_allclose(run(after, [x, w]), exact_norm(x, w), rtol=1e-5, atol=1e-5)


def test_a_norm_over_rows_keeps_its_weight_outside():
    """rms_norm over the first axis has a weight per row; the factor has one number per column."""
    mod = relax_module("""
def main(x: (8, 8), w: (8,)):
    norm = R.nn.rms_norm(x, R.const([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), axes=[0])
    out = R.multiply(norm, w)
""")
    assert tvm_ffi.structural_equal(RecognizeRMSNorm()(mod), mod)


def test_a_layer_norm_is_the_rms_norm_of_the_centred_tensor():
    centred = "centred = R.subtract(x, R.mean(x, axis=[-1], keepdims=True))\n    square ="
    mod = edited(NORM, "r(x,", "r(centred,", "y(x,", "y(centred,", "square =", centred)
    after = RecognizeRMSNorm()(mod)
    assert names(after) == ["mean", "subtract", "nn.rms_norm"]
    x, w = arguments(mod)
    expected = exact_norm(x - x.mean(-1, keepdims=True), w)
    np.testing.assert_allclose(run(after, [x, w]), expected, rtol=1e-5, atol=1e-5)


def test_what_others_read_stays():
    mod = edited(
        NORM,
        "out = R.multiply(normalized, w)",
        "out = R.multiply(normalized, w)\n    return out, mean, normalized",
    )
    after = RecognizeRMSNorm()(mod)
    assert names(after).count("nn.rms_norm") == 2  # with the weight, and without it
    assert names(after).count("mean") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", [ROUNDED_FIRST, ROUNDED_LAST])
def test_rounds_where_the_model_rounds(text, dtype):
    """Not one bit changes: rms_norm in a narrow dtype converts where the model converts."""
    mod = relax_module(text.replace("float16", dtype))
    after = RecognizeRMSNorm()(mod)
    expected = ["nn.rms_norm", "multiply"] if text is ROUNDED_FIRST else ["nn.rms_norm"]
    assert names(after) == expected
    assert [str(call.ty.dtype) for call in calls_in(after["main"])] == [dtype] * len(expected)
    numbers = [
        array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for array in arguments(relax_module(NORM))
    ]
    assert (run(after, numbers) == run(mod, numbers)).all()


def test_a_weight_of_another_dtype_is_not_rounded():
    mod = edited(ROUNDED_LAST, 'w: (8, "float16")', "w: (8,)", 'R.astype(w, "float32")', "w")
    after = RecognizeRMSNorm()(mod)
    assert names(after) == ["astype", "nn.rms_norm", "astype"]
    assert (run(after, arguments(mod)) == run(mod, arguments(mod))).all()


def test_an_update_in_place_keeps_the_module_as_it_is():
    """x changes between its mean and its product with the scale."""
    mod = relax_module("""
@T.prim_func(private=True, s_tir=True)
def double(a: T.Buffer((3, 8), "float32")):
    for i, j in T.grid(3, 8):
        with T.sblock("double"):
            v, u = T.axis.remap("SS", [i, j])
            a[v, u] = a[v, u] * T.float32(2)
@bare
def main(a: (3, 8)) -> R.Tensor((3, 8), "float32"):
    with R.dataflow():
        x = R.tanh(a)
        scale = R.rsqrt(R.add(R.mean(R.multiply(x, x), axis=[-1], keepdims=True), R.const(0.01)))
        doubled = R.call_tir_inplace(cls.double, (x,), [0], out_ty=R.Tensor((3, 8), "float32"))
        norm = R.multiply(x, scale)
        out = R.add(doubled, norm)
        R.output(out)
    return out
""")
    assert tvm_ffi.structural_equal(RecognizeRMSNorm()(mod), mod)
