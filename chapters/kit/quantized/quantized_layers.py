"""Layers whose weights are matrices of codes: a linear layer, an embedding, and a head that shares the embedding's."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from chapters.kit.quantized.dequantize import NAME, kernel
from chapters.kit.quantized.weight_blocks import PackedLayout

OPAQUE = 8  # FuseOps does not fuse a kernel of this kind


class QuantizedMatrix(nn.Module):
    """The codes and the scales of an (n, k) matrix. Called, it gives the matrix in float32.

    If the lanes of the form do not divide n, rows of 0 follow.
    """

    def __init__(self, form: PackedLayout, n: int, k: int):
        self.form, self.n, self.k = form, n, k
        (codes, int32), (scales, dtype) = form.shapes(form.whole_panels(n), k)
        self.codes = nn.Parameter(codes, int32)
        self.scales = nn.Parameter(scales, dtype)

    def forward(self) -> Tensor:
        shape = (self.form.whole_panels(self.n), self.k)
        matrix = Tensor.placeholder(list(shape), "float32", NAME)
        unpack = kernel(self.form, shape)
        return op.tensor_ir_op(unpack, NAME, [self.codes, self.scales], matrix)


class FloatMatrix(nn.Module):
    """An (n, k) matrix that is stored in float32; it can take the place of a QuantizedMatrix."""

    def __init__(self, n: int, k: int):
        self.n = n
        self.weight = nn.Parameter((n, k), "float32")

    def forward(self) -> Tensor:
        return self.weight


Matrix = QuantizedMatrix | FloatMatrix


def multiply(x: Tensor, matrix: Matrix) -> Tensor:
    """x @ w.T: (…, k) float32 -> (…, n) float32, without the rows of 0 behind w."""
    whole = op.matmul(x, op.permute_dims(matrix()))
    if whole.shape[-1] == matrix.n:
        return whole
    shape = [*whole.shape[:-1], matrix.n]
    return op.tensor_ir_op(
        _copy_first_columns(whole.shape, matrix.n),
        "first_columns",
        [whole],
        Tensor.placeholder(shape, "float32"),
    )


def _copy_first_columns(shape: Sequence, n: int) -> tirx.PrimFunc:
    """The kernel (x, out) that copies the first n columns. It is opaque to FuseOps, so that the product stays alone."""
    x = te.placeholder(shape, "float32", "x")
    out = te.compute([*shape[:-1], n], lambda *index: x(*index), name="first_columns")
    return te.create_prim_func([x, out], "int64").with_attr("op_pattern", OPAQUE)


class MatrixLinear(nn.Module):
    """x @ w.T without a bias, where the rows of w are those of one matrix after the other."""

    def __init__(self, parts: Sequence[Matrix]):
        self.parts = nn.ModuleList(list(parts))

    def forward(self, x: Tensor) -> Tensor:
        """(…, k) float32 -> (…, n) float32."""
        products = [multiply(x, part) for part in self.parts]
        return products[0] if len(products) == 1 else op.concat(products, dim=-1)


class MatrixEmbedding(nn.Module):
    """The rows of a matrix; numbers beyond the last are clipped to it, or give one of the rows of 0 behind it."""

    def __init__(self, matrix: Matrix):
        self.matrix = matrix

    def forward(self, numbers: Tensor) -> Tensor:
        """(s,) int32 -> (s, k) float32."""
        rows = relax.op.take(self.matrix()._expr, numbers._expr, axis=0, mode="clip")
        return op.wrap_nested(rows, "embedding")


class TiedHead(nn.Module):
    """x @ w.T with the matrix of an embedding, whose parameters it uses and does not own."""

    def __init__(self, embedding: MatrixEmbedding):
        self._of = (embedding,)  # in a tuple, so that the parameters are listed once

    def forward(self, x: Tensor) -> Tensor:
        """(…, k) float32 -> (…, n) float32."""
        return multiply(x, self._of[0].matrix)
