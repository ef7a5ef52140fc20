"""Bytes a second over bytes moved: where a kernel that waits for memory stops waiting for its launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chapters.toolkit.pages.plots.chart import Axis, Guide, Series, chart
from chapters.toolkit.pages.plots.figure import Figure
from chapters.toolkit.pages.plots.scale import si
from chapters.toolkit.table import Table


@dataclass(frozen=True)
class Case:
    """One size: the bytes that must move, and the median seconds by implementation."""

    name: str
    bytes: int
    seconds: Mapping[str, float]


def bandwidth(cases: Sequence[Case], copy_rate: float, title: str, bound: str = "copy") -> Figure:
    """The plot, with a table of each implementation's share of `bound`, the copy measured beside it.

    Raises ValueError where there is no case.
    """
    cases = sorted(cases, key=lambda case: case.bytes)
    names = list(dict.fromkeys(name for case in cases for name in case.seconds))
    series = [
        Series(name, [(c.bytes, c.bytes / c.seconds[name]) for c in cases if name in c.seconds])
        for name in names
    ]
    ends = [case.bytes for case in cases]
    guide = Guide(
        [(min(ends) / 1.6, copy_rate), (max(ends) * 1.6, copy_rate)],
        f"a large copy: {si(copy_rate, 'B/s')}",
        (min(ends) / 1.5, copy_rate),
    )
    x = Axis("bytes that must move", lambda t: si(t, "B"), log=True)
    y = Axis("bytes a second", lambda t: si(t, "B/s"), values=[1.05 * copy_rate])
    drawing, size = chart(x, y, series, [guide])
    others = [name for name in names if name != bound]
    rows = []
    for case in cases:
        reference = case.seconds.get(bound)
        shares = [
            f"{reference / case.seconds[name]:.0%}" if reference and name in case.seconds else "–"
            for name in others
        ]
        rows.append((case.name, si(case.bytes, "B"), *shares))
    caption = f"The table gives shares of the speed of {bound}, measured at the same size in the same rounds."
    return Figure(drawing, size, title, caption, Table(("case", "moves", *others), rows))
