"""What chapter 9 provides: a pass around chapter 5's schedules, the last phase, and how a pipeline gets its name."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.relax import transform
from tvm.relax.pipeline import PIPELINE_MAP
from tvm.target import Target

from chapters.runner.earlier import earlier


@tvm.transform.module_pass(opt_level=0, name="ScheduleMatmuls")
class ScheduleMatmuls:
    """Chapter 5's schedules for each product with a transposed weight, on a CPU."""

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return earlier(5).schedule_kernels(mod, self.target)


def vm_phase() -> list[Pass]:
    """What is left becomes calls of the virtual machine's own functions; shapes are computed, names given."""
    return [
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def register(name: str) -> Callable[[Callable[..., Pass]], Callable[..., Pass]]:
    """Decorate what makes a pipeline so that `relax.get_pipeline` knows it as `name`.

    TVM refuses a name that is taken. One process may read both your file and the reference, so the later one takes the
    name over.
    """
    PIPELINE_MAP.pop(name, None)
    return relax.register_pipeline(name)
