"""A trace as a page: the passes of a pipeline one after the other, each with the difference it made.

On a page, `Stepper(trace)` is a list of passes that open. If scripts run, docs/js/stepper.js turns it into one view
with buttons and arrow keys. In a terminal it is the trace's table.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from chapters.kit.ir.ir_diff import show
from chapters.kit.pipeline.pass_trace import Counts, Trace, TracedPass, listings

SHOWN = 4  # functions whose change is shown; the others are only named


@dataclass(frozen=True)
class Stepper:
    """`trace` as a page. `label` names it for screen readers, `main` is the function whose change is unfolded."""

    trace: Trace
    label: str
    main: str
    prefix: str = "pass"

    def __str__(self) -> str:
        return str(self.trace)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        steps = "".join(self._step(n, step) for n, step in enumerate(self.trace.passes, 1))
        return (
            f'<section class="stepper" aria-label="{html.escape(self.label)}">'
            f'<div class="stepper-steps" role="list">{steps}</div></section>'
        )

    def _step(self, number: int, step: TracedPass) -> str:
        idle = "" if step.changed else " step-idle"
        name = html.escape(step.name)
        return (
            f'<div class="step{idle}" role="listitem" id="{self.prefix}-{number}" data-ms="{step.seconds * 1000:.3f}">'
            f'<details><summary><span class="step-name">{name}</span> '
            f'<span class="step-facts">{html.escape(facts(step))}</span></summary>'
            f"{self._body(step, number)}</details></div>"
        )

    def _body(self, step: TracedPass, number: int) -> str:
        if not step.changed:
            return '<p class="step-none">This pass left the module as it was.</p>'
        altered = sorted(step.altered, key=lambda name: name != self.main)
        shown = altered[:SHOWN]
        diffs = [step.diff(name).figure(name, unfolds=name == self.main) for name in shown]
        more = _names(f"{len(altered) - SHOWN} more changed", altered[SHOWN:])
        texts = listings(step.after)
        added = [_folded(f"new: {name}", texts[name]) for name in step.added]
        codes = [  # the theme's copy button names a code block after the element that contains it
            f'<div id="{self.prefix}-{number}-{n}">{code}</div>'
            for n, code in enumerate([*diffs, *added])
        ]
        changed, new = codes[: len(diffs)], codes[len(diffs) :]
        return "".join([*changed, more, *new, _names("gone", step.removed)])


def facts(step: TracedPass) -> str:
    """A line about a step: its time, and the counts that it changed."""
    old, new = step.counts
    parts = [f"{step.seconds * 1000:.1f} ms", *_changes(old, new)]
    parts += [f"{len(step.altered)} changed"] * (len(step.altered) > 1)
    parts += [f"{len(step.added)} new"] * bool(step.added)
    parts += [f"{len(step.removed)} gone"] * bool(step.removed)
    return " · ".join(parts if step.changed else [*parts, "no change"])


def _changes(old: Counts, new: Counts) -> list[str]:
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in ("operators", "launches")]
    return [f"{name} {was} → {now}" for name, was, now in pairs if was != now]


def _folded(caption: str, text: str) -> str:
    return (
        f'<details class="step-new"><summary>{html.escape(caption)}</summary>'
        f"{show(text)._repr_html_()}</details>"
    )


def _names(caption: str, names: tuple[str, ...] | list[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
    return f'<p class="step-names">{caption}: {listed}</p>'
