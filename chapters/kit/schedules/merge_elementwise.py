"""Inlines a block so that each value is computed once, and rounded where the program rounds it.

`compute_inline` writes the producer's expression in place of each read. Two things go wrong. A reader that uses a value
twice gets two copies, so a chain of such readers grows exponentially. And two operators become one expression, which
TVM's simplifier treats as if numbers had no rounding: of `(x + c) - c` it makes `x`, of `y - y` 0, even if y is NaN.

So a value that is read gets a name first:

    D[i] = temp[i] * temp[i]          ->      D[i] = T.Let(t * t, where={t: temp[i]})

Inlined, `temp[i]` becomes the producer's expression, once. The simplifier does not look behind a variable, and LLVM,
without its flags for fast arithmetic, keeps the operations that it is given.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad
from tvm.s_tir import SBlock, Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_equal, structural_map

from chapters.kit.cpu.nt_matmul import reads_only_its_own
from chapters.kit.ir.reductions import is_reduction
from chapters.kit.ir.tensor_ir import loads, nodes, with_fields
from chapters.kit.schedules.unscheduled import map_unscheduled

IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
# how deeply names may be nested: TVM lowers these in less than half a second, and a few more in minutes
DEEPEST = 11
MOST = 48  # names in a block
DEEP = 4  # names that a function or an integer counts for


@tvm.transform.module_pass(opt_level=0, name="MergeElementwise")
class MergeElementwise:
    """Makes one block of each chain of elementwise blocks, in each PrimFunc that no schedule has claimed."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, merge_elementwise)


def merge_elementwise(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each elementwise block inlined that one other elementwise block reads once for each element.

    A block that has fewer elements than its reader stays: a schedule may compute it once for all of them.
    """
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    for handle in reversed(blocks):
        block, readers = sch.get(handle), [sch.get(one) for one in sch.get_consumers(handle)]
        if len(readers) != 1 or is_reduction(block) or is_reduction(readers[0]):
            continue
        if _has_fewer(block, readers[0]) or _is_full(block, readers[0]):
            continue
        if count_evaluations(sch, handle) != 1:
            continue
        with contextlib.suppress(ScheduleError):
            inline(sch, handle)
    return sch.mod["main"] if len(blocks) > 1 else func


def inline(sch: Schedule, handle: SBlockRV) -> None:
    """Compute the block `handle` where it is read. Raises ScheduleError as `compute_inline` does.

    A value that only one operator of a reader needs is named too: the reader is another operator than the block.
    """
    block = sch.get(handle)
    if _computes(block.body):
        for reader in sch.get_consumers(handle):
            old = sch.get(reader)
            body, _ = name_reads(old.body, block.writes[0].source)
            new = with_fields(old, body=body)
            sch.state.replace(sch.get_sref(reader), new, {old: new})
    sch.compute_inline(handle)


def count_evaluations(sch: Schedule, handle: SBlockRV) -> int:
    """In how many places the block `handle` would be computed if it were inlined."""
    buffer, places = sch.get(handle).writes[0].source, 0
    for reader in map(sch.get, sch.get_consumers(handle)):
        places += name_reads(reader.body, buffer)[1]
        places += len(loads(reader.init, buffer)) if reader.init else 0
    return places


def costs_no_more_inlined(sch: Schedule, handle: SBlockRV) -> bool:
    """Whether the block `handle`, inlined, is computed in one place, or is one operator on arguments."""
    block, readers = sch.get(handle), map(sch.get, sch.get_consumers(handle))
    if is_reduction(block) or any(_is_full(block, reader) for reader in readers):
        return False
    simple = not nodes(block.body, Call) and not nodes(block.body, tirx.Let)
    first = simple and not sch.get_producers(handle)
    return first or count_evaluations(sch, handle) == 1


def inline_where_it_pays(
    sch: Schedule, pays: Callable[[Schedule, SBlockRV], bool] = costs_no_more_inlined
) -> None:
    """Compute each block for which `pays` holds where it is read, the last one first; what TVM refuses is left out."""
    for block in reversed(sch.get_child_blocks(sch.get_sblock("root"))):
        with contextlib.suppress(ScheduleError):
            if pays(sch, block):
                inline(sch, block)


def inline_epilogue(sch: Schedule, sums: tirx.Var, epilogue: Sequence[SBlockRV]) -> bool:
    """Inline the blocks of the `epilogue` into the last of them; False where TVM refuses.

    False too if that block reads other elements of `sums` than the one with the index that it writes.
    """
    try:
        for block in reversed(epilogue[:-1]):
            inline(sch, block)
    except ScheduleError:
        return False
    return not epilogue or reads_only_its_own(sch.get(epilogue[-1]), sums)


def name_reads(body: tirx.Stmt, buffer: tirx.Var) -> tuple[tirx.Stmt, int]:
    """(`body` with names for the elements of `buffer` that it reads, the number of places that read one)."""
    if not isinstance(body, tirx.BufferStore):
        return body, len(loads(body, buffer))
    value, places = body.value, len(loads(list(body.indices), buffer))
    distinct: list[TensorLoad] = []
    for load in loads(value, buffer):
        if not any(structural_equal(load, other) for other in distinct):
            distinct.append(load)
    for load in distinct:
        value, found = _name_load(value, load)
        places += found
    return tirx.BufferStore(body.buffer, value, body.indices), places


def _name_load(value: Expr, load: TensorLoad) -> tuple[Expr, int]:
    """(`value` with a name for what `load` reads, the number of its definitions).

    It is defined in the smallest expression that has all reads, so that a reduction is still seen as one. It is
    not defined around a condition that guards all reads, nor in the index of another read. Integers and truth
    values that are read once need no name: they are not rounded.
    """
    total = _count_reads(value, load)
    if total == 1 and "float" not in str(load.ty.dtype):
        return value, total
    if any(_count_reads(list(other.indices), load) for other in nodes(value, TensorLoad)):
        return value, total
    definitions = 0

    def define(expr: Expr) -> Expr:
        nonlocal definitions
        if definitions or _count_reads(expr, load) < total:
            return expr
        always = structural_map(expr, (Call, lambda c: c.args[0] if c.op == IF_THEN_ELSE else c))
        if _count_reads(always, load):
            definitions = 1
            return _bind(expr, load)
        definitions = total
        return structural_map(
            expr,
            (TensorLoad, lambda one: _bind(one, load) if structural_equal(one, load) else one),
        )

    return structural_map(value, (Expr, define)), definitions


def _bind(expr: Expr, load: TensorLoad) -> tirx.Let:
    var = tirx.Var(load.source.name, load.ty)
    use = (TensorLoad, lambda one: var if structural_equal(one, load) else one)
    return tirx.Let(var, load, structural_map(expr, use))


def _count_reads(node, load: TensorLoad) -> int:
    return sum(structural_equal(one, load) for one in loads(node, load.source))


def _computes(body: tirx.Stmt) -> bool:
    """Whether `body` stores what an operator makes of what it reads: no copy, constant or index."""
    value = getattr(body, "value", None)
    return bool(value is not None and nodes(value, TensorLoad)) and not isinstance(
        value, TensorLoad
    )


def _is_full(block: SBlock, reader: SBlock) -> bool:
    """Whether `reader` has enough names, or a condition under which TVM could not lower those of `block` or round.

    A long chain becomes several blocks, so that the time to compile it is linear in its length. What is under a
    condition is computed only where it holds, so StoreNames cannot store it. TVM lowers a few names there, and with
    bfloat16 it rounds only what is stored.
    """
    if len(nodes(reader.body, tirx.Let)) + len(nodes(block.body, tirx.Let)) >= MOST:
        return True
    conditional = [call for call in nodes(reader.body, Call) if call.op == IF_THEN_ELSE]
    regions = [*block.reads, *block.writes]
    if any(str(region.source.dtype) == "bfloat16" for region in regions):
        return bool(conditional)
    return any(nesting_cost(call) + nesting_cost(block.body) > DEEPEST for call in conditional)


def nesting_cost(node: Expr | tirx.Stmt) -> int:
    """A bound of what the names in `node` cost TVM's analyses, which take time exponential in it.

    A function counts more, because VectorizeTranscendentals makes several names of it, and so does an integer, of
    whose value TVM's simplifier asks more.
    """
    names = sum(1 if "float" in str(let.ty.dtype) else DEEP for let in nodes(node, tirx.Let))
    return names + DEEP * sum(call.op != IF_THEN_ELSE for call in nodes(node, Call))


def _has_fewer(block: SBlock, reader: SBlock) -> bool:
    """Whether `block` seems to have fewer elements than `reader`."""

    def size(one: SBlock) -> tuple[int, int]:
        extents = [axis.dom.extent for axis in one.iter_vars]
        known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
        return len(extents) - len(known), math.prod(known)

    return any(one < other for one, other in zip(size(block), size(reader), strict=True))
