"""The canonical form of products between reshapes, and of graphs without no-ops."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.checking.judge import judge_pass
from chapters.checking.programs import operators
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_patches import RecognizePatches
from solutions.ch10_imported_models.imported_models import canonicalize

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


def rewritten(a_pass: tvm.ir.transform.Pass, mod: tvm.IRModule) -> str:
    """The operators after `a_pass`, which gives the same numbers and does nothing in a second run."""
    return " ".join(operators(judge_pass(a_pass, mod, a_pass.info.name, "this graph")))


@pytest.mark.parametrize("name", MOVES)
def test_reshapes_move_behind_products(name):
    text, expected = MOVES[name]
    assert rewritten(canonicalize(), relax_module(text)) == expected


@pytest.mark.parametrize("name", STAYS)
def test_reshapes_stay_where_rows_would_change(name):
    parameters, value = STAYS[name]
    mod = relax_module(f"def main({parameters}):\n    out = {value}")
    assert tvm_ffi.structural_equal(KeepLeadingDims()(mod), mod)


def test_what_changes_nothing_goes():
    mod = relax_module("""
def main(x: (2, 3), y: (3, 2)):
    same = R.reshape(R.broadcast_to(R.astype(x, "float32"), (2, 3)), (2, 3))
    back = R.reshape(R.reshape(same, (3, 2)), (2, 3))
    rounded = R.astype(R.astype(back, "float16"), "float32")
    flat = R.reshape(R.reshape(y, (2, 3)), (6,))
    wide = R.broadcast_to(flat, (2, 6))
    return rounded, wide
""")
    assert rewritten(DropNoOps(), mod) == "astype astype reshape reshape broadcast_to"


def test_a_matrix_is_not_repeated_for_each_batch():
    mod = relax_module("""
def main(x: (5, 2, 4), w: (3, 4)):
    out = R.matmul(x, R.broadcast_to(R.permute_dims(w), (5, 4, 3)))
""")
    assert rewritten(DropNoOps(), mod) == "permute_dims matmul"


@pytest.mark.parametrize("x", ["(2, 4)", "(1, 2, 4)"])
def test_a_matrix_that_gives_the_result_its_batches_stays_repeated(x):
    mod = relax_module(
        f"def main(x: {x}, w: (4, 3)): out = R.matmul(x, R.broadcast_to(w, (5, 4, 3)))"
    )
    assert tvm_ffi.structural_equal(DropNoOps()(mod), mod)


@pytest.mark.parametrize(
    ("exponent", "product"), [("2.0", "multiply"), ("3.0", "multiply multiply")]
)
def test_squares_and_cubes_are_products(exponent, product):
    mod = relax_module(f"def main(x: (3, 4)):\n    out = R.power(x, R.const({exponent}))")
    assert rewritten(ExpandPowers(), mod) == product


@pytest.mark.parametrize(
    "power", ["R.power(x, R.const(0.5))", "R.power(R.const(2.0), x)", "R.power(x, x)"]
)
def test_other_powers_stay(power):
    mod = relax_module(f"def main(x: (3, 4)):\n    out = {power}")
    assert tvm_ffi.structural_equal(ExpandPowers()(mod), mod)


def convolution(attributes: str, filters: str = "F", size: str = "(2, 3, 6, 8)") -> tvm.IRModule:
    text = f"def main(x: {size}):\n    out = R.nn.conv2d(x, {filters}, {attributes})"
    return relax_module(text, F=relax.const(FILTERS))


def test_patches_are_rows_of_a_linear_layer():
    found = rewritten(canonicalize(), convolution("strides=[2, 4]"))
    assert "matmul" in found and "conv2d" not in found


@pytest.mark.parametrize(
    ("attributes", "filters", "size"),
    [
        ("strides=[4, 2]", "F", "(2, 3, 8, 8)"),
        ("strides=[1, 1]", "F", "(2, 3, 6, 8)"),
        ("strides=[2, 4], padding=[0, 4, 0, 4]", "F", "(2, 3, 6, 8)"),
        ("strides=[2, 4], dilation=[2, 1]", "F", "(2, 3, 6, 8)"),
        ("strides=[2, 4], groups=5", "F", "(2, 15, 6, 8)"),
        ("strides=[2, 4]", "F", "(2, 3, 7, 8)"),
        ("strides=[2, 4]", "F", "(2, 3, 6, 9)"),
        ("strides=[2, 4]", "F", "('n', 3, 6, 8)"),
        ("strides=[2, 4]", "R.tanh(F)", "(2, 3, 6, 8)"),
        ("strides=[2, 4], data_layout='NHWC'", "F", "(2, 6, 8, 3)"),
    ],
)
def test_other_convolutions_stay(attributes, filters, size):
    mod = convolution(attributes, filters, size)
    assert tvm_ffi.structural_equal(RecognizePatches()(mod), mod)
