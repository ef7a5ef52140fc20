"""Sums the products of float16 and bfloat16 matrices in float32, and rounds each result once."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from chapters.kit.ir.rebuild import replace_calls

MATMUL = tvm.ir.Op.get("relax.matmul")
NARROW = ("float16", "bfloat16")


@tvm.transform.module_pass(opt_level=0, name="SumInFloat32")
class SumInFloat32:
    """Makes `matmul(a, b)` of float16 or bfloat16 `astype(matmul(a, b, out_dtype="float32"), …)`.

    TVM sums in the dtype of the result. In float16 a sum that has reached 2048 no longer changes when 1 is added. The
    dtype of the result stays the same. A matmul whose result has a wider dtype is summed in that one, and stays as it
    is. So does the module given.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return replace_calls(mod, _sum_in_float32)


def _sum_in_float32(call: Call, builder: relax.BlockBuilder) -> relax.Expr:
    dtype = str(getattr(call.ty, "dtype", ""))
    if call.op != MATMUL or dtype not in NARROW:
        return call
    wide = builder.emit(relax.op.matmul(*call.args, out_dtype="float32"))
    return relax.op.astype(wide, dtype)
