"""Does a failing answer behave exactly like a catalogued mistake?

A checks module may define, for an exercise, `observe_2_1(impl)`: a list of at least two functions without arguments.
Each returns a text that describes what `impl` did on one input: its result, its side effects. If an answer gives the
texts of a catalogued mistake on all inputs, and these differ from the reference's, the message names that mistake. If
it gives the texts of one mistake on some inputs, those of a second one on others, and the right texts on the rest, the
message names both.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import ModuleType

from chapters.runner.catalogue import Mistake, mistakes_of
from chapters.runner.course import Chapter, CourseError
from chapters.runner.loading import Answer, last_line, load

PAIR_SECONDS = 5  # how long to look for two mistakes at once


class Observed:
    """The text that one answer gives for each input of an exercise. An input is run when its text is first needed."""

    def __init__(self, checks: ModuleType, exercise_id: str, impl: Answer):
        self._probes = getattr(checks, _observer(exercise_id))(impl)
        self._texts: dict[int, str] = {}
        if len(self._probes) < 2:
            name = _observer(exercise_id)
            raise ValueError(f"{name} has fewer than two inputs: a match would be chance")

    def __getitem__(self, number: int) -> str:
        if number not in self._texts:
            self._texts[number] = _seen(self._probes[number])
        return self._texts[number]

    def texts(self) -> list[str]:
        return [self[number] for number in range(len(self._probes))]

    def is_like(self, texts: list[str]) -> bool:
        """Whether it gives `texts`; no input is tried after the first that differs."""
        return all(self[number] == text for number, text in enumerate(texts))


def _observer(exercise_id: str) -> str:
    return "observe_" + exercise_id.replace(".", "_")


def _seen(probe: Callable[[], object]) -> str:
    try:
        return str(probe())
    except BaseException as error:  # an answer may also call sys.exit
        return re.sub(r"0x[0-9a-f]+", "0x…", "raises " + last_line(error))


class Diagnoser:
    """Diagnoses answers. It remembers the texts of the reference and the mistakes, as these take most of the time."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True)
        self._known: dict[tuple[Path, str, str], Observed] = {}

    def diagnose(
        self, checks: ModuleType, chapter: Chapter, exercise_id: str, impl: Answer
    ) -> dict[str, str]:
        """`what`, `why`, `read` and `name` of the mistake, or the two, that `impl` behaves like; {} if none."""
        if not hasattr(checks, _observer(exercise_id)):
            return {}
        until = time.monotonic() + PAIR_SECONDS
        mine = Observed(checks, exercise_id, impl).texts()
        reference = self._remembered(checks, chapter, exercise_id)
        if reference.is_like(mine):
            return {}
        known: dict[Mistake, Observed] = {}
        for mistake in mistakes_of(chapter, exercise_id):
            try:
                known[mistake] = self._remembered(checks, chapter, exercise_id, mistake)
            except CourseError:  # a patch that no longer fits, which the course's tests report
                continue
            if known[mistake].is_like(mine):
                return _told(mistake)
        return _two_at_once(mine, reference.texts(), known, until)

    def _remembered(
        self, checks: ModuleType, chapter: Chapter, exercise_id: str, mistake: Mistake | None = None
    ) -> Observed:
        """The texts of a catalogued mistake, or of the reference."""
        key = chapter.solution, exercise_id, mistake.name if mistake else ""
        if key not in self._known:
            answer = load(self._file(mistake) if mistake else chapter.solution)
            self._known[key] = Observed(checks, exercise_id, answer)
        return self._known[key]

    def _file(self, mistake: Mistake) -> Path:
        """A file that holds the mistake; TVMScript reads a function's source from its file."""
        path = Path(self._folder.name) / mistake.chapter.slug / f"{mistake.name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(mistake.text(), encoding="utf-8", newline="\n")
        return path


def _told(mistake: Mistake) -> dict[str, str]:
    return {"what": mistake.what, "why": mistake.why, "read": mistake.read, "name": mistake.name}


def _two_at_once(
    mine: list[str], right: list[str], known: dict[Mistake, Observed], until: float
) -> dict[str, str]:
    """The only two mistakes that together explain the texts `mine`; {} if no pair or several do, or time is up.

    On each input the answer gives the right text or that of one of the two, and each mistake shows on every input on
    which it is wrong. Anything weaker would be a guess: an answer that fails everywhere matches many mistakes.
    """
    off = {n for n, (text, wanted) in enumerate(zip(mine, right, strict=True)) if text != wanted}
    if len(off) < 2:
        return {}
    shown: dict[Mistake, set[int]] = {}
    for mistake, observed in known.items():
        if time.monotonic() > until:
            return {}
        shown[mistake] = _shows(observed, mine, right)
    pairs = [pair for pair in combinations(shown, 2) if shown[pair[0]] | shown[pair[1]] == off]
    if len(pairs) != 1:
        return {}
    first, second = pairs[0]
    return {
        "what": f"two mistakes at once: {first.what}; and {second.what}",
        "why": f"The first: {first.why} The second: {second.why}",
        "read": first.read,
        "name": f"{first.name} and {second.name}",
    }


def _shows(observed: Observed, mine: list[str], right: list[str]) -> set[int]:
    """The inputs on which a mistake is wrong, if its texts there are those of `mine`; else the empty set."""
    shown = set()
    for number, wanted in enumerate(right):
        if observed[number] == wanted:
            continue
        if observed[number] != mine[number]:
            return set()
        shown.add(number)
    return shown
