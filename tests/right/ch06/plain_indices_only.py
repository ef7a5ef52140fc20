"""Pairs axes only where `temp` is indexed by plain axes: fewer fusions, and every one of them right."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    ours = {axis.var: axis.dom for axis in epilogue.iter_vars}
    theirs = {axis.var: axis.dom for axis in reduction.iter_vars}
    axes = {}
    for mine, other in zip(read, written, strict=True):
        plain = (
            isinstance(mine, Var) and isinstance(other, Var) and mine in ours and other in theirs
        )
        require(plain, epilogue, "it reads the sum at something other than its plain axes")
        fresh = mine not in axes and not any(known.same_as(other) for known in axes.values())
        require(fresh, epilogue, "it reads the sum at the same axis twice")
        require(same_range(ours[mine], theirs[other]), epilogue, "an axis has another range")
        axes[mine] = other
    for axis, domain in ours.items():
        if axis not in axes:
            one = Analyzer().can_prove_equal(domain.extent, 1)
            require(one, epilogue, "an axis of it does not index the sum")
            axes[axis] = domain.min
    return axes
