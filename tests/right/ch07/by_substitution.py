"""7.3 counts the steps still to come; 7.4 looks at each block once; 7.5 and 7.7 choose other programs."""

from solutions.ch07_when_fusion_is_sound.soundness import *


def last_step(nest):
    loops = reduction_loops(nest)
    left = [loop.min + loop.extent - 1 - loop.loop_var for loop in loops]
    parts = [EQ(steps, 0) for steps in left]
    for part in conjuncts(nest.realize.predicate):
        summed = any(mentions(part, loop.loop_var) for loop in loops)
        if summed:
            others = [
                lo.loop_var for lo in nest.loops if not any(lo.same_as(mine) for mine in loops)
            ]
            mixed = any(mentions(part, var) for var in others)
            require(not mixed, nest.block, "a bound is on both kinds of loops")
        else:
            parts.insert(0, part)
    return tirx.all(*parts) if parts else const(True, "bool")


def check_between(sch, pair):
    reads = [load.source for load in nodes(pair.value, TensorLoad)]
    for block in [pair.reduction, *others_between(pair.site)]:
        bad = [pair.output] if mentions(block, pair.output) else []
        if not block.same_as(pair.reduction):
            bad += [buffer for buffer in reads if may_write(block, buffer)]
        names = ", ".join(f"`{buffer.name}`" for buffer in bad)
        require(
            not bad, pair.epilogue, f"block `{block.name_hint}` stands before it and uses {names}"
        )


def counterexamples():
    return {
        "each point once": "all into one column with the reduction loop outermost",
        "nobody between": "the sums changed in between",
        "own element": "reads an element the sums reach later",
        "sums unseen": "the sums read in between",
        "order of rounding": "half precision sum of ones on 2048",
    }


def breaks_the_builtin():
    return Case("mine", "my own", axes="wj wi", value="s - E[wi, wj] * 2")
