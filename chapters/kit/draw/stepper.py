"""Pictures that a reader steps through: what they show at each step is computed here, and docs/js/stepper.js moves.

An element says what it shows at steps 0, 1, 2, … in an attribute: `data-texts` its texts, `data-marks` its marks (which
the style sheet docs/styles/pictures.css colours), `data-shares` the variable --share of its style, 0 to 1. An element
that belongs to one step has `data-at`; its mark is "later", "now" or "past".

A picture has one slider for its steps. With `dials` it has sliders with names instead: its steps are the combinations
of the dials' values, the last dial fastest. Without scripts it shows its last step, or the start of its dials.
"""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chapters.kit.draw.drawing import Drawing

_CHANGING = re.compile(r'<(\w+)((?: [\w-]+="[^"]*")*? data-(?:texts|marks|shares|at)=[^>]*)>')
_LISTS = re.compile(r' data-(\w+)="([^"]*)"')


def attributes(
    texts: Sequence[object] = (), marks: Sequence[str] = (), shares: Sequence[float] = ()
) -> str:
    """The attributes of an element that shows `texts` and carries `marks` and `shares`, one per step."""
    told = f' data-texts="{html.escape("|".join(map(str, texts)))}"' if texts else ""
    told += f' data-marks="{"|".join(marks)}"' if marks else ""
    listed = "|".join(f"{share:.3g}" for share in shares)
    return told + (f' data-shares="{listed}"' if shares else "")


def step_attribute(at: int) -> str:
    """The attribute of an element that belongs to step `at`."""
    return f' data-at="{at}"'


def render_changing(tag: str, kind: str, texts: Sequence[object], marks: Sequence[str] = ()) -> str:
    """An HTML element with the class `kind` whose text, and perhaps mark, depends on the step."""
    return f'<{tag} class="{kind}"{attributes(texts, marks)}></{tag}>'


def table_row(head: str, cells: Iterable[object], kind: str = "", off: Container[int] = ()) -> str:
    """A row of a table with a cell per step. off: the steps whose cell is not what it should be."""
    marks = {True: ' class="off"', False: ""}
    made = "".join(
        f"<td{marks[k in off]}{step_attribute(k)}>{cell}</td>" for k, cell in enumerate(cells)
    )
    return f'<tr class="{kind}"><th scope="row">{head}</th>{made}</tr>'


def at_step(body: str, step: int) -> str:
    """HTML as it is at a step; an element with fewer steps stays at its last one."""

    def with_state(found: re.Match) -> str:
        tag, rest = found.groups()
        lists = {name: text.split("|") for name, text in _LISTS.findall(rest)}
        now = {name: texts[min(step, len(texts) - 1)] for name, texts in lists.items()}
        mark = now.get("marks")
        if "at" in lists:
            own = int(lists["at"][0])
            mark = "later" if step < own else "now" if step == own else "past"
        marked = "" if mark is None else f' data-mark="{mark}"'
        styled = f' style="--share:{now["shares"]}"' if "shares" in now else ""
        return f"<{tag}{marked}{styled}{rest}>{now.get('texts', '')}"

    return _CHANGING.sub(with_state, body)


@dataclass(frozen=True)
class Panel:
    """One view of a picture. says: a line per step, step 0 first; body: its HTML."""

    name: str
    says: Sequence[str]
    body: str

    def html(self, step: int) -> str:
        """The panel at a step, with its name, which a script makes a choice."""
        name, says = html.escape(self.name), html.escape("|".join(self.says))
        return (
            f'<div class="stepper-panel" data-name="{name}" data-says="{says}"><p class="stepper-name">{name}</p>'
            f'<p class="stepper-says" role="status">{html.escape(self.says[step])}</p>'
            f"{at_step(self.body, step % len(self.says))}</div>"
        )


@dataclass(frozen=True, repr=False)
class Stepper(Drawing):
    """A picture with a slider over steps, and a choice of panels if it has several.

    label: what it shows, for screen readers. start: the step that it opens at. asks: what the choice is called. key:
    what its ids begin with, unique on a page. dials: name -> values.
    """

    label: str
    panels: Sequence[Panel]
    key: str
    start: int = 0
    asks: str = "Show"
    caption: str = ""
    dials: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def without_scripts(self) -> int:
        """The step that is shown where no script moves: the last one, or the start of the dials."""
        return self.start if self.dials else -1

    def __str__(self) -> str:
        lines = [f"{panel.name}: {panel.says[self.without_scripts]}" for panel in self.panels]
        return "\n".join([self.label, *lines])

    def _repr_html_(self) -> str:
        values = list(itertools.product(*self.dials.values()))[self.start] if self.dials else ()
        setting = ", ".join(f"{n} {v}" for n, v in zip(self.dials, values, strict=True))
        told = f'<p class="stepper-plain">{html.escape(setting)}</p>' if setting else ""
        caption = f'<p class="stepper-caption">{self.caption}</p>' if self.caption else ""
        dials = html.escape(json.dumps(list(self.dials.items()) or [["Step", None]]))
        return (
            f'<section class="stepper" aria-label="{html.escape(self.label)}" data-key="{self.key}" '
            f'data-start="{self.start}" data-asks="{html.escape(self.asks)}" data-dials="{dials}">'
            f"{told}{''.join(panel.html(self.without_scripts) for panel in self.panels)}{caption}</section>"
        )
