"""`python -m chapters check [4 | 4.1 …]`: checks the learner's code and says what to do about what it finds."""

from __future__ import annotations

import contextlib
from pathlib import Path

from chapters.code_owner import LEARNER
from chapters.runner.course import Chapter, Exercise, select
from chapters.runner.device_child import (
    DeviceChild,
    NoDevice,
    add_device_options,
    has_kernel,
    list_kernels,
)
from chapters.runner.engine import FINE, Engine
from chapters.runner.exercise_report import ExerciseReport
from chapters.runner.learner_file import describe_faults
from chapters.runner.terminal import describe
from chapters.runner.versions import MEND, wrong_versions

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
        if said := describe_faults(chapter):
            print(f"!! {said}")
    brief = len(chosen) > 1
    with contextlib.ExitStack() as stack:
        device = _open_device(options, chosen, stack)
        engine = stack.enter_context(Engine(LEARNER))
        reports = [report_exercise(*one, engine, brief=brief) for one in chosen]
        passed, unreadable, right = 0, set(), True
        for report in reports:
            print_report(report, unreadable, brief=brief)
            passed += report.state == "passed"
            if device and report.state in FINE and has_kernel(report.chapter, report.exercise):
                right &= _run_on_device(device, report.chapter, report.exercise)
        machine = f", {engine.machine}" if engine.machine else ""
    print(f"{passed} of {len(chosen)} passed{machine}.")
    return 0 if passed == len(chosen) and right else 1


def report_exercise(
    chapter: Chapter, exercise: Exercise, engine: Engine, *, brief: bool = False
) -> ExerciseReport:
    """Have the engine check an exercise of the learner's. brief: not a *fix* exercise that was not begun."""
    run_untouched = bool(exercise.broken) and not brief
    return ExerciseReport(chapter, exercise, chapter.stub, engine, run_untouched=run_untouched)


def print_report(report: ExerciseReport, unreadable: set[Path], *, brief: bool = False) -> None:
    """Wait for a report and print it. brief: print one line for an exercise that was not begun."""
    report.wait(unreadable)
    if report.state == "failed":
        print(f"{report.exercise.id} {report.exercise.title}")
    if report.outcomes or brief:
        print(report.describe())
    else:
        print(f"TODO, not begun:\n{describe(report.chapter, report.exercise)}")
    if report.record_error:
        print(f"  {report.record_error}")


def _open_device(options, chosen, stack: contextlib.ExitStack) -> DeviceChild | None:
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


def _run_on_device(device: DeviceChild, chapter: Chapter, exercise: Exercise) -> bool:
    """Run the exercise's kernel on the device and print what was found. True unless it is wrong there."""
    found = device.run(chapter, exercise, rounds=ROUNDS, yours=True)
    for line in found["lines"]:
        print(f"  {line}", flush=True)
    return found["state"] != "wrong"
