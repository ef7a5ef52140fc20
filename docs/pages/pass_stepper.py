"""A trace as a page: the passes of a pipeline one after the other, each with the difference it made.

On a page, `Stepper(trace)` is a list of passes, and the first change. What each pass changed is packed beside the list:
unpacked, the pages of a trace have a megabyte of HTML. docs/js/stepper.js makes of both a view with buttons and arrow
keys, and unpacks. In a terminal a stepper is the trace's table.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from dataclasses import dataclass

from chapters.kit.ir.ir_diff import show
from chapters.kit.pipeline.pass_trace import Counts, Trace, TracedPass, listings

SHOWN = 4  # functions whose change is shown; the others are only named
WITHOUT_SCRIPTS = (
    '<p class="stepper-plain">Without JavaScript this list shows the first change only. '
    "<code>python -m chapters trace --pass NAME</code> prints any of them.</p>"
)


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
        passes = self.trace.passes
        first = next((step for step in passes if step.changed), None)
        steps = "".join(self._step(n, step, step is first) for n, step in enumerate(passes, 1))
        return (
            f'<section class="stepper" aria-label="{html.escape(self.label)}">{WITHOUT_SCRIPTS}'
            f'<div class="stepper-steps" role="list">{steps}</div>'
            f'<script type="text/plain" class="stepper-bodies">{packed(self.bodies())}</script></section>'
        )

    def bodies(self) -> list[str]:
        """What each pass changed, as HTML."""
        return [self._body(step) for step in self.trace.passes]

    def _step(self, number: int, step: TracedPass, unfolded: bool) -> str:
        idle = "" if step.changed else " step-idle"
        body = "".join(self._diffs(step)[:1]) if unfolded else ""
        return (
            f'<div class="step{idle}" role="listitem" id="{self.prefix}-{number}" data-ms="{step.seconds * 1000:.3f}">'
            f'<p class="step-title"><span class="step-name">{html.escape(step.name)}</span> '
            f'<span class="step-facts">{html.escape(facts(step))}</span></p>'
            f'<div class="step-body">{body}</div></div>'
        )

    def _altered(self, step: TracedPass) -> list[str]:
        return sorted(step.altered, key=lambda name: name != self.main)

    def _diffs(self, step: TracedPass) -> list[str]:
        shown = self._altered(step)[:SHOWN]
        return [step.diff(name).figure(name, unfolds=name == self.main) for name in shown]

    def _body(self, step: TracedPass) -> str:
        if not step.changed:
            return '<p class="step-none">This pass left the module as it was.</p>'
        rest = self._altered(step)[SHOWN:]
        texts = listings(step.after)
        added = [_folded(f"new: {name}", texts[name]) for name in step.added]
        more = _names(f"{len(rest)} more changed", rest)
        return "".join([*self._diffs(step), more, *added, _names("gone", step.removed)])


def packed(texts: list[str]) -> str:
    """The texts as JSON, compressed, in letters that HTML leaves alone."""
    return base64.b64encode(gzip.compress(json.dumps(texts).encode(), mtime=0)).decode()


def unpacked(text: str) -> str:
    """HTML with what it holds packed written out, so that two can be compared."""

    def texts(found: re.Match) -> str:
        return "\n".join(json.loads(gzip.decompress(base64.b64decode(found[0]))))

    return re.sub(r'(?<="stepper-bodies">)[^<]+', texts, text)


def facts(step: TracedPass) -> str:
    """A line about a step: its time, and the counts that it changed."""
    old, new = step.counts
    parts = [f"{step.seconds * 1000:.2f} ms", *_changes(old, new)]
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
