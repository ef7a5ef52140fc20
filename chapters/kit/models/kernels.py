"""Says which pass scheduled each kernel of a module, and why a kernel was left to the fallback."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.ir.transform import Pass
from tvm.s_tir import SBlock

from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.pipeline.reduction_once import is_reduction
from chapters.kit.pipeline.unscheduled import is_made_of_blocks, needs_schedule

FALLBACK = "ApplyCPUFallback"
NO_SUM = "no sums: it computes or moves single elements"
PRODUCT = "a product, but not with a constant matrix that is read row by row"
CONVOLUTION = "a convolution"
SUMS = "sums that no schedule before the fallback takes"


def scheduled_by(
    mod: tvm.IRModule, passes: Sequence[Pass], target: tvm.target.Target
) -> tuple[tvm.IRModule, dict[str, str]]:
    """(`mod` after `passes`, for each kernel the name of the pass that scheduled it).

    A kernel that a pass makes and schedules at once, as FuseAddRMSNorm does, belongs to that pass.
    """
    found: dict[str, str] = {}
    with target:
        for one in passes:
            mod = one(mod)
            for gvar, func in mod.functions_items():
                if isinstance(func, tirx.PrimFunc) and not needs_schedule(func):
                    found.setdefault(gvar.name_hint, str(one.info.name))
    return mod, {name: by for name, by in found.items() if name in _names(mod)}


def _names(mod: tvm.IRModule) -> set[str]:
    return {gvar.name_hint for gvar in mod.get_global_vars()}


def why_left(func: tirx.PrimFunc) -> str:
    """Why only the fallback scheduled `func`, a kernel: what it computes that no other schedule serves."""
    if not is_made_of_blocks(func):
        return NO_SUM
    sums = [block for block in nodes(func.body, SBlock) if is_reduction(block)]
    if any(block.name_hint.startswith("conv") for block in sums):
        return CONVOLUTION
    if any("matmul" in block.name_hint for block in sums):
        return PRODUCT
    return SUMS if sums else NO_SUM
