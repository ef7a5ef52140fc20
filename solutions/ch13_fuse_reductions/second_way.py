"""Another right design for exercise 13.1: rescale only when the maximum rises.

The reference multiplies every sum by `scale` in every step, though it is 1 in most. Here a step first asks whether the
maximum changes, and only then rescales the sums, each in a loop of its own. Then the step adds to them:

    if before != after:
        s = s * exp(before - after)
        o[j] = o[j] * exp(before - after)    for all j
        m = after
    s = s + weight
    o[j] = o[j] + weight * y[j]              for all j

Among k random elements the maximum rises about ln k times, so this saves nearly all multiplications. The price is a
branch in the innermost loop, which a kernel for vectors of rows cannot have, and a second place in the step where each
sum occurs.

Of the reference it takes what each block must be by itself, and what must hold between the two. It writes the step, and
recognizes it, in its own way.
"""

from tvm.tirx import BufferStore, IfThenElse, SeqStmt, const, exp

from solutions.ch13_fuse_reductions import fuse_reductions as _rules
from solutions.ch13_fuse_reductions.fuse_reductions import *
from solutions.ch13_fuse_reductions.fuse_reductions import (
    Maximum,
    analyse,
    declared,
    locate,
    over,
    substitute_blocks,
    with_fields,
)


def find_maximum(block):
    """As the reference's: head is x, the maximum before and after, and the weight; tail is the branch and the sums."""
    if isinstance(block.body, SeqStmt):
        head, tail = list(block.body.seq[:4]), list(block.body.seq[4:])
        return Maximum(head[1].value, head[0].value, head, tail)
    plain = _rules.find_maximum(block)
    x, before, after, _, weight, store = plain.head
    branch = IfThenElse(before.var != after.var, store, None)
    return Maximum(plain.largest, plain.x, [x, before, after, weight], [branch])


def fused_block(fusion):
    maximum, total, extra = fusion.maximum, fusion.total, fusion.extra
    _, before, after, weight = maximum.head
    branch, *sums = maximum.tail
    addend = weight.var if fusion.factor is None else weight.var * fusion.factor

    def store(value):
        return over(extra, BufferStore(total.source, value, total.indices))

    rises = SeqStmt([store(total * exp(before.var - after.var)), branch.then_case])
    branch = IfThenElse(branch.condition, rises, None)
    init = SeqStmt([fusion.first.init, store(const(0, str(total.source.dtype)))])
    body = SeqStmt([*maximum.head, branch, *sums, store(total + addend)])
    return declared(with_fields(fusion.first, init=init, body=body))


def fuse_reductions(sch, first, second):
    site = locate(sch, *(sch.get_sblock(b) if isinstance(b, str) else b for b in (first, second)))
    fusion = analyse(site, find_maximum(site.producer.block))
    substitute_blocks(sch, site, fused_block(fusion))
