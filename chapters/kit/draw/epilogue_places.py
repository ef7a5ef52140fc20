"""An epilogue applied at three places: once when a sum is done, before its first step, and after every step.

`draw_epilogue_places(epilogues, steps)` computes with NumPy what each gives after 0, 1, 2, … steps, and draws three
curves, with a table of their values. The first curve is what the unfused program computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chapters.kit.draw.drawing import label, svg
from chapters.kit.draw.stepper import Panel, Stepper, step_attribute, table_row

PLACES = {"end": "at the end", "start": "at the start", "every": "at every step"}
WIDTH, HEIGHT, LEFT, BOTTOM = 420, 220, 34, 24  # pixels of the plot, and of its margins
MARK = 4.5  # half the size of a point


@dataclass(frozen=True)
class Epilogue:
    """An epilogue f, and the reduction before it: it starts from `init`, and takes a step with `step`."""

    name: str
    f: Callable[[np.ndarray], np.ndarray]
    step: np.ufunc = np.add
    init: int = 0


def compute_curves(epilogue: Epilogue, steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Place -> the results after 0, 1, 2, … of the steps, with f applied there."""
    taken = np.array([epilogue.init, *steps])
    totals = epilogue.step.accumulate(taken)
    begun = epilogue.f(np.array([epilogue.init]))
    start = epilogue.step.accumulate(np.concatenate([begun, steps]))
    every = [begun]
    for x in steps:
        every.append(epilogue.f(epilogue.step(every[-1], x)))
    return {"end": epilogue.f(totals), "start": start, "every": np.concatenate(every)}


def draw_epilogue_places(epilogues: Sequence[Epilogue], steps: Sequence[int]) -> Stepper:
    """The picture: one panel per epilogue, with a slider over the steps."""
    panels = [_make_panel(epilogue, steps) for epilogue in epilogues]
    caption = "Thick line: at the end, which is what the unfused program computes. Marked cells differ from it."
    title = "An epilogue applied at the end, at the start and at every step"
    return Stepper(title, panels, "applied", start=2, asks="Epilogue", caption=caption)


def _make_panel(epilogue: Epilogue, steps: Sequence[int]) -> Panel:
    found = compute_curves(epilogue, steps)
    says = [_describe_step(found, k) for k in range(len(steps) + 1)]
    legend = "".join(
        f'<span class="ap-{place}"><svg viewBox="0 0 30 12" aria-hidden="true">'
        f'<path class="ap-line" d="M0 6H30"/>{_draw_mark(place, 15, 6)}</svg> {words}</span>'
        for place, words in PLACES.items()
    )
    table = _render_table(epilogue, steps, found)
    return Panel(
        epilogue.name,
        says,
        f'<p class="ap-legend">{legend}</p>{_draw_plot(epilogue.name, found)}{table}',
    )


def _describe_step(found: dict[str, np.ndarray], k: int) -> str:
    values = ", ".join(f"{words} {found[place][k]}" for place, words in PLACES.items())
    wrong = [words for place, words in PLACES.items() if found[place][k] != found["end"][k]]
    verdict = f"wrong {' and '.join(wrong)}" if wrong else "all agree"
    return f"{values} – {verdict}"


def _draw_plot(name: str, found: dict[str, np.ndarray]) -> str:
    count = len(found["end"])
    low = min(0, *(int(values.min()) for values in found.values()))
    high = max(0, *(int(values.max()) for values in found.values()))
    space = 10
    across, up = WIDTH - LEFT - 2 * space, HEIGHT - BOTTOM - 2 * space

    def x(k: float) -> float:
        return round(LEFT + space + k * across / (count - 1), 1)

    def y(value: float) -> float:
        return round(space + (high - value) * up / (high - low), 1)

    shapes = []
    tick = next(t for t in (1, 2, 5, 10, 20, 50) if (high - low) / t <= 6)
    for value in range(math.ceil(low / tick) * tick, high + 1, tick):
        kind = "ap-zero" if value == 0 else "rule"
        shapes.append(f'<path class="{kind}" d="M{LEFT} {y(value)}H{WIDTH}"/>')
        shapes.append(label(LEFT - 5, y(value) + 4, value, "end"))
    for k in range(count):
        shapes.append(label(x(k), HEIGHT - 7, k))
        shapes.append(f'<path class="ap-now" d="M{x(k)} 0V{HEIGHT - BOTTOM}"{step_attribute(k)}/>')
    for place, values in found.items():
        parts = []
        for k in range(count):
            if k:
                line = f"M{x(k - 1)} {y(values[k - 1])}L{x(k)} {y(values[k])}"
                parts.append(f'<path class="ap-line" d="{line}"{step_attribute(k)}/>')
            parts.append(_draw_mark(place, x(k), y(values[k]), step_attribute(k)))
        shapes.append(f'<g class="ap-{place}">{"".join(parts)}</g>')
    title = f"{name}: the results after 0 to {count - 1} steps, as in the table below"
    return svg("ap", WIDTH, HEIGHT, title, shapes)


def _draw_mark(place: str, x: float, y: float, shown: str = "") -> str:
    """A point of a curve; each place has a shape of its own."""
    m = MARK
    paths = {
        "end": f"M{x - m - 1} {y - m - 1}h{2 * m + 2}v{2 * m + 2}h-{2 * m + 2}z",
        "start": f"M{x - m} {y}a{m} {m} 0 1 0 {2 * m} 0a{m} {m} 0 1 0 -{2 * m} 0",
        "every": f"M{x} {y - m}l{m} {2 * m - 1}h-{2 * m}z",
    }
    return f'<path class="ap-point" d="{paths[place]}"{shown}/>'


def _render_table(epilogue: Epilogue, steps: Sequence[int], found: dict[str, np.ndarray]) -> str:
    rows = [table_row("step", ["", *steps])]
    for place, words in PLACES.items():
        off = np.flatnonzero(found[place] != found["end"])
        rows.append(table_row(words, found[place], f"ap-{place}", off))
    heads = "".join(f'<th scope="col">{k}</th>' for k in range(len(steps) + 1))
    return (
        f'<table class="step-table"><caption>The reduction starts from {epilogue.init}. '
        f"The results after k steps:</caption>"
        f'<thead><tr><th scope="col">k</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
