"""`python -m chapters trace`: a pipeline pass by pass, and with --pass what one of them made of the IR."""

from __future__ import annotations

import os
import sys

from chapters.toolkit.course import CourseError, chapter
from chapters.toolkit.earlier import whose
from chapters.toolkit.ir.ir_diff import DIM, PLAIN
from chapters.toolkit.pipeline.pass_trace import Step
from chapters.toolkit.pipeline.traced_pipelines import OURS, trace_decoder

MANY = 3  # functions whose differences are shown whole


def run(options) -> int:
    """Trace a pipeline on one function of the decoder; print the table, or one pass's differences."""
    made = trace_decoder(options.pipeline, options.config, options.function, options.target)
    title = (
        f"pipeline {options.pipeline} on {options.function} of {options.config}, for {options.target}"
        f"{_whose() if options.pipeline == 'fusion_by_hand' else ''}"
    )
    if options.pass_name is None:
        print(f"{title}\n\n{made}\n")
        print("python -m chapters trace --pass FuseOps shows what one of them changed (or its #).")
        return 0
    try:
        steps = made.find(options.pass_name)
    except KeyError as error:
        raise CourseError(error.args[0]) from None
    print(title)
    for step in [s for s in steps if s.changed] or steps[:1]:
        _show(step, options.function)
    return 0


def _whose() -> str:
    """Whose code the course's pipeline runs."""
    home = chapter(OURS)
    numbers: dict[str, list[str]] = {}
    for number in (*home.needs, home.number):
        numbers.setdefault(whose(number), []).append(str(number))
    parts = [f"{who}: {', '.join(theirs)}" for who, theirs in numbers.items()]
    return f"\nwith the code of these chapters, {'; '.join(parts)}"


def _show(step: Step, main: str) -> None:
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\n{step.number} · {step.name}, {step.seconds * 1000:.1f} ms: {step.summary()}")
    if not step.changed:
        print("It left the module as it was.")
    altered = sorted(step.altered, key=lambda name: name != main)
    for name in altered[:MANY]:
        print(f"\n{name}: {step.diff(name).text(colour)}")
    rest = {"also changed": altered[MANY:], "new": step.added, "gone": step.removed}
    for what, names in rest.items():
        if names:
            text = f"\n{what}: {', '.join(names)}"
            print(f"{DIM}{text}{PLAIN}" if colour else text)
