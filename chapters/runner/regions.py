"""Exercise regions: the lines of a reference that a learner writes.

A reference marks them:

    # BEGIN exercise 2.1 (about 6 lines): attach the bounds
    ...
    # END exercise 2.1

The functions here take text and return text. `chapters.runner.learner_file` writes files.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from chapters.runner.course import Chapter, CourseError

BEGIN = re.compile(
    r"^(?P<indent>[ ]*)# BEGIN exercise (?P<id>\d+\.\d+)(?: \([^)]*\))?: (?P<task>.+)$"
)
END = re.compile(r"^[ ]*# END exercise (?P<id>\d+\.\d+)$")


def read_source(path: Path) -> str:
    """The text of a Python file. Raises CourseError, naming the byte, if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CourseError(
            f"{path.name} is not UTF-8 text (byte {error.start}): save it as UTF-8 and try again."
        ) from None


def split_lines(text: str) -> list[str]:
    """The lines of `text` as Python counts them; `splitlines` also cuts at form feeds and the like."""
    return text.removesuffix("\n").split("\n")


Replace = Callable[[str, str, list[str]], list[str]]


def map_regions(text: str, replace: Replace) -> str:
    """`text` with the body of every region replaced by `replace(id, begin_line, body_lines)`.

    Raises CourseError, naming the line, where a BEGIN has no END or they do not pair.
    """
    out: list[str] = []
    opened: tuple[str, str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(split_lines(text), 1):
        begin, end = BEGIN.match(line), END.match(line)
        if begin:
            if opened:
                raise CourseError(
                    f"The line `# END exercise {opened[0]}` is missing: line {number} begins exercise {begin['id']}."
                )
            opened, body = (begin["id"], line, number), []
            out.append(line)
        elif end:
            if not opened or opened[0] != end["id"]:
                raise CourseError(
                    f"The line `# BEGIN exercise {end['id']}` is missing: line {number} ends that exercise."
                )
            out += replace(opened[0], opened[1], body)
            out.append(line)
            opened = None
        else:
            (body if opened else out).append(line)
    if opened:
        raise CourseError(
            f"The line `# END exercise {opened[0]}` is missing: its region begins on line {opened[2]}."
        )
    return "\n".join(out) + "\n"


def regions(text: str) -> dict[str, list[str]]:
    """The bodies of the regions of `text` by exercise id; an exercise may have several."""
    found: dict[str, list[str]] = {}

    def note(exercise_id: str, _begin: str, body: list[str]) -> list[str]:
        found.setdefault(exercise_id, []).append("\n".join(body))
        return body

    map_regions(text, note)
    return found


def find_first_line(text: str, exercise_id: str) -> int:
    """The line number of the first region of `exercise_id` in `text`; 1 if it has none."""
    for number, line in enumerate(split_lines(text), 1):
        begin = BEGIN.match(line)
        if begin and begin["id"] == exercise_id:
            return number
    return 1


def fingerprint(text: str, exercise_id: str) -> str:
    """A digest of the part of `text` on which an exercise depends: its regions, and what is outside of all regions.

    Text in the regions of other exercises does not count, so that exercises can be solved one after the other, and
    neither does how lines end.
    """

    def keep_own(found: str, _begin: str, body: list[str]) -> list[str]:
        return body if found == exercise_id else []

    text = text.replace("\r\n", "\n")
    with contextlib.suppress(CourseError):  # markers that do not pair: then the whole text counts
        text = map_regions(text, keep_own)
    return short_digest(text.encode("utf-8", "surrogateescape"))


def file_fingerprint(path: Path, exercise_id: str) -> str:
    """The `fingerprint` of the file at `path`; "" if it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    return fingerprint(text, exercise_id)


def short_digest(content: bytes) -> str:
    """A digest of `content`, in 16 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """The `short_digest` of a file; "" if it cannot be read."""
    try:
        return short_digest(path.read_bytes())
    except OSError:
        return ""


def with_reference(text: str, chapter: Chapter, exercise_ids: set[str]) -> str:
    """`text` with the regions of some exercises as the reference has them.

    Raises CourseError if `text` no longer has the markers of one of them.
    """
    reference = regions(chapter.solution.read_text(encoding="utf-8"))
    return with_regions(text, {key: reference[key] for key in exercise_ids})


def with_regions(text: str, bodies: dict[str, list[str]]) -> str:
    """`text` with the regions of some exercises replaced; an exercise has one body for each of its regions.

    Raises CourseError if `text` does not have the markers of one of them.
    """
    present = regions(text)
    for key, wanted in bodies.items():
        if len(present.get(key, [])) != len(wanted):
            raise CourseError(
                f"The lines `# BEGIN exercise {key} …` and `# END exercise {key}` are gone."
            )
    left = {key: list(wanted) for key, wanted in bodies.items()}

    def exchange(found: str, _begin: str, body: list[str]) -> list[str]:
        return left[found].pop(0).split("\n") if found in left else body

    return map_regions(text, exchange)
