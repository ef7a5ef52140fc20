"""TVM's FoldConstant, for modules in which a folded constant stays constant.

An operator writes its result into new memory in every run, and a kernel may then update that memory in place. A folded
constant is one tensor for all runs, so the second run would see the first one's update. This pass therefore folds
no constant in a module that updates any tensor in place. It does not ask which tensor: a call or a branch may hide it.

Nor does it fold where a tensor gives a shape, as in `reshape(x, tensor_to_shape(t))`: FoldConstant of this release
lowers such a reshape as if its shape were known, and fails (apache/tvm issues 20192, 20193 and 20260).
"""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.ir.relax_effects import LOOK_ONLY, calls_of_module, writes_no_tensor

TENSOR_TO_SHAPE = tvm.ir.Op.get("relax.tensor_to_shape")


@tvm.transform.module_pass(opt_level=0, name="FoldReadOnlyConstants")
class FoldReadOnlyConstants:
    """Computes at compile time the bindings that depend on constants alone.

    A module that updates tensors in place, or that has a shape from a tensor, keeps them.
    Unused bindings are removed in any case, as FoldConstant does: FuseOps of this release fails on one that leaves a
    dataflow block inside a branch.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if updates_in_place(mod) or takes_shapes_from_tensors(mod):
            return relax.transform.DeadCodeElimination()(mod)
        return relax.transform.FoldConstant()(mod)


def updates_in_place(mod: tvm.IRModule) -> bool:
    """Whether a Relax function of `mod` calls something that may write into its arguments.

    These may: operators that work in place or are not pure, and packed functions that are not declared pure. Those that
    only print or assert do not count. Nor does a call of another function of `mod`, which is examined itself.
    """
    return not all(_writes_no_argument(call.op) for call in calls_of_module(mod))


def takes_shapes_from_tensors(mod: tvm.IRModule) -> bool:
    """Whether a Relax function of `mod` makes a shape of the numbers in a tensor."""
    return any(call.op == TENSOR_TO_SHAPE for call in calls_of_module(mod))


def _writes_no_argument(callee: relax.Expr) -> bool:
    if isinstance(callee, relax.ExternFunc):
        return callee.global_symbol in LOOK_ONLY
    return not isinstance(callee, tvm.ir.Op) or callee.name in LOOK_ONLY or writes_no_tensor(callee)
