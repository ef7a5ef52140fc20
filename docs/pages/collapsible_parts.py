"""Parts of a page that a reader opens."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Folded:
    """Parts that a reader opens."""

    summary: str
    parts: Sequence[object]

    def __str__(self) -> str:
        return "\n\n".join(map(str, (self.summary, *self.parts)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        inner = "".join(part._repr_html_() for part in self.parts)
        summary = f"<summary>{html.escape(self.summary)}</summary>"
        return f'<details class="plot-numbers">{summary}{inner}</details>'
