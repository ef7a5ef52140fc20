"""Kernels that are small within the bounds run on one thread: sharing them with others would take longer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import Schedule
from tvm.tirx import For, ForKind

from chapters.toolkit.ir.tensor_ir import nodes
from chapters.toolkit.pipeline.cpu_fallback import is_made_of_blocks
from chapters.toolkit.pipeline.planned_storage import evaluate

ALONE = 1 << 15  # steps that one thread has done before it has shared them with others


@tvm.transform.module_pass(opt_level=0, name="SmallKernelsAlone")
class SmallKernelsAlone:
    """Takes the threads from kernels that one thread has done before it has shared them with others.

    bounds: the largest value of symbolic dimensions, by name. A kernel with a dimension that is not in it keeps its
    threads, and so does one that is not made of blocks: it decides for itself, when it runs.
    """

    def __init__(self, bounds: Mapping[str, int]):
        self.bounds = dict(bounds)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and steps(func, self.bounds) <= ALONE:
                result[gvar] = without_threads(func)
        return result


def steps(func: tirx.PrimFunc, bounds: Mapping[str, int]) -> float:
    """How often the innermost loops of the largest block of `func` run, at most; infinity where that is not known."""
    if not is_made_of_blocks(func):
        return math.inf
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    turns = [[sch.get(loop).extent for loop in sch.get_loops(block)] for block in blocks]
    known = all(var.name in bounds for var in nodes(turns, tirx.Var)) and not nodes(turns, Call)
    if not turns or not known or nodes(turns, TensorLoad):
        return math.inf
    return max(math.prod(evaluate(extent, bounds) for extent in extents) for extents in turns)


def without_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its parallel loops run one iteration after the other."""

    def serial(loop: For) -> For:
        if loop.kind != ForKind.PARALLEL:
            return loop
        how = (ForKind.SERIAL, loop.body, None, loop.annotations, loop.step, loop.span)
        return For(loop.loop_var, loop.min, loop.extent, *how)

    return func.with_body(tvm_ffi.structural_map(func.body, (For, serial)))
