"""Pairs the variables in order of appearance and does not ask whether the indices then agree."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.2"
WHAT = "a pairing that is guessed and not proved"
WHY = (
    "`3 - vi` and `vi` mention the same variable and name different elements. Only when the indices are "
    "equal after the replacement do both blocks mean the same one."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: which axis is which”"


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    own = {axis.var for axis in epilogue.iter_vars}
    pairs = zip(variables_of(read), variables_of(written), strict=False)
    axes = {mine: other for mine, other in pairs if mine in own}
    for axis in epilogue.iter_vars:
        axes.setdefault(axis.var, axis.dom.min)
    return axes
