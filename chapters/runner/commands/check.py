"""`python -m chapters check [4 | 4.2 …]`: checks the learner's code and says what to do about what it finds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from chapters.program import describe_refusal
from chapters.runner.course import Chapter, Exercise, select
from chapters.runner.device_child import (
    DeviceChild,
    NoDevice,
    add_device_options,
    has_kernel,
    list_kernels,
)
from chapters.runner.engine import FINE, Engine, Outcome, checks_of_exercise, overall
from chapters.runner.failure import render
from chapters.runner.learner_file import not_begun, warning
from chapters.runner.states import digest, record_state
from chapters.runner.terminal import describe, relative, saved_meanwhile
from chapters.runner.versions import MEND, wrong_versions
from chapters.whose_code import LEARNER

HELP = "check your code: all of it, or chapters (2) and exercises (2.1)"


ROUNDS = 10  # of timing on a device


def arguments(parser) -> None:
    parser.add_argument("what", nargs="*")
    add_device_options(parser)


def run(options) -> int:
    """Check what was asked for; 0 if all of it passes, also on the device if one was asked for."""
    asked = options.what or [None]
    chosen = list(dict.fromkeys(one for name in asked for one in select(name)))
    print("Checking YOUR code in chapters/.")
    for sentence in wrong_versions():
        print(f"!! {sentence}: {MEND}.")
    for chapter in dict.fromkeys(chapter for chapter, _ in chosen):
        if said := warning(chapter):
            print(f"!! {said}")
    brief = len(chosen) > 1
    with contextlib.ExitStack() as stack:
        device = _opened(options, chosen, stack)
        engine = stack.enter_context(Engine(LEARNER))
        checked = [Checked(chapter, exercise, engine, brief) for chapter, exercise in chosen]
        passed, unreadable, right = 0, set(), True
        for one in checked:
            if one.chapter.stub in unreadable:
                print(f"· {one.exercise.id} waits until {one.chapter.file} can be read")
            else:
                passed += one.tell()
                unreadable |= {one.chapter.stub} if one.unreadable else set()
                if device and one.fine and has_kernel(one.chapter, one.exercise):
                    right &= _tell_device(device, one.chapter, one.exercise)
        machine = f", {engine.machine}" if engine.machine else ""
    print(f"{passed} of {len(chosen)} passed{machine}.")
    return 0 if passed == len(chosen) and right else 1


def _opened(options, chosen, stack: contextlib.ExitStack) -> DeviceChild | None:
    """The device that was asked for; None if none was, or if this machine has none, which is said."""
    if not options.device and not options.remote:
        return None
    if not any(has_kernel(*one) for one in chosen):
        print(f"--device changes nothing here: only {list_kernels()} have a kernel to run.")
        return None
    try:
        return stack.enter_context(DeviceChild(options.device, options.remote))
    except NoDevice as absent:
        print(f"{absent} Checking without a device.")
        return None


def _tell_device(device: DeviceChild, chapter: Chapter, exercise: Exercise) -> bool:
    """Run the exercise's kernel on the device and print what was found. True unless it is wrong there."""
    found = device.run(chapter, exercise, rounds=ROUNDS, yours=True)
    for line in found["lines"]:
        print(f"  {line}", flush=True)
    return found["state"] != "wrong"


class Checked:
    """One exercise that is checked by an engine; `tell` waits for it, prints the result and records it.

    brief: print one line for an exercise that was not begun. Otherwise say where it is, and run a *fix* exercise,
    because the learner starts from its failure.
    """

    def __init__(self, chapter: Chapter, exercise: Exercise, engine: Engine, brief: bool = False):
        self.chapter, self.exercise, self.brief = chapter, exercise, brief
        self.digest = digest(chapter, exercise.id)
        self.untouched = exercise.id in not_begun(chapter, chapter.stub)
        self.unreadable = self.fine = False  # fine: it passed, or cannot be checked here
        checks = checks_of_exercise(chapter, exercise.id)
        skip = self.untouched and (brief or not exercise.broken)
        self.found = None if skip else engine.submit(checks, chapter.stub)

    def tell(self) -> bool:
        """True if the exercise passed."""
        if self.found is None:
            about = describe(self.chapter, self.exercise)
            print(f"· {self.exercise.id} TODO" if self.brief else f"TODO, not begun:\n{about}")
            self._record("todo")
            return False
        outcomes = self.found.result()
        state = overall(outcomes)
        _say(self.chapter, self.exercise, outcomes, state)
        self.fine = state in FINE
        self.unreadable = outcomes[-1].unreadable
        if self.unreadable or state == "unable":  # then nothing is known about this exercise
            return False
        recorded = "todo" if self.untouched or state == "waits" else state
        if not self._record(recorded, outcomes):
            print(f"  {saved_meanwhile(self.chapter)}")
            return False
        return state == "passed"

    def _record(self, state: str, outcomes: Iterable[Outcome] = ()) -> bool:
        """`record_state`, which may fail: a verdict holds where it cannot be recorded."""
        try:
            return record_state(self.chapter, self.exercise.id, state, self.digest, outcomes)
        except OSError as error:
            print(f"  not recorded: {describe_refusal(error)}")
            return True


def _say(chapter: Chapter, exercise: Exercise, outcomes: list[Outcome], state: str) -> None:
    last = outcomes[-1]
    if state == "passed":
        count = f"{len(outcomes)} check{'s' if len(outcomes) > 1 else ''}"
        print(f"✓ {exercise.id} {exercise.title}: {count} passed")
    elif state == "skipped":
        reasons = {o.reason for o in outcomes if o.state == "skipped"}
        print(f"- {exercise.id} SKIPPED, not counted as passed: {'; '.join(sorted(reasons))}")
    elif state == "unable":
        print(
            f"? {exercise.id} could not be checked, which says nothing about your code: {last.reason}."
        )
    elif state == "todo":
        passed = sum(outcome.state == "passed" for outcome in outcomes)
        far = f"; {passed} check{'s' if passed > 1 else ''} passed so far" if passed else ""
        print(f"· {exercise.id} TODO, a part of it is still to be written{far}")
    elif state == "waits":
        print(f"· {exercise.id} waits for {last.reason}, which it uses")
    else:
        print(f"{exercise.id} {exercise.title}")
        hint = f"python -m chapters hint {exercise.id}"
        print(render(last.failure, check=last.check.title, hint=hint))
        if last.output.strip():
            print(f"  printed\n{last.output.rstrip()}")
        print(f"  in        {relative(chapter.stub)}")
