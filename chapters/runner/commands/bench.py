"""`python -m chapters bench 3`: measure a chapter's kernels here; `bench 8.2`: one exercise's kernel on a GPU."""

from __future__ import annotations

import subprocess
import sys

from chapters.code_owner import LEARNER, REFERENCE
from chapters.runner.course import ROOT, CourseError, chapters
from chapters.runner.course import chapter as find
from chapters.runner.course import exercise as find_exercise
from chapters.runner.device_child import (
    DeviceChild,
    add_device_options,
    has_kernel,
    list_kernels,
)
from chapters.runner.earlier import describe_owners
from chapters.runner.progress import data_folder
from chapters.runner.states import states

HELP = "measure a chapter's kernels on this machine (3), or one exercise's on a GPU (8.2)"
ROUNDS, QUICK_ROUNDS = 50, 5


def arguments(parser) -> None:
    parser.add_argument("what", metavar="chapter or exercise")
    parser.add_argument("--quick", action="store_true", help="measure little, write no file")
    parser.add_argument(
        "--save",
        action="store_true",
        help="measure the reference, and replace what the results page shows",
    )
    add_device_options(parser)


def about(options) -> str:
    """What the results page shows is measured with the reference."""
    return REFERENCE if options.save else LEARNER


def run(options) -> int:
    """Measure an exercise's kernel on a device, or run the chapter's `bench.py` as a program of its own."""
    if "." in options.what:
        return _time_exercise(options)
    if options.device or options.remote:
        raise CourseError(
            "--device and --remote measure one exercise, as in `python -m chapters bench 8.2 --device cuda`; a "
            "whole chapter measures this machine."
        )
    chapter = find(options.what)
    if not (chapter.folder / "bench.py").exists():
        having = ", ".join(str(c.number) for c in chapters() if (c.folder / "bench.py").exists())
        raise CourseError(f"Chapter {chapter.number} measures nothing; {having or 'none'} do.")
    print(describe_owners([*chapter.needs, chapter.number]), flush=True)
    quick = ["--quick"] if options.quick else []
    place = [] if options.save else ["--folder", str(data_folder() / "results")]
    command = [sys.executable, "-m", "chapters.kit.bench", chapter.slug, *quick, *place]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _time_exercise(options) -> int:
    """Time the learner's kernel of one exercise beside the reference's and a vendor's library."""
    chapter, exercise = find_exercise(options.what)
    if not has_kernel(chapter, exercise):
        raise CourseError(
            f"Exercise {exercise.id} has no kernel to measure; {list_kernels()} have one."
        )
    yours = states(chapter)[exercise.id] != "todo"
    with DeviceChild(options.device, options.remote) as device:
        print(f"Measuring {exercise.id} {exercise.title} on {device.name}.", flush=True)
        if not yours:
            print("Your kernel is still to be written: this is the reference's.")
        rounds = QUICK_ROUNDS if options.quick else ROUNDS
        found = device.run(chapter, exercise, rounds=rounds, yours=yours)
    print("\n".join(found["lines"]))
    return 0 if found["state"] == "timed" else 1
