"""Exercises' kernels on a device, for `check --device` and `bench 8.2`: the child process that has the device.

A driver may crash, a kernel may never end, and a machine that is reached through RPC may vanish. So the device is used
in a `chapters.child.Child` with a time limit; `make_answerer` is what that starts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path

from chapters.child import Child, Lost, patience
from chapters.runner.course import Chapter, CourseError, Exercise, chapters
from chapters.runner.course import chapter as find_chapter
from chapters.runner.failure import CheckFailed, exercise_to_write, message_of
from chapters.runner.loading import last_line, load, locate_error

OPEN_SECONDS = 60.0  # for the first use of a driver, or a slow connection
RUN_SECONDS = 240.0  # for one exercise: its small sizes, and all rounds of the large one
SESSION_SECONDS = 1800  # after which a server ends what a caller who vanished has left running
KERNELS = "device_kernels"  # a chapter's module that says which exercises have a kernel


def add_device_options(parser) -> None:
    """--device and --remote, as all commands that use a device take them."""
    parser.add_argument(
        "--device", type=_parse_device, metavar="KIND", help="a GPU: cuda, cuda:1, metal, vulkan"
    )
    parser.add_argument(
        "--remote", metavar="HOST:PORT[/KEY]", help="a GPU of another machine (serve-device)"
    )


def _parse_device(text: str) -> str:
    if not re.fullmatch(r"(cuda|metal|vulkan|llvm)(:\d{1,2})?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a device; write cuda, metal or vulkan, or with a number, as in cuda:1"
        )
    return text


def has_kernel(chapter: Chapter, exercise: Exercise) -> bool:
    """Whether the exercise has a kernel that runs on a device."""
    return exercise.id in _list_exercises(chapter)


def list_kernels() -> str:
    """All exercises that have one, for a sentence."""
    return ", ".join(one for chapter in chapters() for one in _list_exercises(chapter))


def _list_exercises(chapter: Chapter) -> list[str]:
    """The exercises in the chapter's KERNELS, read without importing it (that would import TVM)."""
    path = chapter.folder / f"{KERNELS}.py"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return re.findall(r'^    "(\d+\.\d+)": DeviceKernel\(', text, re.MULTILINE)


class NoDevice(CourseError):
    """This machine has no such device."""


class DeviceChild(contextlib.AbstractContextManager):
    """The device, opened in a child process. Raises CourseError, or NoDevice, in one sentence."""

    def __init__(self, asked: str | None, remote: str | None):
        self.remote = remote or ""
        self._child = Child(__name__, asked or "", self.remote)
        try:
            self.name: str = self._ask({"ask": "open"}, OPEN_SECONDS)["name"]
        except BaseException:
            self._child.close()
            raise

    def __exit__(self, *_) -> None:
        self._child.close()

    def run(self, chapter: Chapter, exercise: Exercise, *, rounds: int, yours: bool) -> dict:
        """{"state": "timed", "wrong" or "not run", "lines": what to print}.

        yours: with the learner's kernel, or the reference's alone.
        """
        about = {"chapter": chapter.number, "exercise": exercise.id, "impl": str(chapter.stub)}
        how = {"rounds": rounds, "yours": yours}
        return self._ask({"ask": "run", **about, **how}, RUN_SECONDS * patience())

    def _ask(self, question: dict, seconds: float) -> dict:
        who = f"the machine at {self.remote}" if self.remote else "the device"
        try:
            found = self._child.ask(question, seconds)
        except Lost as lost:
            if lost.late:
                raise CourseError(
                    f"Nothing came back from {who} within {seconds:.0f} s, and the attempt was stopped. Either the "
                    "kernel never ends or the connection is lost; FUSION_PATIENCE=4 waits four times as long."
                ) from None
            last = (lost.printed.strip().splitlines() or [""])[-1][:200]
            raise CourseError(
                f"The process that used {who} died ({lost}). {last} Try again; if it happens twice, run `python -m "
                "chapters doctor` where the device is."
            ) from None
        if "problem" in found:
            raise (NoDevice if found["absent"] else CourseError)(found["problem"])
        return found


# --- in the child ---------------------------------------------------------------------------------


def make_answerer(asked: str, remote: str) -> Callable[[dict], dict]:
    """A function that answers questions about the device `asked` ("" for the first) of this machine or `remote`."""
    if not remote:
        importlib.import_module("chapters.kit.machine").load_torch_first()
    devices = importlib.import_module("chapters.kit.measure.devices")
    opened: list = []

    def answer(question: dict) -> dict:
        try:
            if question["ask"] == "open":
                opened.append(devices.open_device(asked, remote, SESSION_SECONDS))
                return {"name": opened[0].name}
            state, lines = _run_kernel(opened[0], question)
            return {"state": state, "lines": lines}
        except devices.DeviceError as error:
            return {"problem": str(error), "absent": isinstance(error, devices.NoDevice)}

    return answer


def _run_kernel(device, question: dict) -> tuple[str, list[str]]:
    """Check and measure the exercise of `question`, on the answer in its file."""
    engine = importlib.import_module("chapters.kit.measure.exercise_kernels")
    chapter = find_chapter(question["chapter"])
    cases = importlib.import_module(f"chapters.{chapter.slug}.{KERNELS}")
    exercise, path = cases.KERNELS[question["exercise"]], Path(question["impl"])
    not_run = f"not run on {device.name}:"
    if reason := (exercise.cannot or {}).get(device.kind):
        return "not run", [f"{not_run} {reason}"]
    try:
        lines, answers = [], {engine.REFERENCE: cases.reference}
        if question["yours"]:
            answers = {engine.YOURS: load(path), **answers}
            lines = engine.check(exercise, answers[engine.YOURS], device)
        table, missing = engine.measure(exercise, answers, device, rounds=question["rounds"])
        return "timed", [*lines, *str(table).splitlines(), *missing]
    except engine.DeviceError:
        raise
    except engine.WrongNumbers as error:
        wrong = str(error)
    except CheckFailed as error:
        wrong = error.failure.what
    except Exception as error:
        todo = message_of(error) if isinstance(error, NotImplementedError) else ""
        if todo := todo or exercise_to_write(error):
            return "not run", [f"{not_run} {todo} is still to be written"]
        wrong = _describe_raised(error, path)
    return "wrong", [f"✗ on {device.name}: {wrong}"]


def _describe_raised(error: Exception, path: Path) -> str:
    with contextlib.suppress(Exception):
        if place := locate_error(error, path.resolve()):
            return f"your code raised {last_line(error)} ({place})"
    return last_line(error)
