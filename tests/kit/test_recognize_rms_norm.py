"""RecognizeRMSNorm finds the spellings of exporters, and leaves alone what is another computation."""

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.guarded import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.models.recognize_rms_norm import RecognizeRMSNorm

HIDDEN, EPSILON = 8, 1e-2  # an epsilon that shows, in another place or with another value
NORM = """
def main(x: (3, 8), w: (8,)):
    square = R.power(x, R.const(2.0))
    mean = R.mean(square, axis=[-1], keepdims=True)
    total = R.add(mean, R.const(0.01))
    scale = R.rsqrt(total)
    normalized = R.multiply(x, scale)
    out = R.multiply(normalized, w)
"""


def in_dtype(dtype: str) -> tuple[str, ...]:
    """The edits that give every tensor of NORM this dtype."""
    return (
        "8)",
        f"8, '{dtype}')",
        "8,)",
        f"8, '{dtype}')",
        ".0)",
        f".0, '{dtype}')",
        ".01)",
        f".01, '{dtype}')",
    )


SPELLINGS = {  # how a line may read
    "x * x": ("R.power(x, R.const(2.0))", "R.multiply(x, x)"),
    "square": ("R.power(x, R.const(2.0))", "R.square(x)"),
    "axis 1": ("axis=[-1]", "axis=[1]"),
    "epsilon first": ("R.add(mean, R.const(0.01))", "R.add(R.const(0.01), mean)"),
    "power -0.5": ("R.rsqrt(total)", "R.power(total, R.const(-0.5))"),
    "scale first": ("R.multiply(x, scale)", "R.multiply(scale, x)"),
    "divided": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(x, scale)"),
    "weight first": ("R.multiply(normalized, w)", "R.multiply(w, normalized)"),
    "weight + 1": ("R.multiply(normalized, w)", "R.multiply(normalized, R.add(w, R.const(1.0)))"),
    "3 dimensions": ("(3, 8)", "(2, 3, 8)", "axis=[-1]", "axis=[2]"),
    "symbolic rows": ("(3, 8)", "('n', 8)"),
}
OTHERS = {  # what looks like a norm and is none, or one that rms_norm computes with other numbers
    "one row": ("(3, 8)", "(8,)", "axis=[-1]", "axis=[0]"),
    "mean over rows": ("axis=[-1]", "axis=[0]"),
    "mean over all": ("axis=[-1]", "axis=[0, 1]"),
    "mean without axis": ("axis=[-1], ", ""),
    "no keepdims": ("(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "sum": ("R.mean", "R.sum"),
    "max": ("R.mean", "R.max"),
    "power 3": ("R.const(2.0)", "R.const(3.0)"),
    "power of 2": ("R.power(x, R.const(2.0))", "R.power(R.const(2.0), x)"),
    "no power": ("R.power(x, R.const(2.0))", "R.abs(x)"),
    "square of another": ("R.power(x, R.const(2.0))", "R.multiply(x, R.tanh(x))"),
    "norm of another": ("R.multiply(x, scale)", "R.multiply(R.tanh(x), scale)"),
    "not centred": ("R.power(x,", "R.power(R.subtract(x, R.mean(x, axis=[-1], keepdims=True)),"),
    "no epsilon": ("R.rsqrt(total)", "R.rsqrt(mean)"),
    "epsilon outside": ("R.add(mean, R.const(0.01))", "mean", "R.rsqrt(total)", "R.add(R.rsqrt(total), R.const(0.01))"),
    "epsilon subtracted": ("R.add(mean,", "R.subtract(mean,"),
    "epsilon computed": ("R.const(0.01)", "R.max(w)"),
    "epsilon per column": ("R.const(0.01)", "R.broadcast_to(R.const(0.01), R.shape([8]))"),
    "epsilon adds a dimension": ("R.const(0.01)", "R.const([[[0.01]]])"),
    "sqrt": ("R.rsqrt(total)", "R.sqrt(total)"),
    "power 0.5": ("R.rsqrt(total)", "R.power(total, R.const(0.5))"),
    "divided the other way": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(scale, x)"),
    "symbolic columns": ("(3, 8)", "(3, 'n')", "(8,)", "('n',)"),
    "float64": in_dtype("float64"),
    "all in float16": in_dtype("float16"),
}  # fmt: skip
NOT_WEIGHTS = {  # the norm is recognized; what it is multiplied by stays outside
    "a number per row": ("w: (8,)", "w: (3, 1)"),
    "a row of weights": ("w: (8,)", "w: (1, 8)"),
    "one number": ("w: (8,)", "w: (1,)"),
    "another tensor": ("w: (8,)", "w: (3, 8)"),
}
# float16 around float32, as Transformers write it: the norm is rounded, then it meets its weight
ROUNDED_FIRST = """
def main(x: (3, 8, "float16"), w: (8, "float16")):
    wide = R.astype(x, "float32")
    scale = R.rsqrt(R.add(R.mean(R.power(wide, R.const(2.0)), axis=[-1], keepdims=True), R.const(0.01)))
    narrow = R.astype(R.multiply(wide, scale), "float16")
    out = R.multiply(w, narrow)
"""
ROUNDED_LAST = ROUNDED_FIRST.replace(
    """    narrow = R.astype(R.multiply(wide, scale), "float16")
    out = R.multiply(w, narrow)""",
    """    norm = R.multiply(R.astype(w, "float32"), R.multiply(wide, scale))
    out = R.astype(norm, "float16")""",
)


def edited(text: str, *pairs: str) -> tvm.IRModule:
    """The module of `text`, in which each first of two strings is replaced by the second."""
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return relax_module(text)


def names(mod: tvm.IRModule) -> list[str]:
    """The operators of main, in order."""
    return [call.op.name.removeprefix("relax.") for call in calls_in(mod["main"])]


def arguments(mod: tvm.IRModule) -> list[np.ndarray]:
    """Random numbers for main; a symbolic dimension is 5."""
    random = np.random.default_rng(4)
    shapes = [
        [int(d) if isinstance(d, tvm.tirx.IntImm) else 5 for d in p.ty.shape]
        for p in mod["main"].params
    ]
    dtypes = [np.dtype(str(p.ty.dtype)) for p in mod["main"].params]
    return [random.standard_normal(s).astype(d) for s, d in zip(shapes, dtypes, strict=True)]


def run(mod: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def exact(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x = x.astype("float64")
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weight.astype("float64")


@pytest.mark.parametrize("spelling", ["as exported", *SPELLINGS])
def test_fires(spelling):
    mod = edited(NORM, *SPELLINGS.get(spelling, ()))
    before = mod.clone()
    after = RecognizeRMSNorm()(mod)
    assert tvm_ffi.structural_equal(mod, before)
    assert relax.analysis.check_well_formed(after)
    assert set(names(after)) <= {"nn.rms_norm", "add"} and names(after).count("nn.rms_norm") == 1
    x, w = arguments(mod)
    expected = exact(x, w + (spelling == "weight + 1"))
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
    np.testing.assert_allclose(run(after, [x, w]), exact(x, w), rtol=1e-5, atol=1e-5)


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
    expected = exact(x - x.mean(-1, keepdims=True), w)
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
