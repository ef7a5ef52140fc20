"""TVM's FoldConstant, for modules in which a folded constant stays constant.

An operator writes its result into new memory in every run, and a kernel may then update that memory in place. A folded
constant is one tensor for all runs, so the second run would see the first one's update. This pass therefore folds
no constant in a module that updates any tensor in place. It does not ask which tensor: a call or a branch may hide it.
"""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.ir.relax_effects import LOOK_ONLY, calls_in, is_harmless


@tvm.transform.module_pass(opt_level=0, name="FoldReadOnlyConstants")
class FoldReadOnlyConstants:
    """Computes at compile time the bindings that depend on constants alone, unless the module updates tensors in place.

    Unused bindings are removed in any case, as FoldConstant does: FuseOps of this release fails on one that leaves a
    dataflow block inside a branch.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if updates_in_place(mod):
            return relax.transform.DeadCodeElimination()(mod)
        return relax.transform.FoldConstant()(mod)


def updates_in_place(mod: tvm.IRModule) -> bool:
    """Whether a Relax function of `mod` calls something that may write into its arguments.

    These may: operators that work in place or are not pure, and packed functions that are not declared pure. Those that
    only print or assert do not count. Nor does a call of another function of `mod`, which is examined itself.
    """
    functions = [func for func in mod.functions.values() if isinstance(func, relax.Function)]
    return not all(_looks_only(call.op) for func in functions for call in calls_in(func))


def _looks_only(callee: relax.Expr) -> bool:
    if isinstance(callee, relax.ExternFunc):
        return callee.global_symbol in LOOK_ONLY
    return not isinstance(callee, tvm.ir.Op) or callee.name in LOOK_ONLY or is_harmless(callee)
