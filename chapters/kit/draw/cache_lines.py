"""Memory as the cache sees it: the order of a kernel's reads, with the cache lines that it fetches.

`cache_lines(orders)` draws the buffers of several read orders side by side. The cache is a model: it holds `kept` lines
of `line` elements each, and drops the line that has not been used for longest.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from chapters.kit.draw.read_order import ReadOrder
from chapters.kit.draw.stepper import Panel, Stepper, attributes, render_changing, step_attribute
from chapters.kit.draw.table import count_noun


def run_cache(reads: Sequence[int], line: int, kept: int) -> list[tuple[bool, tuple[int, ...]]]:
    """For each read of an element: whether its line had to be fetched, and the lines that the cache then holds."""
    held: list[int] = []  # the one used last stands last
    found = []
    for read in reads:
        wanted = read // line
        missing = wanted not in held
        held = [*(one for one in held if one != wanted), wanted][-kept:]
        found.append((missing, tuple(held)))
    return found


def cache_lines(orders: Sequence[ReadOrder], line: int = 4, kept: int = 4) -> Stepper:
    """The picture. The buffers are matrices; a row must be a whole number of lines. Raises ValueError if it is not."""
    for order in orders:
        if order.shape[-1] % line:
            raise ValueError(f"A row of {order.buffer} is no multiple of {line} elements.")
    runs = [(order, run_cache(order.reads, line, kept)) for order in orders]
    last = max(len(order.reads) for order in orders)
    says = ["nothing has been read", *(_describe_step(runs, step) for step in range(1, last + 1))]
    sides = "".join(_side(order, run, line) for order, run in runs)
    caption = (
        f"A box is a cache line of {line} elements. The cache of this picture holds {kept} lines: blue, and orange if "
        "the line has just been fetched. Real ones are larger: usually 64 bytes per line, and hundreds of lines."
    )
    panel = Panel("Reads", says, f'<div class="acc-sides">{sides}</div>')
    label = "The cache lines that two kernels fetch"
    return Stepper(label, [panel], "cache-lines", start=6, caption=caption)


def _describe_step(runs: Sequence[tuple[ReadOrder, Sequence]], step: int) -> str:
    parts = []
    for order, run in runs:
        count = sum(missing for missing, _ in run[:step])
        parts.append(f"{order.title}: {count_noun(count, 'line')} fetched")
    return "; ".join(parts)


def _side(order: ReadOrder, run: Sequence[tuple[bool, tuple[int, ...]]], line: int) -> str:
    counts = [0]
    for missing, _ in run:
        counts.append(counts[-1] + missing)
    at = {flat: number for number, flat in enumerate(order.reads, 1)}
    boxes = []
    for number in range(max(order.reads) // line + 1):
        marks = [""]
        for read, (missing, held) in zip(order.reads, run, strict=True):
            new = missing and read // line == number
            marks.append("new" if new else "held" if number in held else "")
        cells = "".join(
            f'<i class="cl-cell"{step_attribute(at[flat])}>{flat}</i>'
            for flat in range(number * line, (number + 1) * line)
        )
        boxes.append(f'<span class="cl-line"{attributes(marks=marks)}>{cells}</span>')
    name = f"{order.buffer}, {' × '.join(map(str, order.shape))} elements, in the order in which they are stored"
    reads = render_changing("b", "acc-read", range(len(order.reads) + 1))
    return (
        f'<div class="acc-side"><p class="acc-title">{html.escape(order.title)}</p>'
        f'<p class="acc-counts"><span>{reads} reads of {html.escape(order.buffer)}</span> '
        f"<span>{render_changing('b', 'acc-written', counts)} lines fetched</span></p>"
        f'<div class="cl-lines" role="img" aria-label="{html.escape(name)}" '
        f'style="--lines:{order.shape[-1] // line}">{"".join(boxes)}</div></div>'
    )
