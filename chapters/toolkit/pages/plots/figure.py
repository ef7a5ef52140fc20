"""A drawing with its caption and the table of its numbers: what a page shows, and what a terminal prints of it."""

from __future__ import annotations

import html
from dataclasses import dataclass

from chapters.toolkit.table import Table

COLOURS = ("#c96f12", "#4276d6", "#2f8f5b", "#9a62d3", "#c2486f", "#6b7f8f", "#93820f", "#18929b")
# Lines and text take the page's colour; the eight colours have contrast on light and on dark paper.
STYLE = """
.plot svg{max-width:44rem;min-width:30rem}
.plt text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;font-size:12px;fill:currentColor}
.plt .small{font-size:11px;opacity:.85}
.plt .grid{stroke:currentColor;stroke-opacity:.16;stroke-width:1}
.plt .axis{stroke:currentColor;stroke-opacity:.6;stroke-width:1;fill:none}
.plt .guide{stroke:currentColor;stroke-opacity:.75;stroke-width:1.6;fill:none}
.plt .line{fill:none;stroke-width:2}
.plt .whisker{stroke-width:1.2;stroke:currentColor;stroke-opacity:.7}
""" + "".join(
    f".plt .s{n}{{stroke:{colour};color:{colour}}}.plt .s{n} .fill,.plt .fill.s{n}{{fill:{colour}}}\n"
    for n, colour in enumerate(COLOURS)
)


@dataclass(frozen=True)
class Figure:
    """svg: the drawing, without its outer element. title: what it shows, for who cannot see it. caption: beneath it."""

    svg: str
    size: tuple[int, int]
    title: str
    caption: str
    table: Table

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.table}\n\n{self.caption}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        width, height = self.size
        title = html.escape(self.title)
        return (
            f"<style data-course>{STYLE}</style>"
            f'<figure class="ir-picture plot"><svg class="plt" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{title}"><title>{title}</title>{self.svg}</svg>'
            f"<figcaption><b>{title}.</b> {html.escape(self.caption)}</figcaption></figure>{self.table._repr_html_()}"
        )


def text(x: float, y: float, words: str, *, anchor: str = "start", small: bool = True) -> str:
    """A line of text at a place."""
    kind = ' class="small"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(words)}</text>'


def marker(kind: int, x: float, y: float) -> str:
    """A mark of series number `kind`: shapes differ, so that nothing hangs on colour alone."""
    shape = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>',
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>',
        f'<path d="M{x:.1f} {y - 5.5:.1f}l5 9h-10z"/>',
        f'<path d="M{x:.1f} {y - 6:.1f}l5.5 6-5.5 6-5.5-6z"/>',
        f'<path d="M{x:.1f} {y + 5.5:.1f}l5-9h-10z"/>',
    )[kind % 5]
    hollow = kind >= 5  # the sixth series has the first shape again, as an outline
    style = 'fill="none" stroke-width="2"' if hollow else 'class="fill" stroke="none"'
    return f'<g class="s{kind % len(COLOURS)}"><g {style}>{shape}</g></g>'


def legend(names: list[str], left: float, top: float, width: float) -> tuple[str, float]:
    """(the drawing, its height): each series' mark and name, as many in a row as fit."""
    parts, x, y = [], left, top
    for kind, name in enumerate(names):
        takes = 24 + 6.3 * len(name)
        if x > left and x + takes > left + width:
            x, y = left, y + 20
        parts.append(marker(kind, x + 6, y) + text(x + 16, y + 4, name))
        x += takes + 8
    return "".join(parts), y - top + 20
