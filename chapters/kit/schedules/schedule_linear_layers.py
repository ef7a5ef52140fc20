"""Schedules linear layers of float16 and bfloat16 on NVIDIA GPUs, with the bias, the residual and the activation.

`mma.py` has the kernel for many rows, on tensor cores, and `linear_layer_few_rows.py` the one that loads each weight
once. Where the number of rows is known only at run time, one PrimFunc holds several kernels, and its host code chooses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import tvm
from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

from chapters.kit.gpu.layer_with_epilogue import LinearLayer
from chapters.kit.gpu.limits import block_shared_bytes
from chapters.kit.gpu.linear_layer_few_rows import BUCKETS, few_rows_body
from chapters.kit.gpu.mma import choose_tile, mma_body
from chapters.kit.gpu.targets import compute_capability
from chapters.kit.passes.planned_storage import evaluate
from chapters.kit.schedules.recognize_layer import match_layer, merge_epilogue
from chapters.kit.schedules.unscheduled import map_unscheduled

FIRST = 80  # sm_80: the first architecture with mma.sync for bfloat16 and with cp.async
TYPICAL = 512  # rows that a tile is chosen for where only the call knows the number; a smaller bound counts


@tvm.transform.module_pass(opt_level=0, name="ScheduleLinearLayers")
class ScheduleLinearLayers:
    """Tensor cores, or a kernel for few rows, for each linear layer of float16 or bfloat16 whose sizes allow it.

    target: any; a pass for a target that is no NVIDIA GPU of sm_80 or later changes nothing. bounds: the largest value
    of symbolic dimensions, by name; they decide which kernels are made, and any number of rows gives right numbers.
    A layer of one row, and one that no kernel here fits, is left for dlight's rules.
    """

    def __init__(self, target: Target, bounds: Mapping[str, int]):
        self.target, self.bounds = target, tuple(bounds.items())

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if compute_capability(self.target) < FIRST:
            return mod
        arch = str(self.target.attrs["arch"])
        return map_unscheduled(mod, lambda func: schedule_layer(func, arch, self.bounds))


# parsing a kernel takes a while, and tests schedule the same module again and again
@functools.lru_cache(maxsize=128)
def schedule_layer(
    func: tirx.PrimFunc, arch: str, bounds: tuple[tuple[str, int], ...]
) -> tirx.PrimFunc:
    """`func` as kernels and the choice among them; `func` itself if it is no linear layer that a kernel here fits."""
    whole = merge_epilogue(func)
    layer = whole and match_layer(whole)
    body = layer and dispatch_by_rows(layer, arch, dict(bounds))
    if body is None:
        return func
    return whole.with_body(body).without_attr("s_tir").with_attr("tirx.is_scheduled", True)


def dispatch_by_rows(layer: LinearLayer, arch: str, bounds: Mapping[str, int]) -> tirx.Stmt | None:
    """The body: the kernel for the most rows that there can be, behind one condition for each smaller kernel.

    None where no kernel fits. The conditions are host code: they read the number of rows that a call has.
    """
    rows, most = layer.rows, most_rows(layer, bounds)
    if most == 1:
        return None
    try:
        if most > BUCKETS[-1]:
            expected = rows if isinstance(rows, int) else min(most, TYPICAL)
            tile = choose_tile(expected, layer.n, layer.k, block_shared_bytes(arch))
            body = mma_body(layer, tile)
        else:
            body = few_rows_body(layer, next(bucket for bucket in BUCKETS if bucket >= most))
        if isinstance(rows, int):
            return body
        for bucket in reversed([bucket for bucket in BUCKETS if bucket < most]):
            body = tirx.IfThenElse(rows <= bucket, few_rows_body(layer, bucket), body)
    except ValueError:  # a size that a kernel refuses
        return None
    return body


def most_rows(layer: LinearLayer, bounds: Mapping[str, int]) -> float:
    """The largest number of rows within the bounds; infinity if there is no bound."""
    leading = layer.x.shape[:-1]
    symbolic = [extent for extent in leading if not isinstance(extent, tirx.IntImm)]
    if not all(isinstance(extent, Var) and extent.name in bounds for extent in symbolic):
        return math.inf
    return math.prod(evaluate(extent, bounds) for extent in leading)
