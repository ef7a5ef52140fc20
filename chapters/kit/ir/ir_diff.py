"""Compares two pieces of IR: shows what a pass removed and what it added, and nothing else.

`diff(before, after)` prints as a short text in a terminal and shows as a two-column comparison on a page or in a
notebook. `show(mod)` is the listing alone. Both leave out the import comments that TVM prints above every module.
"""

from __future__ import annotations

import html
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from pygments import highlight
from pygments.formatter import Formatter
from pygments.formatters import HtmlFormatter, TerminalFormatter
from pygments.lexers import PythonLexer

# Colours are translucent so that one rule serves light and dark backgrounds.
STYLE = """
figure.ir-diff{display:block;container-type:inline-size;width:auto;max-width:none;margin:1em 0;
text-align:left;font-size:13px;border:1px solid rgba(128,128,128,.35);border-radius:6px;
overflow:hidden}
.ir-diff>figcaption{max-width:none;margin:0;padding:.45em .9em;font-style:normal;text-align:left;
border-bottom:1px solid rgba(128,128,128,.35)}
.ir-diff .rows{font-family:var(--md-code-font-family,ui-monospace,Menlo,Consolas,monospace);font-size:12.5px;
line-height:1.5;padding:.35em 0}
.ir-diff .row{display:grid;grid-template-columns:1fr}
.ir-diff .row>div{display:grid;grid-template-columns:2em 1fr;padding:0 .6em 0 0;min-width:0}
.ir-diff .row i{font-style:normal;text-align:center;opacity:.75;user-select:none}
.ir-diff code{display:block;background:none;padding:0;border:0;
padding-left:calc((var(--n) + 2)*1ch);text-indent:calc((var(--n) + 2)*-1ch);font-size:inherit;
font-family:inherit;color:inherit;white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal}
.ir-diff .gone{background:rgba(226,74,60,.13)}
.ir-diff .new{background:rgba(36,160,108,.15)}
.ir-diff .gone b{font-weight:inherit;background:rgba(226,74,60,.30);text-decoration:underline 1px;
text-underline-offset:3px}
.ir-diff .new b{font-weight:inherit;background:rgba(36,160,108,.34);text-decoration:underline 1px;
text-underline-offset:3px}
.ir-diff .same .twin,.ir-diff .none{display:none}
.ir-diff .rows details{margin:0;padding:0;border:0;background:none;box-shadow:none;font-size:inherit}
.ir-diff :is(summary,.fold){display:block;margin:0;padding:.1em .9em;background:rgba(128,128,128,.1);
border:0;font-weight:inherit;min-height:0}
.ir-diff summary{cursor:pointer}
.ir-diff summary::before,.ir-diff summary::after{display:none}
@container (min-width:760px){
.ir-diff .row{grid-template-columns:1fr 1fr}
.ir-diff details .row{grid-template-columns:1fr}
.ir-diff .row>div+div{border-left:1px solid rgba(128,128,128,.35)}
.ir-diff .same .twin{display:grid}
.ir-diff .none{display:block;background:rgba(128,128,128,.06)}
}
.ir-listing{margin:1em 0}
"""

RED, GREEN, DIM, PLAIN = "\033[31m", "\033[32m", "\033[2m", "\033[0m"
ALIKE = 0.5  # two lines are put side by side from this likeness on
SAME_DEPTH, OTHER_DEPTH = 0.1, -0.25
MOSTLY = 0.4  # of two lines' characters; if more differ, marking them does not help a reader
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def listing(ir: object) -> str:
    """The script of an IRModule, a Relax function or a PrimFunc (or a string of it), without its import comments.

    Raises TypeError for anything that has no `script()`.
    """
    if isinstance(ir, str):
        text = ir
    elif hasattr(ir, "script"):
        text = ir.script()
    else:
        raise TypeError(
            f"Expected an IRModule, a function or a string of IR, got {type(ir).__name__}; "
            "a pass is compared by what it returns, not by itself."
        )
    lines = text.strip("\n").splitlines()
    while lines and (not lines[0].strip() or re.match(r"# from [\w.]+ import ", lines[0])):
        lines.pop(0)
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class Line:
    """One row of the comparison: `before` or `after` is None where only the other side has a line."""

    before: str | None
    after: str | None

    @property
    def same(self) -> bool:
        return self.before == self.after


@dataclass(frozen=True)
class IRDiff:
    """The comparison of two listings. Truthy if they differ; `gone` and `new` count lines."""

    before: str
    after: str
    context: int = 3

    @cached_property
    def lines(self) -> list[Line]:
        return list(_align(self.before.splitlines(), self.after.splitlines()))

    @property
    def gone(self) -> int:
        return sum(1 for row in self.lines if not row.same and row.before is not None)

    @property
    def new(self) -> int:
        return sum(1 for row in self.lines if not row.same and row.after is not None)

    def __bool__(self) -> bool:
        return self.before != self.after

    @property
    def caption(self) -> str:
        if not self:
            return "no difference"
        return f"{_count_noun(self.gone, 'line')} gone, {self.new} new"

    def text(self, colour: bool = False) -> str:
        """The comparison for a terminal: `-` and `+` lines with `context` unchanged lines around them."""
        if not self:
            return self.caption

        def paint(text: str, in_colour: str) -> str:
            return f"{in_colour}{text}{PLAIN}" if colour else text

        out = [self.caption]
        for fold, rows in _fold_runs(self.lines, self.context):
            if fold:
                out.append(paint(f"  ... {_count_noun(len(rows), 'unchanged line')}", DIM))
            elif rows[0].same:
                out += [f"  {row.after}".rstrip() for row in rows]
            else:
                out += [paint(f"- {r.before}", RED) for r in rows if r.before is not None]
                out += [paint(f"+ {r.after}", GREEN) for r in rows if r.after is not None]
        return "\n".join(out)

    def __str__(self) -> str:
        return self.text(colour=in_colours())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<style data-course>{STYLE}</style>{self.figure()}"

    def figure(self, caption: str = "", unfolds: bool = True) -> str:
        """The comparison as HTML, without its style sheet. unfolds: whether unchanged lines are in it at all."""
        body = ""
        for fold, rows in _fold_runs(self.lines, self.context) if self else ():
            if not fold:
                body += "".join(_row_html(row) for row in rows)
                continue
            count = f"⋯ {_count_noun(len(rows), 'unchanged line')}"
            if unfolds:
                # over both columns: the text is the same on both sides, so it is shown once
                inner = "".join(_row_html(row, twin=False) for row in rows)
                body += f"<details><summary>{count}</summary>{inner}</details>"
            else:
                body += f'<div class="fold">{count}</div>'
        body = f'<div class="rows">{body}</div>' if body else ""
        caption = html.escape(f"{caption}: " if caption else "") + self.caption
        return f'<figure class="ir-diff"><figcaption>{caption}</figcaption>{body}</figure>'


@dataclass(frozen=True)
class Listing:
    """A listing of IR: in colours in a terminal and on a page; `str` gives the plain text."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return _highlight(self.text, TerminalFormatter()) if in_colours() else self.text

    def _repr_html_(self) -> str:
        code = _highlight(self.text, HtmlFormatter(nowrap=True))
        return f'<div class="highlight ir-listing"><pre><code>{code}</code></pre></div>'


def diff(before: object, after: object, *, context: int = 3) -> IRDiff:
    """Compare two IRModules, functions, PrimFuncs or strings of IR.

    `context` is the number of unchanged lines kept around a change. Raises TypeError for anything else.
    """
    return IRDiff(listing(before), listing(after), context)


def show(ir: object) -> Listing:
    """The listing of an IRModule, function, PrimFunc or string. Raises TypeError for anything else."""
    return Listing(listing(ir))


def in_colours() -> bool:
    """Whether standard output is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _highlight(text: str, formatter: Formatter) -> str:
    return highlight(text, PythonLexer(), formatter).rstrip("\n")


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _align(before: list[str], after: list[str]) -> Iterator[Line]:
    # autojunk would treat the commonest lines of a long module as noise and lose the alignment
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            yield from (Line(line, line) for line in before[i1:i2])
        else:
            yield from _pair(before[i1:i2], after[j1:j2])


def _pair(before: list[str], after: list[str]) -> Iterator[Line]:
    """Put lines that resemble each other side by side, in order; the rest get a row each."""
    if len(before) * len(after) > 2500:
        # quadratic alignment would take seconds, and a reader cannot follow such a change word by word
        yield from (Line(line, None) for line in before)
        yield from (Line(None, line) for line in after)
        return
    best = [[0.0] * (len(after) + 1) for _ in range(len(before) + 1)]
    score = [[_measure_likeness(a, b) for b in after] for a in before]
    for i in reversed(range(len(before))):
        for j in reversed(range(len(after))):
            together = best[i + 1][j + 1] + score[i][j]
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    i = j = 0
    while i < len(before) or j < len(after):
        both = i < len(before) and j < len(after)
        if both and score[i][j] and best[i][j] == best[i + 1][j + 1] + score[i][j]:
            yield Line(before[i], after[j])
            i, j = i + 1, j + 1
        elif j == len(after) or (i < len(before) and best[i][j] == best[i + 1][j]):
            yield Line(before[i], None)
            i += 1
        else:
            yield Line(None, after[j])
            j += 1


def _measure_likeness(a: str, b: str) -> float:
    # words, not characters: two bindings of different operators share most of their characters
    matcher = SequenceMatcher(None, re.findall(r"\w+", a), re.findall(r"\w+", b), autojunk=False)
    # a line that a pass rewrote stays at its depth; at another depth the same names mean something else
    ratio = matcher.ratio() + (SAME_DEPTH if _depth(a) == _depth(b) else OTHER_DEPTH)
    return ratio if ratio >= ALIKE else 0.0


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _fold_runs(rows: list[Line], context: int) -> Iterator[tuple[bool, list[Line]]]:
    """Runs of rows: (folded?, rows). A run is all changed or all unchanged."""
    runs = [list(run) for _, run in itertools.groupby(rows, key=lambda row: row.same)]
    for number, run in enumerate(runs):
        head = context if number else 0
        end = len(run) - (context if number + 1 < len(runs) else 0)
        # folding one or two lines saves nothing and costs the reader a click
        if run[0].same and end - head > 2:
            parts = [(False, run[:head]), (True, run[head:end]), (False, run[end:])]
            yield from (part for part in parts if part[1])
        else:
            yield False, run


def _row_html(row: Line, twin: bool = True) -> str:
    if row.same:
        cell = "<i></i>" + _code_html(row.after, html.escape(row.after))
        again = f'<div class="twin" aria-hidden="true">{cell}</div>' if twin else ""
        return f'<div class="row same"><div>{cell}</div>{again}</div>'
    old, new = _mark_changed_words(row.before, row.after)
    left = _cell_html("gone", "\N{MINUS SIGN}", row.before, old)
    right = _cell_html("new", "+", row.after, new)
    return f'<div class="row">{left}{right}</div>'


def _cell_html(kind: str, mark: str, line: str | None, marked: str) -> str:
    if line is None:
        return '<div class="none"></div>'
    return f'<div class="{kind}"><i>{mark}</i>{_code_html(line, marked)}</div>'


def _code_html(line: str, shown: str) -> str:
    # a long line continues under its own indentation
    indent = min(len(line) - len(line.lstrip()), 16)
    return f'<code style="--n:{indent}">{shown}</code>'


def _mark_changed_words(before: str | None, after: str | None) -> tuple[str, str]:
    """Both lines as HTML, with the words that differ in <b>, unless most of the line differs."""
    if before is None or after is None:
        return html.escape(before or ""), html.escape(after or "")
    a, b = _TOKEN.findall(before), _TOKEN.findall(after)
    old, new, changed = "", "", 0
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        old += _mark(a[i1:i2], kind != "equal")
        new += _mark(b[j1:j2], kind != "equal")
        if kind != "equal":
            changed += len("".join(a[i1:i2] + b[j1:j2]))
    if changed > MOSTLY * len(before + after):
        return html.escape(before), html.escape(after)
    return old, new


def _mark(tokens: Iterable[str], changed: bool) -> str:
    text = html.escape("".join(tokens))
    return f"<b>{text}</b>" if changed and text.strip() else text
