"""Storages over time: which tensor is in which storage, from the call that writes it to the last call that reads it.

`read_lifetimes(func)` reads this from a Relax function that the memory planner has planned.
`storages_over_time({"without bounds": func, …}, sizes)` draws it: calls from left to right, a strip per storage, a bar
per tensor.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax
from tvm.ir import Op

from chapters.kit.draw.stepper import Panel, Stepper, attributes, step_attribute
from chapters.kit.ir.relax_effects import bindings_of
from chapters.kit.passes.planned_storage import (
    ALLOC_ALONE,
    ALLOC_IN_STORAGE,
    ALLOC_STORAGE,
    evaluate,
    format_size,
    storage_bytes,
    tensor_bytes,
)

HIGHEST = 44  # pixels of the largest storage
NAMED = 8  # with more calls than this, calls and bars have no room for names


@dataclass
class Lifetime:
    """A tensor. name: that of the variable that holds it, or "" if that has none of its own. writer: its kernel.

    first, last: calls, counted from 1. last is the last call that reads it, or the number of calls + 1 if the function
    returns it.
    """

    size: int | tvm.ir.Expr
    name: str = ""
    writer: str = ""
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        return self.name or f"the result of {self.writer}"


@dataclass
class Strip:
    """A piece of memory and the tensors that are in it, one after another.

    number: its place among the storages of the planner, from 1; 0 if it is allocated for one tensor, at run time.
    """

    size: int | tvm.ir.Expr
    number: int
    lives: list[Lifetime] = field(default_factory=list)


@dataclass
class Lifetimes:
    """The kernels that a function calls, in order, and its strips, in the order in which they are allocated."""

    calls: list[str]
    strips: list[Strip]

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """All strips together; sizes: a number for each symbolic dimension."""
        return sum(evaluate(strip.size, sizes) for strip in self.strips)

    def in_use(self, call: int, sizes: Mapping[str, int]) -> int:
        """The bytes of the tensors that hold numbers while the call with this number runs."""
        alive = (
            one for strip in self.strips for one in strip.lives if one.first <= call <= one.last
        )
        return sum(evaluate(one.size, sizes) for one in alive)


def read_lifetimes(func: relax.Function) -> Lifetimes:
    """Read a function without branches, after CallTIRRewrite and the planner. Raises ValueError for a branch."""
    found = Lifetimes([], [])
    strips: dict[relax.Var, Strip] = {}
    held: dict[
        relax.Var, object
    ] = {}  # variable -> its Life, or a tuple of such; None: not allocated here

    def of(expr: relax.Expr) -> object:
        if isinstance(expr, relax.Var):
            return held.get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple(map(of, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            whole = of(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else whole
        return None

    def place(strip: Strip, ty: relax.TensorType) -> Lifetime:
        strip.lives.append(Lifetime(tensor_bytes(ty)))
        return strip.lives[-1]

    def touch(expr: relax.Expr, call: int) -> None:
        for life in _flatten(of(expr)):
            life.first, life.last = life.first or call, call

    for binding in bindings_of(func.body):
        var, value = binding.var, binding.value
        if isinstance(value, relax.If):
            raise ValueError(
                "The lives of tensors are read along one path, and this function branches."
            )
        if not isinstance(value, relax.Call):
            held[var] = of(value)
            _set_name(held[var], var.name)
        elif value.op == ALLOC_STORAGE:
            strips[var] = Strip(storage_bytes(value), len(strips) + 1)
            found.strips.append(strips[var])
        elif value.op == ALLOC_IN_STORAGE:
            held[var] = place(strips[value.args[0]], var.ty)
        elif value.op == ALLOC_ALONE:
            found.strips.append(Strip(tensor_bytes(var.ty), 0))
            held[var] = place(found.strips[-1], var.ty)
        elif isinstance(value.op, tvm.ir.GlobalVar):
            found.calls.append(value.op.name_hint)
            for argument in value.args:
                touch(argument, len(found.calls))
        elif value.op == Op.get("relax.reshape"):
            held[var] = of(value.args[0])  # a view of the same memory
    touch(func.body.body, len(found.calls) + 1)
    for life in (one for strip in found.strips for one in strip.lives):
        life.writer = found.calls[life.first - 1]
    return found


def _flatten(held: object) -> Iterator[Lifetime]:
    if isinstance(held, Lifetime):
        yield held
    elif isinstance(held, tuple):
        for part in held:
            yield from _flatten(part)


def _set_name(held: object, name: str) -> None:
    if isinstance(held, Lifetime):
        held.name = held.name or name


# --- the picture ----------------------------------------------------------------------------------


def storages_over_time(
    plans: Mapping[str, relax.Function],
    sizes: Mapping[str, int],
    start: int = 1,
) -> Stepper:
    """The picture: a panel per plan of one function. sizes: a number for each symbolic dimension."""
    found = {name: read_lifetimes(func) for name, func in plans.items()}
    largest = max(evaluate(strip.size, sizes) for one in found.values() for strip in one.strips)
    panels = [_make_panel(name, one, sizes, HIGHEST / largest) for name, one in found.items()]
    at = " and ".join(f"{name} = {number}" for name, number in sizes.items())
    caption = (
        f"Drawn for {html.escape(at)}. Left to right: the kernels that the function calls. A box is a piece of "
        "memory; its height is its size. A bar is a tensor, from the kernel that writes it to the last one that reads "
        "it; a tensor that the function returns stays to the end. A dashed box is allocated at run time, or has a size "
        "that is computed then. Orange: in use now."
    )
    label = "The storages of a function over time"
    return Stepper(label, panels, "lives", start=start, asks="Plan", caption=caption)


def _make_panel(name: str, found: Lifetimes, sizes: Mapping[str, int], scale: float) -> Panel:
    last = len(found.calls)
    known = sum(_has_known_size(strip) for strip in found.strips)
    total = f"{len(found.strips)} pieces of memory, {found.bytes(sizes):,} bytes together"
    told = f"{total}; {known} of them planned with a size known before the call"
    named = last <= NAMED
    heads = "".join(
        f"<span{step_attribute(call)}>{html.escape(kernel) if named else ''}</span>"
        for call, kernel in enumerate(found.calls, 1)
    )
    rows = "".join(_row(strip, sizes, scale, last, named) for strip in found.strips)
    label = f"{name}: {told}. {' '.join(map(_list_lives, found.strips))}"
    body = (
        f'<p class="sl-total">{told}</p><div class="sl" role="img" aria-label="{html.escape(label)}" '
        f'style="--calls:{last}"><div class="sl-calls">{heads}</div>{rows}</div>'
    )
    return Panel(name, [_describe_call(found, sizes, call) for call in range(last + 1)], body)


def _has_known_size(strip: Strip) -> bool:
    """Whether the planner made it, with a size that it knew."""
    return bool(strip.number) and isinstance(strip.size, int)


def _row(strip: Strip, sizes: Mapping[str, int], scale: float, last: int, named: bool) -> str:
    whole = evaluate(strip.size, sizes)
    bars = []
    for life in strip.lives:
        marks = [
            "later" if call < life.first else "now" if call <= life.last else "past"
            for call in range(last + 1)
        ]
        share = 100 * evaluate(life.size, sizes) / whole
        name = html.escape(life.name) if named else ""
        place = f"grid-column:{life.first}/{min(life.last, last) + 1};height:{share:.4g}%"
        bars.append(f'<i style="{place}"{attributes(marks=marks)}>{name}</i>')
    kind = "sl-strip sl-known" if _has_known_size(strip) else "sl-strip"
    size = f"{whole:,}" if isinstance(strip.size, int) else f"{format_size(strip.size)} = {whole:,}"
    return (
        f'<p class="sl-name"><b>{html.escape(_name_strip(strip))}</b> {html.escape(size)} bytes</p>'
        f'<div class="{kind}" style="height:{whole * scale:.1f}px">{"".join(bars)}</div>'
    )


def _name_strip(strip: Strip) -> str:
    return f"storage {strip.number}" if strip.number else f"{strip.lives[0]}, at run time"


def _list_lives(strip: Strip) -> str:
    lives = ", ".join(f"{one} from call {one.first}" for one in strip.lives)
    return f"{_name_strip(strip)}: {lives}."


def _describe_call(found: Lifetimes, sizes: Mapping[str, int], call: int) -> str:
    if not call:
        return "no kernel has been called"
    written = [_describe_write(strip, call) for strip in found.strips]
    what = " and ".join(filter(None, written)) or "needs no new tensor"
    use = f"{found.in_use(call, sizes):,} of {found.bytes(sizes):,} bytes hold tensors"
    return f"{found.calls[call - 1]} {what}; {use}"


def _describe_write(strip: Strip, call: int) -> str:
    """What the call with this number writes into the strip, "" if nothing."""
    for before, life in zip([None, *strip.lives], strip.lives, strict=False):
        if life.first == call:
            where = f"storage {strip.number}" if strip.number else "memory allocated for it"
            after = f", where {before} was" if before else ""
            return f"writes {life.name or 'its result'} into {where}{after}"
    return ""
