"""The check engine: finds the checks of the course, runs them on answers in child processes, holds the time limits.

`python -m chapters check` and `pytest` are two views of it. An `Examiner` runs one check after the other in one child;
an `Engine` runs exercises on several examiners at once.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import os
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from chapters.child import Child, Lost, WrongPatience, name_exit, patience
from chapters.code_owner import LEARNER, REFERENCE, WHOSE
from chapters.runner.course import Chapter, CourseError, Exercise
from chapters.runner.exercise_at_fault import find_exercise_at_fault
from chapters.runner.explain import explain
from chapters.runner.failure import Failure, tail
from chapters.runner.regions import file_digest, file_fingerprint

SECONDS = 12  # a check's time limit, unless its module says otherwise in LIMITS
DIAGNOSIS_SECONDS = 30
MOST_WORKERS = 4  # each holds TVM and half a gigabyte
FINE = ("passed", "skipped")  # after such a check the next one of its exercise is run


@dataclass(frozen=True)
class Check:
    """One check function: `name` in a chapter's checks.py; `title` is the first line of its docstring."""

    chapter: Chapter
    exercise: Exercise
    name: str
    title: str
    seconds: float


@dataclass
class Outcome:
    """The result of a check. state: passed, skipped, waits, todo, failed or unable.

    todo: its exercise is still to be written. waits: an exercise that it uses must be written or mended first. unable:
    the machine could not run it, which says nothing about the code. reason: why it was skipped or could not run, or
    "exercise N.M", the one to write or mend. unreadable: the file could not even be loaded, so every other check of it
    would say the same. loaded: a fingerprint of the text that was loaded; files: digests of the learner's other files.
    """

    check: Check
    state: str
    failure: dict | None = None
    reason: str = ""
    output: str = ""
    unreadable: bool = False
    loaded: str = ""
    files: dict[str, str] = field(default_factory=dict)


def combine_states(outcomes: list[Outcome]) -> str:
    """The state of an exercise, from the outcomes of its checks."""
    found = {outcome.state for outcome in outcomes}
    return next(
        (s for s in ("failed", "unable", "todo", "waits", "skipped") if s in found), "passed"
    )


def checks_of(chapter: Chapter) -> list[Check]:
    """The checks of a chapter in the order of their file, read without importing it."""
    try:
        stretch = patience()
    except WrongPatience as error:
        raise CourseError(str(error)) from None
    return [
        Check(chapter, chapter.exercise(exercise), name, title, math.ceil(seconds * stretch))
        for exercise, name, title, seconds in _read_checks(chapter.checks)
    ]


@functools.cache
def _read_checks(path: Path) -> list[tuple[str, str, str, float]]:
    """Exercise, name, title and time limit of each check in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    limits: dict[str, float] = {}
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LIMITS":
            limits = ast.literal_eval(node.value)
    for node in tree.body:
        match = isinstance(node, ast.FunctionDef) and re.match(r"test_(\d+)_(\d+)_", node.name)
        if match:
            title = (ast.get_docstring(node) or node.name).split("\n")[0]
            limit = limits.get(node.name, SECONDS)
            found.append((f"{match[1]}.{match[2]}", node.name, title, limit))
    return found


def checks_of_exercise(chapter: Chapter, exercise_id: str) -> list[Check]:
    """The checks of one exercise."""
    return [check for check in checks_of(chapter) if check.exercise.id == exercise_id]


class Examiner(contextlib.AbstractContextManager):
    """Runs checks one after another in a child process, and starts a new one where the last was lost.

    owner: LEARNER, if the answers may use the learner's earlier chapters. Then each file, and each text that is saved
    to it, gets a child of its own: what one of them does to TVM must not reach another. spare: have the next child
    ready, so that a save is answered at once.
    """

    def __init__(self, owner: str = REFERENCE, *, spare: bool = False) -> None:
        self.child: Child | None = None
        self.machine = ""
        self._owner, self._closed = owner, False
        self._text: tuple = ()  # which file the child has loaded, and which text
        self._wants_spare = spare
        self._spare: Child | None = None

    def __exit__(self, *_) -> None:
        self.close()

    def _start(self, impl: Path, text: str) -> None:
        if self._closed:  # by Ctrl-C in another thread: start nothing more
            raise RuntimeError("This examiner is closed.")
        if self.child and self._owner == LEARNER and self._text != (impl, text):
            self.child.close()
            self.child = None
        if self.child is None:
            self.child, self._spare = self._spare or self._new_child(), None
            self._text = impl, text
        if self._wants_spare and self._spare is None:
            self._spare = self._new_child()

    def _new_child(self) -> Child:
        return Child("chapters.runner.worker", environment={WHOSE: self._owner})

    def close(self) -> None:
        self._closed = True
        children = self.child, self._spare  # at once: the thread that runs a check may set them too
        self.child = self._spare = None
        for child in filter(None, children):
            child.close()

    def run(self, check: Check, impl: Path, *, diagnose: bool = True) -> Outcome:
        """Run `check` on the answer in the file `impl`.

        diagnose: after a failure, look for a mistake that it behaves like and for another exercise that causes it.
        Without it, the child that has run the answer runs this one too.
        """
        impl = Path(impl)
        about = {"chapter": check.chapter.number, "exercise": check.exercise.id}
        question = {"ask": "check", **about, "check": check.name, "impl": str(impl)}
        before = file_fingerprint(impl, check.exercise.id)
        try:
            self._start(*(self._text if self.child and not diagnose else (impl, file_digest(impl))))
            if not self.machine:
                self.machine = self.child.ask({"ask": "machine"}, DIAGNOSIS_SECONDS * patience())
            found = self.child.ask(question, check.seconds)
            outcome = Outcome(check, **found, output=tail(self.child.printed()))
        except OSError as error:  # no process could be started
            return Outcome(check, "unable", reason=f"no process could be started: {error}")
        except Lost as lost:
            self.child = None
            if reason := _explain_unable(lost):
                return Outcome(check, "unable", reason=reason)
            failure = _describe_lost(lost, check, impl).as_dict()
            printed = tail(lost.printed.encode())
            return Outcome(check, "failed", failure, output=printed, loaded=before)
        if outcome.state == "todo" and outcome.reason != f"exercise {check.exercise.id}":
            outcome.state = "waits"
        if outcome.state == "failed" and diagnose:
            outcome.failure["like"] = self._diagnose(about)
            if not outcome.unreadable and (blocker := self._find_blocker(check, impl)):
                return replace(outcome, state="waits", failure=None, reason=f"exercise {blocker}")
        return outcome

    def _diagnose(self, about: dict) -> dict:
        """What the answer that was checked last behaves like; a catalogued mistake may be slow or crash."""
        try:
            return self.child.ask({"ask": "diagnosis", **about}, DIAGNOSIS_SECONDS * patience())
        except Lost:  # the plain failure is enough
            self.child = None
            return {}

    def _find_blocker(self, check: Check, impl: Path) -> str:
        """The other exercise of the file that this failure of `check` comes from, or ""."""

        def passes(path: Path) -> bool:
            return self.run(check, path, diagnose=False).state == "passed"

        def is_solved(exercise_id: str) -> bool:
            return self.is_solved(check.chapter, exercise_id, impl)

        return find_exercise_at_fault(check.chapter, check.exercise.id, impl, passes, is_solved)

    def is_solved(self, chapter: Chapter, exercise_id: str, impl: Path) -> bool:
        """Whether the answer passes all checks of an exercise that can run here."""
        checks = checks_of_exercise(chapter, exercise_id)
        return all(self.run(c, impl, diagnose=False).state in FINE for c in checks)

    def run_exercise(self, chapter: Chapter, exercise: Exercise, impl: Path) -> list[Outcome]:
        """Run an exercise's checks in order, up to the first that does not pass."""
        outcomes: list[Outcome] = []
        for check in checks_of_exercise(chapter, exercise.id):
            outcomes.append(self.run(check, impl))
            if outcomes[-1].state not in FINE:
                break
        return outcomes


NATIVE = (
    "Native code read or wrote memory that it must not touch. Most often a NumPy array was given to the VM without "
    "tvm.runtime.tensor, or a kernel indexes outside its buffers."
)
RECURSION = 20  # of the last 100 calls, on one line; in a visitor that visits its own node it is every third

LEFT = "Something called os._exit, sent a signal, or closed what the process needs."


def _explain_unable(lost: Lost) -> str:
    """Why a check could not run, if the machine is to blame for a lost child; else ""."""
    if not lost.began:
        said = [line for line in lost.printed.strip().splitlines() if line.strip()]
        why = (
            "it took too long, as on a busy machine"
            if lost.late
            else said[-1]
            if said
            else str(lost)
        )
        return f"the process that runs the checks could not start: {why}"
    if not lost.late and "SIGKILL" in name_exit(lost.code):
        return (
            "the system killed the process, as it does when memory runs out. If it happens again with nothing else "
            "running, look for what takes so much memory in your code"
        )
    return ""


def _describe_lost(lost: Lost, check: Check, impl: Path) -> Failure:
    """What a learner reads about a child that their code has ended."""
    place = lost.place(impl)
    end = (
        f"was stopped after {check.seconds:g} s" if lost.late else f"died ({name_exit(lost.code)})"
    )
    if (count := lost.count_calls(impl)) >= RECURSION:
        why, read = explain(RecursionError("maximum recursion depth exceeded"))
        return Failure(
            f"Your code called itself again and again, until its process {end}.",
            expected="calls that end",
            yours=f"{place}, which is {count} times among the last 100 calls",
            why=why,
            read=read,
        )
    if lost.late:
        return Failure(
            f"Your code did not finish within {check.seconds:g} s and was stopped.",
            expected="a few milliseconds",
            yours=f"it was at {place}" if place else "it was outside your file when stopped",
            why="A loop that never ends, or recursion into the same node, looks like this.",
        )
    faults = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
    native = lost.code == 0xC0000005 or any(name in name_exit(lost.code) for name in faults)
    return Failure(
        f"The process running your code {end}.",
        expected="a result or a Python exception",
        yours=f"it was at {place}" if place else "",
        why=NATIVE if native else LEFT,
    )


class Engine(contextlib.AbstractContextManager):
    """Runs exercises on several examiners at once, each in its own thread with its own child process.

    owner, spare: as an Examiner takes them.
    """

    def __init__(self, owner: str, workers: int | None = None, *, spare: bool = False) -> None:
        self._owner, self._spare = owner, spare
        self._count = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="examiner")
        self._own = threading.local()
        self._examiners: list[Examiner] = []
        self._lock = threading.Lock()

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def machine(self) -> str:
        """The TVM version and device that the checks ran with; "" until one has run."""
        return next((one.machine for one in self._examiners if one.machine), "")

    def submit(self, chapter: Chapter, exercise: Exercise, impl: Path) -> Future[list[Outcome]]:
        """Run an exercise's checks in order, up to the first that does not pass, when an examiner is free."""
        return self._pool.submit(lambda: self._examiner().run_exercise(chapter, exercise, impl))

    def _examiner(self) -> Examiner:
        """The examiner of this thread."""
        if not hasattr(self._own, "examiner"):
            self._own.examiner = Examiner(self._owner, spare=self._spare)
            with self._lock:
                self._examiners.append(self._own.examiner)
        return self._own.examiner

    def close(self) -> None:
        """Drop the exercises that have not begun, and end every child."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for examiner in self._examiners:
            examiner.close()
