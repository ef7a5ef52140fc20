"""The base of all pictures: text in a terminal, HTML on a page or in a notebook, one alone or several in a row."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

SMALLEST = 0.82  # of its size: letters of 11 pixels are then 9; below it a picture scrolls in place of shrinking
_INT = re.compile(r"T\.int64\((-?\d+)\)")


class Drawing:
    """A picture whose `str` is its text.

    STYLE: its style sheet. GROUP: the CSS class around its figures. figure(): its HTML, without the style sheet.
    """

    STYLE = GROUP = ""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return SideBySide((self,))._repr_html_()


@dataclass(frozen=True, repr=False)
class SideBySide(Drawing):
    """Several pictures of one kind in a row."""

    pictures: tuple[Drawing, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.pictures))

    def _repr_html_(self) -> str:
        figures = "".join(picture.figure() for picture in self.pictures)
        kind = self.pictures[0]
        return f'<style data-course>{kind.STYLE}</style><div class="{kind.GROUP}">{figures}</div>'


def side_by_side(*pictures: Drawing) -> SideBySide:
    """Pictures of one kind in a row, to be compared, such as before and after a schedule."""
    return SideBySide(pictures)


def strip_types(extent: object) -> str:
    """A size from IR as text, without the types that TVM prints: "4 * n" and not "T.int64(4) * n"."""
    return _INT.sub(r"\1", str(extent))


def label(x: float, y: float, text: object, anchor: str = "middle", more: str = "") -> str:
    """A text in an SVG. more: further attributes, each after a space."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{html.escape(str(text))}</text>'


def svg(kind: str, width: float, height: float, title: str, shapes: Iterable[str]) -> str:
    """An SVG with the class `kind`, as wide as its place allows. title: text for screen readers."""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{html.escape(title)}">'
        f"{''.join(shapes)}</svg>"
    )
