"""FuseTransposeMatmul where random drawing does not reach: control flow, closures, claimed functions, empty sums."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import FuseTransposeMatmul
from tests.test_ch03_property import calls, run


@I.ir_module
class Branches:
    """The transpose stands before the If; one branch multiplies by it, the other by its own."""

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32"), c: R.Tensor((), "bool")
    ) -> R.Tensor((4, 8), "float32"):
        wt = R.permute_dims(w)
        if c:
            with R.dataflow():
                a = R.matmul(x, wt)
                R.output(a)
            out = a
        else:
            with R.dataflow():
                other = R.permute_dims(w)
                b = R.matmul(x, other)
                d = R.negative(b)
                R.output(d)
            out = d
        return out


@I.ir_module
class Closure:
    """A local function uses w of the function around it."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        @R.function
        def inner(a: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 16), "float32"):
            with R.dataflow():
                wt = R.permute_dims(w)
                b = R.matmul(a, wt)
                R.output(b)
            return b

        out: R.Tensor((4, 16), "float32") = inner(x)
        return out


@I.ir_module
class Recast:
    """A match_cast between the two checks a shape at run time; the pass does not look through it."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        dtype="float32", ndim=2
    ):
        m = T.int64()
        with R.dataflow():
            wt = R.permute_dims(w)
            cast = R.match_cast(wt, R.Tensor((8, m), "float32"))
            out = R.matmul(x, cast)
            R.output(out)
        return out


@I.ir_module
class Weaker:
    """The transpose is annotated with less than is known of it, so the product has no known shape."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        dtype="float32", ndim=2
    ):
        with R.dataflow():
            wt: R.Tensor(dtype="float32", ndim=2) = R.permute_dims(w)
            out: R.Tensor(dtype="float32", ndim=2) = R.matmul(x, wt)
            R.output(out)
        return out


@I.ir_module
class InATuple:
    """The transpose travels through a tuple."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        with R.dataflow():
            pair = (R.permute_dims(w), x)
            wt = pair[0]
            out = R.matmul(x, wt)
            R.output(out)
        return out


@I.ir_module
class EmptySum:
    """k is 0: every element of the product is a sum of nothing."""

    @R.function
    def main(x: R.Tensor((4, 0), "float32"), w: R.Tensor((16, 0), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        return out


@I.ir_module
class Impure:
    """A function with side effects around its dataflow block."""

    @R.function(pure=False)
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        R.print(x, format="{}")
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        R.print(out, format="{}")
        return out


@I.ir_module
class UncertainSizes:
    """k is n in one operand and m in the other: only the caller knows that they are equal."""

    @R.function
    def main(x: R.Tensor((4, "n"), "float32"), w: R.Tensor((16, "m"), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        return out


@I.ir_module
class SizeOfNoTensor:
    """n is in no tensor's shape alone, so the kernel needs it as an argument."""

    @R.function
    def main(
        x: R.Tensor(("n + 1", 8), "float32"), s: R.Shape(["n"]), w: R.Tensor((16, 8), "float32")
    ) -> R.Tensor(("n + 1", 16), "float32"):
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        return out


@I.ir_module
class Claimed:
    """A composite of this pass's own name, from elsewhere; and a function set aside for a library."""

    @R.function(private=True)
    def mine(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        R.func_attr({"Composite": "transpose_matmul_fuse", "Primitive": True})
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        return out

    @R.function
    def theirs(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        R.func_attr({"Codegen": "cublas"})
        with R.dataflow():
            wt = R.permute_dims(w)
            out = R.matmul(x, wt)
            R.output(out)
        return out

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        cls = Claimed
        with R.dataflow():
            out = cls.mine(x, w)
            R.output(out)
        return out


@I.ir_module
class TwiceTransposed:
    """w transposed twice: the outer transpose is fused, the inner one is its operand and stays."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 16), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        with R.dataflow():
            once = R.permute_dims(w)
            twice = R.permute_dims(once)
            out = R.matmul(x, twice)
            R.output(out)
        return out


@I.ir_module
class Loops:
    """Recursion, and a PrimFunc called as NT_matmul."""

    @T.prim_func(private=True, s_tir=True)
    def NT_matmul(a: T.Buffer((4, 16), "float32"), b: T.Buffer((4, 16), "float32")):
        for i, j in T.grid(4, 16):
            with T.sblock("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj]

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"), w: R.Tensor((16, 8), "float32"), c: R.Tensor((), "bool")
    ) -> R.Tensor((4, 16), "float32"):
        cls = Loops
        if c:
            out: R.Tensor((4, 16), "float32") = cls.main(x, w, R.const(False, "bool"))
        else:
            with R.dataflow():
                wt = R.permute_dims(w)
                a = R.matmul(x, wt)
                b = R.call_tir(cls.NT_matmul, (a,), out_ty=R.Tensor((4, 16), "float32"))
                R.output(b)
            out: R.Tensor((4, 16), "float32") = b
        return out


@I.ir_module
class Overwritten:
    """A kernel writes into w, in place, between its transpose and the matmul: w must be read before."""

    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((16, 8), "float32")):
        for i, j in T.grid(16, 8):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                a[vi, vj] = a[vi, vj] + a[vi, vj]

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), start: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        cls = Overwritten
        with R.dataflow():
            w = R.negative(start)
            wt = R.permute_dims(w)
            w2 = R.call_tir_inplace(
                cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((16, 8), "float32")
            )
            early = R.matmul(x, wt)
            wt2 = R.permute_dims(w2)
            late = R.matmul(x, wt2)
            out = R.add(early, late)
            R.output(out)
        return out


@I.ir_module
class OverwrittenBehindACall:
    """As above, but the kernel that writes stands in a function that is called."""

    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((16, 8), "float32")):
        for i, j in T.grid(16, 8):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                a[vi, vj] = a[vi, vj] + a[vi, vj]

    @R.function(private=True)
    def helper(w: R.Tensor((16, 8), "float32")) -> R.Tensor((16, 8), "float32"):
        cls = OverwrittenBehindACall
        with R.dataflow():
            out = R.call_tir_inplace(
                cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((16, 8), "float32")
            )
            R.output(out)
        return out

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), start: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        cls = OverwrittenBehindACall
        w = R.negative(start)
        wt = R.permute_dims(w)
        w2 = cls.helper(w)
        with R.dataflow():
            wide = R.matmul(x, wt)
            kept = R.multiply(w2, R.const(0, "float32"))
            part = R.permute_dims(kept)
            zero = R.matmul(x, part)
            out = R.add(wide, zero)
            R.output(out)
        return out


@I.ir_module
class Captured:
    """A closure multiplies by a transpose of the function around it, and runs after w was overwritten."""

    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((16, 8), "float32")):
        for i, j in T.grid(16, 8):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                a[vi, vj] = a[vi, vj] + a[vi, vj]

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), start: R.Tensor((16, 8), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        cls = Captured
        w = R.negative(start)
        wt = R.permute_dims(w)

        @R.function
        def inner(a: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 16), "float32"):
            with R.dataflow():
                b = R.matmul(a, wt)
                R.output(b)
            return b

        w2 = R.call_tir_inplace(  # noqa: F841
            cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((16, 8), "float32")
        )
        out: R.Tensor((4, 16), "float32") = inner(x)
        return out


def _array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def _product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype("float64") @ w.astype("float64").T


X, W = _array(4, 8), _array(16, 8)
# module, how many kernels the pass makes, arguments of main, what main gives (None: not run)
CASES = [
    (Branches, 2, (X, W[:8], np.array(True)), _product(X, W[:8])),
    (Branches, 2, (X, W[:8], np.array(False)), -_product(X, W[:8])),
    (Closure, 1, (X, W), _product(X, W)),
    (Recast, 0, None, None),
    (Weaker, 0, None, None),
    (InATuple, 0, (X, W), _product(X, W)),
    (EmptySum, 1, (_array(4, 0), _array(16, 0)), np.zeros((4, 16))),
    (Impure, 1, None, None),
    (UncertainSizes, 1, (X, W), _product(X, W)),
    (SizeOfNoTensor, 1, None, None),
    (Claimed, 0, None, None),
    (TwiceTransposed, 1, (X, np.ascontiguousarray(W.T)), _product(X, W)),
    (Loops, 1, (X, W, np.array(True)), _product(X, W)),
    (Overwritten, 1, (X, W), -3 * _product(X, W)),
    (OverwrittenBehindACall, 1, (X, W), -_product(X, W)),
    (Captured, 0, None, None),
]


@pytest.mark.parametrize(
    ("mod", "kernels", "arrays", "expected"),
    [
        pytest.param(*case, id=f"{n}-{case[0]['main'].attrs['global_symbol']}")
        for n, case in enumerate(CASES)
    ],
)
def test_situation(mod, kernels, arrays, expected):
    before = mod.clone()
    result = FuseTransposeMatmul()(mod)
    assert tvm_ffi.structural_equal(mod, before)
    relax.analysis.well_formed(result)
    assert calls(result)["kernel"] == kernels
    assert tvm_ffi.structural_equal(FuseTransposeMatmul()(result), result)
    if kernels == 0:
        assert tvm_ffi.structural_equal(result, before)
    if arrays is not None:
        (yours,) = run(result, "main", arrays)
        np.testing.assert_allclose(yours, expected, 1e-5, 1e-5)


def test_returns_on_modules_without_a_relax_function():
    for mod in (tvm.IRModule(), tvm.IRModule({"NT_matmul": Loops["NT_matmul"]})):
        assert tvm_ffi.structural_equal(FuseTransposeMatmul()(mod), mod)


def test_keeps_module_attributes_and_devices():
    @I.ir_module
    class OnADevice:
        I.module_attrs({"kept": 3})
        I.module_global_infos({"vdevice": [I.vdevice("llvm")]})

        @R.function
        def main(
            x: R.Tensor((4, 8), "float32", "llvm:0"), w: R.Tensor((16, 8), "float32", "llvm:0")
        ) -> R.Tensor((4, 16), "float32", "llvm:0"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                wt = R.permute_dims(w)
                out = R.matmul(x, wt)
                R.output(out)
            return out

    result = FuseTransposeMatmul()(OnADevice)
    assert calls(result)["kernel"] == 1
    assert result.attrs["kept"] == 3 and "vdevice" in result.global_infos
    assert result["main"].attrs["num_input"] == 1
    bound = result["main"].body.blocks[0].bindings[0].var
    assert bound.ty.vdevice == OnADevice["main"].ret_ty.vdevice


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int4", "int64", "float8_e4m3fn", "float4_e2m1fn"]
)
def test_returns_on_every_dtype(dtype):
    """Whether LLVM compiles these is not the pass's business; that it returns is."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4, 8), dtype)) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            transpose = builder.emit(relax.op.permute_dims(w))
            out = builder.emit_output(relax.op.matmul(x, transpose))
        builder.emit_func_output(out)
    result = FuseTransposeMatmul()(builder.get())
    relax.analysis.well_formed(result)
    assert calls(result)["kernel"] == 1


def test_a_kernel_is_shared_by_equal_calls():
    @I.ir_module
    class Equal:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (4, 8), "float32"
        ):
            with R.dataflow():
                wt = R.permute_dims(w)
                y = R.matmul(x, wt)
                z = R.matmul(y, wt)
                R.output(z)
            return z

    result = FuseTransposeMatmul()(Equal)
    assert calls(result)["kernel"] == 2 and calls(result)["relax.permute_dims"] == 0
    assert sum(isinstance(f, tirx.PrimFunc) for f in result.functions.values()) == 1
