"""The verdicts of the hard cases: large counts, and a grid of tiles."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chapters.ch07_when_fusion_is_sound.side_by_side import (
    DOCUMENTED,
    INVALID_IR,
    WRONG_NUMBERS,
    Verdict,
)
from chapters.kit.cases.hard_cases import Case

# what a verdict counts as -> its sign on a tile, and its words beside the count
KINDS = {
    "right": ("✓", "right"),
    "refused": ("–", "refused"),
    "documented": ("≈", "documented behaviour"),
    "wrong": ("≠", "wrong numbers"),
    "invalid": ("×", "invalid IR"),
    "error": ("!", "internal error"),
}


def classify_verdict(name: str, verdict: str, builtin: bool) -> str:
    """What a verdict counts as. name: the case; the built-in announces what it makes of those in DOCUMENTED."""
    if builtin and name in DOCUMENTED:
        return "documented"
    if verdict in WRONG_NUMBERS:
        return "wrong"
    if verdict in INVALID_IR:
        return "invalid"
    return "error" if verdict == "internal error" else verdict


@dataclass(frozen=True)
class VerdictGrid:
    """A tile per case, grouped by what is hard about it; above, how many cases each verdict has."""

    verdicts: Sequence[Verdict]
    cases: Mapping[str, Case]

    def kinds(self, builtin: bool) -> list[str]:
        """What each verdict of one primitive counts as, in order."""
        return [
            classify_verdict(v.name, v.builtin if builtin else v.ours, builtin)
            for v in self.verdicts
        ]

    def __str__(self) -> str:
        lines = []
        for who, builtin in (("built-in", True), ("ours", False)):
            counted = Counter(self.kinds(builtin))
            text = ", ".join(f"{counted[one]} {KINDS[one][1]}" for one in self._shown(counted))
            lines.append(f"{who}: {text}")
        return "\n".join(lines)

    __repr__ = __str__

    @staticmethod
    def _shown(counted: Counter) -> list[str]:
        return [one for one in KINDS if counted[one] or one in ("right", "refused", "wrong")]

    def _repr_html_(self) -> str:
        counts = "".join(
            f"<p><b>{who}</b></p><ul>{self._counts(builtin)}</ul>"
            for who, builtin in (("TVM’s built-in", True), ("Chapter 7’s primitive", False))
        )
        tiles = list(zip(self.verdicts, self.kinds(True), self.kinds(False), strict=True))
        causes = dict.fromkeys(self.cases[v.name].cause for v in self.verdicts)
        groups = "".join(
            f'<p>{html.escape(cause)}</p><ul class="vg-tiles">'
            f"{self._tiles(t for t in tiles if self.cases[t[0].name].cause == cause)}</ul>"
            for cause in causes
        )
        return (
            f'<section class="vg" aria-label="Verdicts on {len(self.verdicts)} programs">{counts}'
            f"<p><b>One tile per program: the built-in above, ours below.</b></p>{groups}</section>"
        )

    def _counts(self, builtin: bool) -> str:
        counted = Counter(self.kinds(builtin))
        return "".join(
            f'<li class="vg-count"><b>{counted[one]}</b> <i data-kind="{one}" aria-hidden="true">{KINDS[one][0]}</i> '
            f"{KINDS[one][1]}</li>"
            for one in self._shown(counted)
        )

    @staticmethod
    def _tiles(tiles: Iterable[tuple[Verdict, str, str]]) -> str:
        items = []
        for v, builtin, ours in tiles:
            verdict = f"right ({v.how.split(':')[0]})" if v.ours == "right" else v.ours
            label = html.escape(f"{v.name}: built-in {v.builtin}, ours {verdict}")
            halves = "".join(f'<i data-kind="{one}">{KINDS[one][0]}</i>' for one in (builtin, ours))
            items.append(
                f'<li><span role="img" aria-label="{label}" title="{label}">{halves}</span></li>'
            )
        return "".join(items)
