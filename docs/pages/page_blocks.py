"""The code on a page: the ```python run blocks of Markdown, and the code cells of a lab.

```python run                  run, show the code and what it gave
```python run hide             run, show only what it gave
```python run raises=KeyError  the block must raise this error; its last line is shown
```python run measured         the output holds times or rates: its numbers differ from run to run
```python run here             the output depends on the machine: it may be another one elsewhere
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from chapters.runner.page_code import cells
from docs.pages.fences import Fence, find_fences

MARKS = ("measured", "here")
_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)


class PageError(Exception):
    """A page is written wrongly, or its code fails; the message names the page, the line and what to do."""


class NotInstalled(PageError):
    """The code of a page needs an optional package that is not installed."""


@dataclass(frozen=True)
class Block:
    """One block to run: `line` is that of its first line of code, in the page's file. mark: one of MARKS or ""."""

    code: str
    line: int
    hide: bool = False
    raises: str = ""
    mark: str = ""
    fence: Fence | None = None  # a cell of a lab has none


def read_blocks(path: Path, where: str) -> list[Block]:
    """The blocks of the page in the file at `path`, which is called `where` in messages."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [Block(c.text, c.line, mark=c.tag) for c in cells(text) if c.is_code]
    matter = _FRONT_MATTER.match(text)
    above = matter[0].count("\n") if matter else 0
    return find_blocks(text.split("\n")[above:], where, above)


def find_blocks(lines: list[str], where: str, above: int = 0) -> list[Block]:
    """The blocks to run among `lines` of a page, which `above` lines of its file precede.

    Raises PageError for an unknown option, a snippet inclusion or code that leaves its indentation.
    """
    to_run = (fence for fence in find_fences(lines) if fence.info.split()[:2] == ["python", "run"])
    return [_make_block(fence, where, above) for fence in to_run]


def _make_block(fence: Fence, where: str, above: int) -> Block:
    line = fence.first + above + 2
    at = f"{where}, line {line - 1}"
    hide, raises, mark = False, "", ""
    for word in fence.info.split()[2:]:
        if word == "hide":
            hide = True
        elif word in MARKS:
            mark = word
        elif word.startswith("raises="):
            raises = word.removeprefix("raises=")
        else:
            raise PageError(
                f"{at}: `{word}` is no option of a `python run` block; there are `hide`, "
                f"`raises=ErrorName`, {' and '.join(f'`{mark}`' for mark in MARKS)}."
            )
    code = []
    for text in fence.body:
        if text.strip() and not text.startswith(fence.indent):
            raise PageError(f"{at}: the block's code is indented less than its fence: {text!r}.")
        if text.lstrip().startswith("--8<--"):
            raise PageError(f"{at}: a block cannot include a snippet; import the function instead.")
        code.append(text[len(fence.indent) :])
    return Block("\n".join(code), line, hide, raises, mark, fence)
