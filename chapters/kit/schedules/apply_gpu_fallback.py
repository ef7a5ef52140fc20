"""Gives every GPU kernel without a schedule one that is safe for any kernel: a thread for each element of a result.

TVM's own rule, `dlight.gpu.Fallback`, does nearly the same. But it moves what follows a sum into the block of the sum,
which TVM allows if the sum has a single term: the RMSNorm of rows of one element is then not a number. And it raises
ScheduleError for a kernel that updates its argument in place.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Call
from tvm.s_tir import SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm_ffi import structural_map

from chapters.kit.cpu.parallel_rows import are_disjoint
from chapters.kit.cpu.vectorize_adjacent_sums import get_realize, initialize_sums, reduced_values
from chapters.kit.ir.tensor_ir import mentions, nodes, with_fields
from chapters.kit.schedules.merge_elementwise import (
    IF_THEN_ELSE,
    costs_no_more_inlined,
    inline_where_it_pays,
)
from chapters.kit.schedules.unscheduled import map_unscheduled

THREADS = 256  # in a block of threads; every GPU allows as many
TAGS = ("blockIdx.x", "threadIdx.x")


@tvm.transform.module_pass(opt_level=0, name="ApplyGPUFallback")
class ApplyGPUFallback:
    """Schedules each PrimFunc made of blocks that no schedule has claimed, for a GPU."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, schedule_any_on_gpu)


def schedule_any_on_gpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, marked as scheduled: elementwise blocks inlined where it pays, all elements of a result in threads.

    func: a PrimFunc of blocks in loops. Where TVM refuses a step, a single thread runs the whole kernel.
    """
    sch = Schedule(func)
    inline_where_it_pays(sch, _pays_on_gpu)
    _keep_values_in_registers(sch)
    try:
        bound = _bind_threads(sch.copy())
    except ScheduleError:
        bound = _bind_one_thread(sch.mod["main"])
    return bound.with_attr("tirx.is_scheduled", True)


def _pays_on_gpu(sch: Schedule, block: SBlockRV) -> bool:
    """As on a CPU; or if `block` only chooses elements of arguments: reading them again costs less than a launch."""
    if costs_no_more_inlined(sch, block):
        return True
    node = sch.get(block)
    chooses = all(call.op.same_as(IF_THEN_ELSE) for call in nodes(node.body, Call))
    plain = chooses and not nodes(node.body, tirx.Let) and node.init is None
    return plain and not sch.get_producers(block)


def _keep_values_in_registers(sch: Schedule) -> None:
    """Put each buffer of the kernel that a single statement of its body uses into the memory of a thread."""
    root = sch.get(sch.get_sblock("root"))
    statements = tirx.stmt_list(root.body)
    private = [
        buffer
        for buffer in root.alloc_buffers
        if buffer.scope() == "global" and sum(mentions(one, buffer) for one in statements) == 1
    ]
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        for number, write in enumerate(sch.get(block).writes):
            if any(write.source.same_as(buffer) for buffer in private):
                sch.set_scope(block, number, "local")


def _bind_threads(sch: Schedule) -> tirx.PrimFunc:
    """The function of `sch` with threads around each of its outermost statements. Raises ScheduleError."""
    initialize_sums(sch)
    outermost: list[tirx.Var] = []
    axes: dict[LoopRV, str] = {}
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        loops = sch.get_loops(block)
        if loops and any(sch.get(loops[0]).loop_var.same_as(var) for var in outermost):
            continue  # it is in the threads of the block before it
        free = _find_loops_for_threads(sch, loops)
        if not free:
            free = [sch.add_unit_loop(loops[0] if loops else block)]
        bound = sch.split(sch.fuse(*free), [None, THREADS])
        outermost.append(sch.get(bound[0]).loop_var)
        axes |= dict(zip(bound, TAGS, strict=True))
    func = sch.mod["main"]
    tags = [(sch.get(loop).loop_var, tag) for loop, tag in axes.items()]

    def bind(loop: tirx.For) -> tirx.For:
        found = [tag for var, tag in tags if var.same_as(loop.loop_var)]
        return _make_thread_loop(loop.loop_var, loop.extent, found[0], loop.body) if found else loop

    # `Schedule.bind` refuses a block that reads what it writes, even if it does so element by element
    return func.with_body(structural_map(func.body, (tirx.For, bind)))


def _find_loops_for_threads(sch: Schedule, loops: list[LoopRV]) -> list[LoopRV]:
    """The loops whose iterations may run at the same time, moved outermost; around several blocks, only the outer ones.

    Each drives one axis of each block alone, so that no two threads have the same values of the axes.
    """
    alone = not loops or len(sch.get_child_blocks(loops[0])) == 1
    free: list[LoopRV] = []
    for loop in loops:
        var = sch.get(loop).loop_var
        inside = [get_realize(sch, one) for one in sch.get_child_blocks(loop)]
        drives = all(any(value.same_as(var) for value in one.iter_values) for one in inside)
        summed = any(mentions(reduced_values(one), var) for one in inside)
        if drives and not summed and are_disjoint(sch, loop):
            free.append(loop)
        elif not alone:
            break
    if alone and len(free) > 1:
        sch.reorder(*free, *(loop for loop in loops if loop not in free))
    return free


def _make_thread_loop(var: tirx.Var, extent: tvm.ir.Expr, tag: str, body: tirx.Stmt) -> tirx.For:
    """A loop whose iterations are run by the threads, or blocks of threads, that `tag` numbers."""
    axis = tirx.IterVar(None, tirx.Var("", var.ty), tirx.IterVar.ThreadIndex, tag)
    start = tirx.IntImm(var.ty.dtype, 0)
    return tirx.For(var, start, extent, tirx.ForKind.THREAD_BINDING, body, axis)


def _bind_one_thread(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with one thread around each statement of its body."""
    root = func.body
    statements = tirx.stmt_list(root.block.body)
    one = tirx.IntImm("int32", 1)
    for at, statement in enumerate(statements):
        for tag in reversed(TAGS):
            statement = _make_thread_loop(tirx.Var("one", "int32"), one, tag, statement)
        statements[at] = statement
    block = with_fields(root.block, body=tirx.stmt_seq(*statements))
    return func.with_body(SBlockRealize(root.iter_values, root.predicate, block))
