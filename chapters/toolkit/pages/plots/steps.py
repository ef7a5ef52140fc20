"""What each step of a schedule is worth: one bar a step, in the order in which they were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chapters.toolkit.pages.plots.bars import Bar, bars
from chapters.toolkit.pages.plots.figure import Figure
from chapters.toolkit.pages.plots.scale import si
from chapters.toolkit.table import Table


@dataclass(frozen=True)
class Step:
    """A kernel after one more step: median and quartiles of its seconds."""

    name: str
    median: float
    low: float
    high: float


def steps(
    taken: Sequence[Step],
    work: float,
    unit: str,
    title: str,
    limit: tuple[float, str] | None = None,
) -> Figure:
    """Bars of `work` over seconds, such as FLOP/s. limit: a speed to compare with and its name.

    Raises ValueError where there is no step.
    """
    entries = [
        Bar(
            s.name,
            work / s.median,
            si(work / s.median, unit),
            work / s.high,
            work / s.low,
            number % 8,
        )
        for number, s in enumerate(taken)
    ]
    drawing, size = bars(entries, f"{unit}, more is better", limit)
    rows = []
    for number, step in enumerate(taken):
        before = f"{taken[number - 1].median / step.median:.2f}×" if number else "–"
        share = f"{work / step.median / limit[0]:.0%}" if limit else "–"
        rows.append(
            (step.name, f"{si(step.median, 's')}", si(work / step.median, unit), before, share)
        )
    head = (
        "step",
        "time",
        "speed",
        "times the one before",
        f"of {limit[1]}" if limit else "of the limit",
    )
    caption = "A bar ends at the median; its thin line spans the middle half of the rounds."
    return Figure(drawing, size, title, caption, Table(head, rows))
