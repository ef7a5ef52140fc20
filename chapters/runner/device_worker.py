"""What the child process does that has the device: opens it, and runs one exercise's kernel there.

The child is a `chapters.child.Child`; `answers` is what that starts.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path

from chapters.runner.course import chapter as find_chapter
from chapters.runner.failure import CheckFailed, exercise_to_write, message_of
from chapters.runner.loading import last_line, load, where


def answers(asked: str, remote: str, seconds: str) -> Callable[[dict], dict]:
    """A function that answers questions about the device `asked` ("" for the first) of this machine or `remote`."""
    if not remote:
        importlib.import_module("chapters.kit.devices.cuda_driver").load_torch_first()
    devices = importlib.import_module("chapters.kit.devices.device")
    engine = importlib.import_module("chapters.kit.bench.on_device")
    opened: list = []

    def answer(question: dict) -> dict:
        try:
            if question["ask"] == "open":
                opened.append(devices.open_device(asked, remote, int(seconds)))
                return {"name": opened[0].name}
            return _run(engine, opened[0], question)
        except devices.NoDevice as error:
            return {"absent": str(error)}
        except devices.DeviceError as error:
            return {"problem": str(error)}

    return answer


def _run(engine, device, question: dict) -> dict:
    """Check or measure the exercise of `question`, on the answer in its file."""
    chapter = find_chapter(question["chapter"])
    cases = importlib.import_module(f"chapters.{chapter.slug}.on_device")
    exercise = cases.EXERCISES[question["exercise"]]
    if reason := engine.cannot(exercise, device):
        return {"cannot": reason}
    path = Path(question["impl"])
    try:
        tile = engine.tile_of(exercise, question["tile"]) if question["tile"] else None
        answers = {engine.YOURS: load(path)} if question["yours"] else {}
        if answers:
            found = engine.check(exercise, answers[engine.YOURS], device)
            if found.wrong:
                return {"wrong": found.wrong}
        answers["the reference"] = cases.reference
        timed = engine.measure(exercise, answers, device, rounds=question["rounds"], tile=tile)
        if timed.wrong:
            return {"wrong": timed.wrong}
    except CheckFailed as error:
        return {"wrong": error.failure.what}
    except NotImplementedError as error:
        return {"todo": message_of(error)}
    except RuntimeError as error:
        if said := exercise_to_write(error):
            return {"todo": said}
        return {"wrong": _raised(error, path)}
    except Exception as error:
        if type(error).__name__ in ("DeviceError", "NoDevice"):
            raise
        return {"wrong": _raised(error, path)}
    told = {"table": timed.table, "without": timed.without}
    if question["yours"]:
        told |= {"right": found.right, "error": found.error, "tolerance": engine.TOLERANCE}
    return told


def _raised(error: Exception, path: Path) -> str:
    with contextlib.suppress(Exception):
        if place := where(error, path.resolve()):
            return f"your code raised {last_line(error)} ({place})"
    return last_line(error)
