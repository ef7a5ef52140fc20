"""FuseTransposeMatmul where random drawing and the checks do not reach: control flow, closures, empty sums."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from chapters.ch03_transpose_matmul.checks import count_calls
from chapters.checking.judge import judge_pass
from chapters.kit.cases.relax_text import kernel, read_modules, relax_module
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul
from tests.ch03.test_property import run
from tests.support.kernels import draw

DOUBLE = kernel("double(a)", (16, 8), "a[at] = a[at] + a[at]")
COPY = kernel("copy(a, b)", (4, 16), "b[at] = a[at]").replace("def copy", "def NT_matmul")


def _product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype("float64") @ w.astype("float64").T


X, W = draw((4, 8), (16, 8))
XW = _product(X, W)
# by situation: the arguments that main is called with and its result; some modules are not run
RUNS = {
    "branches": [
        ((X, W[:8], np.array(True)), _product(X, W[:8])),
        ((X, W[:8], np.array(False)), -_product(X, W[:8])),
    ],
    "local_function": [((X, W), XW)],
    "tuple": [((X, W), XW)],
    "empty_sum": [(draw((4, 0), (16, 0)), np.zeros((4, 16)))],
    "equal_sizes": [((X, W), XW)],
    "unread_update": [((X, W), 2 * XW + _product(X, abs(W)))],
    **dict.fromkeys(("match_cast", "part_of_a_size", "closure"), ()),
}
# each headed by its name, the number of kernels that the pass makes of it, and what is special about it
SITUATIONS = f"""
## branches, 2: the transpose is before the If; one branch multiplies by it, the other by its own
def main(x: (4, 8), w: (8, 8), c: ("bool",)):
    wt = R.permute_dims(w)
    if c:
        with R.dataflow():
            a = R.matmul(x, wt)
            R.output(a)
        out = a
    else:
        with R.dataflow():
            d = R.negative(R.matmul(x, R.permute_dims(w)))
            R.output(d)
        out = d
    return out

## local_function, 1: a local function uses w of the function around it
def main(x: (4, 8), w: (16, 8)):
    @R.function
    def inner(a: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 16), "float32"):
        with R.dataflow():
            b = R.matmul(a, R.permute_dims(w))
            R.output(b)
        return b

    out: R.Tensor((4, 16), "float32") = inner(x)
    return out

## unread_update, 2: what an update writes before a matmul is never read, and another operator reads the transpose too
{DOUBLE}
def main(x: (4, 8), w: (16, 8)):
    with R.dataflow():
        a = R.matmul(x, R.permute_dims(w))
        wt = R.permute_dims(w)
        other = R.negative(w)
        unread = R.call_tir_inplace(cls.double, (other,), inplace_indices=[0], out_ty=R.Tensor((16, 8), "float32"))
        b = R.matmul(x, wt)
        out = R.add(R.add(a, b), R.matmul(x, R.abs(wt)))
        R.output(out)
    return out

## match_cast, 0: a match_cast between the two checks a shape at run time; the pass does not look through it
def main(x: (4, 8), w: (16, 8)) -> R.Tensor(dtype="float32", ndim=2):
    m = T.int64()
    wt = R.permute_dims(w)
    cast = R.match_cast(wt, R.Tensor((8, m), "float32"))
    out = R.matmul(x, cast)

## tuple, 0: the transpose travels through a tuple
def main(x: (4, 8), w: (16, 8)):
    pair = (R.permute_dims(w), x)
    wt = pair[0]
    out = R.matmul(x, wt)

## empty_sum, 1: k is 0: every element of the product is an empty sum
def main(x: (4, 0), w: (16, 0)):
    out = R.matmul(x, R.permute_dims(w))

## equal_sizes, 1: k is n in one operand and m in the other: only the caller knows that they are equal
def main(x: (4, "n"), w: (16, "m")):
    out = R.matmul(x, R.permute_dims(w))

## part_of_a_size, 1: n is part of a dimension and never one by itself, so the kernel needs it as an argument
def main(x: ("n + 1", 8), s: R.Shape(["n"]), w: (16, 8)):
    out = R.matmul(x, R.permute_dims(w))

## closure, 0: a closure multiplies by a transpose of the function around it, and runs after w was overwritten
{DOUBLE}
def main(x: (4, 8), start: (16, 8)):
    w = R.negative(start)
    wt = R.permute_dims(w)

    @R.function
    def inner(a: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 16), "float32"):
        with R.dataflow():
            b = R.matmul(a, wt)
            R.output(b)
        return b

    w2 = R.call_tir_inplace(cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((16, 8), "float32"))
    out: R.Tensor((4, 16), "float32") = inner(x)
    return out
"""


def list_situations() -> Iterator:
    for head, mod in read_modules(SITUATIONS).items():
        name, kernels, title = re.fullmatch(r"(\w+), (\d): (.+)", head).groups()
        yield pytest.param(mod, int(kernels), RUNS[name], id=title)


@pytest.mark.parametrize(("mod", "kernels", "runs"), list(list_situations()))
def test_situation(mod, kernels, runs):
    result = judge_pass(FuseTransposeMatmul(), mod, "FuseTransposeMatmul", "the module", runs=False)
    assert count_calls(result)["NT_matmul"] == kernels
    if kernels == 0:
        assert tvm_ffi.structural_equal(result, mod)
    for arrays, expected in runs:
        (yours,) = run(result, "main", arrays)
        np.testing.assert_allclose(yours, expected, 1e-5, 1e-5)


def test_returns_on_modules_without_a_relax_function():
    for mod in (tvm.IRModule(), relax_module(COPY)):
        assert tvm_ffi.structural_equal(FuseTransposeMatmul()(mod), mod)


def test_keeps_the_device_of_a_product():
    mod = relax_module("""
I.module_global_infos({"vdevice": [I.vdevice("llvm")]})

def main(x: R.Tensor((4, 8), "float32", "llvm:0"), w: R.Tensor((16, 8), "float32", "llvm:0")):
    out = R.matmul(x, R.permute_dims(w))
""")
    result = FuseTransposeMatmul()(mod)
    assert count_calls(result)["NT_matmul"] == 1
    bound = result["main"].body.blocks[0].bindings[0].var
    assert bound.ty.vdevice is not None and bound.ty.vdevice == mod["main"].ret_ty.vdevice


DTYPES = ["bool", "uint8", "int4", "int64", "float8_e4m3fn", "float4_e2m1fn"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_returns_on_every_dtype(dtype):
    """LLVM need not compile all of these, but the pass must return."""
    mod = relax_module(f"""
def main(x: (4, 8, "{dtype}"), w: (4, 8, "{dtype}")):
    out = R.matmul(x, R.permute_dims(w))
""")
    result = FuseTransposeMatmul()(mod)
    relax.analysis.well_formed(result)
    assert count_calls(result)["NT_matmul"] == 1


def test_a_kernel_is_shared_by_equal_calls():
    mod = relax_module("""
def main(x: (4, 8), w: (8, 8)):
    wt = R.permute_dims(w)
    y = R.matmul(x, wt)
    z = R.matmul(y, wt)
""")
    result = FuseTransposeMatmul()(mod)
    assert count_calls(result) == {"matmul": 0, "permute_dims": 0, "NT_matmul": 2}
    assert sum(isinstance(f, tirx.PrimFunc) for f in result.functions.values()) == 1
