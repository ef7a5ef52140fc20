"""Runs checks on answers from outside: finds the checks, keeps one worker process, holds the time limit."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from chapters.toolkit.course import ROOT, Chapter, Exercise
from chapters.toolkit.stub import untouched
from tests.harness.blame import waits_for
from tests.harness.failure import Failure
from tests.harness.printed import tail

SECONDS = 20  # a check's time limit unless its module says otherwise in LIMITS
DIAGNOSIS_SECONDS = 30
START_SECONDS = 120  # `import tvm` on a cold disk


@dataclass(frozen=True)
class Check:
    """One check function: `name` in tests/checks/chNN.py, `title` the first line of its docstring."""

    chapter: Chapter
    exercise: Exercise
    name: str
    title: str
    seconds: float


@dataclass
class Outcome:
    """What came of a check. state: passed, todo, failed, or skipped (with the reason).

    todo: the reason is "exercise N.M", the check's own or one that it uses, which is to be written or mended first.
    unreadable: the file could not even be loaded, so that every other check of it would say the same.
    """

    check: Check
    state: str
    failure: dict | None = None
    reason: str = ""
    output: str = ""
    unreadable: bool = False
    seconds: float = 0.0


def patience() -> float:
    """By how much time limits are stretched: what FUSION_PATIENCE says, else how many want each core; 1 to 4.

    A limit is there for endless loops, and an answer is not to blame for what else the machine does.
    """
    if given := os.environ.get("FUSION_PATIENCE"):
        return float(given)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(max(load / (os.cpu_count() or 1), 1.0), 4.0)


def checks_of(chapter: Chapter) -> list[Check]:
    """The checks of a chapter, in the order they stand in its file, without importing it."""
    path = chapter.root / "tests" / "checks" / f"{chapter.short}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    limits: dict[str, float] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LIMITS":
            limits = ast.literal_eval(node.value)
    found = []
    for node in tree.body:
        match = isinstance(node, ast.FunctionDef) and re.match(r"test_(\d+)_(\d+)_", node.name)
        if match:
            exercise = chapter.exercise(f"{match[1]}.{match[2]}")
            title = (ast.get_docstring(node) or node.name).split("\n")[0]
            limit = math.ceil(limits.get(node.name, SECONDS) * patience())
            found.append(Check(chapter, exercise, node.name, title, limit))
    return found


class Worker:
    """One child process. `ask` raises TimeoutError or EOFError when the child is too slow or gone."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True)
        self.faults, self.printed = (Path(self.folder.name) / n for n in ("faults", "printed"))
        self.printed.touch()
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.worker", str(self.faults), str(self.printed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
            text=True,
            encoding="utf-8",
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()
        self.errors: list[str] = []
        threading.Thread(target=self._drain, daemon=True).start()
        self.machine = ""

    def _pump(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _drain(self) -> None:
        self.errors.extend(self.process.stderr)

    def read(self, seconds: float) -> dict:
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if not line:
            self.process.wait(10)
            raise EOFError
        return json.loads(line)

    def ask(self, request: dict) -> dict:
        if not self.machine:
            self.machine = self.read(START_SECONDS)["hello"]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        self.read(30)  # began
        return self.read(request["seconds"])

    def diagnosis(self) -> dict:
        """What a failed check's answer behaves like; a catalogued answer may be slow or crash."""
        return self.read(DIAGNOSIS_SECONDS * patience())["like"]

    def output(self) -> str:
        """The end of what a lost child had printed."""
        with self.printed.open("rb") as printed:
            return tail(printed)

    def stopped_itself(self) -> bool:
        """Whether the child ended because its time was up."""
        return self._faults().startswith("Timeout (")

    def _faults(self) -> str:
        if not self.faults.exists():
            return ""
        return self.faults.read_text(encoding="utf-8", errors="replace")

    def fault(self, path: Path) -> str:
        """Where in the file at `path` the child was when it was stopped or died."""
        text = self._faults()
        spot = re.search(rf'File "([^"]*{re.escape(path.name)})", line (\d+) in (\S+)', text)
        return f"line {spot[2]} of {path.name}, in {spot[3]}" if spot else ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):  # a request the dead child never read
                pipe.close()
        self.folder.cleanup()


NATIVE = (
    "Native code read or wrote where it must not: most often a NumPy array given to the VM without "
    "tvm.runtime.tensor, or a kernel that indexes outside its buffers."
)
KILLED = "The system ended it, most often because memory ran out."
LEFT = "Something called os._exit, or closed what the process needs."


def _death(code: int) -> tuple[str, str]:
    """A process's exit code in words, and what it usually comes from."""
    if code == 0xC0000005:
        return "an access violation", NATIVE
    if code >= 0:
        return f"exit code {code}", LEFT
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}", KILLED if name == "SIGKILL" else NATIVE


class Runner:
    """Runs checks one after another, starting a new worker where the last one was lost."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.machine = ""
        self.unreadable: set[Path] = set()  # answers that could not even be loaded, when last tried

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self) -> None:
        """Begin to import TVM in the child now, so that the first check finds it ready."""
        if self.worker is None:
            self.worker = Worker()

    def close(self) -> None:
        if self.worker:
            self.worker.close()
        self.worker = None

    def run(self, check: Check, impl: Path, *, diagnose: bool = True) -> Outcome:
        """Run `check` on the answer in the file `impl`.

        diagnose: of a failure, find out what it behaves like, and whether another exercise of the file is to blame.
        """
        began = time.perf_counter()
        self.start()
        request = {
            "chapter": check.chapter.number,
            "exercise": check.exercise.id,
            "check": check.name,
            "impl": str(impl),
            "seconds": check.seconds,
            "diagnose": diagnose,
        }
        try:
            result = self.worker.ask(request)
            self.machine = self.worker.machine
        except (TimeoutError, EOFError, OSError) as error:
            failure, output = self._lost(error, check, Path(impl)), self.worker.output()
            self.close()
            result = {"state": "failed", "failure": failure.as_dict(), "output": output}
        if result["state"] == "failed" and diagnose and self.worker:
            try:
                result["failure"]["like"] = self.worker.diagnosis()
            except (TimeoutError, EOFError):  # without it the plain failure still stands
                self.close()
        (self.unreadable.add if result.get("unreadable") else self.unreadable.discard)(Path(impl))
        if result["state"] == "failed" and diagnose and self.worker and not result["unreadable"]:
            blamed = self._waits_for(check, Path(impl))
            if blamed:
                result.update(state="todo", failure=None, reason=f"exercise {blamed}")
        return Outcome(check, **result, seconds=time.perf_counter() - began)

    def _waits_for(self, check: Check, impl: Path) -> str:
        """The other exercise of the file that this failure of `check` comes from, or ""."""

        def passes(path: Path) -> bool:
            return self.run(check, path, diagnose=False).state == "passed"

        def is_solved(exercise_id: str) -> bool:
            return self._is_solved(check.chapter, exercise_id, impl)

        return waits_for(check.chapter, check.exercise.id, impl, passes, is_solved)

    def _is_solved(self, chapter: Chapter, exercise_id: str, impl: Path) -> bool:
        checks = (check for check in checks_of(chapter) if check.exercise.id == exercise_id)
        found = (self.run(check, impl, diagnose=False).state for check in checks)
        return all(state in ("passed", "skipped") for state in found)

    def _lost(self, error: Exception, check: Check, impl: Path) -> Failure:
        place = self.worker.fault(impl)
        if isinstance(error, TimeoutError) or self.worker.stopped_itself():
            return Failure(
                f"Your code did not finish within {check.seconds:g} s and was stopped.",
                expected="a few milliseconds",
                yours=f"it was at {place}" if place else "it was outside your file when stopped",
                why="A loop that never ends, or recursion into the same node, looks like this.",
            )
        words, cause = _death(self.worker.process.poll() or 0)
        if not self.worker.machine:
            said = "".join(self.worker.errors).strip().splitlines()
            return Failure(
                f"The process that runs the checks could not start: {said[-1] if said else words}",
                expected="a working installation: `python -m chapters doctor` says what is missing",
            )
        return Failure(
            f"The process running your code died ({words}).",
            expected="a result or a Python exception",
            yours=f"it was at {place}" if place else "",
            why=cause,
        )

    def run_exercise(self, chapter: Chapter, exercise: Exercise, impl: Path) -> list[Outcome]:
        """Run an exercise's checks in order up to the first that does not pass."""
        outcomes: list[Outcome] = []
        for check in checks_of(chapter):
            if check.exercise.id == exercise.id:
                outcomes.append(self.run(check, impl))
                if outcomes[-1].state in ("failed", "todo"):
                    break
        return outcomes


def not_begun(chapter: Chapter, impl: Path) -> set[str]:
    """The exercises whose regions in `impl` are as the stub has them; {} for any other file."""
    if Path(impl) != chapter.stub or not chapter.stub.exists():
        return set()
    return untouched(chapter, chapter.stub.read_text(encoding="utf-8", errors="replace"))
