"""The canonical form of imported graphs: norms and linear layers in every spelling, products between reshapes."""

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.ch10_imported_models.exported_norms import NORM, SPELLINGS, edit_module
from chapters.checking.expect import run
from chapters.checking.judge import judge_pass
from chapters.checking.programs import arguments, operators
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_patches import RecognizePatches
from solutions.ch10_imported_models.imported_models import (
    RecognizeLinear,
    RecognizeRMSNorm,
    canonicalize,
)

# --- linear layers --------------------------------------------------------------------------------

STORED = np.random.default_rng(1).standard_normal((3, 5)).astype("float32")  # as GPT-2 stores it
X = "x: (2, 4, 3)"
LINEAR = {  # name: (parameters, the weight (k, n) in the text)
    "a constant": (X, "W"),
    "a vector of rows": ("x: (3,)", "W"),
    "symbolic rows": ("x: ('n', 3)", "W"),
    "transposed twice": (X, "R.permute_dims(R.permute_dims(W))"),
    "einsum": (
        "x: (1, 4, 3)",
        "R.reshape(R.permute_dims(R.permute_dims(R.expand_dims(R.expand_dims(W, 2), 3), [2, 3, 1, 0]),"
        " [3, 2, 0, 1]), (1, 3, 5))",
    ),
    "squeezed": (X, "R.squeeze(R.reshape(W, (1, 3, 5)), 0)"),
}
NO_LINEAR = {  # name: (parameters, a product that stays as it is)
    "a linear layer": (X, "R.matmul(x, R.permute_dims(R.const([[1.0, 2, 3], [4, 5, 6]])))"),
    "a parameter": (f"{X}, w: (3, 5)", "R.matmul(x, w)"),
    "the constant first": ("x: (5, 2)", "R.matmul(W, x)"),
    "a vector": (X, "R.matmul(x, R.const([1.0, 2.0, 3.0]))"),
    "several matrices": ("x: (2, 4, 2)", "R.matmul(x, R.const([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]))"),
    "a matrix of higher rank": ("x: (4, 3)", "R.matmul(x, R.reshape(W, (1, 3, 5)))"),
    "integers": ("x: (4, 2, 'int32')", "R.matmul(x, R.const([[1, 2], [3, 4]], 'int32'))"),
    "computed": (X, "R.matmul(x, R.tanh(W))"),
}  # fmt: skip


def product_of(parameters: str, weight: str, *, whole: bool = False) -> tvm.IRModule:
    """x times `weight`, in which W is STORED; whole: `weight` is the whole product."""
    product = weight if whole else f"R.matmul(x, {weight})"
    text = f"def main({parameters}):\n    out = {product}"
    return relax_module(text, W=relax.const(STORED))


def matrix(rows: int, columns: int) -> tvm.IRModule:
    """A product with a constant matrix of that shape; no shape tells the layouts of a square one apart."""
    numbers = [[float(i * columns + j + 1) for j in range(columns)] for i in range(rows)]
    return product_of(f"x: (2, {rows})", f"R.const({numbers})")


FIRES = {name: (product_of(*case), (5, 3)) for name, case in LINEAR.items()} | {
    f"{rows} x {columns}": (matrix(rows, columns), (columns, rows))
    for rows, columns in ((3, 3), (3, 1), (1, 4))
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name):
    mod, shape = FIRES[name]
    after = judge_pass(RecognizeLinear(), mod, "RecognizeLinear", name)
    assert operators(after) == ["permute_dims", "matmul"]
    assert [int(dim) for dim in calls_in(after["main"])[0].args[0].ty.shape] == [*shape]


@pytest.mark.parametrize("asked_for", ["float16", "float32"])
def test_keeps_the_dtypes(asked_for):
    weight = 'R.const([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float16")'
    product = f'R.matmul(x, {weight}, out_dtype="{asked_for}")'
    after = RecognizeLinear()(product_of("x: (2, 3, 'float16')", product, whole=True))
    found = [str(call.ty.dtype) for call in calls_in(after["main"])]
    assert found == ["float16", asked_for]


# --- norms ----------------------------------------------------------------------------------------

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


def recognize_norms(mod: tvm.IRModule) -> list[str]:
    """The operators after RecognizeRMSNorm, which gives the same numbers and does nothing in a second run."""
    return operators(judge_pass(RecognizeRMSNorm(), mod, "RecognizeRMSNorm", "this graph"))


@pytest.mark.parametrize("spelling", ["as exported", "weight first", "weight + 1", "3 dimensions"])
def test_the_weight_is_part_of_the_norm(spelling):
    found = recognize_norms(edit_module(NORM, *SPELLINGS.get(spelling, ())))
    assert set(found) <= {"nn.rms_norm", "add"} and found.count("nn.rms_norm") == 1


@pytest.mark.parametrize("factor", NOT_WEIGHTS)
def test_other_factors_stay_outside(factor):
    assert recognize_norms(edit_module(NORM, *NOT_WEIGHTS[factor])) == ["nn.rms_norm", "multiply"]


def test_a_layer_norm_is_the_rms_norm_of_the_centred_tensor():
    centred = "centred = R.subtract(x, R.mean(x, axis=[-1], keepdims=True))\n    square ="
    mod = edit_module(NORM, "r(x,", "r(centred,", "y(x,", "y(centred,", "square =", centred)
    assert recognize_norms(mod) == ["mean", "subtract", "nn.rms_norm"]


def test_what_others_read_stays():
    mod = edit_module(
        NORM,
        "out = R.multiply(normalized, w)",
        "out = R.multiply(normalized, w)\n    return out, mean, normalized",
    )
    found = recognize_norms(mod)
    assert found.count("nn.rms_norm") == 2  # with the weight, and without it
    assert found.count("mean") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", [ROUNDED_FIRST, ROUNDED_LAST])
def test_rounds_where_the_model_rounds(text, dtype):
    """Not one bit changes: rms_norm in a narrow dtype converts where the model converts."""
    mod = relax_module(text.replace("float16", dtype))
    after = RecognizeRMSNorm()(mod)
    expected = ["nn.rms_norm", "multiply"] if text is ROUNDED_FIRST else ["nn.rms_norm"]
    assert operators(after) == expected
    assert [str(call.ty.dtype) for call in calls_in(after["main"])] == [dtype] * len(expected)
    numbers = [
        array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for array in arguments(relax_module(NORM)["main"])
    ]
    assert (run(after, "main", numbers) == run(mod, "main", numbers)).all()


def test_a_weight_of_another_dtype_is_not_rounded():
    mod = edit_module(ROUNDED_LAST, 'w: (8, "float16")', "w: (8,)", 'R.astype(w, "float32")', "w")
    after = RecognizeRMSNorm()(mod)
    assert operators(after) == ["astype", "nn.rms_norm", "astype"]
    given = arguments(mod["main"])
    assert (run(after, "main", given) == run(mod, "main", given)).all()


# rms_norm over the first axis has a weight per row; the factor has one number per column
NORM_OVER_ROWS = """
def main(x: (8, 8), w: (8,)):
    norm = R.nn.rms_norm(x, R.const([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), axes=[0])
    out = R.multiply(norm, w)
"""
# x changes between its mean and its product with the scale
UPDATE_IN_PLACE = """
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
"""

# --- products between reshapes, and graphs without no-ops ------------------------------------------

FILTERS = np.random.default_rng(3).standard_normal((5, 3, 2, 4)).astype("float32")
MOVES = {  # name: (text, its operators afterwards)
    "rows": (
        "def main(x: (2, 4, 3), w: (5, 3)):\n"
        "    rows = R.matmul(R.reshape(x, (8, 3)), R.permute_dims(w))\n"
        "    out = R.reshape(rows, (2, 4, 5))",
        "permute_dims matmul",
    ),
    "rows and bias": (
        "def main(x: (2, 4, 3), w: (5, 3), b: (5,), y: (2, 4, 5)):\n"
        "    rows = R.matmul(R.reshape(x, (8, 3)), R.permute_dims(w))\n"
        "    out = R.add(R.reshape(R.add(b, rows), (2, 4, 5)), y)",
        "permute_dims matmul add add",
    ),
    "symbolic rows": (
        "def main(x: (1, 'n', 3), w: (5, 3)):\n"
        "    rows = R.matmul(R.reshape(x, (n, 3)), R.permute_dims(w))\n"
        "    out = R.reshape(rows, (1, n, 5))",
        "permute_dims matmul",
    ),
    "batches": (
        "def main(x: (2, 4, 6, 3), y: (2, 4, 3, 5)):\n"
        "    flat = R.matmul(R.reshape(x, (8, 6, 3)), R.reshape(y, (8, 3, 5)))\n"
        "    out = R.reshape(flat, (2, 4, 6, 5))",
        "matmul",
    ),
    "a result that stays flat": (
        "def main(x: (2, 4, 3), w: (3, 5)):\n    out = R.matmul(R.reshape(x, (8, 3)), w)",
        "matmul reshape",
    ),
}
STAYS = {  # name: (parameters, what is not moved)
    "columns are mixed": ("x: (2, 6), w: (3, 5)", "R.matmul(R.reshape(x, (4, 3)), w)"),
    "rows of a matrix are mixed": (
        "x: (2, 6, 2), y: (2, 4, 5)",
        "R.matmul(R.reshape(x, (4, 3, 2)), R.reshape(y, (4, 2, 5)))",
    ),
    "other batches": ("x: (2, 4, 3, 3), y: (4, 2, 3, 3)", "R.matmul(R.reshape(x, (8, 3, 3)), R.reshape(y, (8, 3, 3)))"),
    "batches of one operand": ("x: (2, 4, 3, 3), y: (8, 3, 3)", "R.matmul(R.reshape(x, (8, 3, 3)), y)"),
    "batches that are repeated along each other": (
        "x: (2, 3, 4, 5), y: (2, 3, 5, 7)",
        "R.matmul(R.reshape(x, (6, 1, 4, 5)), R.reshape(y, (1, 6, 5, 7)))",
    ),
    "one batch along another, symbolic": (
        "x: ('n', 2, 4, 5), y: ('n', 2, 5, 3)",
        "R.matmul(R.reshape(x, (n, 2, 1, 4, 5)), R.reshape(y, (2 * n, 5, 3)))",
    ),
    "a transposed batch": (
        "x: (2, 4, 6, 3), y: (2, 4, 5, 3)",
        "R.matmul(R.reshape(x, (8, 6, 3)), R.reshape(R.permute_dims(y, [0, 1, 3, 2]), (8, 3, 5)))",
    ),
    "a bias per element": ("x: (2, 4, 3), b: (8, 3)", "R.add(R.reshape(x, (8, 3)), b)"),
    "a bias that adds rows": ("x: (2, 1, 3), b: (4, 1, 3)", "R.add(R.reshape(x, (2, 3)), b)"),
}  # fmt: skip


def rewrite(a_pass: tvm.ir.transform.Pass, mod: tvm.IRModule) -> str:
    """The operators after `a_pass`, which gives the same numbers and does nothing in a second run."""
    return " ".join(operators(judge_pass(a_pass, mod, a_pass.info.name, "this graph")))


NO_OPS = """
def main(x: (2, 3), y: (3, 2)):
    same = R.reshape(R.broadcast_to(R.astype(x, "float32"), (2, 3)), (2, 3))
    back = R.reshape(R.reshape(same, (3, 2)), (2, 3))
    rounded = R.astype(R.astype(back, "float16"), "float32")
    flat = R.reshape(R.reshape(y, (2, 3)), (6,))
    wide = R.broadcast_to(flat, (2, 6))
    return rounded, wide
"""
REPEATED = "R.matmul(x, R.broadcast_to(R.permute_dims(w), (5, 4, 3)))"
REWRITTEN = {  # name: (a pass, a text, its operators afterwards)
    **{f"reshapes move, {name}": (canonicalize(), *case) for name, case in MOVES.items()},
    "what changes nothing": (DropNoOps(), NO_OPS, "astype astype reshape reshape broadcast_to"),
    "a matrix for each batch": (
        DropNoOps(), f"def main(x: (5, 2, 4), w: (3, 4)): out = {REPEATED}", "permute_dims matmul",
    ),
    "a square": (ExpandPowers(), "def main(x: (3, 4)): out = R.power(x, R.const(2.0))", "multiply"),
    "a cube": (ExpandPowers(), "def main(x: (3, 4)): out = R.power(x, R.const(3.0))", "multiply multiply"),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITTEN)
def test_is_rewritten(name):
    a_pass, text, expected = REWRITTEN[name]
    assert rewrite(a_pass, relax_module(text)) == expected


def convolution(attributes: str, filters: str = "F", size: str = "(2, 3, 6, 8)") -> tvm.IRModule:
    text = f"def main(x: {size}):\n    out = R.nn.conv2d(x, {filters}, {attributes})"
    return relax_module(text, F=relax.const(FILTERS))


def test_patches_are_rows_of_a_linear_layer():
    found = rewrite(canonicalize(), convolution("strides=[2, 4]"))
    assert "matmul" in found and "conv2d" not in found


OTHER_CONVOLUTIONS = [
    ("strides=[4, 2]", "F", "(2, 3, 8, 8)"),
    ("strides=[1, 1]",),
    ("strides=[2, 4], padding=[0, 4, 0, 4]",),
    ("strides=[2, 4], dilation=[2, 1]",),
    ("strides=[2, 4], groups=5", "F", "(2, 15, 6, 8)"),
    ("strides=[2, 4]", "F", "(2, 3, 7, 8)"),
    ("strides=[2, 4]", "F", "(2, 3, 6, 9)"),
    ("strides=[2, 4]", "F", "('n', 3, 6, 8)"),
    ("strides=[2, 4]", "R.tanh(F)"),
    ("strides=[2, 4], data_layout='NHWC'", "F", "(2, 6, 8, 3)"),
]
POWERS = ("x, R.const(0.5)", "R.const(2.0), x", "x, x")
KEPT = {  # name: (a pass, a module that it leaves as it is)
    **{n: (RecognizeLinear(), product_of(*case, whole=True)) for n, case in NO_LINEAR.items()},
    "a norm over rows": (RecognizeRMSNorm(), relax_module(NORM_OVER_ROWS)),
    "an update in place": (RecognizeRMSNorm(), relax_module(UPDATE_IN_PLACE)),
    **{
        name: (KeepLeadingDims(), relax_module(f"def main({parameters}):\n    out = {value}"))
        for name, (parameters, value) in STAYS.items()
    },
    **{
        f"a matrix that gives the result its batches, {x}": (
            DropNoOps(),
            relax_module(f"def main(x: {x}, w: (4, 3)): out = R.matmul(x, R.broadcast_to(w, (5, 4, 3)))"),
        )
        for x in ("(2, 4)", "(1, 2, 4)")
    },
    **{
        f"power({power})": (ExpandPowers(), relax_module(f"def main(x: (3, 4)): out = R.power({power})"))
        for power in POWERS
    },
    **{" ".join(case): (RecognizePatches(), convolution(*case)) for case in OTHER_CONVOLUTIONS},
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_other_graphs_stay(name):
    a_pass, mod = KEPT[name]
    assert tvm_ffi.structural_equal(a_pass(mod), mod)
