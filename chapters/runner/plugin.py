"""The pytest plugin: `pytest solutions/` and `pytest chapters/` run the checks, one item per check.

It collects the file that a learner edits, `chapters/chNN_name/<file>.py`, and the reference of the same name under
`solutions/`. The engine runs the exercises in child processes, several at once; an item waits for its exercise. States
are passed, TODO (to be written), failed, waits (an earlier check of the exercise did not pass, or an exercise that it
uses must be written or mended first), unable (this machine could not run the check, whatever the code is) and skipped.
"""

from __future__ import annotations

import pytest

from chapters.environment import find_fault, find_hidden_module

if hidden := find_hidden_module():  # before the imports that follow
    raise pytest.UsageError(hidden)

import contextlib
import itertools
import platform
from pathlib import Path

from chapters.program import describe_refusal
from chapters.runner import learner_file
from chapters.runner.course import ROOT, Chapter, CourseError, chapters
from chapters.runner.engine import (
    FINE,
    Check,
    Engine,
    Outcome,
    checks_of,
    checks_of_exercise,
    overall,
)
from chapters.runner.failure import render
from chapters.runner.learner_file import not_begun
from chapters.runner.states import digest, record_state
from chapters.runner.terminal import bar, saved_meanwhile
from chapters.runner.versions import MEND, installed, wrong_versions
from chapters.whose_code import LEARNER, REFERENCE, decide

# what tests in this process call; the files in chapters/ are checked in processes of their own
decide(REFERENCE)

LETTERS = {
    "todo": ("T", "TODO", {"yellow": True}),
    "waits": ("w", "WAITS", {"yellow": True}),
    "unable": ("u", "UNABLE", {"yellow": True}),
}
CHECKED = "REFERENCE in solutions/; your own code is checked by `pytest chapters/`"


class _Exercise:
    """One exercise of one file: its checks that were asked for and, after `wait`, their outcomes."""

    def __init__(self, items: list[CheckItem], engine: Engine):
        self.chapter, self.about = items[0].check.chapter, items[0].check.exercise
        answer = items[0].answer
        self.mine = answer == self.chapter.stub
        self.checks = [item.check for item in items]
        self.outcomes: list[Outcome] = []
        self._digest = digest(self.chapter, self.about.id) if self.mine else ""
        self.changed = False  # while it was being checked
        begun = self.about.id not in not_begun(self.chapter, answer)
        self._running = engine.submit(self.checks, answer) if begun else None

    def wait(self) -> None:
        """Wait until its checks have run."""
        if self._running:
            self.outcomes = self._running.result()
        else:
            todo = f"exercise {self.about.id}"
            self.outcomes = [Outcome(check, "todo", reason=todo) for check in self.checks]

    def record(self) -> None:
        """Note the state of the learner's exercise, if one check failed or all of them ran."""
        if not self.mine or not self.outcomes or any(o.unreadable for o in self.outcomes):
            return
        state = overall(self.outcomes)
        if state == "unable":
            return
        all_checks = checks_of_exercise(self.chapter, self.about.id)
        if state == "failed" or len(self.checks) == len(all_checks):
            known = "todo" if state == "waits" else state
            with contextlib.suppress(OSError):  # a folder one may not write to has no progress
                self.changed = not record_state(
                    self.chapter, self.about.id, known, self._digest, self._loaded()
                )

    def _loaded(self) -> list[Outcome]:
        """The outcomes of checks that have run, which say what they loaded."""
        return self.outcomes if self._running else []


class _Run:
    """The state of one pytest run. The key of an exercise is its tree, "chapters" or "solutions", and its id."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}  # by tree
        self.exercises: dict[tuple[str, str], _Exercise] = {}
        self.unreadable: set[Path] = set()  # files that cannot be loaded, as was reported already

    def begin(self, items: list[CheckItem]) -> None:
        """Hand every exercise that was begun to the engine."""
        for key in dict.fromkeys(item.key for item in items):
            its = [item for item in items if item.key == key]
            tree = key[0]
            if tree not in self.engines:
                self.engines[tree] = Engine(LEARNER if tree == "chapters" else REFERENCE)
            self.exercises[key] = _Exercise(its, self.engines[tree])
            for item in its:
                item.exercise = self.exercises[key]

    def ran(self, tree: str) -> list[_Exercise]:
        """The exercises of `tree` that have run, in the order of the course."""
        wanted = (self.exercises.get((tree, e.id)) for c in chapters() for e in c.exercises)
        return [exercise for exercise in wanted if exercise and exercise.outcomes]


RUN: pytest.StashKey[_Run] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", help="check this file instead of the one that is collected")


def pytest_configure(config: pytest.Config) -> None:
    if fault := find_fault(config.rootpath):
        raise pytest.UsageError(fault)
    config.stash[RUN] = _Run()
    try:
        chapters()
        if _asked_for(config, "chapters"):
            learner_file.keep_answers()
            learner_file.make_missing()
    except CourseError as error:
        raise pytest.UsageError(str(error)) from None
    except OSError as error:
        raise pytest.UsageError(describe_refusal(error)) from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector):
    if file_path.suffix == ".py":
        # the checkout may have been reached through a link, and a learner's file may be one
        for chapter in chapters():
            for answer in (chapter.stub, chapter.solution):
                if file_path.resolve() == answer.resolve():
                    return AnswerFile.from_parent(
                        parent, path=file_path, chapter=chapter, answer=answer
                    )
    return None


class AnswerFile(pytest.File):
    """A file with answers; its items are the checks of its chapter. It is not imported here."""

    def __init__(self, *, chapter: Chapter, answer: Path, **kwargs):
        super().__init__(**kwargs)
        self.chapter, self.answer = chapter, answer

    def collect(self):
        impl = self.config.getoption("--impl")
        answer = Path(impl).resolve() if impl else self.answer
        try:
            found = checks_of(self.chapter)
        except CourseError as error:
            raise self.CollectError(str(error)) from None
        for check in found:
            yield CheckItem.from_parent(self, name=check.name, check=check, answer=answer)


class _Stop(Exception):
    """Carries an outcome that is not a pass from `runtest` to the report."""

    def __init__(self, outcome: Outcome):
        self.outcome = outcome


class CheckItem(pytest.Item):
    """One check on one answer. exercise: set once all items are collected."""

    exercise: _Exercise

    def __init__(self, *, check: Check, answer: Path, **kwargs):
        super().__init__(**kwargs)
        self.check, self.answer = check, answer
        self.key = answer.parent.parent.name, check.exercise.id

    def reportinfo(self):
        return self.path, None, f"{self.check.exercise.id} {self.check.title}"

    def runtest(self) -> None:
        self.exercise.wait()
        outcome = self._outcome(self.config.stash[RUN].unreadable)
        if outcome.state != "passed":
            raise _Stop(outcome)

    def _outcome(self, unreadable: set[Path]) -> Outcome:
        """The outcome of this check. unreadable: files whose failure was reported already; may gain this one."""
        found = {outcome.check.name: outcome for outcome in self.exercise.outcomes}
        mine = found.get(self.check.name)
        if mine is None:
            return Outcome(self.check, "waits", reason="an earlier check of the exercise")
        if mine.unreadable and self.answer in unreadable:  # reported once for the whole file
            return Outcome(self.check, "waits", reason=f"{self.answer.name} cannot be loaded")
        if mine.unreadable:
            unreadable.add(self.answer)
        return mine

    def repr_failure(self, excinfo):
        if not isinstance(excinfo.value, _Stop):
            return super().repr_failure(excinfo)
        outcome = excinfo.value.outcome
        if outcome.failure is None:
            return outcome.reason
        hint = f"python -m chapters hint {self.check.exercise.id}" if self.exercise.mine else ""
        text = render(outcome.failure, check=self.check.title, hint=hint)
        return text + (f"\n  printed\n{outcome.output}" if outcome.output.strip() else "")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    result = yield
    if call.excinfo is None or not isinstance(call.excinfo.value, _Stop):
        return
    outcome, report = call.excinfo.value.outcome, result.get_result()
    if outcome.state != "failed":
        report.outcome = "skipped"
        report.check_state = outcome.state
        report.longrepr = (str(item.path), None, outcome.reason)


def pytest_report_teststatus(report, config):
    state = getattr(report, "check_state", "")
    if state not in LETTERS:
        return None
    letter, word, markup = LETTERS[state]
    return state, letter, (word, markup)


def _asked_for(config: pytest.Config, tree: str) -> bool:
    asked = {Path(str(a).split("::")[0]).resolve() for a in config.args}
    return any(p == ROOT / tree or ROOT / tree in p.parents for p in asked)


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [
        f"TVM {installed('apache-tvm')}, tvm-ffi {installed('apache-tvm-ffi')}, {platform.system()} "
        f"{platform.machine()}; a check runs on the CPU unless it says otherwise",
        *(f"!! {sentence}: {MEND}" for sentence in wrong_versions()),
    ]
    if config.getoption("--impl"):
        return [*lines, f"checking {config.getoption('--impl')}"]
    if _asked_for(config, "solutions"):
        lines.append(f"checking the {CHECKED}")
    if _asked_for(config, "chapters"):
        lines.append("checking YOUR code in chapters/")
    return lines


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, CheckItem)]
    if items and not session.config.option.collectonly:
        session.config.stash[RUN].begin(items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    run = session.config.stash[RUN]
    for exercise in run.exercises.values():
        exercise.record()
    for engine in run.engines.values():
        engine.close()
    states = {overall(exercise.outcomes) for exercise in run.exercises.values()}
    if exitstatus == 0 and states & {"todo", "waits", "unable"}:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    run = config.stash[RUN]
    solutions, mine = run.ran("solutions"), run.ran("chapters")
    if not solutions and not mine:
        return
    write = terminalreporter.write_line
    terminalreporter.section("Fusion by Hand")
    found = next((engine.machine for engine in run.engines.values() if engine.machine), "")
    machine = f", {found}" if found else ""
    for whose, exercises in (
        ("REFERENCE (solutions/)", solutions),
        ("YOUR code (chapters/)", mine),
    ):
        if exercises:
            write(f"{whose}{machine}")
            _write_progress(write, exercises)
    for reason in dict.fromkeys(
        o.reason for e in (*solutions, *mine) for o in e.outcomes if o.state == "unable"
    ):
        write(f"!! Some checks could not run here, which says nothing about the code: {reason}.")
    if solutions:
        write(f"This was the {CHECKED}.")
    for chapter in dict.fromkeys(exercise.chapter for exercise in mine):
        if lost := learner_file.without_markers(chapter):
            write(f"!! {lost}")
    for chapter in dict.fromkeys(exercise.chapter for exercise in mine if exercise.changed):
        write(f"!! {saved_meanwhile(chapter)}")
    for exercise in mine:
        if overall(exercise.outcomes) not in FINE:
            about = exercise.about
            write(f"Next: exercise {about.id}, {about.title} ({about.minutes} min).")
            write(f"      python -m chapters check {about.id}")
            break


def _write_progress(write, exercises: list[_Exercise]) -> None:
    for chapter, those in itertools.groupby(exercises, lambda exercise: exercise.chapter):
        passed = [overall(exercise.outcomes) == "passed" for exercise in those]
        progress = f"{bar(sum(passed), len(passed))} {sum(passed)}/{len(passed)}"
        write(f"  {chapter.slug:<36} {progress}")
