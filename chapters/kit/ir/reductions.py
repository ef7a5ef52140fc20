"""Questions about the blocks that reduce: sums, products, the largest of many."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock

from chapters.kit.ir.tensor_ir import loads, mentions, nodes


def is_reduction(block: SBlock) -> bool:
    """Whether an SBlock has a reduction axis."""
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def products(func: tirx.PrimFunc) -> list[SBlock]:
    """The blocks of `func` that sum products: the sum's steps move through two buffers or more."""
    found = []
    for block in filter(is_reduction, nodes(func.body, SBlock)):
        steps = [axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        read = [loads(block.body, region.source) for region in block.reads]
        moved = [
            any(mentions(list(one.indices), step) for one in places for step in steps)
            for places in read
        ]
        if sum(moved) > 1:
            found.append(block)
    return found
