"""Loads an answer (the learner's file, a reference, a catalogued wrong answer) as a module.

A file that is missing, is not Python, or raises while it is imported becomes one CheckFailed that says so.
"""

from __future__ import annotations

import importlib.util
import linecache
import re
import sys
import traceback
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from chapters.runner.explain import explain
from chapters.runner.failure import CheckFailed, message_of, shorten

LONGEST = 600  # characters of a line of a message that are shown


def locate_error(error: BaseException, path: Path) -> str:
    """The last place in `path` that `error` passed through, as `line N: source`; "" if none."""
    file, number, line = find_refused_line(error)
    if line and Path(file) == path:
        return f"line {number} of {path.name}: {line}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return f"line {frames[-1].lineno} of {path.name}: {frames[-1].line}" if frames else ""


def last_line(error: BaseException) -> str:
    """`ErrorType: message`, without TVM's C++ backtrace and at most three lines of message, each of at most LONGEST.

    A refused primitive of a schedule says why on its last line, after a listing of the whole function.
    """
    message = message_of(error).split("\nStack trace")[0].strip()
    refused = re.search(r"schedule primitive '([\w-]+)'.*\nError message: (.*)", message, re.DOTALL)
    if refused:
        message = f"{refused[1].replace('-', '_')}: {refused[2]}"
    if find_refused_line(error)[2]:  # the lines after the first show the place
        message = explain_parser_error(error)
    kept = [shorten(line, LONGEST) for line in message.splitlines() if line.strip()][:3]
    return f"{type(error).__name__}: " + " / ".join(kept) if kept else type(error).__name__


def explain_parser_error(error: BaseException) -> str:
    """Why TVM's parser refuses a function, in one line; for one that is not well-formed, the violated rule."""
    message = message_of(error)
    reason = re.search(r"Well-formedness check failed: (.*)", message)
    return reason[1] if reason else message.splitlines()[0].removeprefix("error: ")


def find_refused_line(error: BaseException) -> tuple[str, int, str]:
    """(file, number, text) of the line that TVM's parser refuses; ("", 0, "") if `error` does not name one."""
    place = re.search(r"--> (.+):(\d+):\d+$", message_of(error), re.MULTILINE)
    if not place:
        return "", 0, ""
    return place[1], int(place[2]), linecache.getline(place[1], int(place[2])).strip()


@lru_cache(maxsize=8)
def _compile(source: str, path: str) -> CodeType:
    """The code of `source`; each check of an answer executes it afresh."""
    return compile(source, path, "exec", dont_inherit=True)


class _FreshLoader(SourceFileLoader):
    """Compiles the source anew each time: Python sees that a .pyc is stale only by size and whole seconds."""

    def get_code(self, fullname: str):
        self.source = self.get_data(self.path)
        try:
            source = importlib.util.decode_source(self.source)
        except UnicodeDecodeError as error:
            raise SyntaxError(f"byte {error.start} is not UTF-8; save it as UTF-8") from None
        return _compile(source, self.path)


class Answer:
    """The names an answer's file defines; a missing name is a CheckFailed that names it. _text: what was executed."""

    def __init__(self, module: ModuleType, path: Path, text: str):
        self._module, self._path, self._text = module, path, text

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise CheckFailed(
                f"{self._path.name} does not define `{name}`.",
                expected=f"a class or function called {name}",
                why="The checks and the later chapters find your work by this name.",
            ) from None


def load(path: Path) -> Answer:
    """Execute the file at `path` afresh and return its names. Raises CheckFailed, in one sentence."""
    path = Path(path).resolve()
    if not path.exists():
        chapter = re.fullmatch(r"ch(\d\d)_\w+", path.parent.name)
        again = f"; `python -m chapters reset {int(chapter[1])}` makes it anew" if chapter else ""
        raise CheckFailed(
            f"There is no file {path.name} in {path.parent.name}.",
            expected=f"the file with your answers{again}",
        )
    linecache.checkcache()  # TVMScript reads a function's source text, which may have been edited
    name = f"answer_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshLoader(name, str(path)))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        name = Path(error.filename or path).name
        line = f"Line {error.lineno} of {name}" if error.lineno else name  # junk has no lines
        raise CheckFailed(
            f"{line} is not Python: {error.msg}.",
            yours=(error.text or "").strip(),
            expected="a file Python can read; nothing in it was run",
        ) from None
    except CheckFailed:
        raise
    except BaseException as error:
        why, read = explain(error)
        raise CheckFailed(
            f"{path.name} cannot be imported: {last_line(error)}",
            yours=locate_error(error, path),
            expected="a file that can be imported: code at the top level runs before any check",
            why=why,
            read=read,
        ) from error
    return Answer(module, path, spec.loader.source.decode("utf-8", "surrogateescape"))
