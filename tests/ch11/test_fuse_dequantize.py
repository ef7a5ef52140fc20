"""The passes that move the unpacking of a matrix into its readers, beyond what the checks ask, and their kernels.

References are NumPy in float64. The codes are random, and so are the scales, float16 numbers near 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_equal

from chapters.ch11_a_real_model import check_programs as programs
from chapters.ch11_a_real_model import layer
from chapters.ch11_a_real_model.check_programs import (
    FIRES,
    FORM,
    LOWER,
    OP,
    ROWS,
    K,
    N,
    function,
    through,
    write,
)
from chapters.ch11_a_real_model.given import kernel_calls
from chapters.checking.programs import kernels_called, run_kernel
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.blocks import pack
from chapters.kit.quantized.dequantize import int64s, kernel
from chapters.kit.quantized.layers import (
    CodedMatrix,
    Matrix,
    MatrixEmbedding,
    MatrixLinear,
    TiedHead,
)
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import (
    FuseDequantizeMatmul,
    FuseDequantizeTake,
    joined,
    unpacks_rows,
)
from tests.kit.test_blocks import SOME_FORMS
from tests.kit.test_coded_products import random_codes

FUSE = [FuseDequantizeTake(), FuseDequantizeMatmul()]


def close(found: np.ndarray, exact: np.ndarray) -> None:
    """Equal within 1e-5 of the largest number: sums of 64 products in float32."""
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max(), strict=False)
    assert found.shape == exact.shape


def float_copies(mod: tvm.IRModule, shape: tuple = (N, K)) -> int:
    """How many tensors of the shape of the float matrix "main" computes."""
    found = [call.ty_args[0] for call in kernel_calls(mod["main"])]
    return sum(
        isinstance(ty, relax.TensorType) and structural_equal(list(ty.shape), int64s(shape))
        for ty in found
    )


def run(mod: tvm.IRModule, *arrays):
    """The result of "main" on NumPy arrays, as NumPy arrays. A list stands for a tuple of arrays."""
    vm = relax.VirtualMachine(tvm.compile(mod, QUICK_HERE), tvm.cpu())

    def tensors(one):
        return [tensors(a) for a in one] if isinstance(one, list) else tvm.runtime.tensor(one)

    found = vm["main"](*map(tensors, arrays))
    return found.numpy() if hasattr(found, "numpy") else [one.numpy() for one in found]


def fuse_once_and_again(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` after both passes. They leave `mod` itself alone, and a second time they change nothing."""
    before = tvm.ir.load_json(tvm.ir.save_json(mod))
    assert structural_equal(before, mod)
    with tvm.transform.PassContext(config={"testing.immutable_module": True}):
        fused = through(FUSE)(mod)
        again = through(FUSE)(fused)
        other_order = through(FUSE[::-1])(mod)
    assert structural_equal(before, mod)
    assert structural_equal(fused, again)
    assert kernels_called(other_order) == kernels_called(fused)
    assert relax.analysis.check_well_formed(fused)
    return fused


class Net(nn.Module):
    """An embedding whose matrix the head shares, and a layer of two matrices between the two."""

    def __init__(self, shared: Matrix, *parts: Matrix):
        self.embed, self.layer = MatrixEmbedding(shared), MatrixLinear(parts)
        self.head = TiedHead(self.embed)

    def main(self, numbers: nn.Tensor):
        """(s,) int32 -> the layer's result, (s, n), and the head's."""
        x = self.embed(numbers)
        return self.layer(x), self.head(x)


def exported(net: nn.Module, **inputs) -> tuple[tvm.IRModule, list[str]]:
    spec = {"main": {**inputs, "$": {"param_mode": "packed", "effect_mode": "none"}}}
    mod, parameters = net.export_tvm(spec=spec)
    return mod, [name for name, _ in parameters]


@pytest.mark.parametrize("form", SOME_FORMS[::3], ids=str)
def test_no_layer_keeps_a_float_matrix(form):
    shared, first, second = (random_codes(form, n, K) for n in (N, 32, 16))
    net = Net(*(CodedMatrix(form, len(one.codes), K) for one in (shared, first, second)))
    mod, names = exported(net, numbers=nn.spec.Tensor(["s"], "int32"))
    lowered = through(LOWER)(mod)
    assert [float_copies(lowered, (n, K)) for n in (N, 32, 16)] == [2, 1, 1]
    fused = fuse_once_and_again(lowered)
    assert [float_copies(fused, (n, K)) for n in (N, 32, 16)] == [0, 0, 0]
    kinds = [name.split("_")[:2] for name in kernels_called(fused)]
    assert kinds.count(["dequantize", "take"]) == 1 and kinds.count(["dequantize", "NT"]) == 3

    arrays = {
        f"{layer}.{kind}": array
        for layer, one in (
            ("embed.matrix", shared),
            ("layer.parts.0", first),
            ("layer.parts.1", second),
        )
        for kind, array in zip(("codes", "scales"), pack(one, form), strict=True)
    }
    numbers = np.array([0, 47, 17, 17, -3, 1000], "int32")  # the last two are clipped
    found = run(layer.fused(fused), numbers, [arrays[name] for name in names])
    shared, first, second = (one.floats().astype("float64") for one in (shared, first, second))
    x = shared[np.clip(numbers, 0, N - 1)]
    close(found[0], x @ np.concatenate([first, second]).T)
    close(found[1], x @ shared.T)


def test_functions_of_another_compiler_stay():
    mod = function(FIRES["a product"][0])
    mod["main"] = mod["main"].with_attr("Codegen", "another")
    assert structural_equal(fuse_once_and_again(mod), mod)


# --- functions inside functions, and modules in which nothing is fused ----------------------------


def test_a_function_inside_a_block_does_not_end_it(monkeypatch):
    """Products before and behind a nested function are fused alike."""
    monkeypatch.setattr(
        programs, "LOWER", LOWER[1:]
    )  # TVM's matching of patterns stops at a nested function

    def product(builder, matrix, x):
        return builder.call_te(
            lambda w, x: nt_matmul(w, x, "float32"), matrix, x, primfunc_name_hint="NT_matmul"
        )

    def step(builder, matrix, x, other, **_):
        first = builder.emit(product(builder, matrix, x))
        ty = relax.TensorType((ROWS, K), "float32")
        inner, out = relax.Var("a", ty), relax.Var("o", ty)
        block = relax.DataflowBlock([relax.VarBinding(out, OP.negative(inner))])
        nested = relax.Function([inner], relax.SeqExpr([block], out), ty)
        nested = builder.emit(builder.normalize(nested))
        return [first, builder.emit(product(builder, matrix, other)), relax.Call(nested, [x])]

    fused = through(FUSE)(function(step))
    assert not float_copies(fused)
    assert [name.startswith("dequantize_NT_matmul") for name in kernels_called(fused)].count(
        True
    ) == 2


def test_an_unused_write_stays_where_nothing_is_fused():
    def step(builder, x, **_):
        write(builder, x)
        return [OP.negative(x)]

    mod = function(step)
    assert structural_equal(through(FUSE)(mod), mod)


# --- one kernel that unpacks a matrix and reads it ------------------------------------------------

SHAPE = [tirx.IntImm("int64", one) for one in (N, K)]


def kernel_of(inputs: list[te.Tensor], out: te.Tensor) -> tirx.PrimFunc:
    return te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")


def two_kernels() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """(a, b, result) and (result, c, sums): both have a buffer inside; attributes differ."""
    a, b = te.placeholder((3, 5), name="a"), te.placeholder((3, 5), name="b")
    twice = te.compute((3, 5), lambda i, j: a[i, j] * 2.0, name="twice")
    first = kernel_of([a, b], te.compute((3, 5), lambda i, j: twice[i, j] - b[i, j], name="minus"))
    m, c = te.placeholder((3, 5), name="m"), te.placeholder((5,), name="c")
    moved = te.compute((3, 5), lambda i, j: m[i, j] + c[j], name="moved")
    k = te.reduce_axis((0, 5), name="k")
    sums = te.compute((3,), lambda i: te.sum(moved[i, k] * m[i, k], axis=k), name="s")
    return first.with_attr("op_pattern", 2), kernel_of([m, c], sums).with_attr("op_pattern", 4)


def one_product() -> tirx.PrimFunc:
    w, x = te.placeholder(SHAPE, name="w"), te.placeholder((2, SHAPE[1]), name="x")
    return kernel_of([w, x], nt_matmul(w, x, "float32"))


def take_rows() -> tirx.PrimFunc:
    """The kernel (matrix, numbers, result) that copies three rows of a matrix, as TVM writes it."""
    builder = relax.BlockBuilder()
    matrix = relax.Var("matrix", relax.TensorType((N, K), "float32"))
    numbers = relax.Var("numbers", relax.TensorType((3,), "int32"))
    with builder.function("main", [matrix, numbers]):
        with builder.dataflow():
            rows = builder.emit_output(relax.op.take(matrix, numbers, axis=0, mode="clip"))
        builder.emit_func_output(rows)
    mod = relax.transform.LegalizeOps()(builder.get())
    return next(f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))


@pytest.mark.parametrize("pair", [two_kernels(), (kernel(FORM, (N, K)), one_product())])
def test_joined(pair):
    first, second = pair
    found = joined(first, second)
    shapes = [list(map(int, one.shape)) for one in found.params]
    assert shapes == [list(map(int, p.shape)) for p in (*first.params[:-1], *second.params[1:])]
    assert isinstance(found.body, SBlockRealize)
    assert [b.name_hint for b in nodes(found.body, SBlock)].count("root") == 1
    used = [v for v in nodes(found.body, tirx.Var) if tirx.is_buffer_var(v)]
    known = [*found.params, *found.body.block.alloc_buffers]
    assert all(any(one.same_as(other) for other in known) for one in used)
    assert structural_equal(found.attrs, second.attrs)


def test_joined_gives_the_numbers_of_both():
    random = np.random.default_rng(4)
    a, b, c = (random.standard_normal(s).astype("float32") for s in ((3, 5), (3, 5), (5,)))
    m = 2 * a.astype("float64") - b
    found = run_kernel(joined(*two_kernels()), a, b, c, np.full(3, np.nan, "float32"))
    np.testing.assert_allclose(found, ((m + c) * m).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_rows_are_unpacked_where_they_are_copied():
    found = unpacks_rows(kernel(FORM, (N, K)), take_rows())
    assert not found.body.block.alloc_buffers
    assert structural_equal(found.attrs, take_rows().attrs)
    codes, numbers = random_codes(FORM, N, K), np.array([N - 1, 0, 99], "int32")
    out = run_kernel(found, *pack(codes, FORM), numbers, np.full((3, K), np.nan, "float32"))
    exact = codes.floats().astype("float64")[
        np.clip(numbers, 0, N - 1)
    ]  # a number outside is clipped
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-6)
