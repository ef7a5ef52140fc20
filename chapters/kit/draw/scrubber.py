"""Pictures with a slider: what they show at each step is computed here, and docs/js/pictures.js moves between steps.

An element says what it shows at steps 0, 1, 2, … in an attribute: `data-texts` its texts, `data-marks` its marks (which
the style sheet docs/styles/pictures.css colours). An element that belongs to one step has `data-at`; its mark is
"later", "now" or "past". Each is written as it is at the last step, so that a page without scripts shows the end.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from chapters.kit.draw.drawing import Drawing


def attributes(texts: Sequence[object] = (), marks: Sequence[str] = ()) -> str:
    """The attributes of an element that shows `texts` and carries `marks`, one per step."""
    told = ""
    if texts:
        told += f' data-texts="{html.escape("|".join(map(str, texts)))}"'
    if marks:
        told += f' data-marks="{"|".join(marks)}" data-mark="{marks[-1]}"'
    return told


def belongs(at: int, last: int) -> str:
    """The attributes of an element that belongs to step `at`; `last` is the picture's last step."""
    return f' data-at="{at}" data-mark="{"now" if at == last else "past"}"'


def changing(tag: str, kind: str, texts: Sequence[object], marks: Sequence[str] = ()) -> str:
    """An HTML element with the class `kind` whose text, and perhaps mark, depends on the step."""
    return f'<{tag} class="{kind}"{attributes(texts, marks)}>{html.escape(str(texts[-1]))}</{tag}>'


@dataclass(frozen=True)
class Panel:
    """One view of a picture. says: a line per step, step 0 first; body: its HTML."""

    name: str
    says: Sequence[str]
    body: str

    def html(self, alone: bool) -> str:
        """The panel; unless it is alone, with its heading, which is hidden where a script makes it a choice."""
        says = html.escape("|".join(self.says))
        name = html.escape(self.name)
        heading = "" if alone else f'<p class="scrub-name">{name}</p>'
        return f'<div class="scrub-panel" data-name="{name}" data-says="{says}">{heading}{self.body}</div>'


@dataclass(frozen=True, repr=False)
class Scrubber(Drawing):
    """A picture with a slider over steps, and a choice of panels if it has several.

    label: what it shows, for screen readers. start: the step that it opens at, from the end if negative. asks: what
    the choice is called. key: what its ids begin with, unique on a page.
    """

    label: str
    panels: Sequence[Panel]
    key: str
    start: int = 0
    asks: str = "Show"
    caption: str = ""

    def __str__(self) -> str:
        lines = [f"{panel.name}: {panel.says[-1]}" for panel in self.panels]
        return "\n".join([self.label, *lines])

    def _repr_html_(self) -> str:
        panels = "".join(panel.html(len(self.panels) == 1) for panel in self.panels)
        caption = f'<p class="scrub-caption">{self.caption}</p>' if self.caption else ""
        return (
            f'<section class="scrub" aria-label="{html.escape(self.label)}" data-key="{self.key}" '
            f'data-start="{self.start}" data-asks="{html.escape(self.asks)}">{panels}{caption}</section>'
        )
