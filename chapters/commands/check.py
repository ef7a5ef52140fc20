"""`python -m chapters check [4 | 4.2 …]`: checks the learner's code and says what to do about what it finds."""

from __future__ import annotations

from chapters.toolkit.course import Chapter, Exercise, select
from chapters.toolkit.machine import MEND, wrong_versions
from chapters.toolkit.progress import digest, record_state
from chapters.toolkit.terminal import describe, shown
from tests.harness.failure import render
from tests.harness.runner import Outcome, Runner, not_begun


def run(options) -> int:
    """Check what was asked for; 0 if all of it passes."""
    asked = options.what or [None]
    chosen = list(dict.fromkeys(one for name in asked for one in select(name)))
    print("Checking YOUR code in chapters/.")
    for sentence in wrong_versions():
        print(f"!! {sentence}: {MEND}.")
    passed = 0
    with Runner() as runner:
        for chapter, exercise in chosen:
            if chapter.stub in runner.unreadable:
                print(f"· {exercise.id} waits until {chapter.file} can be read")
                continue
            passed += check_one(runner, chapter, exercise, brief=len(chosen) > 1)
        machine = f", {runner.machine}" if runner.machine else ""
    print(f"{passed} of {len(chosen)} passed{machine}.")
    return 0 if passed == len(chosen) else 1


def check_one(runner: Runner, chapter: Chapter, exercise: Exercise, *, brief: bool = False) -> bool:
    """Check one exercise, print what came of it, note it in the progress file. True if it passed.

    brief: an exercise that was not begun gets one line; else it is shown where it is, and a *fix*
    exercise is run, since its failure is where the learner starts.
    """
    checked = digest(chapter, exercise.id)
    untouched = exercise.id in not_begun(chapter, chapter.stub)
    if untouched and (brief or not exercise.broken):
        print(
            f"· {exercise.id} TODO" if brief else "TODO, not begun:\n" + describe(chapter, exercise)
        )
        record_state(chapter, exercise.id, "todo", checked)
        return False
    outcomes = runner.run_exercise(chapter, exercise, chapter.stub)
    state = _overall(outcomes)
    _say(chapter, exercise, outcomes, state)
    if not record_state(chapter, exercise.id, "todo" if untouched else state, checked):
        print(f"  {chapter.file} was saved while it was being checked: check it again.")
        return False
    return state == "passed"


def _overall(outcomes: list[Outcome]) -> str:
    for state in ("failed", "todo", "skipped"):
        if any(outcome.state == state for outcome in outcomes):
            return state
    return "passed"


def _say(chapter: Chapter, exercise: Exercise, outcomes: list[Outcome], state: str) -> None:
    last = outcomes[-1]
    if state == "passed":
        count = f"{len(outcomes)} check{'s' if len(outcomes) > 1 else ''}"
        print(f"✓ {exercise.id} {exercise.title}: {count} passed")
    elif state == "skipped":
        reasons = {o.reason for o in outcomes if o.state == "skipped"}
        print(f"- {exercise.id} SKIPPED, not counted as passed: {'; '.join(sorted(reasons))}")
    elif state == "todo":
        waits = last.reason.removeprefix("exercise ").split()[0].rstrip(":")
        if waits == exercise.id:
            print(f"· {exercise.id} TODO, a part of it is still to be written")
        else:
            print(f"· {exercise.id} waits for exercise {waits}, which it uses")
    else:
        print(f"{exercise.id} {exercise.title}")
        print(
            render(
                last.failure, check=last.check.title, hint=f"python -m chapters hint {exercise.id}"
            )
        )
        if last.output.strip():
            print(f"  printed\n{last.output.rstrip()}")
        print(f"  in        {shown(chapter.stub)}")
