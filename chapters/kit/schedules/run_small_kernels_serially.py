"""Runs kernels on one thread if bounds on their sizes keep them small: waking other threads would take longer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import Schedule
from tvm.tirx import For, ForKind

from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.passes.planned_storage import evaluate
from chapters.kit.schedules.unscheduled import is_made_of_blocks

SMALL = 1 << 15  # iterations: one thread finishes them before it could wake the others


@tirx.transform.prim_func_pass(opt_level=0, name="RunSmallKernelsSerially")
class RunSmallKernelsSerially:
    """Makes the parallel loops of small kernels serial: one thread finishes before it could wake the others.

    bounds: the largest value of symbolic dimensions, by name. A kernel with a dimension that is not in `bounds` keeps
    its parallel loops. So does a kernel that is not made of blocks: such a kernel may decide at run time.
    """

    def __init__(self, bounds: Mapping[str, int]):
        self.bounds = dict(bounds)

    def transform_function(self, func: tirx.PrimFunc, *_context) -> tirx.PrimFunc:
        return make_loops_serial(func) if count_steps(func, self.bounds) <= SMALL else func


def count_steps(func: tirx.PrimFunc, bounds: Mapping[str, int]) -> float:
    """An upper bound on the iterations of the loops around any one block of `func`; infinity if there is none."""
    if not is_made_of_blocks(func):
        return math.inf
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    nests = [[sch.get(loop).extent for loop in sch.get_loops(block)] for block in blocks]
    known = all(var.name in bounds for var in nodes(nests, tirx.Var)) and not nodes(nests, Call)
    if not nests or not known or nodes(nests, TensorLoad):
        return math.inf
    return max(math.prod(evaluate(extent, bounds) for extent in nest) for nest in nests)


def make_loops_serial(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with serial loops in place of its parallel ones."""

    def serial(loop: For) -> For:
        if loop.kind != ForKind.PARALLEL:
            return loop
        how = (ForKind.SERIAL, loop.body, None, loop.annotations, loop.step, loop.span)
        return For(loop.loop_var, loop.min, loop.extent, *how)

    return func.with_body(tvm_ffi.structural_map(func.body, (For, serial)))
