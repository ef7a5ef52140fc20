"""Finds the kernels that still need a schedule, and rewrites each."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from chapters.kit.ir.tensor_ir import nodes


def map_unscheduled(
    mod: tvm.IRModule, rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """A new module in which each PrimFunc that needs a schedule is replaced by `rewrite(func)`."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if needs_schedule(func):
            result[gvar] = rewrite(func)
    return result


def needs_schedule(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc made of blocks that no schedule has claimed. A kernel of no elements needs none.

    A schedule claims a PrimFunc by the attribute tirx.is_scheduled; TVM's rules set it, and ours do.
    """
    if not is_made_of_blocks(func) or "tirx.is_scheduled" in (func.attrs or {}):
        return False
    extents = [loop.extent for loop in nodes(func.body, tirx.For)]
    return not any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in extents)


def is_made_of_blocks(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc with a block "root" around all others, and no other block of that name.

    TVM's sorts and scans are one block with another name, around code that a schedule cannot analyse.
    """
    if not isinstance(func, tirx.PrimFunc) or not isinstance(func.body, SBlockRealize):
        return False
    roots = [block for block in nodes(func.body, SBlock) if block.name_hint == "root"]
    return len(roots) == 1 and roots[0].same_as(func.body.block)
