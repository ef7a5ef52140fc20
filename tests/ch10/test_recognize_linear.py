"""RecognizeLinear transposes a constant matrix while the model is compiled, and leaves other products alone."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from chapters.checking.judge import judge_pass
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from solutions.ch10_imported_models.imported_models import RecognizeLinear

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


def is_canonical(mod: tvm.IRModule, *shape: int) -> bool:
    """Whether `mod` is one product with a transposed constant of `shape`."""
    calls = calls_in(mod["main"])
    names = [call.op.name for call in calls]
    return names == ["relax.permute_dims", "relax.matmul"] and (
        [int(dim) for dim in calls[0].args[0].ty.shape] == list(shape)
    )


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
    assert is_canonical(judge_pass(RecognizeLinear(), mod, "RecognizeLinear", name), *shape)


@pytest.mark.parametrize("name", NO_LINEAR)
def test_leaves_other_products(name):
    mod = product_of(*NO_LINEAR[name], whole=True)
    assert tvm_ffi.structural_equal(RecognizeLinear()(mod), mod)


@pytest.mark.parametrize("asked_for", ["float16", "float32"])
def test_keeps_the_dtypes(asked_for):
    weight = 'R.const([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float16")'
    product = f'R.matmul(x, {weight}, out_dtype="{asked_for}")'
    after = RecognizeLinear()(product_of("x: (2, 3, 'float16')", product, whole=True))
    found = [str(call.ty.dtype) for call in calls_in(after["main"])]
    assert found == ["float16", asked_for]
