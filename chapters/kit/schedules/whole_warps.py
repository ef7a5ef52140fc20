"""A schedule rule: one of dlight's rules for a GPU, used only where what it makes is known to be right.

Four things go wrong in this release. Where a sum is divided among fewer threads than a warp has, TVM's code reads from
lanes that do not exist. Sums of a dtype that lanes do not exchange, such as bfloat16, go through shared memory without
a barrier. Rules inline by `reverse_compute_inline`, which moves what follows a sum into the block of the sum if the sum
has a single term. And a rule may raise an error, which ends the compilation, although the next rule could take the
kernel.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.cpu.vectorize_adjacent_sums import reduced_values
from chapters.kit.gpu.limits import WARP
from chapters.kit.ir.tensor_ir import mentions, nodes, thread_axis

SHUFFLED = ("float16", "float32", "float64", "int32", "int64", "uint32", "uint64")


class WholeWarps(dl.base.ScheduleRule):
    """`rule`, but it declines a kernel whose sums it would divide among parts of a warp, or move an epilogue into."""

    def __init__(self, rule: dl.base.ScheduleRule):
        super().__init__()
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it."""
        try:
            schedules = self.rule.apply(func, target, tunable)
        except Exception:  # a rule asserts, indexes and schedules what it does not know
            return None
        found = schedules if isinstance(schedules, list) else [schedules]
        right = all(sch is not None and has_right_sums(sch.mod["main"], func) for sch in found)
        return schedules if right else None


def has_right_sums(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> bool:
    """Whether `scheduled` divides its sums among whole warps only, and starts them as `func` does."""
    divided = [
        (loop.extent, inside.block.writes[0].source.dtype)
        for loop in nodes(scheduled.body, tirx.For)
        if thread_axis(loop) == "threadIdx.x"
        for inside in nodes(loop.body, SBlockRealize)
        if mentions(reduced_values(inside), loop.loop_var)
    ]
    whole = all(
        isinstance(extent, tirx.IntImm) and int(extent) % WARP == 0 and str(dtype) in SHUFFLED
        for extent, dtype in divided
    )
    return whole and init_values(scheduled) <= init_values(func)


def init_values(func: tirx.PrimFunc) -> set[str]:
    """The values from which the sums of `func` start, as text."""
    inits = [block.init for block in nodes(func.body, SBlock) if block.init is not None]
    return {str(store.value) for init in inits for store in nodes(init, tirx.BufferStore)}
