"""Exercises' kernels on a device, for `check --device` and `bench 8.4`: the child that has it, and what is said.

The device is used in a child process with a time limit: a driver may crash, a kernel may never end, and a machine that
is reached through RPC may vanish.
"""

from __future__ import annotations

import argparse
import contextlib
import re

from chapters.child import Child, Lost, patience
from chapters.runner.course import Chapter, CourseError, Exercise, chapters

OPEN_SECONDS = 60.0  # for the first use of a driver, or a slow connection
RUN_SECONDS = 240.0  # for one exercise: its small sizes, and all rounds of the large one
SESSION_SECONDS = 1800  # after which a server ends what a caller who vanished has left running
DEVICE = r"(cuda|metal|rocm|opencl|vulkan|llvm)(:\d{1,2})?"


def device(text: str) -> str:
    """The value of --device, for argparse."""
    if not re.fullmatch(DEVICE, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a device; write cuda, metal or vulkan, or with a number, as in cuda:1"
        )
    return text


def port(text: str) -> int:
    """The value of --port, for argparse."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, a number from 1 to 65535")
    return int(text)


def arguments(parser) -> None:
    """--device and --remote, as all commands that use a device take them."""
    parser.add_argument(
        "--device", type=device, metavar="KIND", help="a GPU: cuda, cuda:1, metal, vulkan"
    )
    parser.add_argument(
        "--remote", metavar="HOST:PORT[/KEY]", help="a GPU of another machine (serve-device)"
    )


class NoDevice(CourseError):
    """This machine has no such device."""


class OnDevice(contextlib.AbstractContextManager):
    """The device, opened in a child process. Raises CourseError, or NoDevice, in one sentence."""

    def __init__(self, asked: str | None, remote: str | None):
        asked, self.remote = asked or "", remote or ""
        arguments = asked, self.remote, str(SESSION_SECONDS)
        self._child = Child("chapters.runner.device_worker", *arguments)
        try:
            self.name: str = self._ask({"ask": "open"}, OPEN_SECONDS)["name"]
        except BaseException:
            self._child.close()
            raise

    def __exit__(self, *_) -> None:
        self._child.close()

    def run(
        self, chapter: Chapter, exercise: Exercise, *, rounds: int, yours: bool, tile: str = ""
    ) -> dict:
        """What the child found; see device_worker. yours: with the learner's kernel, or the reference's alone."""
        about = {"chapter": chapter.number, "exercise": exercise.id, "impl": str(chapter.stub)}
        how = {"rounds": rounds, "yours": yours, "tile": tile}
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
        if "absent" in found:
            raise NoDevice(found["absent"])
        if "problem" in found:
            raise CourseError(found["problem"])
        return found


def has_kernel(chapter: Chapter, exercise: Exercise) -> bool:
    """Whether the exercise has a kernel that runs on a device."""
    return exercise.id in _exercises(chapter)


def with_kernels() -> str:
    """All exercises that have one, for a sentence."""
    return ", ".join(one for chapter in chapters() for one in _exercises(chapter))


def _exercises(chapter: Chapter) -> list[str]:
    """The exercises in the chapter's on_device.py, read without importing it (that would import TVM)."""
    path = chapter.folder / "on_device.py"
    if not path.exists():
        return []
    return re.findall(
        r'^    "(\d+\.\d+)": OnDevice\(', path.read_text(encoding="utf-8"), re.MULTILINE
    )


def said(found: dict, name: str) -> list[str]:
    """The lines for what was found on the device called `name`."""
    if "cannot" in found:
        return [f"not run on {name}: {found['cannot']}"]
    if "todo" in found:
        return [f"not run on {name}: {found['todo']} is still to be written"]
    if "wrong" in found:
        return [f"✗ on {name}: {found['wrong']}"]
    lines = []
    if "right" in found:
        lines = [
            f"✓ right on {name} for {', '.join(found['right'])}, and for the size below",
            f"  compared with NumPy in float64: off by {found['error']:.1g} of the largest element, "
            f"{found['tolerance']:g} is allowed",
        ]
    return [*lines, *found["table"].splitlines(), *found["without"]]
