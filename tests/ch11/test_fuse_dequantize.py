"""The passes that move the unpacking of a matrix into its readers: where they fire, where not, and right numbers.

References are NumPy in float64. The codes are random, and so are the scales, float16 numbers near 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm_ffi import structural_equal

from chapters.ch11_a_real_model import check_programs as programs
from chapters.ch11_a_real_model import layer
from chapters.ch11_a_real_model.check_programs import (
    FIRES,
    FORM,
    INPUTS,
    KEPT,
    LOWER,
    OP,
    ROWS,
    K,
    N,
    function,
    through,
    times,
    write,
)
from chapters.ch11_a_real_model.given import kernel_calls
from chapters.checking.programs import kernels_called
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.quantized.blocks import pack
from chapters.kit.quantized.dequantize import int64s, kernel
from chapters.kit.quantized.layers import (
    CodedMatrix,
    FloatMatrix,
    Matrix,
    MatrixEmbedding,
    MatrixLinear,
    TiedHead,
)
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import FuseDequantizeMatmul, FuseDequantizeTake
from tests.kit.test_coded_products import random_codes
from tests.kit.test_dequantize import FORMS

FUSE = [FuseDequantizeTake(), FuseDequantizeMatmul()]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


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


def inputs() -> dict[str, np.ndarray]:
    """Arrays for INPUTS, in their order; some numbers of rows are clipped."""
    arrays = {name: normal(*shape) for name, (shape, _) in INPUTS.items()}
    arrays["codes"], arrays["scales"] = pack(random_codes(FORM, N, K), FORM)
    return arrays | {"numbers": np.array([3, 0, 47, -5, 99, 3, 16], "int32")}


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


@pytest.mark.parametrize("form", FORMS[::3], ids=str)
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


def test_a_float_matrix_may_stand_beside_a_coded_one():
    coded = random_codes(FORM, N, K)
    net = MatrixLinear([CodedMatrix(FORM, N, K), FloatMatrix(24, K)])
    net.main = net.forward
    mod, names = exported(net, x=nn.spec.Tensor([2, ROWS, K], "float32"))
    fused = fuse_once_and_again(through(LOWER)(mod))
    assert not float_copies(fused)
    assert names == ["parts.0.codes", "parts.0.scales", "parts.1.weight"]
    x, w = normal(2, ROWS, K), normal(24, K)
    found = run(fused, x, [*pack(coded, FORM), w])
    both = np.concatenate([coded.floats(), w]).astype("float64")
    close(found, x.astype("float64") @ both.T)


@pytest.mark.parametrize("name", FIRES)
def test_the_passes_fire(name):
    """And the numbers stay. The tests of layers and of epilogues compare them with NumPy's."""
    mod = function(FIRES[name][0])
    assert float_copies(mod)
    fused = fuse_once_and_again(mod)
    assert not float_copies(fused)
    for found, exact in zip(*(run(one, *inputs().values()) for one in (fused, mod)), strict=True):
        close(found, exact)


@pytest.mark.parametrize("name", KEPT)
def test_the_passes_do_not_fire(name):
    mod = function(KEPT[name])
    assert structural_equal(fuse_once_and_again(mod), mod) and float_copies(mod)


@pytest.mark.parametrize("where", ["an output", "no block"])
def test_the_passes_stay_inside_a_dataflow_block(where):
    mod = function(FIRES["a product"][0], where)
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_functions_of_another_compiler_stay():
    mod = function(FIRES["a product"][0])
    mod["main"] = mod["main"].with_attr("Codegen", "another")
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_the_left_factor_keeps_its_floats_if_both_are_coded():
    """The kernel of left @ right.T unpacks the right matrix; the left one is an x like any other."""
    builder = relax.BlockBuilder()
    names = "codes", "scales", "left_codes", "left_scales"
    shapes = [*FORM.shapes(N, K), *FORM.shapes(32, K)]
    params = [
        relax.Var(name, relax.TensorType(*described))
        for name, described in zip(names, shapes, strict=True)
    ]

    def unpacked(n: int, given: list[relax.Var]) -> relax.Var:
        func = builder.add_func(kernel(FORM, (n, K)), "dequantize")
        return builder.emit(relax.call_tir(func, given, relax.TensorType((n, K), "float32")))

    with builder.function("main", params):
        with builder.dataflow():
            right, left = unpacked(N, params[:2]), unpacked(32, params[2:])
            out = builder.emit_output(times(left, right))
        builder.emit_func_output(out)
    fused = fuse_once_and_again(through(LOWER)(builder.get()))
    assert not float_copies(fused) and float_copies(fused, (32, K)) == 1
    right, left = random_codes(FORM, N, K), random_codes(FORM, 32, K)
    found = run(fused, *pack(right, FORM), *pack(left, FORM))
    right, left = (one.floats().astype("float64") for one in (right, left))
    close(found, left @ right.T)


# --- what FuseOps adds behind the product ---------------------------------------------------------


# what follows y = x @ matrix.T: in Relax, and in NumPy
EPILOGUES = {
    "residual": (lambda y, b, r: OP.add(r, y), lambda y, b, r: r + y),
    "gate": (
        lambda y, b, r: OP.multiply(OP.nn.silu(y), r),
        lambda y, b, r: y / (1 + np.exp(-y)) * r,
    ),
    "bias, gelu and residual": (
        lambda y, b, r: OP.add(OP.nn.gelu_tanh(OP.add(y, b)), r),
        lambda y, b, r: gelu(y + b) + r,
    ),
}


def gelu(y: np.ndarray) -> np.ndarray:
    return y * (0.5 + 0.5 * np.tanh((2 / np.pi) ** 0.5 * (y + 0.044715 * y**3)))


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_follow_in_the_same_kernel(name):
    epilogue, exact = EPILOGUES[name]

    def step(builder, matrix, x, bias, residual, **_):
        return [epilogue(times(x, matrix), bias, residual)]

    mod = layer.fused(function(step), *FUSE)
    assert len(kernels_called(mod)) == 1
    arrays, matrix = inputs(), random_codes(FORM, N, K).floats().astype("float64")
    (found,) = run(mod, *arrays.values())
    close(found, exact(arrays["x"] @ matrix.T, arrays["bias"], arrays["residual"]))


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
