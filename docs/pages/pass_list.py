"""A trace as a page: the passes of a pipeline one after the other, each with the difference it made, folded.

In a terminal it is the trace's table.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass

from chapters.kit.ir.ir_diff import show
from chapters.kit.measure.pass_trace import Counts, Trace, TracedPass, listings

SHOWN = 1  # functions that are listed in full, of those that changed and of the new ones; the others are only named
LONGEST = 40  # lines gone and new of a change that is listed; a page of all would be heavy


@dataclass(frozen=True)
class PassList:
    """`trace` as a page. `label` names it for screen readers, `main` is the function whose change comes first.

    pipeline: how `python -m chapters trace --pipeline` calls what was traced.
    """

    trace: Trace
    label: str
    main: str
    pipeline: str = "zero"

    def __str__(self) -> str:
        return str(self.trace)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        slowest = max(step.seconds for step in self.trace.passes)
        items = "".join(self._item(n, step, slowest) for n, step in enumerate(self.trace.passes, 1))
        return f'<section class="passes" aria-label="{html.escape(self.label)}">{items}</section>'

    def _item(self, number: int, step: TracedPass, slowest: float) -> str:
        """A pass with its time as a bar, on a logarithmic scale that begins at a 100,000th of the slowest."""
        share = 1 + math.log10(max(step.seconds / slowest, 1e-5)) / 5
        head = (
            f'<i style="--share:{share:.3f}" aria-hidden="true"></i><b>{html.escape(step.name)}</b> '
            f"<span>{html.escape(describe_pass(step))}</span>"
        )
        if not step.changed:
            return f'<p class="pass-idle" id="{self.pipeline}-{number}">{head}</p>'
        body = "".join(self._changes(step))
        return f'<details id="{self.pipeline}-{number}"><summary>{head}</summary>{body}</details>'

    def _changes(self, step: TracedPass) -> Iterator[str]:
        altered = sorted(step.altered, key=lambda name: name != self.main)
        for name in altered[:SHOWN]:
            diff = step.diff(name)
            if diff.gone + diff.new <= LONGEST:
                yield diff.figure(name, unfolds=False)
                continue
            command = f"python -m chapters trace --pipeline {self.pipeline} --pass {step.name}"
            yield f"<p>{html.escape(name)}: {diff.caption}. <code>{command}</code> lists them.</p>"
        yield _render_names("also changed", altered[SHOWN:])
        texts = listings(step.after)
        for name in step.added[:SHOWN]:
            yield f"<p>New: <code>{html.escape(name)}</code></p>{show(texts[name])._repr_html_()}"
        yield _render_names("also new", step.added[SHOWN:])
        yield _render_names("gone", step.removed)


def describe_pass(step: TracedPass) -> str:
    """A line about a step: its time, and the counts that it changed."""
    old, new = step.counts
    parts = [f"{step.seconds * 1000:.2f} ms", *_describe_changes(old, new)]
    parts += [f"{len(step.altered)} changed"] * (len(step.altered) > 1)
    parts += [f"{len(step.added)} new"] * bool(step.added)
    parts += [f"{len(step.removed)} gone"] * bool(step.removed)
    return " · ".join(parts if step.changed else [*parts, "no change"])


def _describe_changes(old: Counts, new: Counts) -> list[str]:
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in ("operators", "launches")]
    return [f"{name} {was} → {now}" for name, was, now in pairs if was != now]


def _render_names(caption: str, names: tuple[str, ...] | list[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(f"<code>{html.escape(name)}</code>" for name in names)
    return f"<p>{caption}: {listed}</p>"
