"""Finds the convolution that cuts an image into patches, as vision transformers begin, and writes it as a linear layer.

If the stride is the size of the filter and nothing is padded, each pixel belongs to one patch. Each patch is a row of
c * p * q numbers, which is multiplied by the filters, a matrix (o, c * p * q). Any other convolution stays as it is.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.relax.dpl import is_const, is_op, wildcard

from chapters.kit.models.apply_rules import Matched, apply_rules, known_shape

X, FILTERS = wildcard(), is_const()
CONVOLUTION = is_op("relax.nn.conv2d")(X, FILTERS)


def replace_by_linear(expr: Expr, found: Matched) -> Expr:
    """conv2d(x, filters) as matmul(patches of x, permute_dims(filters as rows)), with its result in the same layout."""
    x, filters, attrs = found[X], found[FILTERS], expr.attrs
    shapes = known_shape(x), known_shape(filters)
    if not all(shape and all(isinstance(d, tirx.IntImm) for d in shape) for shape in shapes):
        return expr
    (b, c, height, width), (o, _, p, q) = (list(map(int, shape)) for shape in shapes)
    facts = [list(map(int, one)) for one in (attrs.strides, attrs.padding, attrs.dilation)]
    layouts = {str(attrs.data_layout), str(attrs.out_layout)}, str(attrs.kernel_layout)
    if (
        facts != [[p, q], [0] * 4, [1, 1]]
        or (int(attrs.groups), height % p, width % q) != (1, 0, 0)
        or layouts != ({"NCHW"}, "OIHW")
        or not x.ty.dtype == filters.ty.dtype == expr.ty.dtype == "float32"
    ):
        return expr
    op, down, across = relax.op, height // p, width // q
    cut = op.permute_dims(op.reshape(x, (b, c, down, p, across, q)), [0, 2, 4, 1, 3, 5])
    rows = relax.const(np.ascontiguousarray(filters.value.numpy().reshape(o, c * p * q)))
    patches = op.reshape(cut, (b, down * across, c * p * q))
    return op.reshape(
        op.permute_dims(op.matmul(patches, op.permute_dims(rows)), [0, 2, 1]), (b, o, down, across)
    )


@tvm.transform.module_pass(opt_level=0, name="RecognizePatches")
class RecognizePatches:
    """Replaces convolutions whose filters do not overlap, in dataflow blocks, by linear layers."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(CONVOLUTION, replace_by_linear)])
