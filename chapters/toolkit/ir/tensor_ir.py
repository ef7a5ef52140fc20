"""Small tools for reading and rewriting TensorIR, each a line or two over tvm_ffi's structural visitors.

Statements and expressions are immutable: every function here returns new nodes and leaves its arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm.ir import Call, Op, PrimType, Range, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import BufferRegion, CallEffectKind, For, Max, Min, Stmt, is_buffer_var
from tvm_ffi import structural_equal, structural_map, structural_walk


def substitute(node, replacements: Mapping[Var, object]):
    """`node` (an expression, a statement or a list) with each variable replaced as `replacements` says."""
    return structural_map(node, (Var, lambda var: replacements.get(var, var)))


def substitute_region(region: TensorRegion, replacements: Mapping[Var, object]) -> TensorRegion:
    """The same region of the same buffer, its bounds rewritten."""
    ranges = [
        Range.from_min_extent(
            substitute(axis.min, replacements), substitute(axis.extent, replacements)
        )
        for axis in region.region
    ]
    return BufferRegion(region.source, ranges)


def replace_loads(node, buffer: Var, load: TensorLoad):
    """`node` with every load from `buffer` replaced by `load`."""
    return structural_map(
        node, (TensorLoad, lambda found: load if found.source.same_as(buffer) else found)
    )


def nodes(node, kind: type) -> list:
    """All nodes of type `kind` in `node`, inner ones first, once for each time they occur."""
    found: list = []

    def note(value) -> None:
        found.append(value)

    structural_walk(node, [(kind, note)])
    return found


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
    buffers = [var for var in nodes(expr, Var) if is_buffer_var(var)]
    # a buffer that is not the source of a load stands there as a pointer
    return len(buffers) == len(nodes(expr, TensorLoad)) and not uses_pointers(expr)


def uses_pointers(node) -> bool:
    """Whether `node` has a call with side effects, or a pointer: it may then reach memory that it does not name."""
    pointers = [
        v for v in nodes(node, Var) if not isinstance(v.ty, PrimType) and not is_buffer_var(v)
    ]
    return bool(pointers) or any(_has_effect(call) for call in nodes(node, Call))


def _has_effect(call: Call) -> bool:
    if not isinstance(call.op, Op) or call.op.name.endswith("address_of"):
        return True
    kind = call.op.get_attr("TCallEffectKind")
    return kind is None or int(kind) > CallEffectKind.Pure.value


def may_write(node, buffer: Var) -> bool:
    """Whether `node` may write `buffer`: it mentions it in some way that is not a plain read."""
    if any(_has_effect(call) for call in nodes(node, Call)):
        return mentions(node, buffer)
    declared = [region for block in nodes(node, SBlock) for region in block.reads]
    reads = len(loads(node, buffer)) + sum(r.source.same_as(buffer) for r in declared)
    return count(node, buffer) > reads


def one_a_buffer(regions: Sequence[TensorRegion]) -> list[TensorRegion]:
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
        low = simplify(Min(a.min, b.min))
        end = simplify(Max(a.min + a.extent, b.min + b.extent))
        ranges.append(Range(low, end))
    return BufferRegion(one.source, ranges)


def with_loop_body(loop: For, body: Stmt) -> For:
    """A copy of `loop` around another body. It keeps the loop variable, by which a schedule knows a loop again."""
    how = (loop.kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span)
    return For(loop.loop_var, loop.min, loop.extent, *how)


def with_fields(block: SBlock, **changes) -> SBlock:
    """A copy of `block` with the fields named in `changes` replaced."""
    names = "iter_vars reads writes name_hint body init alloc_buffers match_buffers annotations"
    return SBlock(**{name: changes.get(name, getattr(block, name)) for name in names.split()})
