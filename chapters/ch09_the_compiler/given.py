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
    """The last passes: they lower the rest to functions of the virtual machine, compute shapes, and name functions."""
    return [
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def register(name: str) -> Callable[[Callable[..., Pass]], Callable[..., Pass]]:
    """A decorator for a function that makes a pipeline: `relax.get_pipeline(name)` then finds it.

    TVM refuses a name that is taken. One process may import both your file and the reference, so the later one takes
    over the name.
    """
    PIPELINE_MAP.pop(name, None)
    return relax.register_pipeline(name)
