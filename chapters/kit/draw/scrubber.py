"""Pictures with a slider: what they show at each step is computed here, and docs/js/pictures.js moves between steps.

An element says what it shows at steps 0, 1, 2, … in an attribute: `data-texts` its texts, `data-marks` its marks (which
the style sheet docs/styles/pictures.css colours), `data-shares` the variable --share of its style, 0 to 1. An element
that belongs to one step has `data-at`; its mark is "later", "now" or "past". Each is written as it is at the last step,
so that a page without scripts shows the end.

A picture with `dials` has sliders with names instead of steps. Its steps are the combinations of the dials' values, the
last dial fastest. It is written as it is at its start, which `shown` names.
"""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chapters.kit.draw.drawing import Drawing


def attributes(
    texts: Sequence[object] = (),
    marks: Sequence[str] = (),
    shares: Sequence[float] = (),
    shown: int = -1,
) -> str:
    """The attributes of an element that shows `texts` and carries `marks` and `shares`, one per step."""
    told = ""
    if texts:
        told += f' data-texts="{html.escape("|".join(map(str, texts)))}"'
    if marks:
        told += f' data-marks="{"|".join(marks)}" data-mark="{marks[shown]}"'
    if shares:
        listed = "|".join(f"{share:.3g}" for share in shares)
        told += f' data-shares="{listed}" style="--share:{shares[shown]:.3g}"'
    return told


def belongs(at: int, last: int) -> str:
    """The attributes of an element that belongs to step `at`; `last` is the picture's last step."""
    return f' data-at="{at}" data-mark="{"now" if at == last else "past"}"'


def changing(
    tag: str, kind: str, texts: Sequence[object], marks: Sequence[str] = (), shown: int = -1
) -> str:
    """An HTML element with the class `kind` whose text, and perhaps mark, depends on the step."""
    told = attributes(texts, marks, shown=shown)
    return f'<{tag} class="{kind}"{told}>{html.escape(str(texts[shown]))}</{tag}>'


@dataclass(frozen=True)
class Panel:
    """One view of a picture. says: a line per step, step 0 first; body: its HTML."""

    name: str
    says: Sequence[str]
    body: str

    def html(self, alone: bool, told: str = "") -> str:
        """The panel; unless it is alone, with its heading, which is hidden where a script makes it a choice.

        told: a line that a script's controls replace.
        """
        says = html.escape("|".join(self.says))
        name = html.escape(self.name)
        heading = "" if alone else f'<p class="scrub-name">{name}</p>'
        line = f'<p class="scrub-told">{html.escape(told)}</p>' if told else ""
        return f'<div class="scrub-panel" data-name="{name}" data-says="{says}">{heading}{line}{self.body}</div>'


@dataclass(frozen=True, repr=False)
class Scrubber(Drawing):
    """A picture with a slider over steps, and a choice of panels if it has several.

    label: what it shows, for screen readers. start: the step that it opens at, from the end if negative. asks: what
    the choice is called. key: what its ids begin with, unique on a page. dials: name -> values.
    """

    label: str
    panels: Sequence[Panel]
    key: str
    start: int = 0
    asks: str = "Show"
    caption: str = ""
    dials: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = self.start if self.dials else -1
        lines = [f"{panel.name}: {self._setting()}{panel.says[shown]}" for panel in self.panels]
        return "\n".join([self.label, *lines])

    def _setting(self) -> str:
        """The values of the dials at the start, "" without dials."""
        if not self.dials:
            return ""
        values = list(itertools.product(*self.dials.values()))[self.start]
        named = (f"{name} {value}" for name, value in zip(self.dials, values, strict=True))
        return f"{', '.join(named)}: "

    def _repr_html_(self) -> str:
        told = [f"{self._setting()}{p.says[self.start]}" if self.dials else "" for p in self.panels]
        panels = "".join(
            panel.html(len(self.panels) == 1, line)
            for panel, line in zip(self.panels, told, strict=True)
        )
        caption = f'<p class="scrub-caption">{self.caption}</p>' if self.caption else ""
        dials = f' data-dials="{html.escape(json.dumps(list(self.dials.items())))}"' * bool(
            self.dials
        )
        return (
            f'<section class="scrub" aria-label="{html.escape(self.label)}" data-key="{self.key}" '
            f'data-start="{self.start}" data-asks="{html.escape(self.asks)}"{dials}>{panels}{caption}</section>'
        )
