"""The passes that move the unpacking of a matrix into its readers, beyond what the checks ask.

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
from chapters.checking.programs import kernels_called
from chapters.kit.quantized.dequantize import int64s
from chapters.kit.quantized.quantized_layers import (
    Matrix,
    MatrixEmbedding,
    MatrixLinear,
    QuantizedMatrix,
    TiedHead,
)
from chapters.kit.quantized.weight_blocks import pack
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import (
    FuseDequantizeMatmul,
    FuseDequantizeTake,
)
from tests.kit.test_blocks import SOME_FORMS
from tests.support.kernels import run_main
from tests.support.quantized import draw_quantized

FUSE = [FuseDequantizeTake(), FuseDequantizeMatmul()]


def assert_close(found: np.ndarray, exact: np.ndarray) -> None:
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


@pytest.mark.parametrize("form", SOME_FORMS[::3], ids=str)
def test_no_layer_keeps_a_float_matrix(form):
    shared, first, second = (draw_quantized(form, n, K) for n in (N, 32, 16))
    net = Net(*(QuantizedMatrix(form, len(one.codes), K) for one in (shared, first, second)))
    inputs = {
        "numbers": nn.spec.Tensor(["s"], "int32"),
        "$": {"param_mode": "packed", "effect_mode": "none"},
    }
    mod, parameters = net.export_tvm(spec={"main": inputs})
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
    weights = [arrays[name] for name, _ in parameters]
    found = run_main(layer.fuse(fused), numbers, weights, pipeline="default")
    shared, first, second = (one.floats().astype("float64") for one in (shared, first, second))
    x = shared[np.clip(numbers, 0, N - 1)]
    assert_close(found[0], x @ np.concatenate([first, second]).T)
    assert_close(found[1], x @ shared.T)


def test_functions_of_another_compiler_stay():
    mod = function(FIRES["a product"][0])
    mod["main"] = mod["main"].with_attr("Codegen", "another")
    assert structural_equal(fuse_once_and_again(mod), mod)


def test_a_function_inside_a_block_does_not_end_it(monkeypatch):
    """Products before and behind a nested function are fused alike."""
    # TVM's matching of patterns stops at a nested function
    monkeypatch.setattr(programs, "LOWER", LOWER[1:])

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
    assert sum(one.startswith("dequantize_NT_matmul") for one in kernels_called(fused)) == 2


def test_an_unused_write_stays_where_nothing_is_fused():
    def step(builder, x, **_):
        write(builder, x)
        return [OP.negative(x)]

    mod = function(step)
    assert structural_equal(through(FUSE)(mod), mod)
