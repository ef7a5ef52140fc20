"""The pytest plugin: `pytest solutions/` and `pytest chapters/` check the exercises, one item per exercise.

It collects the file that a learner edits, `chapters/chNN_name/<file>.py`, and the reference of the same name under
`solutions/`. The engine checks the exercises in child processes, several at once; an item waits for the report on its
exercise. A state that pytest does not know has a letter of its own: T for TODO (to be written), w for waits (another
exercise must be written or mended first), u for unable (this machine could not run the checks, whatever the code is).
"""

from __future__ import annotations

import pytest

from chapters.environment import find_fault, find_hidden_module

if hidden := find_hidden_module():  # before the imports that follow
    raise pytest.UsageError(hidden)

import itertools
import platform
from pathlib import Path

from chapters.code_owner import LEARNER, REFERENCE, set_owner
from chapters.program import describe_refusal
from chapters.runner import learner_file
from chapters.runner.course import ROOT, Chapter, CourseError, Exercise, chapters
from chapters.runner.engine import FINE, Engine, checks_of
from chapters.runner.exercise_report import ExerciseReport
from chapters.runner.terminal import bar
from chapters.runner.versions import MEND, installed_version, wrong_versions

# what tests in this process call; the files in chapters/ are checked in processes of their own
set_owner(REFERENCE)

LETTERS = {
    "todo": ("T", "TODO", {"yellow": True}),
    "waits": ("w", "WAITS", {"yellow": True}),
    "unable": ("u", "UNABLE", {"yellow": True}),
}
CHECKED = "REFERENCE in solutions/; your own code is checked by `pytest chapters/`"


class _Run:
    """What the items of one pytest run share. engines: by whose code they check."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.reports: list[ExerciseReport] = []
        self.unreadable: set[Path] = set()

    def begin(self, items: list[ExerciseItem]) -> None:
        """Hand every exercise to an engine; capstones first, because their checks take longest."""
        for item in sorted(items, key=lambda item: not item.chapter.is_capstone):
            owner = LEARNER if item.answer == item.chapter.stub else REFERENCE
            if owner not in self.engines:
                self.engines[owner] = Engine(owner)
            item.report = ExerciseReport(
                item.chapter, item.exercise, item.answer, self.engines[owner]
            )
        self.reports = [item.report for item in items]


RUN: pytest.StashKey[_Run] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", help="check this file instead of the one that is collected")


def pytest_configure(config: pytest.Config) -> None:
    if fault := find_fault(config.rootpath):
        raise pytest.UsageError(fault)
    config.stash[RUN] = _Run()
    try:
        chapters()
        if _is_asked_for(config, "chapters"):
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
    """A file with answers; its items are the exercises of its chapter. It is not imported here."""

    def __init__(self, *, chapter: Chapter, answer: Path, **kwargs):
        super().__init__(**kwargs)
        self.chapter, self.answer = chapter, answer

    def collect(self):
        impl = self.config.getoption("--impl")
        answer = Path(impl).resolve() if impl else self.answer
        try:
            checks_of(self.chapter)
        except CourseError as error:
            raise self.CollectError(str(error)) from None
        for exercise in self.chapter.exercises:
            name = f"exercise_{exercise.id.replace('.', '_')}_{exercise.name}"
            yield ExerciseItem.from_parent(self, name=name, exercise=exercise, answer=answer)


class _NotPassed(Exception):
    """Raised in an item whose report says anything else than "passed"."""


class ExerciseItem(pytest.Item):
    """An exercise of one file. report: set once all items are collected."""

    report: ExerciseReport

    def __init__(self, *, exercise: Exercise, answer: Path, **kwargs):
        super().__init__(**kwargs)
        self.chapter, self.exercise, self.answer = self.parent.chapter, exercise, answer

    def reportinfo(self):
        return self.path, None, f"{self.exercise.id} {self.exercise.title}"

    def runtest(self) -> None:
        self.report.wait(self.config.stash[RUN].unreadable)
        if self.report.state != "passed":
            raise _NotPassed

    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, _NotPassed):
            return self.report.describe()
        return super().repr_failure(excinfo)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    result = yield
    if (
        call.excinfo
        and isinstance(call.excinfo.value, _NotPassed)
        and item.report.state != "failed"
    ):
        report = result.get_result()
        report.outcome, report.check_state = "skipped", item.report.state
        report.longrepr = (str(item.path), None, item.report.describe())


def pytest_report_teststatus(report, config):
    state = getattr(report, "check_state", "")
    if state not in LETTERS:
        return None
    letter, word, markup = LETTERS[state]
    return state, letter, (word, markup)


def _is_asked_for(config: pytest.Config, tree: str) -> bool:
    asked = {Path(str(a).split("::")[0]).resolve() for a in config.args}
    return any(p == ROOT / tree or ROOT / tree in p.parents for p in asked)


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [
        f"TVM {installed_version('apache-tvm')}, tvm-ffi {installed_version('apache-tvm-ffi')}, {platform.system()} "
        f"{platform.machine()}; a check runs on the CPU unless it says otherwise",
        *(f"!! {sentence}: {MEND}" for sentence in wrong_versions()),
    ]
    if config.getoption("--impl"):
        return [*lines, f"checking {config.getoption('--impl')}"]
    if _is_asked_for(config, "solutions"):
        lines.append(f"checking the {CHECKED}")
    if _is_asked_for(config, "chapters"):
        lines.append("checking YOUR code in chapters/")
    return lines


def pytest_collection_finish(session: pytest.Session) -> None:
    items = [item for item in session.items if isinstance(item, ExerciseItem)]
    if items and not session.config.option.collectonly:
        session.config.stash[RUN].begin(items)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    run = session.config.stash[RUN]
    for engine in run.engines.values():
        engine.close()
    if exitstatus == 0 and any(report.state in LETTERS for report in run.reports):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    if config.stash[RUN].reports and not config.getoption("--impl"):
        terminalreporter.section("Fusion by Hand")
        for line in _summarize(config.stash[RUN]):
            terminalreporter.write_line(line)


def _summarize(run: _Run) -> list[str]:
    lines = []
    for owner, name in ((REFERENCE, "REFERENCE (solutions/)"), (LEARNER, "YOUR code (chapters/)")):
        if owner in run.engines:
            machine = run.engines[owner].machine
            lines.append(f"{name}, {machine}" if machine else name)
            those = [one for one in run.reports if one.is_learners == (owner == LEARNER)]
            for chapter, its in itertools.groupby(those, lambda report: report.chapter):
                states = [report.state for report in its]
                done, total = states.count("passed"), len(states)
                lines.append(f"  {chapter.slug:<36} {bar(done, total)} {done}/{total}")
    lines += dict.fromkeys(
        f"!! Some checks could not run here, which says nothing about the code: {report.reasons}."
        for report in run.reports
        if report.state == "unable"
    )
    if REFERENCE in run.engines:
        lines.append(f"This was the {CHECKED}.")
    learners = [report for report in run.reports if report.is_learners]
    for chapter in dict.fromkeys(report.chapter for report in learners):
        if said := learner_file.describe_faults(chapter):
            lines.append(f"!! {said}")
    lines += [f"!! {report.record_error}" for report in learners if report.record_error][:1]
    if left := next((report.exercise for report in learners if report.state not in FINE), None):
        lines.append(f"Next: exercise {left.id}, {left.title} ({left.minutes} min).")
        lines.append(f"      python -m chapters check {left.id}")
    return lines
