"""What the child process does in which answers run: one check, or the diagnosis of the check that failed last.

The child is a `chapters.child.Child`; `make_answerer` is what that starts.
"""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from chapters.runner.course import chapter as find_chapter
from chapters.runner.explain import explain
from chapters.runner.failure import CheckFailed, Skip, exercise_to_write, message_of
from chapters.runner.imported_helpers import LearnersFiles
from chapters.runner.known_mistakes import Diagnoser
from chapters.runner.loading import Answer, last_line, load, locate_error
from chapters.runner.regions import fingerprint

FROZEN = ("runpy", "importlib._bootstrap", "importlib._bootstrap_external")
WITHOUT_FILES = ("<ast>", "<string>", *(f"<frozen {name}>" for name in FROZEN))  # of frames


def make_answerer() -> Callable[[dict], object]:
    """Import TVM, and return the function that answers the engine's questions."""
    import tvm

    device = "CUDA GPU" if tvm.cuda(0).exist else "Metal GPU" if tvm.metal(0).exist else "CPU"
    machine = f"TVM {tvm.__version__} on {device}"
    name_frames_without_files()
    diagnoser = Diagnoser()
    files = LearnersFiles()
    last: dict[str, Answer | None] = {}  # the answer that was checked last

    def answer(question: dict) -> object:
        if question["ask"] == "machine":
            return machine
        chapter = find_chapter(question["chapter"])
        checks = importlib.import_module(f"chapters.{chapter.slug}.checks")
        if question["ask"] == "check":
            files.forget()
            outcome, last["impl"] = run_check(
                checks, question["check"], Path(question["impl"]), files.loaded
            )
            if impl := last["impl"]:
                outcome["loaded"] = fingerprint(impl._text, question["exercise"])
                outcome["files"] = files.loaded()
            return outcome
        try:
            return diagnoser.diagnose(checks, chapter, question["exercise"], last["impl"])
        except Exception:  # a diagnosis is a courtesy: the plain failure is enough
            if os.environ.get("FUSION_DEBUG"):
                raise
            return {}

    return answer


def name_frames_without_files() -> None:
    """Let `inspect` find at once what TVM's parser asks it for: the module of each caller.

    It seeks the callers that have no file among all modules, each time anew, and remembers here what it has found.
    """
    inspect.modulesbyfile.update(dict.fromkeys(WITHOUT_FILES, "builtins"))


def run_check(
    checks: ModuleType, name: str, path: Path, after_load: Callable[[], object]
) -> tuple[dict, Answer | None]:
    """Run the check `name` on the answer in the file at `path`.

    Returns the fields of an Outcome that are not its defaults, and the answer unless loading failed.
    """
    path = path.resolve()
    try:
        impl = load(path)
    except CheckFailed as error:
        return {"state": "failed", "failure": error.failure.as_dict(), "unreadable": True}, None
    after_load()
    try:
        getattr(checks, name)(impl)
        return {"state": "passed"}, impl
    except Skip as skip:
        return {"state": "skipped", "reason": str(skip)}, impl
    except RuntimeError as error:  # a stub's NotImplementedError leaves a TVM pass as RuntimeError
        if said := exercise_to_write(error):
            return {"state": "todo", "reason": said}, impl
        failed = _describe_exception(error, path, impl._text)
    except CheckFailed as error:
        if isinstance(error.__cause__, NotImplementedError):
            return {"state": "todo", "reason": message_of(error.__cause__)}, impl
        failed = error
    except BaseException as error:
        failed = _describe_exception(error, path, impl._text)
    return {"state": "failed", "failure": failed.failure.as_dict()}, impl


def _describe_exception(error: BaseException, path: Path, text: str) -> CheckFailed:
    """The failure to show for an exception that the check did not raise on purpose. text: of the answer at `path`."""
    place = locate_error(error, path)
    why, read = explain(error)
    if place:
        given = getattr(error, "given", "")
        refuses = "ScheduleError" in text
        return CheckFailed(
            f"Your code raised {last_line(error)}",
            yours=f"{place}\nwhile your code was given\n{given}" if given else place,
            expected="no exception, but for the ScheduleError of a refusal"
            if refuses
            else "no exception",
            why=why,
            read=read,
        )
    frames = traceback.extract_tb(error.__traceback__)  # the last may be TVM's, in Python or in C++
    frame = next((f for f in reversed(frames) if Path(f.filename).name == "checks.py"), frames[-1])
    forgotten = "; a forgotten `return` gives None" if "None" in last_line(error) else ""
    return CheckFailed(
        f"The check could not use what your code returned: {last_line(error)}",
        yours=f"the check was at line {frame.lineno} of {_shorten_path(frame.filename)}: {frame.line}",
        expected=f"what the exercise's docstring says{forgotten}",
        why=why,
        read=read,
    )


def _shorten_path(file: str) -> str:
    """A file as a learner finds it: `chapters/ch02_attach_metadata/checks.py`."""
    parts = Path(file).parts[-3:]
    return "/".join(parts) if "chapters" in parts else Path(file).name
