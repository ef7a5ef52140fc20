"""Pairs the axes in the order in which the blocks declare them."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.2"
WHAT = "axes paired by their position"
WHY = (
    "The order in which a block declares its axes is free, and `reorder_block_iter_var` changes it. What "
    "counts is the element of temp that each block names."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: which axis is which”"


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    spatial = [axis for axis in reduction.iter_vars if axis.iter_type == IterVar.DataPar]
    same = len(spatial) == len(epilogue.iter_vars)
    require(same, epilogue, "it has another number of axes")
    return {a.var: b.var for a, b in zip(epilogue.iter_vars, spatial, strict=True)}
