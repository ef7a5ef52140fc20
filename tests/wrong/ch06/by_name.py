"""Pairs the axes that are called the same."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.2"
WHAT = "axes paired by their names"
WHY = (
    "A name means nothing to the compiler: two axes called vi need not be the same, and after a split "
    "they are called otherwise."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: which axis is which”"


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    names = {axis.var.name: axis.var for axis in reduction.iter_vars}
    known = all(axis.var.name in names for axis in epilogue.iter_vars)
    require(known, epilogue, "it has an axis that the reduction has not")
    return {axis.var: names[axis.var.name] for axis in epilogue.iter_vars}
