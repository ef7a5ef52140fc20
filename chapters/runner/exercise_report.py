"""The report on one exercise of one file: what its checks found, in the words that a person reads, and its record.

`python -m chapters check`, `watch` and `pytest` show it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chapters.program import describe_refusal
from chapters.runner.course import Chapter, Exercise
from chapters.runner.engine import Engine, Outcome, combine_states
from chapters.runner.failure import render
from chapters.runner.learner_file import find_not_begun
from chapters.runner.regions import file_fingerprint
from chapters.runner.states import record_state
from chapters.runner.terminal import relative


class ExerciseReport:
    """An exercise that an engine checks. `wait` until it has done so; then `state`, `outcomes` and `describe` hold.

    answer: the file to check. run_untouched: check the exercise even if the learner has not begun it, as a *fix*
    exercise starts from its failure. state: as of an Outcome. record_error: why the state could not be recorded.
    """

    def __init__(
        self,
        chapter: Chapter,
        exercise: Exercise,
        answer: Path,
        engine: Engine,
        *,
        run_untouched: bool = False,
    ):
        self.chapter, self.exercise, self.answer = chapter, exercise, answer
        self.is_learners = answer == chapter.stub
        self.is_untouched = exercise.id in find_not_begun(chapter, answer)
        self.outcomes: list[Outcome] = []
        self.state, self.record_error = "todo", ""
        self._fingerprint = file_fingerprint(chapter.stub, exercise.id)
        runs = run_untouched or not self.is_untouched
        self._running = engine.submit(chapter, exercise, answer) if runs else None

    def wait(self, unreadable: set[Path]) -> None:
        """Wait for the checks, and record the state of a learner's exercise.

        unreadable: files that cannot be loaded, which was reported already; this one may be added. No other exercise of
        such a file can be checked, so it waits.
        """
        if self._running:
            self.outcomes = self._running.result()
            self.state = combine_states(self.outcomes)
            last = self.outcomes[-1]
            if last.unreadable and self.answer in unreadable:
                self._settle("waits", f"{self.answer.name}, which cannot be read")
            elif last.unreadable:
                unreadable.add(self.answer)
        unknown = self.state == "unable" or any(one.unreadable for one in self.outcomes)
        if self.is_learners and not unknown:
            self._record()

    def _settle(self, state: str, reason: str) -> None:
        self.state = state
        self.outcomes[-1] = replace(self.outcomes[-1], state=state, failure=None, reason=reason)

    def _record(self) -> None:
        known = "todo" if self.is_untouched or self.state == "waits" else self.state
        try:
            about = self.chapter, self.exercise.id, known, self._fingerprint
            if not record_state(*about, self.outcomes) and self.outcomes:
                self._settle(
                    "unable",
                    f"{self.chapter.file}, or a file that it imports, was saved while it was being checked; nothing is "
                    "recorded, check it again",
                )
        except OSError as error:  # a verdict holds where it cannot be recorded
            self.record_error = f"not recorded: {describe_refusal(error)}"

    @property
    def reasons(self) -> str:
        """Why checks were skipped or could not run, or what the exercise waits for."""
        return "; ".join(sorted({o.reason for o in self.outcomes if o.state == self.state}))

    def describe(self) -> str:
        """The result in one line; of a failure, all that the learner needs to mend it."""
        about = self.exercise.id
        passed = sum(outcome.state == "passed" for outcome in self.outcomes)
        count = f"{passed} check{'s' if passed != 1 else ''} passed"
        if self.state == "passed":
            return f"✓ {about} {self.exercise.title}: {count}"
        if self.state == "skipped":
            return f"- {about} SKIPPED, not counted as passed: {self.reasons}"
        if self.state == "unable":
            return f"? {about} could not be checked, which says nothing about the code: {self.reasons}."
        if self.state == "waits":
            uses = "" if self.outcomes[-1].unreadable else ", which it uses"
            return f"· {about} waits for {self.reasons}{uses}"
        if self.state == "todo":
            part = ", a part of it is still to be written" if self.outcomes else ""
            return f"· {about} TODO{part}{f'; {count} so far' if passed else ''}"
        return self._describe_failure()

    def _describe_failure(self) -> str:
        last = self.outcomes[-1]
        has_hints = self.is_learners and self.exercise.kind != "capstone"
        hint = f"python -m chapters hint {self.exercise.id}" if has_hints else ""
        lines = [render(last.failure, check=last.check.title, hint=hint)]
        if last.output.strip():
            lines.append(f"  printed\n{last.output.rstrip()}")
        return "\n".join([*lines, f"  in        {relative(self.answer)}"])
