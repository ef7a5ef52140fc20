"""The file that a learner edits: made from the reference, ignored by git, never overwritten without a copy.

It is the reference with each region's body replaced by one line that raises NotImplementedError, for a *fix* exercise
by the region of a catalogued mistake, and for a *capstone* by nothing. As git ignores it, pulling a new version of the
course cannot collide with it; `update` moves the learner's regions into the file that the new version would make.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from chapters.runner import progress
from chapters.runner.catalogue import find_mistake
from chapters.runner.copies import (
    copies_of,
    copy_number,
    create_file,
    is_newest_copy,
    keep_copy,
    replace_file,
)
from chapters.runner.course import ROOT, Chapter, CourseError, chapters
from chapters.runner.regions import (
    BEGIN,
    fingerprint,
    map_regions,
    read_source,
    regions,
    short_digest,
    with_regions,
)

BEGIN_LINE = re.compile(BEGIN.pattern, re.MULTILINE)


def make_stub(chapter: Chapter) -> str:
    """The text of the file that a learner of `chapter` starts from."""
    return _stub_text(chapter, chapter.solution.read_text(encoding="utf-8"))


@cache
def _stub_text(chapter: Chapter, reference: str) -> str:
    broken = {
        exercise.id: regions(find_mistake(chapter, exercise.broken).text())[exercise.id]
        for exercise in chapter.exercises
        if exercise.broken
    }

    def blank(exercise_id: str, begin: str, body: list[str]) -> list[str]:
        if chapter.is_capstone:
            return []
        return body if exercise_id in broken else _make_todo(begin)

    return map_regions(with_regions(reference, broken), blank)


def _make_todo(begin: str) -> list[str]:
    match = BEGIN.match(begin)
    return [f'{match["indent"]}raise NotImplementedError("exercise {match["id"]}")']


def find_untouched(chapter: Chapter, text: str) -> set[str]:
    """The exercises of `chapter` whose regions in `text` are still as the stub has them."""
    blank = regions(make_stub(chapter))
    try:
        learners = regions(text)
    except CourseError:  # markers that do not pair
        return set()
    return {key for key, body in blank.items() if learners.get(key) == body}


def find_not_begun(chapter: Chapter, path: Path) -> set[str]:
    """`find_untouched` for the learner's file of `chapter`; the empty set for any other file and for a missing one."""
    if Path(path) != chapter.stub or not chapter.stub.exists():
        return set()
    return find_untouched(chapter, read_loosely(chapter.stub))


def describe_lost_markers(chapter: Chapter) -> str:
    """What to do if the learner's file has lost the BEGIN or END line of an exercise; "" if it has them all."""
    try:
        learners = regions(read_loosely(chapter.stub))
        lost = [exercise.id for exercise in chapter.exercises if exercise.id not in learners]
    except CourseError as error:
        said = f"{chapter.file}: {error}"
    else:
        if not lost:
            return ""
        said = f"{chapter.file} has lost the lines `# BEGIN exercise` and `# END exercise` of {', '.join(lost)}."
    return (
        f"{said} Put the lines back around your code: `hint`, `diff` and `reset` find your work by them. "
        f"`python -m chapters reset {chapter.number}` makes a new file and keeps a copy of yours."
    )


def describe_faults(chapter: Chapter) -> str:
    """A sentence if the learner's file is older than the course, or has lost lines that the commands need; else ""."""
    # in this order: a file that is older than an exercise has no BEGIN line of it
    if is_outdated(chapter):
        return (
            f"{chapter.file} is older than the course. `python -m chapters update {chapter.number}` puts your "
            "answers into the new one and keeps a copy."
        )
    return describe_lost_markers(chapter)


def write_file(
    chapter: Chapter, content: str | bytes, *, aside: Iterable[str] = (), whole: bool = True
) -> Path:
    """Write the learner's file, and return the copy of what was there.

    aside: the exercises that the learner gives up with this; no copy of them is offered again. whole: `content` was
    made from the course as it is now, and not only one exercise of it.
    """
    copy = keep_copy(chapter)
    replace_file(chapter.stub, content.encode() if isinstance(content, str) else content)
    put_aside(chapter, aside)
    if whole:
        note_origin(chapter)
    keep_answers([chapter])
    return copy


def note_origin(chapter: Chapter) -> None:
    """Record that the learner's file is made from the course as it is now, if anything can be recorded."""
    with contextlib.suppress(OSError):
        progress.update(chapter.short, made_from=short_digest(make_stub(chapter).encode()))


def put_aside(chapter: Chapter, exercise_ids: Iterable[str]) -> None:
    """Record that the learner gives up the answers to some exercises that the copies hold now."""
    newest = max(map(copy_number, copies_of(chapter)), default=0)
    with contextlib.suppress(OSError):
        progress.update(
            chapter.short,
            put_aside={**_numbers_put_aside(chapter), **dict.fromkeys(exercise_ids, newest)},
        )


def _numbers_put_aside(chapter: Chapter) -> dict[str, int]:
    """{exercise that was put aside: the number of the newest copy that there was then}."""
    return progress.read().get(chapter.short, {}).get("put_aside", {})


def make_missing() -> list[Path]:
    """Make the learner's files that do not exist yet, and return them."""
    made = []
    for chapter in chapters():
        if not chapter.solution.exists() or chapter.stub.exists():
            continue
        if create_file(chapter.stub, make_stub(chapter).encode()):
            note_origin(chapter)
            made.append(chapter.stub)
        elif not chapter.stub.exists():  # a link that leads nowhere
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(chapter.stub))
    return made


def keep_answers(of: Iterable[Chapter] | None = None) -> None:
    """Keep a copy of each of the learner's files that has changed since its newest copy. of: only these chapters."""
    record: dict[str, dict] = {}
    with contextlib.suppress(OSError):  # copies are kept where nothing can be recorded, too
        record = progress.read()
    for chapter in chapters() if of is None else of:
        try:
            content = chapter.stub.read_bytes()
            # making the stub takes longest, so it is made last, and for a file that was never edited not at all
            if short_digest(content) == record.get(chapter.short, {}).get("made_from"):
                continue
            if is_newest_copy(chapter, content) or not content.strip():
                continue
            if read_loosely(chapter.stub) != make_stub(chapter):
                keep_copy(chapter)
        except FileNotFoundError:
            continue
        except OSError as error:
            print(
                f"!! No copy of {chapter.file} could be kept. {error.strerror}: {error.filename}."
            )


def find_answered(chapter: Chapter, text: str) -> set[str]:
    """The exercises of `chapter` for which `text` holds something that is neither the stub's nor to be written.

    Without its lines BEGIN and END, an exercise counts as answered.
    """
    every = {exercise.id for exercise in chapter.exercises}
    if not text.strip():
        return set()
    try:
        learners, blank = regions(text), regions(make_stub(chapter))
    except CourseError:  # markers that do not pair
        return every
    unchanged = {key for key, body in learners.items() if body == blank.get(key) or _is_todo(body)}
    return every - unchanged


def find_lost_answers(chapter: Chapter) -> tuple[Path, list[str]] | None:
    """(a copy, the exercises for which it has answers that the learner's file lacks); None if the file lacks none.

    A file that is as an older copy lacks what the newest one has in another way. What `reset`, `update` and
    `restore --forget` have put aside is not lost.
    """
    copies, aside = copies_of(chapter), _numbers_put_aside(chapter)
    current = read_loosely(chapter.stub) if chapter.stub.exists() else ""
    here = find_answered(chapter, current)
    texts = [read_loosely(copy) for copy in copies]
    went_back = current in texts[:-1] and current != texts[-1]
    for copy, text in reversed(list(zip(copies, texts, strict=True))):
        there = find_answered(chapter, text)
        lacking = there - here
        if went_back and copy == copies[-1]:
            lacking |= {key for key in there if fingerprint(text, key) != fingerprint(current, key)}
        lacking = {k for k in lacking if copy_number(copy) > aside.get(k, 0)}
        if lacking:
            return copy, [exercise.id for exercise in chapter.exercises if exercise.id in lacking]
    return None


def read_loosely(path: Path) -> str:
    """The text of a file, with a mark for each byte that is not UTF-8."""
    return path.read_text(encoding="utf-8", errors="replace")


def find_forgotten_files() -> list[Path]:
    """Files with answers in chapters' folders that no chapter of this version of the course looks at."""
    known = {chapter.stub for chapter in chapters()}
    return [
        path
        for path in sorted((ROOT / "chapters").glob("ch[0-9][0-9]_*/*.py"))
        if path not in known and BEGIN_LINE.search(read_loosely(path))
    ]


def is_outdated(chapter: Chapter) -> bool:
    """Whether the course has changed what surrounds the regions since the learner's file was made."""
    made_from = progress.read().get(chapter.short, {}).get("made_from")
    known = made_from is not None and chapter.stub.exists()
    return known and made_from != short_digest(make_stub(chapter).encode())


def move_answers(chapter: Chapter) -> str:
    """The text of a new learner's file with the learner's regions in it.

    A region goes where the same functions are: exercises may have new numbers. A region that is still to be written is
    taken from the new file. Raises CourseError, naming the file, if its BEGIN and END lines do not pair, or an exercise
    has more or fewer regions than in the new file.
    """
    text, fresh = read_source(chapter.stub), make_stub(chapter)
    try:
        learners = regions(text)
        begun = {
            new: learners[old]
            for new, old in _match_functions(fresh, text).items()
            if not _is_todo(learners[old])
        }
        return with_regions(fresh, begun)
    except CourseError as error:
        raise CourseError(f"{chapter.file}: {error} It was not changed.") from None


def describe_moves(chapter: Chapter, text: str) -> list[str]:
    """Sentences on the answers in `text` that `move_answers` gives another number, or leaves out, and why."""
    fresh = make_stub(chapter)
    found, functions, learners = _match_functions(fresh, text), _find_functions(text), regions(text)
    moved = [f"{old} is {new}" for new, old in found.items() if old != new]
    unmarked = [e.id for e in chapter.exercises if e.id not in found and _defines(text, e.name)]
    given, gone = [], []
    for old, places in functions.items():
        if old not in found.values() and not _is_todo(learners[old]):
            names = [place.rpartition(".")[2] for place in places]
            (given if all(_defines(fresh, name) for name in names) else gone).append(old)
    said = [f"New numbers: {', '.join(moved)}."] if moved else []
    for left_out, why in (
        (unmarked, "the line `# BEGIN exercise` is gone"),
        (given, "no exercise any more, and the code is given"),
        (gone, "the function is not in this file any more"),
    ):
        said += [f"Only in the copy ({why}): {', '.join(left_out)}."] if left_out else []
    return said


def _defines(text: str, name: str) -> bool:
    return bool(re.search(rf"^[ ]*(?:def|class) {re.escape(name)}\b", text, re.MULTILINE))


def _match_functions(fresh: str, old: str) -> dict[str, str]:
    """exercise in `fresh` -> the exercise in `old` whose regions are in the same functions, whatever its number."""
    new, before = _find_functions(fresh), _find_functions(old)
    by_functions = {functions: number for number, functions in before.items()}
    return {
        number: number if before.get(number) == functions else by_functions[functions]
        for number, functions in new.items()
        if functions in by_functions
    }


def _find_functions(text: str) -> dict[str, tuple[str, ...]]:
    """exercise -> for each of its regions the innermost functions and classes around it, such as "Counter.visit_"."""
    found: dict[str, tuple[str, ...]] = {}
    around: list[tuple[int, str]] = []
    for line in text.split("\n"):
        defined = re.match(r"([ ]*)(?:def|class) (\w+)", line)
        begin = BEGIN.match(line)
        indent = len(defined[1]) if defined else len(begin["indent"]) if begin else None
        if indent is not None:
            around = [(at, name) for at, name in around if at < indent]
        if defined:
            around.append((len(defined[1]), defined[2]))
        elif begin:
            place = ".".join(name for _, name in around)
            found[begin["id"]] = (*found.get(begin["id"], ()), place)
    return found


def _is_todo(bodies: list[str]) -> bool:
    return all(re.fullmatch(r"raise NotImplementedError\(.*\)", body.strip()) for body in bodies)
