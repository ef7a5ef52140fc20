"""What chapter 9 provides: a pass around chapter 5's schedules, the last phase, and how a pipeline gets its name."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.relax import transform
from tvm.relax.pipeline import PIPELINE_MAP
from tvm.s_tir import Schedule, ScheduleError
from tvm.target import Target

from chapters.kit.cpu.matmul_tile import has_few_rows, lanes_of, largest_divisor
from chapters.kit.cpu.nt_matmul import NAME, is_nt_matmul, product_of, reads_only_its_own
from chapters.kit.ir.tensor_ir import innermost_blocks
from chapters.kit.pipeline.copy_operands_before_in_place import CopyOperandsBeforeInPlace
from chapters.kit.pipeline.sum_in_float32 import SumInFloat32
from chapters.kit.pipeline.unscheduled import map_unscheduled
from chapters.kit.pipeline.vectorize_transcendentals import VectorizeTranscendentals
from chapters.runner.earlier import earlier


@tvm.transform.module_pass(opt_level=0, name="ScheduleMatmuls")
class ScheduleMatmuls:
    """Chapter 5's schedules for each product with a transposed weight, on a CPU, with its epilogue."""

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, self.scheduled)

    def scheduled(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func` with chapter 5's schedule; `func` itself if it is no such product, or if other blocks surround it."""
        sch = Schedule(func)
        product, *others = sch.get_child_blocks(sch.get_sblock("root"))
        if not has_product(func) or sch.get(product).name_hint != NAME:
            return func
        try:
            for block in others[:-1]:
                sch.compute_inline(block)
        except ScheduleError:
            return func
        result = sch.get(product).writes[0].source
        if not others:
            func = earlier(5).schedule(func, self.target)
        elif reads_only_its_own(sch.get(others[-1]), result):
            func = schedule_with_epilogue(sch.mod["main"], self.target)
        else:
            return func
        return func.with_attr("tirx.is_scheduled", True)


def has_product(func: tirx.PrimFunc) -> bool:
    """Whether one of the blocks of `func` is an NT_matmul that chapter 5 can schedule."""
    try:
        return is_nt_matmul(product_of(func))
    except ValueError:
        return False


def schedule_with_epilogue(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """An NT_matmul by chapter 5's schedules, and with each tile of sums the results that are made of them.

    func: two blocks, the product and its epilogue, which reads of the sums only the one with the index that it writes.
    """
    _, last = (realize.block.name_hint for _, realize in innermost_blocks(func.body))
    sch = Schedule(earlier(5).schedule(func, target))
    if has_few_rows(func, target):  # and so few results: one pass over them, in vectors
        *_, column = sch.get_loops(last)
        width = largest_divisor(int(sch.get(column).extent), lanes_of(func, target))
        _, lane = sch.split(column, [None, width])
        sch.vectorize(lane)
    return sch.mod["main"]


def before_fusion() -> list[Pass]:
    """The passes that come before the fusions: they make sure of the numbers, however kernels are fused later."""
    return [CopyOperandsBeforeInPlace(), SumInFloat32()]


def after_schedules(target: Target) -> list[Pass]:
    """On a CPU, polynomials in place of exp, tanh, erf and sigmoid; a GPU has instructions for them."""
    return [VectorizeTranscendentals()] if target.kind.name == "llvm" else []


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
