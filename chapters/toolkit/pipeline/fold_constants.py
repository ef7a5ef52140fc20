"""TVM's FoldConstant, where a folded constant stays constant.

What an operator computes is new memory in every run, and a kernel may update it in place. Once the compiler has
computed it, all runs share one tensor: the first run would leave its update to the second. So nothing is folded in a
module in which something writes into a tensor that exists; where its argument comes from, a call or a branch may hide.
"""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.toolkit.ir.relax_effects import LOOK_ONLY, is_harmless


@tvm.transform.module_pass(opt_level=0, name="FoldReadOnlyConstants")
class FoldReadOnlyConstants:
    """Computes what depends on constants alone, unless the module updates tensors in place."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return mod if updates_in_place(mod) else relax.transform.FoldConstant()(mod)


def updates_in_place(mod: tvm.IRModule) -> bool:
    """Whether a Relax function of `mod` calls what may write into its arguments.

    That is an operator that works in place or is not pure, and a packed function that is not declared pure. Functions
    of the module are looked at themselves.
    """
    found = False

    def visit(expr: relax.Expr) -> None:
        nonlocal found
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op | relax.ExternFunc):
            op = expr.op
            name = op.global_symbol if isinstance(op, relax.ExternFunc) else op.name
            found = found or not (name in LOOK_ONLY or is_harmless(op))

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found
