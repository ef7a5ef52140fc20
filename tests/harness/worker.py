"""The child process in which answers run, so that an endless loop or a crash ends it and not the session.

`python -m tests.harness.worker` reads one JSON request a line from its standard input and writes JSON
answers to its standard output: `{"hello": …}` once TVM is imported; then for each request
`{"began": …}`, the outcome, and, if that is a failure, `{"like": …}`: the catalogued mistake it behaves
like. What the answer prints, from Python or from C++, goes to a file of the parent's, which can read
it even when this process is lost. `sys.argv` holds the names of the files for faults and for prints.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TextIO

from chapters.toolkit.course import Chapter
from chapters.toolkit.course import chapter as find_chapter
from tests.harness.diagnose import diagnose
from tests.harness.endless import stop_endless_visits
from tests.harness.explain import explain
from tests.harness.failure import CheckFailed, Skip
from tests.harness.loading import Answer, last_line, load, where
from tests.harness.printed import tail

MOST_PRINTED = 50_000_000  # bytes
DEEPEST = (
    250  # calls; a RecursionError through many more frames of TVM's is slow, or ends the process
)


def _outcome(state: str, **more) -> dict:
    return {"state": state, "failure": None, "reason": "", "unreadable": False, **more}


def _raised(error: BaseException, path: Path) -> CheckFailed:
    """The failure to show for an exception that is not the check's own."""
    place = where(error, path)
    why, read = explain(error)
    if place:
        given = getattr(error, "given", "")
        return CheckFailed(
            f"Your code raised {last_line(error)}",
            yours=f"{place}\nwhile the pass was given\n{given}" if given else place,
            expected="no exception",
            why=why,
            read=read,
        )
    frames = traceback.extract_tb(error.__traceback__)  # the last may be TVM's, in Python or in C++
    frame = next(
        (f for f in reversed(frames) if Path(f.filename).parent.name == "checks"), frames[-1]
    )
    forgotten = "; a forgotten `return` gives None" if "None" in last_line(error) else ""
    return CheckFailed(
        f"The check could not use what your code returned: {last_line(error)}",
        yours=f"the check was at line {frame.lineno} of {Path(frame.filename).name}: {frame.line}",
        expected=f"what the exercise's docstring says{forgotten}",
        why=why,
        read=read,
    )


def run_check(checks: ModuleType, request: dict) -> tuple[dict, Answer | None]:
    """Run one check of the module `checks` on the answer at request["impl"]: what came of it, and the answer loaded."""
    path = Path(request["impl"]).resolve()
    try:
        impl = load(path)
    except CheckFailed as error:
        return _outcome("failed", failure=error.failure.as_dict(), unreadable=True), None
    try:
        getattr(checks, request["check"])(impl)
        return _outcome("passed"), impl
    except Skip as skip:
        return _outcome("skipped", reason=str(skip)), impl
    except RuntimeError as error:  # a stub's NotImplementedError leaves a TVM pass as RuntimeError
        if str(error).startswith("exercise "):
            return _outcome("todo", reason=str(error)), impl
        failed = _raised(error, path)
    except CheckFailed as error:
        if isinstance(error.__cause__, NotImplementedError):
            return _outcome("todo", reason=str(error.__cause__)), impl
        failed = error
    except BaseException as error:
        failed = _raised(error, path)
    return _outcome("failed", failure=failed.failure.as_dict()), impl


def _diagnosis(checks: ModuleType, chapter: Chapter, exercise: str, impl: Answer | None) -> dict:
    if impl is None:
        return {}
    try:
        return diagnose(checks, chapter, exercise, impl)
    except Exception:  # a diagnosis is a courtesy: without it the plain failure still stands
        if os.environ.get("FUSION_DEBUG"):
            raise
        return {}


def _machine() -> str:
    import tvm

    device = "CUDA GPU" if tvm.cuda(0).exist else "Metal GPU" if tvm.metal(0).exist else "CPU"
    return f"TVM {tvm.__version__} on {device}"


def main() -> None:
    # These streams live as long as the process does.
    requests = _from_parent(os.fdopen(os.dup(0), "r", encoding="utf-8"))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    printed = open(sys.argv[2], "r+b", buffering=0)  # noqa: SIM115
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # a crash must not swallow what was printed
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    _limit_output()
    stop_endless_visits()
    faults = open(sys.argv[1], "w", encoding="utf-8")  # noqa: SIM115

    def answer(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    answer({"hello": _machine()})
    faulthandler.enable(faults)  # after TVM's import, which sets a handler of its own for SIGSEGV
    while True:
        request = json.loads(requests.get())
        answer({"began": request["check"]})
        faults.seek(0)
        faults.truncate()
        limit = max(request["seconds"] - 0.3, 0.1)
        faulthandler.dump_traceback_later(limit, exit=True, file=faults)  # stops native code too
        chapter = find_chapter(request["chapter"])
        checks = importlib.import_module(f"tests.checks.{chapter.short}")
        outcome, impl = run_check(checks, request)
        faulthandler.cancel_dump_traceback_later()
        answer({**outcome, "output": _take(printed)})
        if request["diagnose"] and outcome["state"] == "failed":
            answer({"like": _diagnosis(checks, chapter, request["exercise"], impl)})
            _take(printed)  # what the catalogued answers print is not the learner's


def _take(printed: BinaryIO) -> str:
    """The end of what was printed since the last call."""
    sys.stdout.flush()
    text = tail(printed)
    printed.seek(0)
    printed.truncate()
    return text


def _from_parent(stream: TextIO) -> queue.Queue[str]:
    """The requests, read in a thread of their own: when the parent is gone, so is this process."""
    lines: queue.Queue[str] = queue.Queue()

    def pump() -> None:
        for line in stream:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=pump, daemon=True).start()
    return lines


def _limit_output() -> None:
    """A loop that prints for ever must not fill the disk. Systems without resource limits go without."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_PRINTED, MOST_PRINTED))


if __name__ == "__main__":
    main()
