"""Small modules with 4-bit weights, as this chapter's pages look at them: one layer, and the two ends of a model."""

from __future__ import annotations

import re
import textwrap

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from chapters.kit.draw.drawing import strip_types
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.quantized_layers import MatrixEmbedding, QuantizedMatrix, TiedHead
from chapters.kit.quantized.weight_blocks import PackedLayout
from chapters.runner.earlier import earlier

Q4_1 = PackedLayout(bits=4, group=32, has_minimum=True, scale="float16", lanes=16)


class Layer(nn.Module):
    """x @ w.T + r, where the rows of w are stored in `form`."""

    def __init__(self, form: PackedLayout, n: int, k: int):
        self.w = QuantizedMatrix(form, n, k)

    def main(self, x: Tensor, r: Tensor) -> Tensor:
        """x (rows, k) and r (rows, n), float32 -> (rows, n)."""
        return op.matmul(x, op.permute_dims(self.w())) + r


class AlsoSummed(Layer):
    """x @ w.T + r, and the sum of all weights, for which they are needed as floats."""

    def main(self, x: Tensor, r: Tensor):
        """x (rows, k) and r (rows, n), float32 -> (rows, n) and a number."""
        w = self.w()
        return op.matmul(x, op.permute_dims(w)) + r, op.sum(w)


class Ends(nn.Module):
    """The two ends of a language model: the embedding of token numbers, and the head with the same matrix."""

    def __init__(self, form: PackedLayout, n: int, k: int):
        self.embed = MatrixEmbedding(QuantizedMatrix(form, n, k))
        self.head = TiedHead(self.embed)

    def main(self, numbers: Tensor) -> Tensor:
        """(s,) int32 -> (s, n) float32."""
        return self.head(self.embed(numbers))


def layer(
    rows: int | str = 1,
    n: int = 64,
    k: int = 96,
    form: PackedLayout = Q4_1,
    kind: type[Layer] = Layer,
) -> tvm.IRModule:
    """A layer as Relax; its parameters are x, r, the codes and the scales. A name as `rows` makes them symbolic."""
    shapes = {"x": nn.spec.Tensor([rows, k], "float32"), "r": nn.spec.Tensor([rows, n], "float32")}
    return _exported(kind(form, n, k), **shapes)


def ends() -> tvm.IRModule:
    """`Ends` as Relax; its parameters are the numbers, the codes and the scales."""
    return _exported(Ends(Q4_1, 64, 96), numbers=nn.spec.Tensor(["s"], "int32"))


def _exported(module: nn.Module, **inputs) -> tvm.IRModule:
    modes = {"$": {"param_mode": "plain", "effect_mode": "none"}}
    return module.export_tvm(spec={"main": {**inputs, **modes}})[0]


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with a kernel for each operator: where this chapter's passes begin."""
    first = earlier(3).FuseTransposeMatmul()
    behind = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential([first, *behind])(mod)


def fuse(mod: tvm.IRModule, *passes: Pass) -> tvm.IRModule:
    """`mod` after `passes`, and after the passes of TVM that put epilogues behind the products."""
    behind = [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    return tvm.transform.Sequential([*passes, *behind, relax.transform.DeadCodeElimination()])(mod)


def calls(func: relax.Function) -> str:
    """The kernel calls of a function, one per line, without their types."""
    line = r"^ +(\w+)(?:: .*?)? = R\.call_tir\((\w+), \((.*?),?\), out_ty"
    found = re.findall(line, func.script(), re.MULTILINE)
    return "\n".join(f"{var} = {kernel}({arguments})" for var, kernel, arguments in found)


def formula(func: tirx.PrimFunc) -> str:
    """What a kernel of one block stores, wrapped, without the types of its numbers."""
    text = str(nodes(func.body, tirx.BufferStore)[0]).splitlines()[-1]
    return textwrap.fill(strip_types(text), 92)
