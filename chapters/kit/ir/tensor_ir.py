"""Small tools for reading and rewriting TensorIR, most of them a few lines over tvm_ffi's structural visitors.

Statements and expressions are immutable: every function here returns new nodes and leaves its arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.ir import Call, Expr, Op, PrimType, Range, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map, structural_walk


def substitute(node, replacements: Mapping[Var, object]):
    """`node` (an expression, a statement or a list) with each variable replaced as `replacements` says."""
    return structural_map(node, (Var, lambda var: replacements.get(var, var)))


def substitute_region(region: TensorRegion, replacements: Mapping[Var, object]) -> TensorRegion:
    """The same region of the same buffer, its bounds rewritten."""
    bounds = [substitute([axis.min, axis.extent], replacements) for axis in region.region]
    return tirx.BufferRegion(region.source, [Range.from_min_extent(*bound) for bound in bounds])


def replace_loads(node, buffer: Var, load: TensorLoad):
    """`node` with every load from `buffer` replaced by `load`."""
    other = (TensorLoad, lambda found: load if found.source.same_as(buffer) else found)
    return structural_map(node, other)


def with_fresh_lets(node):
    """`node` with new variables in its `T.Let`s: a variable may be defined once, so a copy needs its own."""
    return substitute(node, {x.var: tirx.Var(x.var.name, x.var.ty) for x in nodes(node, tirx.Let)})


def nodes(node, kind: type) -> list:
    """All nodes of type `kind` in `node`, inner ones first; a node that occurs twice is listed twice."""
    found: list = []
    structural_walk(node, [(kind, lambda value: found.append(value))])
    return found


def innermost_blocks(
    stmt: tirx.Stmt, loops: tuple[tirx.For, ...] = ()
) -> list[tuple[tuple[tirx.For, ...], SBlockRealize]]:
    """The blocks in `stmt` that contain no other, in order, each with the loops around it, outermost first."""
    if isinstance(stmt, tirx.SeqStmt):
        return [found for part in stmt.seq for found in innermost_blocks(part, loops)]
    if isinstance(stmt, tirx.For):
        return innermost_blocks(stmt.body, (*loops, stmt))
    if isinstance(stmt, SBlockRealize):
        return innermost_blocks(stmt.block.body, loops) or [(loops, stmt)]
    return []


def summed_values(realize: SBlockRealize) -> list[Expr]:
    """The values bound to the reduction axes of a block."""
    bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [value for axis, value in bound if axis.iter_type == tirx.IterVar.CommReduce]


def thread_axis(loop: tirx.For) -> str:
    """The thread axis that `loop` is bound to, such as "threadIdx.x"; "" if none."""
    return str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""


def variables_of(node) -> list[Var]:
    """The variables of `node`, each once, in order of appearance."""
    return list(dict.fromkeys(nodes(node, Var)))


def loads(node, buffer: Var) -> list[TensorLoad]:
    """The loads from `buffer` in `node`."""
    return [load for load in nodes(node, TensorLoad) if load.source.same_as(buffer)]


def count(node, var: Var) -> int:
    """How often `node` mentions `var` in any way: load, store, region, pointer, definition."""
    return sum(found.same_as(var) for found in nodes(node, Var))


def mentions(node, var: Var) -> bool:
    """Whether `node` mentions the variable or buffer `var` in any way."""
    return count(node, var) > 0


def is_pure(expr) -> bool:
    """Whether evaluating the expression `expr` changes nothing and reads memory through plain loads only."""
    buffers = [var for var in nodes(expr, Var) if tirx.is_buffer_var(var)]
    # a buffer that is not the source of a load is used as a pointer
    return len(buffers) == len(nodes(expr, TensorLoad)) and not uses_pointers(expr)


def uses_pointers(node) -> bool:
    """Whether `node` has a call with side effects, or a pointer, so that it may reach memory that it does not name."""
    others = [var for var in nodes(node, Var) if not tirx.is_buffer_var(var)]
    pointers = any(not isinstance(var.ty, PrimType) for var in others)
    return pointers or any(_has_effect(call) for call in nodes(node, Call))


def _has_effect(call: Call) -> bool:
    if not isinstance(call.op, Op) or call.op.name.endswith("address_of"):
        return True
    kind = call.op.get_attr("TCallEffectKind")
    return kind is None or int(kind) > tirx.CallEffectKind.Pure.value


def may_write(node, buffer: Var) -> bool:
    """Whether `node` may write `buffer`: it mentions it in some way that is not a plain read."""
    if any(_has_effect(call) for call in nodes(node, Call)):
        return mentions(node, buffer)
    declared = [region for block in nodes(node, SBlock) for region in block.reads]
    reads = len(loads(node, buffer)) + sum(r.source.same_as(buffer) for r in declared)
    return count(node, buffer) > reads


def merge_regions(regions: Sequence[TensorRegion]) -> list[TensorRegion]:
    """`regions` with those of one buffer merged into the smallest box around them, in order of first appearance."""
    boxes: dict[Var, TensorRegion] = {}
    for region in regions:
        known = boxes.get(region.source)
        same = known is None or structural_equal(known.region, region.region)
        boxes[region.source] = region if same else _hull(known, region)
    return list(boxes.values())


def _hull(one: TensorRegion, other: TensorRegion) -> TensorRegion:
    simplify, ranges = Analyzer().simplify, []
    for a, b in zip(one.region, other.region, strict=True):
        low = simplify(tirx.Min(a.min, b.min))
        end = simplify(tirx.Max(a.min + a.extent, b.min + b.extent))
        ranges.append(Range(low, end))
    return tirx.BufferRegion(one.source, ranges)


def with_loop_body(loop: tirx.For, body: tirx.Stmt) -> tirx.For:
    """A copy of `loop` around another body, with the same loop variable, by which a schedule recognizes a loop."""
    how = (loop.kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span)
    return tirx.For(loop.loop_var, loop.min, loop.extent, *how)


def with_fields(block: SBlock, **changes) -> SBlock:
    """A copy of `block` with the fields named in `changes` replaced."""
    names = "iter_vars reads writes name_hint body init alloc_buffers match_buffers annotations"
    return SBlock(**{name: changes.get(name, getattr(block, name)) for name in names.split()})
