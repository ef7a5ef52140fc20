"""Horizontal bars, one a name, with the value written at the end of each: as the inside of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chapters.toolkit.pages.plots.figure import text
from chapters.toolkit.pages.plots.scale import around

WIDTH, ROW, TOP = 680, 30, 8


@dataclass(frozen=True)
class Bar:
    """low and high: where half of the measurements lie. kind: the colour's number."""

    name: str
    value: float
    words: str
    low: float | None = None
    high: float | None = None
    kind: int = 0


def bars(
    entries: Sequence[Bar], words: str, guide: tuple[float, str] | None = None
) -> tuple[str, tuple[int, int]]:
    """(the drawing, its size). guide: a value to compare with, and what it is. Raises ValueError for no entries."""
    left = 24 + max((6.4 * len(entry.name) for entry in entries), default=0)
    values = [max(entry.value, entry.high or 0) for entry in entries]
    across = around(values + ([guide[0]] if guide else []), left, WIDTH - 96)
    bottom = TOP + ROW * len(entries)
    parts = []
    for number, entry in enumerate(entries):
        middle = TOP + ROW * number + ROW / 2
        end = across.place(entry.value)
        parts.append(text(left - 8, middle + 4, entry.name, anchor="end"))
        parts.append(
            f'<rect class="fill s{entry.kind}" stroke="none" x="{left:.1f}" y="{middle - 9:.1f}" '
            f'width="{max(end - left, 0.5):.1f}" height="18"/>'
        )
        if entry.low is not None and entry.high is not None:
            low, high = across.place(entry.low), across.place(entry.high)
            parts.append(f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
            end = max(end, high)
        parts.append(text(end + 6, middle + 4, entry.words))
    parts.append(f'<path class="axis" d="M{left:.1f} {TOP}V{bottom}"/>')
    if guide:
        at = across.place(guide[0])
        parts.append(f'<path class="guide" d="M{at:.1f} {TOP}V{bottom + 4}"/>')
        parts.append(text(at, bottom + 18, guide[1], anchor="end"))
        bottom += 16
    parts.append(text(left, bottom + 20, words, small=False))
    return "".join(parts), (WIDTH, int(bottom + 30))
