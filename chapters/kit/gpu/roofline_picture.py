"""The roofline of a GPU, and a slider for the rows of a linear layer: from bound by memory to bound by arithmetic.

`roofline_picture(layers)` computes every point from the operations and bytes of a layer and the rates of a data sheet.
Nothing is measured.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chapters.kit.draw.drawing import label, svg
from chapters.kit.draw.stepper import Panel, Stepper, step_attribute
from chapters.kit.draw.table import count_noun, format_si
from chapters.kit.gpu.gpus import BOARDS, Board

SHOWN = ("H100 SXM", "H200", "B200", "A100 SXM 40 GB", "RTX 4090", "T4")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 256, 44, 36, 18  # pixels
INTENSITIES, RATES = (
    (0.5, 4096.0),
    (1e11, 4e15),
)  # ends of the axes: operations per byte, per second


@dataclass(frozen=True)
class Bound:
    """What a data sheet allows a layer. intensity: operations per byte; rate, peak: operations per second."""

    intensity: float
    seconds: float
    rate: float
    peak: float
    by_memory: bool


def compute_bound(operations: int, moved: int, board: Board) -> Bound:
    """The roofline: no layer takes less time than its bytes, or its operations, at the board's rates."""
    loading, computing = moved / board.bandwidth, operations / board.tensor
    seconds, by_memory = max(loading, computing), loading >= computing
    rate = operations / seconds
    return Bound(operations / moved, seconds, rate, board.tensor, by_memory)


def roofline_picture(layers: Mapping[int, tuple[int, int]]) -> Stepper:
    """The picture: a panel per board. layers: rows -> (operations, bytes moved)."""
    panels = []
    for name in SHOWN:
        board = BOARDS[name]
        bounds = [compute_bound(*work, board) for work in layers.values()]
        panels.append(_make_panel(board, list(layers), bounds))
    dials = {"Rows of x": list(map(str, layers))}
    caption = (
        "Computed from sizes and data sheets; no GPU was measured. No kernel can be above the lines. Small points: the "
        "other numbers of rows."
    )
    title = f"The roofline of a GPU, and a linear layer of {min(layers)} to {max(layers)} rows"
    return Stepper(title, panels, "roofline", asks="GPU", caption=caption, dials=dials)


def _make_panel(board: Board, rows: Sequence[int], bounds: Sequence[Bound]) -> Panel:
    says = [_describe_bound(one) for one in bounds]
    peak = f"{board.tensor / 1e12:.3g} · 10¹² float16 operations per second"
    source = (
        f'<p class="stepper-caption">Ceilings: {format_si(board.bandwidth, "B/s")} and {peak} '
        f"({html.escape(board.source)})</p>"
    )
    return Panel(board.name, says, _draw_plot(board, rows, bounds) + source)


def _describe_bound(one: Bound) -> str:
    return (
        f"{one.intensity:,.1f} operations per byte; at most {one.rate / 1e12:.3g} · 10¹² per second, "
        f"{100 * one.rate / one.peak:.3g} % of the peak; at least {format_si(one.seconds, 's')}. "
        f"Limited by {'memory' if one.by_memory else 'arithmetic'}."
    )


def _x(intensity: float) -> float:
    return round(LEFT + _position_on_axis(intensity, INTENSITIES) * (WIDTH - LEFT - 18), 1)


def _y(rate: float) -> float:
    return round(HEIGHT - BOTTOM - _position_on_axis(rate, RATES) * (HEIGHT - BOTTOM - TOP), 1)


def _position_on_axis(value: float, ends: tuple[float, float]) -> float:
    """Where a value is on a logarithmic axis, 0 to 1."""
    low, high = map(math.log, ends)
    return (math.log(value) - low) / (high - low)


def _draw_plot(board: Board, rows: Sequence[int], bounds: Sequence[Bound]) -> str:
    floor, right = HEIGHT - BOTTOM, _x(INTENSITIES[1])
    shapes = [label(LEFT - 36, TOP - 4, "operations per second", "start")]
    for power in range(12, 16):
        y = _y(10**power)
        shapes.append(f'<path class="rule" d="M{LEFT} {y}H{right}"/>')
        shapes.append(label(LEFT - 5, y + 4, f"10¹{'²³⁴⁵'[power - 12]}", "end"))
    for intensity in (1, 4, 16, 64, 256, 1024, 4096):
        x = _x(intensity)
        shapes.append(f'<path class="rule" d="M{x} {TOP}V{floor}"/>')
        shapes.append(label(x, floor + 14, intensity))
    shapes.append(label((LEFT + right) / 2, HEIGHT - 4, "operations per byte"))
    ridge = board.tensor / board.bandwidth
    corner, low, high = _x(ridge), _y(INTENSITIES[0] * board.bandwidth), _y(board.tensor)
    shapes.append(f'<path class="rf-memory" d="M{LEFT} {low}L{corner} {high}"/>')
    shapes.append(f'<path class="rf-peak" d="M{corner} {high}H{right}"/>')
    shapes.append(f'<path class="rf-ridge" d="M{corner} {high}V{floor}"/>')
    shapes.append(label(corner + 4, floor - 5, f"{ridge:.0f}", "start"))
    for step, (count, one) in enumerate(zip(rows, bounds, strict=True)):
        x, y, at = _x(one.intensity), _y(one.rate), step_attribute(step)
        kind = "rf-by-memory" if one.by_memory else "rf-by-peak"
        shapes.append(f'<circle class="rf-point {kind}" cx="{x}" cy="{y}" r="3"{at}/>')
        anchor, away = ("end", 6) if x > WIDTH - 90 else ("start", 8)
        more = f' class="strong"{at}'
        shapes.append(label(x + away, y + 18, count_noun(count, "row"), anchor, more))
    title = f"The roofline of {board.name}; its peak begins at {ridge:.0f} operations per byte"
    return svg("rf", WIDTH, HEIGHT, title, shapes)
