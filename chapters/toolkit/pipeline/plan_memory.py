"""TVM's StaticPlanBlockMemory, for functions whose bindings all run.

In this release the planner takes a storage allocated in one branch for a tensor that is made after the branches. Where
the other branch is taken the storage is not there, and the process dies. tests/test_plan_memory.py shows it.
"""

from __future__ import annotations

import tvm
from tvm import relax


@tvm.transform.module_pass(opt_level=0, name="StaticPlanBlockMemory")
class PlanStraightFunctions:
    """Plans the memory of each function that has no branch; in the others each tensor gets memory of its own."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        planned = relax.transform.StaticPlanBlockMemory()(mod).clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and has_branch(func):
                planned[gvar] = func
        return planned


def has_branch(func: relax.Function) -> bool:
    """Whether an `if` stands in `func`, or in a function inside it."""
    found = []
    relax.analysis.post_order_visit(func, lambda e: found.append(isinstance(e, relax.If)))
    return any(found)
