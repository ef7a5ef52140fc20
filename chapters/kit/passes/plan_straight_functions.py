"""TVM's StaticPlanBlockMemory, for functions without a branch.

In this release the planner may give a tensor made after an `if` a storage that only one branch allocates. If the other
branch runs, that storage does not exist and the process dies, as docs/upstream/planner_shares_storage_of_a_branch.py
shows.
"""

from __future__ import annotations

import tvm
from tvm import relax


@tvm.transform.module_pass(opt_level=0, name="StaticPlanBlockMemory")
class PlanStraightFunctions:
    """Plans the memory of each function without a branch; in the others each tensor is allocated separately.

    It has the name of TVM's pass, which does the work, so a trace shows that name.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        planned = relax.transform.StaticPlanBlockMemory()(mod).clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and has_branch(func):
                planned[gvar] = func
        return planned


def has_branch(func: relax.Function) -> bool:
    """Whether there is an `if` in `func`, or in a function inside it."""
    found = []
    relax.analysis.post_order_visit(func, lambda e: found.append(isinstance(e, relax.If)))
    return any(found)
