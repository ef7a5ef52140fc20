"""Schedules linear layers of float16 and bfloat16 on NVIDIA GPUs, with the bias, the residual and the activation.

Many rows go to the kernel for tensor cores (`mma.py`), a few to the kernel that loads each weight once (`few_rows.py`).
Where the number of rows is known only at run time, one PrimFunc holds several kernels, and its host code chooses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import tvm
from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

from chapters.kit.cpu.nt_matmul import with_one_epilogue
from chapters.kit.gpu.few_rows import BUCKETS, few_rows_body
from chapters.kit.gpu.limits import block_shared_bytes
from chapters.kit.gpu.linear_layer import LinearLayer
from chapters.kit.gpu.mma import mma_body, tile_for
from chapters.kit.pipeline.planned_storage import evaluate
from chapters.kit.pipeline.recognize_layer import layer_of
from chapters.kit.pipeline.unscheduled import map_unscheduled

FIRST = 80  # sm_80: the first architecture with mma.sync for bfloat16 and with cp.async
TYPICAL = 512  # rows that a tile is chosen for where no bound is known


@tvm.transform.module_pass(opt_level=0, name="ScheduleLinearLayers")
class ScheduleLinearLayers:
    """Tensor cores, or a kernel for few rows, for each linear layer of float16 or bfloat16 whose sizes allow it.

    target: any; a pass for a target that is no NVIDIA GPU of sm_80 or later changes nothing. bounds: the largest value
    of symbolic dimensions, by name; they decide which kernels are made, and any number of rows gives right numbers.
    A layer of one row, and one that no kernel here fits, is left for dlight's rules.
    """

    def __init__(self, target: Target, bounds: Mapping[str, int]):
        self.target, self.bounds = target, dict(bounds)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, self.scheduled)

    def scheduled(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """`func` as kernels and the choice among them; `func` itself if it is no such layer."""
        arch = re.fullmatch(r"sm_(\d+)[a-z]?", str(self.target.attrs.get("arch", "")))
        if self.target.kind.name != "cuda" or arch is None or int(arch[1]) < FIRST:
            return func
        whole = with_one_epilogue(func)
        layer = whole and layer_of(whole)
        body = layer and self.dispatched(layer)
        if body is None:
            return func
        return whole.with_body(body).without_attr("s_tir").with_attr("tirx.is_scheduled", True)

    def dispatched(self, layer: LinearLayer) -> tirx.Stmt | None:
        """The body: the kernel for the most rows that there can be, behind one condition for each smaller kernel.

        None where no kernel fits. The conditions are host code: they read the number of rows that a call has.
        """
        rows, most = layer.rows, self.most_rows(layer)
        if most == 1:
            return None
        buckets = [bucket for bucket in BUCKETS if bucket < most]
        try:
            if most > BUCKETS[-1]:
                shared = block_shared_bytes(str(self.target.attrs["arch"]))
                tile = tile_for(min(most, TYPICAL), layer.n, layer.k, shared)
                body = mma_body(layer, tile)
            else:
                last = next(bucket for bucket in BUCKETS if bucket >= most)
                body = few_rows_body(layer, last)
            if isinstance(rows, int):
                return body
            for bucket in reversed(buckets):
                body = tirx.IfThenElse(rows <= bucket, few_rows_body(layer, bucket), body)
        except ValueError:
            return None
        return body

    def most_rows(self, layer: LinearLayer) -> float:
        """The largest number of rows within the bounds; infinity if there is no bound."""
        leading = layer.x.shape[:-1]
        symbolic = [extent for extent in leading if not isinstance(extent, tirx.IntImm)]
        if not all(isinstance(extent, Var) and extent.name in self.bounds for extent in symbolic):
            return math.inf
        return math.prod(evaluate(extent, self.bounds) for extent in leading)
