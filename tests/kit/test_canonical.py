"""The canonical form of linear layers, of products between reshapes, and of graphs without no-ops."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.models.drop_no_ops import DropNoOps
from chapters.kit.models.expand_powers import ExpandPowers
from chapters.kit.models.keep_leading_dims import KeepLeadingDims
from chapters.kit.models.recognize_patches import RecognizePatches
from solutions.ch10_imported_models.imported_models import RecognizeLinear, canonicalize
from tests.ch10.test_recognize_linear import LINEAR, STORED, product_of

FILTERS = np.random.default_rng(3).standard_normal((5, 3, 2, 4)).astype("float32")
MOVES = {  # name: (text, its operators afterwards, the same in NumPy)
    "rows": (
        "def main(x: (2, 4, 3), w: (5, 3)):\n"
        "    rows = R.matmul(R.reshape(x, (8, 3)), R.permute_dims(w))\n"
        "    out = R.reshape(rows, (2, 4, 5))",
        "permute_dims matmul",
        lambda x, w: x @ w.T,
    ),
    "rows and bias": (
        "def main(x: (2, 4, 3), w: (5, 3), b: (5,), y: (2, 4, 5)):\n"
        "    rows = R.matmul(R.reshape(x, (8, 3)), R.permute_dims(w))\n"
        "    out = R.add(R.reshape(R.add(b, rows), (2, 4, 5)), y)",
        "permute_dims matmul add add",
        lambda x, w, b, y: x @ w.T + b + y,
    ),
    "symbolic rows": (
        "def main(x: (1, 'n', 3), w: (5, 3)):\n"
        "    rows = R.matmul(R.reshape(x, (n, 3)), R.permute_dims(w))\n"
        "    out = R.reshape(rows, (1, n, 5))",
        "permute_dims matmul",
        lambda x, w: x @ w.T,
    ),
    "batches": (
        "def main(x: (2, 4, 6, 3), y: (2, 4, 3, 5)):\n"
        "    flat = R.matmul(R.reshape(x, (8, 6, 3)), R.reshape(y, (8, 3, 5)))\n"
        "    out = R.reshape(flat, (2, 4, 6, 5))",
        "matmul",
        lambda x, y: x @ y,
    ),
    "a result that stays flat": (
        "def main(x: (2, 4, 3), w: (3, 5)):\n    out = R.matmul(R.reshape(x, (8, 3)), w)",
        "matmul reshape",
        lambda x, w: (x @ w).reshape(8, 5),
    ),
}
STAYS = {  # name: (parameters, what is not moved)
    "columns are mixed": ("x: (2, 6), w: (3, 5)", "R.matmul(R.reshape(x, (4, 3)), w)"),
    "rows of a matrix are mixed": (
        "x: (2, 6, 2), y: (2, 4, 5)",
        "R.matmul(R.reshape(x, (4, 3, 2)), R.reshape(y, (4, 2, 5)))",
    ),
    "other batches": (
        "x: (2, 4, 3, 3), y: (4, 2, 3, 3)",
        "R.matmul(R.reshape(x, (8, 3, 3)), R.reshape(y, (8, 3, 3)))",
    ),
    "batches of one operand": (
        "x: (2, 4, 3, 3), y: (8, 3, 3)",
        "R.matmul(R.reshape(x, (8, 3, 3)), y)",
    ),
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
}


def names(mod: tvm.IRModule) -> str:
    """The operators of main, in order."""
    return " ".join(call.op.name.removeprefix("relax.") for call in calls_in(mod["main"]))


def arrays_for(mod: tvm.IRModule) -> list[np.ndarray]:
    """Random numbers for main; a symbolic dimension is 7."""
    random = np.random.default_rng(2)
    fixed = tvm.tirx.IntImm
    shapes = (
        [int(d) if isinstance(d, fixed) else 7 for d in p.ty.shape] for p in mod["main"].params
    )
    return [random.standard_normal(shape).astype("float32") for shape in shapes]


def assert_computes(mod: tvm.IRModule, numpy) -> None:
    """The numbers of main are those of `numpy` in float64; a float32 sum of a few products is off by less than 1e-5."""
    arrays = arrays_for(mod)
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    found = vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()
    expected = numpy(*(array.astype("float64") for array in arrays))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LINEAR)
def test_a_constant_is_transposed_when_the_model_is_compiled(name):
    parameters, weight = LINEAR[name]
    mod = product_of(parameters, weight)
    after = RecognizeLinear()(mod)
    transpose, product = calls_in(after["main"])
    assert (names(after), list(transpose.args[0].ty.shape)) == ("permute_dims matmul", [5, 3])
    assert product.args[1].same_as(after["main"].body.blocks[0].bindings[0].var)
    assert_computes(after, lambda x: x @ STORED.astype("float64"))
    assert tvm_ffi.structural_equal(RecognizeLinear()(after), after)


@pytest.mark.parametrize("name", MOVES)
def test_reshapes_move_behind_products(name):
    text, expected, numpy = MOVES[name]
    mod = relax_module(text)
    after = canonicalize()(mod)
    assert names(after) == expected
    assert_computes(after, numpy)
    assert tvm_ffi.structural_equal(canonicalize()(after), after)


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
    after = DropNoOps()(mod)
    assert names(after) == "astype astype reshape reshape broadcast_to"
    assert tvm_ffi.structural_equal(DropNoOps()(after), after)


def test_a_matrix_is_not_repeated_for_each_batch():
    mod = relax_module("""
def main(x: (5, 2, 4), w: (3, 4)):
    out = R.matmul(x, R.broadcast_to(R.permute_dims(w), (5, 4, 3)))
""")
    after = DropNoOps()(mod)
    assert names(after) == "permute_dims matmul"
    assert_computes(after, lambda x, w: x @ w.T)


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
    after = ExpandPowers()(mod)
    assert names(after) == product
    assert_computes(after, lambda x: x ** float(exponent))


@pytest.mark.parametrize(
    "power", ["R.power(x, R.const(0.5))", "R.power(R.const(2.0), x)", "R.power(x, x)"]
)
def test_other_powers_stay(power):
    mod = relax_module(f"def main(x: (3, 4)):\n    out = {power}")
    assert tvm_ffi.structural_equal(ExpandPowers()(mod), mod)


def convolution(attributes: str, filters: str = "F", size: str = "(2, 3, 6, 8)") -> tvm.IRModule:
    text = f"def main(x: {size}):\n    out = R.nn.conv2d(x, {filters}, {attributes})"
    return relax_module(text, F=relax.const(FILTERS))


def patches(x: np.ndarray) -> np.ndarray:
    """The convolution whose stride is the size of FILTERS, patch by patch."""
    b, _, height, width = x.shape
    out = np.empty((b, 5, height // 2, width // 4))
    for i, j in np.ndindex(height // 2, width // 4):
        patch = x[:, :, 2 * i : 2 * i + 2, 4 * j : 4 * j + 4]
        out[:, :, i, j] = np.einsum("bcpq,ocpq->bo", patch, FILTERS.astype("float64"))
    return out


def test_patches_are_rows_of_a_linear_layer():
    after = canonicalize()(convolution("strides=[2, 4]"))
    assert "matmul" in names(after) and "conv2d" not in names(after)
    assert_computes(after, patches)


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
