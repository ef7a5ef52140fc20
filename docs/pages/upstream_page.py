"""What the scripts in docs/upstream show, as the table of the page “What we found upstream”.

A script's docstring has a title, and below it lines that begin with `Should:`, `Kind:` and `Upstream:`; `Avoided in:`
names the file of the course that works around the fault, if one does. The script ends
with exit status 0 if this TVM has the fault, and 1 if not. One of kind `a crash` ends by a signal instead of 0.
"""

from __future__ import annotations

import ast
import html
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import ROOT

FOLDER = ROOT / "docs" / "upstream"
KINDS = ("wrong numbers", "invalid IR", "a crash", "an error", "slow code", "documented behaviour")
NONE_FOUND = "none found"


@dataclass(frozen=True)
class Finding:
    """One script. upstream: the address of a report or pull request, or `NONE_FOUND`. avoided_in: a path, or ""."""

    path: Path
    title: str
    should: str
    kind: str
    upstream: str
    avoided_in: str


def read_findings() -> list[Finding]:
    """The scripts, sorted by kind and name."""
    found = [read_finding(path) for path in sorted(FOLDER.glob("*.py"))]
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def read_finding(path: Path) -> Finding:
    """The docstring of one script; raises KeyError if a line is missing."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    lines = dict(re.findall(r"^(Should|Kind|Upstream|Avoided in): (.+)$", text, re.MULTILINE))
    fields = [lines[name] for name in ("Should", "Kind", "Upstream")]
    return Finding(path, text.splitlines()[0], *fields, lines.get("Avoided in", ""))


def make_table() -> Table:
    """One row per script: what TVM does, what it should do, the kind, and where upstream discusses it."""
    found, rows = read_findings(), []
    for one in found:
        script = f'<a href="upstream/{one.path.name}">{html.escape(one.path.stem)}</a>'
        rows.append(
            (
                _render_code(one.title),
                _render_code(one.should),
                one.kind,
                _render_link(one.upstream),
                Html(script),
            )
        )
    counts = Counter(one.kind for one in found)
    note = ", ".join(f"{counts[kind]} of kind “{kind}”" for kind in KINDS if counts[kind])
    return Table(
        ("What happens", "What should happen", "Kind", "Upstream", "Script"), rows, f"{note}."
    )


def _render_code(text: str) -> Html:
    """`text` with the parts in backquotes as code."""
    return Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text)))


def _render_link(upstream: str) -> str | Html:
    if upstream == NONE_FOUND:
        return upstream
    *_, project, _, number = upstream.split("/")
    return Html(f'<a href="{html.escape(upstream)}">{project} #{number}</a>')
