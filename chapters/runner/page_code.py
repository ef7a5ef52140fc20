"""Executes the code of a page: the blocks of a lesson, the cells of a lab. They share names, like cells of a notebook.

The site runs a page in a child process (`make_answerer`, for chapters.child.Child), so that a page can disturb neither
the build nor another page. `python -m chapters.ch06_reduction_epilogue` runs a lab in its own process.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODULE = "page_blocks"
CELL = re.compile(r"^# %%(?P<markdown> \[markdown\])?(?: tags=\[\"(?P<tag>\w+)\"\])?\s*$")


@dataclass(frozen=True)
class Cell:
    """A cell of a lab: prose as Markdown, or code; `line` is where its text begins, `tag` a mark of its output."""

    text: str
    line: int
    is_code: bool
    tag: str = ""


def cells(lab: str) -> list[Cell]:
    """The cells of a lab in the percent format: `# %%` begins code, `# %% [markdown]` prose."""
    found: list[Cell] = []
    for number, line in enumerate(lab.split("\n"), 1):
        if mark := CELL.match(line):
            found.append(Cell("", number + 1, not mark["markdown"], mark["tag"] or ""))
        elif found:
            last = found[-1]
            text = line if last.is_code else re.sub(r"^# ?", "", line)
            found[-1] = Cell(f"{last.text}{text}\n", last.line, last.is_code, last.tag)
    return [Cell(cell.text.strip("\n"), cell.line, cell.is_code, cell.tag) for cell in found]


class Namespace:
    """The names that the code of one page shares; `sys.displayhook` gets the value of each block's last expression."""

    def __init__(self, name: str):
        self._folder = tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True)
        self._name, self._count = re.sub(r"\W", "_", name), 0
        self._module = types.ModuleType(MODULE)
        sys.modules[MODULE] = self._module

    def run(self, code: str, line: int) -> None:
        """Execute `code`, which begins at line `line` of its page. Raises what it raises; see `describe`."""
        self._count += 1
        file = Path(self._folder.name) / f"{self._name}_{self._count}.py"
        # blank lines in front give every line the number that it has on the page
        text = "\n" * (line - 1) + code + "\n"
        file.write_text(text, encoding="utf-8")
        # TVMScript reads a class's source through the file of the module that defines it
        self._module.__file__ = self.file = str(file)
        tree = ast.parse(text, str(file))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(file), "exec"), self._module.__dict__)
        if last is not None:
            code = compile(ast.Expression(last.value), str(file), "eval")
            value = eval(code, self._module.__dict__)
            if value is not None:
                sys.displayhook(value)

    def describe(self, error: BaseException) -> dict:
        """Names of the error's classes, its message as lines, and the line of the page in which it was raised."""
        frames = traceback.extract_tb(error.__traceback__)
        here = [f.lineno for f in frames if f.filename == self.file]
        if isinstance(error, SyntaxError) and error.filename == self.file:
            here = [error.lineno]
        text = "".join(traceback.format_exception_only(error))
        # TVM underlines the offending code: a line of carets alone says nothing
        lines = [line for line in text.splitlines() if re.search(r"\w", line)]
        names = [cls.__name__ for cls in type(error).__mro__]
        return {"names": names, "lines": lines, "line": here[-1] if here else None}


def make_answerer(name: str) -> Callable[[dict], dict]:
    """What a child runs: executes {"code", "line"} and answers {"shown": [{"at", "html" or "text"}], "error"}.

    at: the number of bytes that the block had printed before the value was shown. The parent reads the printed text.
    """
    namespace = Namespace(name)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # a page shows what is printed, not what is warned of

    def answer(block: dict) -> dict:
        shown: list[dict] = []

        def keep(value: object) -> None:
            sys.stdout.flush()
            sys.stderr.flush()
            at = os.lseek(1, 0, os.SEEK_CUR)
            if hasattr(value, "_repr_html_"):
                shown.append({"at": at, "html": value._repr_html_()})
            else:
                shown.append({"at": at, "text": repr(value)})

        sys.displayhook = keep
        try:
            namespace.run(block["code"], block["line"])
        except BaseException as error:  # a block may also call sys.exit
            return {"shown": shown, "error": namespace.describe(error)}
        return {"shown": shown, "error": None}

    return answer
