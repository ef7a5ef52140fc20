"""Does not compare the ranges of paired axes."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.2"
WHAT = "the ranges of the axes not compared"
WHY = (
    "If the epilogue runs over three of four rows, the fused reduction writes the fourth as well: a row "
    "that the program never wrote, and perhaps beyond the buffer."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: which axis is which”"


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    own = {axis.var for axis in epilogue.iter_vars}
    pairs = zip(variables_of(read), variables_of(written), strict=False)
    axes = {mine: other for mine, other in pairs if mine in own}
    same = structural_equal(substitute(read, axes), written)
    require(same, epilogue, "it reads the reduction's result at other indices than it is written")
    for axis in epilogue.iter_vars:
        if axis.var not in axes:
            one = Analyzer().can_prove_equal(axis.dom.extent, 1)
            require(one, epilogue, "it has an axis that is no axis of the reduction's result")
            axes[axis.var] = axis.dom.min
    return axes
