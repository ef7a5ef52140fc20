"""Points and lines over two axes, as the inside of an SVG."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chapters.toolkit.pages.plots.figure import legend, marker, text
from chapters.toolkit.pages.plots.scale import Scale, around

WIDTH, HEIGHT = 680, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 14, 46


@dataclass(frozen=True)
class Series:
    """Points (x, y), joined by a line or not."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True


@dataclass(frozen=True)
class Guide:
    """A line that is no measurement of a series, such as a ceiling, with its words above the point `at`."""

    points: Sequence[tuple[float, float]]
    words: str
    at: tuple[float, float]
    anchor: str = "start"


@dataclass(frozen=True)
class Axis:
    """words: what is on it, with its unit. shown: a tick's number as text. values: also to be within it."""

    words: str
    shown: Callable[[float], str]
    log: bool = False
    values: Sequence[float] = ()


def chart(
    x: Axis, y: Axis, series: Sequence[Series], guides: Sequence[Guide] = ()
) -> tuple[str, tuple[int, int]]:
    """(the drawing, its size). Raises ValueError where there is no point to draw."""
    points = [point for one in series for point in one.points]
    across = around([p[0] for p in points] + list(x.values), LEFT, WIDTH - RIGHT, x.log)
    bottom = HEIGHT - BOTTOM
    up = around([p[1] for p in points] + list(y.values), bottom, TOP, y.log)
    parts = [_axes(x, y, across, up)]
    for guide in guides:
        parts.append(f'<path class="guide" d="{_path(guide.points, across, up)}"/>')
        at = across.place(guide.at[0]), up.place(guide.at[1]) - 7
        parts.append(text(*at, guide.words, anchor=guide.anchor))
    for kind, one in enumerate(series):
        if one.joined and len(one.points) > 1:
            path = _path(one.points, across, up)
            parts.append(f'<path class="line s{kind % 8}" d="{path}"/>')
        parts += [marker(kind, across.place(px), up.place(py)) for px, py in one.points]
    names, height = legend([one.name for one in series], LEFT, HEIGHT + 8, WIDTH - LEFT - RIGHT)
    return "".join([*parts, names]), (WIDTH, int(HEIGHT + height))


def _path(points: Sequence[tuple[float, float]], across: Scale, up: Scale) -> str:
    return "M" + "L".join(f"{across.place(px):.1f} {up.place(py):.1f}" for px, py in points)


def _axes(x: Axis, y: Axis, across: Scale, up: Scale) -> str:
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    parts = []
    for tick in across.ticks():
        at = across.place(tick)
        parts.append(f'<path class="grid" d="M{at:.1f} {top}V{bottom}"/>')
        parts.append(text(at, bottom + 17, x.shown(tick), anchor="middle"))
    for tick in up.ticks():
        at = up.place(tick)
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
        parts.append(text(left - 7, at + 4, y.shown(tick), anchor="end"))
    parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
    parts.append(text((left + right) / 2, bottom + 37, x.words, anchor="middle", small=False))
    middle = (top + bottom) / 2
    parts.append(
        f'<text transform="translate(15 {middle:.1f}) rotate(-90)" text-anchor="middle">{html.escape(y.words)}</text>'
    )
    return "".join(parts)
