"""The roofline: operations a second over operations a byte, beneath the two ceilings of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chapters.toolkit.bench.gpu_ceilings import Ceilings
from chapters.toolkit.pages.plots.chart import Axis, Guide, Series, chart
from chapters.toolkit.pages.plots.figure import Figure
from chapters.toolkit.pages.plots.scale import si
from chapters.toolkit.table import Table


@dataclass(frozen=True)
class Point:
    """A kernel on a case: operations and bytes it cannot do without, and the seconds it took.

    group: whose it is, which gives it its mark. name: its own, for the table.
    """

    group: str
    name: str
    case: str
    operations: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    def share(self, ceilings: Ceilings) -> float:
        """Of the speed that the ceilings allow at this intensity."""
        return ceilings.floor(self.bytes, self.operations) / self.seconds


def roofline(points: Sequence[Point], ceilings: Ceilings, machine: str = "") -> Figure:
    """The plot with a table of all points. Raises ValueError where there is none."""
    if not points:
        raise ValueError("There is no kernel to draw beneath the roofline.")
    groups = list(dict.fromkeys(point.group for point in points))
    series = [
        Series(g, [(p.intensity, p.rate) for p in points if p.group == g], joined=False)
        for g in groups
    ]
    low = min([p.intensity for p in points] + [ceilings.ridge]) / 1.6
    high = max([p.intensity for p in points] + [ceilings.ridge]) * 4
    slope = [(low, low * ceilings.copy_rate), (ceilings.ridge, ceilings.matrix_rate)]
    flat = [(ceilings.ridge, ceilings.matrix_rate), (high, ceilings.matrix_rate)]
    guides = [
        Guide(slope, f"memory: {si(ceilings.copy_rate, 'B/s')} ", _middle(slope), "end"),
        Guide(flat, f"tensor cores: {si(ceilings.matrix_rate, 'FLOP/s')}", flat[1], "end"),
    ]
    x = Axis("operations a byte", lambda t: f"{t:g}", log=True, values=[low * 1.6, high / 1.6])
    y = Axis(
        "operations a second",
        lambda t: si(t, ""),
        log=True,
        values=[low * ceilings.copy_rate, ceilings.matrix_rate * 1.3],
    )
    drawing, size = chart(x, y, series, guides)
    rows = []
    for case in dict.fromkeys(p.case for p in points):
        here = {p.group: p for p in points if p.case == case}
        cells = [_cell(here[g], ceilings) if g in here else "–" for g in groups]
        rows.append((case, f"{next(iter(here.values())).intensity:.3g}", *cells))
    head = ("case", "operations a byte", *groups)
    caption = (
        "Left of the corner memory decides, right of it arithmetic; both ceilings were measured in the same run. "
        "The table gives shares of the speed that the ceilings allow."
    )
    return Figure(
        drawing, size, f"Roofline{f' of {machine}' if machine else ''}", caption, Table(head, rows)
    )


def _cell(point: Point, ceilings: Ceilings) -> str:
    return f"{point.share(ceilings):.0%}, {point.name}"


def _middle(line: Sequence[tuple[float, float]]) -> tuple[float, float]:
    (x0, y0), (x1, y1) = line
    return (x0 * x1) ** 0.5, (y0 * y1) ** 0.5


def best_of(seconds: dict[str, dict], names: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of those of `names` that were measured, and its median; None if none was."""
    found = [(seconds[name]["median"], name) for name in names if name in seconds]
    if not found:
        return None
    median, name = min(found)
    return name, median
