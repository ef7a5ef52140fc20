"""The pytest plugin: runs the checks named by `test_chNN.py` in a worker process and reports them for a learner.

A file `chapters/chNN_name/test_chNN.py` or `solutions/chNN_name/test_chNN.py` holds one import of a checks module. The
plugin reads which one, makes an item of each of its checks, and runs them on the file beside the test file (or on the
one given by `--impl`). States are passed, TODO (not begun), failed, waits (an earlier check of the exercise failed, or
an exercise that it uses is to be written or mended first) and skipped.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path

import pytest

from chapters.toolkit.course import ROOT, Chapter, CourseError, chapters
from chapters.toolkit.course import chapter as find_chapter
from chapters.toolkit.machine import MEND, installed, wrong_versions
from chapters.toolkit.progress import digest, record_state
from chapters.toolkit.terminal import bar
from tests.harness.failure import render
from tests.harness.runner import Check, Outcome, Runner, checks_of, not_begun

ONE_LINE = re.compile(r"^from tests\.checks\.(ch\d\d) import \*", re.MULTILINE)
LETTERS = {"todo": ("T", "TODO", {"yellow": True}), "waits": ("w", "WAITS", {"yellow": True})}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", help="check this file instead of the one beside the test file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SESSION] = _Session()


class _Session:
    """What one pytest run knows: its worker, and the outcomes by chapter and exercise."""

    def __init__(self) -> None:
        self.runner = Runner()
        self.trees: set[str] = set()
        self.outcomes: dict[tuple[str, str], list[str]] = {}
        self.failed: set[tuple[str, str]] = set()  # exercises with a failed check
        self.unreadable: set[Path] = set()  # files that could not be loaded
        self.digests: dict[str, str] = {}  # of the learner's exercises, before they are checked


SESSION: pytest.StashKey[_Session] = pytest.StashKey()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    match = re.fullmatch(r"test_(ch\d\d)\.py", module_path.name)
    if match and module_path.parent.parent.name in ("chapters", "solutions"):
        return ChecksFile.from_parent(parent, path=module_path)
    return None


class ChecksFile(pytest.Module):
    """A test file that stands for a checks module; it is read, not imported."""

    def collect(self):
        match = ONE_LINE.search(self.path.read_text(encoding="utf-8"))
        if not match:
            raise self.CollectError(
                f"{self.path.name} must hold the line `from tests.checks.chNN import *`."
            )
        try:
            home = find_chapter(match[1])
            found = checks_of(home)
        except CourseError as error:
            raise self.CollectError(str(error)) from None
        impl = self.config.getoption("--impl")
        answer = Path(impl).resolve() if impl else self.path.parent / home.file
        for check in found:
            yield CheckItem.from_parent(self, name=check.name, check=check, answer=answer)


class _Stop(Exception):
    """Carries an outcome that is not a pass from `runtest` to the report."""

    def __init__(self, outcome: Outcome):
        self.outcome = outcome


class CheckItem(pytest.Item):
    """One check on one answer."""

    def __init__(self, *, check: Check, answer: Path, **kwargs):
        super().__init__(**kwargs)
        self.check, self.answer = check, answer
        self.tree = answer.parent.parent.name

    @property
    def mine(self) -> bool:
        """Whether the learner's own file is being checked."""
        return self.answer == self.check.chapter.stub

    def reportinfo(self):
        return self.path, None, f"{self.check.exercise.id} {self.check.title}"

    def runtest(self) -> None:
        session = self.config.stash[SESSION]
        key = (self.tree, self.check.exercise.id)
        untouched = self.check.exercise.id in not_begun(self.check.chapter, self.answer)
        if key in session.failed:
            outcome = Outcome(self.check, "waits", reason="an earlier check of the exercise")
        elif self.answer in session.unreadable:
            outcome = Outcome(self.check, "waits", reason=f"{self.answer.name} cannot be loaded")
        elif untouched:
            outcome = Outcome(self.check, "todo", reason=f"exercise {self.check.exercise.id}")
        else:
            outcome = session.runner.run(self.check, self.answer)
        session.outcomes.setdefault(key, []).append(outcome.state)
        if outcome.state == "failed":
            session.failed.add(key)
            if outcome.unreadable:
                session.unreadable.add(self.answer)
        if outcome.state != "passed":
            raise _Stop(outcome)

    def repr_failure(self, excinfo):
        if not isinstance(excinfo.value, _Stop):
            return super().repr_failure(excinfo)
        outcome = excinfo.value.outcome
        if outcome.failure is None:
            return outcome.reason
        hint = f"python -m chapters hint {self.check.exercise.id}" if self.mine else ""
        text = render(outcome.failure, check=self.check.title, hint=hint)
        return text + (f"\n  printed\n{outcome.output}" if outcome.output.strip() else "")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    result = yield
    if not isinstance(item, CheckItem) or call.when != "call" or call.excinfo is None:
        return
    if not isinstance(call.excinfo.value, _Stop):
        return
    outcome, report = call.excinfo.value.outcome, result.get_result()
    if outcome.state in ("todo", "waits", "skipped"):
        report.outcome = "skipped"
        used = outcome.state == "todo" and outcome.reason != f"exercise {item.check.exercise.id}"
        report.check_state = "waits" if used else outcome.state
        report.longrepr = (str(item.path), None, outcome.reason)


def pytest_report_teststatus(report, config):
    return _letters(getattr(report, "check_state", ""))


def _letters(state: str):
    if state not in LETTERS:
        return None
    letter, word, markup = LETTERS[state]
    return state, letter, (word, markup)


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [
        f"TVM {installed('apache-tvm')}, tvm-ffi {installed('apache-tvm-ffi')}, {platform.system()} "
        f"{platform.machine()}; a check runs on the CPU unless it says otherwise",
        *(f"!! {sentence}: {MEND}" for sentence in wrong_versions()),
    ]
    asked = {Path(str(a).split("::")[0]).resolve() for a in config.args}
    if config.getoption("--impl"):
        return [*lines, f"checking {config.getoption('--impl')}"]
    if any(p == ROOT / "solutions" or ROOT / "solutions" in p.parents for p in asked):
        lines.append(_reference_sentence())
    if any(p == ROOT / "chapters" or ROOT / "chapters" in p.parents for p in asked):
        lines.append("checking YOUR code in chapters/")
    return lines


def _reference_sentence() -> str:
    return "checking the REFERENCE in solutions/; your own code is checked by `pytest chapters/`"


def pytest_collection_finish(session: pytest.Session) -> None:
    state = session.config.stash[SESSION]
    items = [i for i in session.items if isinstance(i, CheckItem)]
    state.trees = {item.tree for item in items}
    own = {i.check.exercise.id: i.check.chapter for i in items if i.mine}
    state.digests = {exercise: digest(home, exercise) for exercise, home in own.items()}
    begun = [i for i in items if i.check.exercise.id not in not_begun(i.check.chapter, i.answer)]
    if begun and not session.config.option.collectonly:
        state.runner.start()


def _exercise_state(states: list[str]) -> str:
    """The state of an exercise whose checks came out as `states`; one that waits has not passed."""
    if "failed" in states or "waits" in states:
        return "failed"
    return next((state for state in ("todo", "skipped") if state in states), "passed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    state = session.config.stash[SESSION]
    for item in {i.check.exercise.id: i for i in _items(session) if i.mine}.values():
        key = (item.tree, item.check.exercise.id)
        expected = sum(c.exercise.id == key[1] for c in checks_of(item.check.chapter))
        seen = state.outcomes.get(key, [])
        if seen and (len(seen) == expected or "failed" in seen):
            with contextlib.suppress(OSError):  # a folder one may not write to has no progress
                found = _exercise_state(seen)
                record_state(item.check.chapter, key[1], found, state.digests[key[1]])
    state.runner.close()
    if exitstatus == 0 and any("todo" in seen for seen in state.outcomes.values()):
        session.exitstatus = 1


def _items(session: pytest.Session) -> list[CheckItem]:
    return [i for i in getattr(session, "items", []) if isinstance(i, CheckItem)]


def _progress_line(home: Chapter, tree: str, outcomes: dict) -> str | None:
    states = {
        e.id: _exercise_state(outcomes[tree, e.id])
        for e in home.exercises
        if (tree, e.id) in outcomes
    }
    if not states:
        return None
    done = sum(s == "passed" for s in states.values())
    return f"  {home.slug:<36} {bar(done, len(states))} {done}/{len(states)}"


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    state = config.stash[SESSION]
    if not state.trees & {"solutions", "chapters"} or not state.outcomes:
        return
    write = terminalreporter.write_line
    terminalreporter.section("Fusion by Hand")
    for tree, whose in (("solutions", "REFERENCE"), ("chapters", "YOUR code")):
        lines = [line for c in chapters() if (line := _progress_line(c, tree, state.outcomes))]
        if lines:
            write(
                f"{whose} ({tree}/)" + (f", {state.runner.machine}" if state.runner.machine else "")
            )
            for line in lines:
                write(line)
    if "solutions" in state.trees:
        write("This was the " + _reference_sentence().removeprefix("checking the ") + ".")
    if "chapters" in state.trees:
        _say_next(write, state)


def _say_next(write, state: _Session) -> None:
    for home in chapters():
        for exercise in home.exercises:
            seen = state.outcomes.get(("chapters", exercise.id))
            if seen and _exercise_state(seen) in ("todo", "failed"):
                write(f"Next: exercise {exercise.id}, {exercise.title} ({exercise.minutes} min).")
                write(f"      python -m chapters check {exercise.id}")
                return
