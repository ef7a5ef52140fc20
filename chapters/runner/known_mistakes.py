"""Does a failing answer behave exactly like a catalogued mistake?

A checks module may define, for an exercise, `observe_2_1(impl)`: a list of at least two functions without arguments.
Each returns a text that describes what `impl` did on one input: its result, its side effects. If an answer gives the
texts of a catalogued mistake on all inputs, and these differ from the reference's, the message names that mistake.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from chapters.runner.catalogue import Mistake, mistakes_of
from chapters.runner.course import Chapter, CourseError
from chapters.runner.loading import Answer, last_line, load


class Observation:
    """The text that one answer gives for each input of an exercise. An input is run when its text is first needed."""

    def __init__(self, checks: ModuleType, exercise_id: str, impl: Answer):
        self._probes = getattr(checks, _observer_name(exercise_id))(impl)
        self._texts: dict[int, str] = {}
        if len(self._probes) < 2:
            name = _observer_name(exercise_id)
            raise ValueError(f"{name} has fewer than two inputs: a match would be chance")

    def __getitem__(self, number: int) -> str:
        if number not in self._texts:
            self._texts[number] = _run_probe(self._probes[number])
        return self._texts[number]

    def texts(self) -> list[str]:
        return [self[number] for number in range(len(self._probes))]

    def is_like(self, texts: list[str]) -> bool:
        """Whether it gives `texts`; no input is tried after the first that differs."""
        return all(self[number] == text for number, text in enumerate(texts))


def _observer_name(exercise_id: str) -> str:
    return "observe_" + exercise_id.replace(".", "_")


def _run_probe(probe: Callable[[], object]) -> str:
    try:
        return str(probe())
    except BaseException as error:  # an answer may also call sys.exit
        return re.sub(r"0x[0-9a-f]+", "0x…", "raises " + last_line(error))


class Diagnoser:
    """Diagnoses answers. It remembers the texts that each gave, and those of the reference and of the mistakes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True)
        # by the exercise and the answer's text
        self._known: dict[tuple[str, str], Observation] = {}

    def diagnose(
        self, checks: ModuleType, chapter: Chapter, exercise_id: str, impl: Answer
    ) -> dict[str, str]:
        """`what`, `why`, `read` and `name` of the mistake that `impl` behaves like; {} if none."""
        if not hasattr(checks, _observer_name(exercise_id)):
            return {}
        texts = self._observe(checks, exercise_id, impl._text, lambda: impl).texts()
        if self._observe_known(checks, chapter, exercise_id).is_like(texts):
            return {}
        for mistake in mistakes_of(chapter, exercise_id):
            try:
                known = self._observe_known(checks, chapter, exercise_id, mistake)
            except CourseError:  # a patch that no longer fits, which the course's tests report
                continue
            if known.is_like(texts):
                return {key: getattr(mistake, key) for key in ("what", "why", "read", "name")}
        return {}

    def _observe_known(
        self, checks: ModuleType, chapter: Chapter, exercise_id: str, mistake: Mistake | None = None
    ) -> Observation:
        """The texts of a catalogued mistake, or of the reference."""
        text = mistake.text() if mistake else chapter.solution.read_text(encoding="utf-8")

        def loaded() -> Answer:
            return load(self._write_file(mistake, text) if mistake else chapter.solution)

        return self._observe(checks, exercise_id, text, loaded)

    def _observe(
        self, checks: ModuleType, exercise_id: str, text: str, answer: Callable[[], Answer]
    ) -> Observation:
        """What the answer with this text gives; `answer` returns it, and is called once for each text."""
        key = exercise_id, text
        if key not in self._known:
            self._known[key] = Observation(checks, exercise_id, answer())
        return self._known[key]

    def _write_file(self, mistake: Mistake, text: str) -> Path:
        """A file that holds `text`, the mistake's; TVMScript reads a function's source from its file."""
        path = Path(self._folder.name) / mistake.chapter.slug / f"{mistake.name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        return path
