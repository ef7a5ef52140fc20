"""What caused an exception in an answer, and where to read about it, looked up in docs/troubleshooting.md.

Each heading of that page is a message of TVM, which the page's test reproduces. Code written for an older TVM is
recognized by a name in the page's table of renamed things.
"""

from __future__ import annotations

import re
from functools import cache

from chapters.runner.course import ROOT
from chapters.runner.failure import LONGEST, message_of, shorten

PAGE = "docs/troubleshooting.md"
RENAMED = f"{PAGE}#renamed"
ENTRY = re.compile(
    r"^### `(?P<text>[^`]+)`.*?\{ #(?P<key>[\w-]+) \}\n\n"
    r"```python.*?^```\n\n\*\*Cause\.\*\* (?P<cause>.+?)$",
    re.MULTILINE | re.DOTALL,
)

# A missing name, and where it was looked up: in a module or a class; nowhere for a keyword or a configuration key.
MISSING = (
    r"module '(?P<module>tvm[\w.]*)' has no attribute '(?P<name>\w+)'",
    r"'(?P<owner>\w+)' object has no attribute '(?P<name>\w+)'",
    r"cannot import name '(?P<name>\w+)' from '(?P<module>tvm[\w.]*)'",
    r"No module named '(?P<module>tvm[\w.]*)\.(?P<name>\w+)'",
    r"unexpected keyword argument '(?P<name>\w+)'",
    r"Invalid config option '(?P<name>[\w.]+)'",
)


def explain(error: BaseException) -> tuple[str, str]:
    """`why` and `read` for an exception that an answer raised; two empty texts if the page does not know it."""
    message = f"{type(error).__name__}: {shorten(message_of(error), LONGEST)}"
    for key, pattern, cause in _read_entries():
        if key != "renamed" and pattern.search(message):
            return cause, f"{PAGE}#{key}"
    for missing in MISSING:
        match = re.search(missing, message)
        if match:
            return _explain_name(match.groupdict())
    return "", ""


def _explain_name(found: dict[str, str | None]) -> tuple[str, str]:
    """`why` and `read` for a missing name."""
    name, module, owner = found["name"], found.get("module"), found.get("owner")
    if owner and not _is_class_of_tvm(owner):
        return "", ""  # an object of the learner or of Python
    row = _read_renamed().get(f"{module}.{name}") or _read_renamed().get(name)
    if row:
        return f"This is written for an older TVM: `{row[0]}` has become `{row[1]}`.", RENAMED
    if owner:
        article = "An" if owner[0] in "AEIOU" else "A"
        return (
            f"{article} `{owner}` has no `{name}` in this TVM. If you expected another class here, "
            "ask `isinstance` first; the table lists names that older versions used."
        ), RENAMED
    if module:
        return "This TVM has no such name. The table lists names that older versions used.", RENAMED
    return "", ""


def _is_class_of_tvm(name: str) -> bool:
    """Whether a class called `name` is one of TVM's."""
    import tvm
    from tvm import relax, s_tir, target, tirx

    return any(hasattr(at, name) for at in (tvm, tvm.ir, tvm.runtime, relax, s_tir, target, tirx))


@cache
def _read_page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


@cache
def _read_entries() -> list[tuple[str, re.Pattern, str]]:
    """The page's entries about exceptions: anchor, pattern of the message (`…` is anything), cause in plain text."""
    found = []
    for section in re.split(r"^(?=### )", _read_page(), flags=re.MULTILINE):
        entry = ENTRY.match(section)
        if entry:
            pattern = ".*".join(re.escape(part) for part in entry["text"].split("…"))
            cause = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", entry["cause"])
            found.append((entry["key"], re.compile(pattern), cause))
    return found


@cache
def _read_renamed() -> dict[str, tuple[str, str]]:
    """The table's rows, left and right, by each name, dotted or single, that only the left side has."""
    found: dict[str, tuple[str, str]] = {}
    for row in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", _read_page(), re.MULTILINE):
        old, new = (_list_names(text) for text in row)
        shown = tuple(text.replace('Add["main"].params[0]', "var") for text in row)
        for name in old - new:
            found.setdefault(name, shown)
    return found


def _list_names(text: str) -> set[str]:
    """The dotted names in `text`, their beginnings, and their single parts."""
    names: set[str] = set()
    for dotted in re.findall(r"[A-Za-z_][\w.]*", text):
        parts = dotted.split(".")
        names.update(parts)
        names.update(".".join(parts[: end + 1]) for end in range(len(parts)))
    return names
