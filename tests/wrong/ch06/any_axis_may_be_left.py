"""Gives every axis that is not in `temp`'s indices its first value."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.2"
WHAT = "an axis that is not in temp's indices taken to have one value"
WHY = (
    "An axis that runs over two values sends one sum to two elements of the output. The fused reduction "
    "writes one of them."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: which axis is which”"


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    theirs = {axis.var: axis.dom for axis in reduction.iter_vars}
    own = {axis.var for axis in epilogue.iter_vars}
    pairs = zip(variables_of(read), variables_of(written), strict=False)
    axes = {mine: other for mine, other in pairs if mine in own}
    same = structural_equal(substitute(read, axes), written)
    require(same, epilogue, "it reads the reduction's result at other indices than it is written")
    for axis in epilogue.iter_vars:
        if axis.var in axes:
            matched = same_range(axis.dom, theirs[axes[axis.var]])
            require(matched, epilogue, "an axis has another range than the reduction's")
        else:
            axes[axis.var] = axis.dom.min
    return axes
