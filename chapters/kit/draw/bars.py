"""Horizontal bars with one scale: text in a terminal, HTML on a page or in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from chapters.kit.draw.drawing import Drawing
from chapters.kit.draw.table import Html, align, as_text

COLUMNS = 40  # of the longest bar in a terminal
STYLE = """
figure.course-bars { width: auto; max-width: 42rem; margin: 0; text-align: left; }
.course-bars figcaption { max-width: none; margin: 0 0 .3rem; font-style: normal; font-weight: 600; }
.course-bars > ul:not([hidden]) { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .6rem;
  margin: 0; padding: 0; list-style: none; }
.course-bars > ul > li:not([hidden]) { display: grid; grid-template-columns: subgrid; grid-column: 1 / -1;
  align-items: center; margin: 0; font-variant-numeric: tabular-nums; }
.course-bars i { position: relative; display: block; height: .85rem; width: max(calc(var(--w) * 100%), .1rem);
  background: color-mix(in srgb, currentColor 40%, transparent); border-radius: .1rem; }
.course-bars .ours i { background: var(--md-code-hl-color, #4a6ee0); }
.course-bars .ours { font-weight: 600; }
.course-bars i[style*="--m"]::after { content: ""; position: absolute; top: -.15rem; bottom: -.15rem;
  left: calc(var(--m) * 100%); border-left: .12rem solid currentColor; }
.course-bars p { max-width: 70ch; margin: .4rem 0 0; color: var(--course-muted, inherit); }
.course-bars :is(figcaption, li) { font-size: .72rem; }
.course-bars p { font-size: .66rem; }
"""


@dataclass(frozen=True)
class Bar:
    """value: its length, not negative. words: what stands at its end. ours: draws it in colour.

    mark: a value at which a line crosses the bar, or stands behind its end.
    """

    name: str
    value: float
    words: str
    ours: bool = False
    mark: float | None = None


@dataclass(frozen=True, repr=False)
class Bars(Drawing):
    """`bars` below a title, and a note below them, which is text, or Html."""

    title: str
    bars: Sequence[Bar]
    note: str = ""
    STYLE, GROUP = STYLE, "bars"

    @property
    def longest(self) -> float:
        return max(max(bar.value, bar.mark or 0) for bar in self.bars)

    def __str__(self) -> str:
        rows = [(bar.name, self._drawn(bar), bar.words) for bar in self.bars]
        return "\n".join(
            [self.title, *align(rows, [False] * 3), *([as_text(self.note)] if self.note else [])]
        )

    def _drawn(self, bar: Bar) -> str:
        drawn = "█" * round(COLUMNS * bar.value / self.longest) or "▏"
        if bar.mark is None:
            return drawn
        at = min(round(COLUMNS * bar.mark / self.longest), COLUMNS - 1)
        return f"{drawn[:at]:<{at}}│{drawn[at + 1 :]}"

    def figure(self) -> str:
        note = self.note if isinstance(self.note, Html) else html.escape(self.note)
        below = f"<p>{note}</p>" if note else ""
        items = "".join(map(self._item, self.bars))
        title = html.escape(self.title)
        return f'<figure class="course-bars"><figcaption>{title}</figcaption><ul>{items}</ul>{below}</figure>'

    def _item(self, bar: Bar) -> str:
        style = f"--w:{bar.value / self.longest:.4f}"
        if bar.mark is not None:
            style += f";--m:{bar.mark / bar.value:.4f}"
        kind = ' class="ours"' if bar.ours else ""
        return (
            f'<li{kind}><span>{html.escape(bar.name)}</span><i style="{style}" aria-hidden="true"></i>'
            f"<b>{html.escape(bar.words)}</b></li>"
        )
