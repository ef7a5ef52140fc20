"""Two programs that compute the same sums, run side by side, with counters of their loads and stores.

`accumulators({"name": schedule, …})` runs each program in Python, with its sums in a local buffer: the accumulator.
Each picture counts the loads and stores of the other buffers as they happen.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from chapters.kit.draw.stepper import Panel, Stepper, render_changing
from chapters.kit.draw.table import count_noun
from chapters.kit.draw.trace_stores import Access, Store, execute, make_ones

ACCUMULATOR = "local"  # the scope of the buffer that holds the sums


def with_accumulator(sch: Schedule) -> tirx.PrimFunc:
    """The program with the sums of `matmul` in a local buffer, which is stored when a sum is done. `sch` is kept."""
    sch = Schedule(sch.mod)
    last = sch.get_loops("matmul")[-2]
    copy = sch.cache_write("matmul", 0, ACCUMULATOR)
    sch.reverse_compute_at(copy, last)
    return sch.mod["main"]


def example_arrays(func: tirx.PrimFunc) -> dict[str, np.ndarray]:
    """Small integers other than 0 for the arguments of `func`, always the same."""
    random = np.random.default_rng(6)
    digits = [n for n in range(-4, 5) if n]
    return {
        name: random.choice(digits, array.shape).astype(array.dtype)
        for name, array in make_ones(func).items()
    }


def count_accesses(stores: Sequence[Store]) -> tuple[int, int]:
    """How many elements the stores read from memory, and how many they write to it; the accumulator is not memory."""
    reads = sum(read.scope != ACCUMULATOR for store in stores for read in store.reads)
    return reads, sum(store.wrote.scope != ACCUMULATOR for store in stores)


def accumulators(programs: Mapping[str, Schedule]) -> Stepper:
    """A picture of the programs running side by side. They must have the same arguments, and small constant sizes."""
    funcs = {name: with_accumulator(sch) for name, sch in programs.items()}
    arrays = example_arrays(next(iter(funcs.values())))
    runs = {name: execute(func, arrays) for name, func in funcs.items()}
    longest = max(map(len, runs.values()))
    outputs = {run[-1].wrote.buffer for run in runs.values()}
    inputs = {name: array for name, array in arrays.items() if name not in outputs}
    sides = "".join(_side(name, run, inputs, longest) for name, run in runs.items())
    label = "One program beside the other, with what each reads and writes"
    says = [_describe_step(runs, step) for step in range(longest + 1)]
    body = f'<div class="acc-sides">{sides}</div>'
    caption = (
        "Blue: loaded from memory. Orange: stored to memory. "
        "The accumulator is a register, and is not counted."
    )
    return Stepper(label, [Panel("Both programs", says, body)], "accumulators", caption=caption)


def _describe_step(runs: Mapping[str, Sequence[Store]], step: int) -> str:
    parts = []
    for name, run in runs.items():
        reads, writes = count_accesses(run[:step])
        done = ", finished" if step >= len(run) else ""
        parts.append(
            f"{name.lower()}: {count_noun(reads, 'load')}, {count_noun(writes, 'store')}{done}"
        )
    return "; ".join(parts)


def _side(name: str, run: Sequence[Store], inputs: Mapping[str, np.ndarray], steps: int) -> str:
    """The HTML of one program: the store that happens, the accumulator, the counters, the memory."""
    padded = [None, *run, *[None] * (steps - len(run))]  # None: nothing happens
    lines = ["not begun", *map(_describe_store, padded[1:])]
    held = _list_held(padded)
    totals = [count_accesses(run[:step]) for step in range(steps + 1)]
    kinds = ["" if s is None else "now" if s.wrote.scope == ACCUMULATOR else "" for s in padded]
    shapes = {name: array.shape for name, array in inputs.items()}
    for store in run:
        if store.wrote.scope != ACCUMULATOR:
            top = shapes.get(store.wrote.buffer, (0,) * len(store.wrote.index))
            shapes[store.wrote.buffer] = tuple(
                max(a, b + 1) for a, b in zip(top, store.wrote.index, strict=True)
            )
    grids = "".join(_grid(one, shape, padded, inputs.get(one)) for one, shape in shapes.items())
    return (
        f'<div class="acc-side"><p class="acc-title">{html.escape(name)}</p>'
        f'<p class="acc-held">accumulator {render_changing("b", "acc-value", held, kinds)}</p>'
        f"{render_changing('p', 'acc-line', lines)}"
        f'<p class="acc-counts"><span>{render_changing("b", "acc-read", [r for r, _ in totals])} loads</span> '
        f"<span>{render_changing('b', 'acc-written', [w for _, w in totals])} stores</span></p>"
        f'<div class="acc-memory">{grids}</div></div>'
    )


def _describe_store(store: Store | None) -> str:
    if store is None:
        return "finished"
    target = _shorten_name(store.wrote)
    text = store.text
    for read in store.reads:
        text = text.replace(read.name, _shorten_name(read))
    return f"{'second pass: ' * _second_pass(store)}{target} ← {text}"


def _second_pass(store: Store) -> bool:
    """Whether the store leaves the accumulator alone, so that it belongs to a pass over finished sums."""
    return all(access.scope != ACCUMULATOR for access in (store.wrote, *store.reads))


def _shorten_name(access: Access) -> str:
    return "accumulator" if access.scope == ACCUMULATOR else access.name


def _list_held(padded: Sequence[Store | None]) -> list[str]:
    """The value in the accumulator after each step; "–" before the first and when its sum has been stored."""
    held, shown = "–", []
    for store in padded:
        if store is not None:
            held = str(store.wrote.value) if store.wrote.scope == ACCUMULATOR else "–"
        shown.append(held)
    return shown


def _grid(
    name: str, shape: Sequence[int], padded: Sequence[Store | None], array: np.ndarray | None
) -> str:
    """The HTML of a buffer's elements: their values, and a mark where one is read or written."""
    cells = []
    for index in np.ndindex(*shape):
        value = "·" if array is None else str(array[index].item())
        texts, marks = [], []
        for store in padded:
            mark = ""
            if store is not None:
                if any((r.buffer, r.index) == (name, index) for r in store.reads):
                    mark = "read"
                if (store.wrote.buffer, store.wrote.index) == (name, index):
                    mark, value = "written", str(store.wrote.value)
            texts.append(value)
            marks.append(mark)
        changed = texts if len(set(texts)) > 1 else texts[:1]
        cells.append(render_changing("i", "step-cell", changed, marks))
    label = f"{name}, {shape[0]} rows of {shape[-1]}"
    return (
        f'<div class="acc-buffer"><span>{html.escape(name)}</span>'
        f'<div class="acc-cells" role="img" aria-label="{html.escape(label)}" '
        f'style="--columns:{shape[-1]}">{"".join(cells)}</div></div>'
    )
