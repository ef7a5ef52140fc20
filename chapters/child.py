"""A Python process that answers questions, for code that may crash, run forever or use up the memory.

Parent and child exchange JSON: one answer for each question. Whatever the child prints, from Python or from native
code, goes to a file that the parent can still read after the child is lost.

    with Child("package.module", "argument") as child:
        answer = child.ask({"any": "value"}, seconds=20)

The module defines `make_answerer(*arguments)`, which returns a function from question to answer. Only the standard
library is needed here, so the child may be another interpreter (`python=`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120  # importing TVM from a cold disk
END_SECONDS = 10  # for the system to end a process that was killed
GRACE_SECONDS = 2  # how much longer than its limit a child may take before the parent stops it
MOST_PRINTED = 100_000_000  # bytes that a child may print, or write into any file
# environment variables: the folder in which a child writes its files, and how large they may be
FOLDER, LARGEST_FILE = "FUSION_CHILD", "FUSION_CHILD_LARGEST_FILE"


class WrongPatience(ValueError):
    """FUSION_PATIENCE is not a positive number."""


def patience() -> float:
    """The factor for all time limits: FUSION_PATIENCE, else the number of processes per core, from 1 to 4.

    Limits exist for endless loops, and no code is to blame for a busy machine. Raises WrongPatience if
    FUSION_PATIENCE is not a positive number.
    """
    if given := os.environ.get("FUSION_PATIENCE"):
        with contextlib.suppress(ValueError):
            if 0 < float(given) < math.inf:
                return float(given)
        raise WrongPatience(
            f"FUSION_PATIENCE, the factor for time limits, must be a positive number such as 2, not {given!r}."
        )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(max(load / (os.cpu_count() or 1), 1.0), 4.0)


class Lost(Exception):
    """The child is gone without an answer.

    late: it was stopped because it took too long. code: its exit code. printed: the end of what it printed. stack: the
    Python stack at that moment, if it could still be written. began: whether it had started, and was asked something.
    """

    def __init__(self, late: bool, code: int, printed: str, stack: str, began: bool = True):
        self.late, self.code, self.printed, self.stack = late, code, printed, stack
        self.began = began
        super().__init__("took too long" if late else name_exit(code))

    def place(self, path: Path) -> str:
        """Where in the file at `path` the child was, in words; "" if it was elsewhere."""
        spot = re.search(rf'File "[^"]*{re.escape(path.name)}", line (\d+) in (\S+)', self.stack)
        return f"line {spot[1]} of {path.name}, in {spot[2]}" if spot else ""

    def count_calls(self, path: Path) -> int:
        """How often the line of `place` is on the stack, of whose innermost calls at most 100 are known."""
        line = self.place(path).partition(" of ")[0]
        return len(re.findall(rf'File "[^"]*{re.escape(path.name)}", {line} in', self.stack))


def name_exit(code: int) -> str:
    """An exit code in words."""
    if code == 0xC0000005:
        return "an access violation"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Child(contextlib.AbstractContextManager):
    """The parent's end. Use it as a context manager, or call `close`.

    largest_file: bytes that the child may print, or write into any file.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        cwd: Path = ROOT,
        largest_file: int = MOST_PRINTED,
    ):
        self.folder = tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True)
        self._printed, self._stack = (Path(self.folder.name) / n for n in ("printed", "stack"))
        self._printed.touch()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        facts = {"PYTHONPATH": path, "PYTHONUTF8": "1", FOLDER: self.folder.name}
        facts[LARGEST_FILE] = str(largest_file)
        with self._printed.open("ab") as printed:
            self.process = subprocess.Popen(
                [python, __file__, module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                cwd=cwd,
                env={**os.environ, **(environment or {}), **facts},
                encoding="utf-8",
                # Ctrl-C reaches the parent, which ends the child and all that the child has started
                start_new_session=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._ready = False

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_until_ready(self) -> None:
        """Return once the child has imported its module. Raises Lost if it could not."""
        if not self._ready:
            self._receive(START_SECONDS * patience())
            self._ready = True

    def ask(self, question: Any, seconds: float) -> Any:
        """The child's answer. Raises Lost if it ends, or takes longer than `seconds`; the child is closed then."""
        self.wait_until_ready()
        with contextlib.suppress(OSError):  # a child that is gone already: _receive says so
            self.process.stdin.write(json.dumps({"seconds": seconds, "question": question}) + "\n")
            self.process.stdin.flush()
        return self._receive(seconds + GRACE_SECONDS)

    def printed(self) -> bytes:
        """What the child printed since the last question."""
        return self._printed.read_bytes()

    def _receive(self, seconds: float) -> Any:
        late = False
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            line, late = "", True
            self._kill()
        if line:
            with contextlib.suppress(ValueError):  # what the code has printed into the pipe
                return json.loads(line)
        code = self._wait(END_SECONDS)
        if code is None:  # it closed its end of the pipe, and runs on
            late = True
            self._kill()
            code = self._wait(END_SECONDS * patience()) or -signal.SIGTERM
        stack = self._stack.read_text("utf-8", "replace") if self._stack.exists() else ""
        printed = self.printed()[-4000:].decode("utf-8", "replace")
        self.close()
        raise Lost(late or stack.startswith("Timeout ("), code, printed, stack, self._ready)

    def _kill(self) -> None:
        """End the child, and the processes it has forked, which are in its session."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):  # all of them are gone
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def _wait(self, seconds: float) -> int | None:
        """The child's exit code; None if it has not ended in time, as on a busy system."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def close(self) -> None:
        self._kill()
        self._wait(END_SECONDS * patience())
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # a question that the dead child never read
                pipe.close()
        self.folder.cleanup()


# --- the child's end ------------------------------------------------------------------------------


def main(module: str, arguments: list[str]) -> None:
    """Answer the parent's questions until it is gone."""
    folder = Path(os.environ[FOLDER])
    # the parent may kill this process at any time, and then removes its folder: temporary files belong there
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    questions = _read_questions(os.fdopen(os.dup(0), "r", encoding="utf-8"))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    process = os.getpid()
    if hasattr(os, "register_at_fork"):  # a process that the code forks must not hold the pipe
        os.register_at_fork(after_in_child=lambda: os.close(answers.fileno()))
    printed = _redirect_prints(folder / "printed")
    _limit_resources()
    gc.disable()  # what is imported stays: collections during it, a tenth of its time, would find little
    answer = importlib.import_module(module).make_answerer(*arguments)
    gc.freeze()  # nor has a later one to walk through it
    gc.enable()
    stack = (folder / "stack").open("w", encoding="utf-8")
    faulthandler.enable(stack)  # only now: TVM's import sets a handler of its own for SIGSEGV

    dumps = json.dumps  # the code that runs here may replace it

    def send(value: object) -> None:
        sys.stdout.flush()
        answers.write(dumps(value) + "\n")
        answers.flush()

    send("ready")
    while True:
        request = json.loads(questions.get())
        for file in (printed, stack):
            file.seek(0)
            file.truncate()
        # exit=True stops native code too, and leaves the stack that says where it was
        faulthandler.dump_traceback_later(request["seconds"], exit=True, file=stack)
        value = answer(request["question"])
        if os.getpid() != process:
            os._exit(0)  # a forked process does not answer
        faulthandler.cancel_dump_traceback_later()
        send(value)


def _redirect_prints(path: Path):
    """Send everything this process prints to the file at `path`; nothing can be read from standard input."""
    printed = path.open("r+b", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # a crash must not swallow what was printed
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    return printed


def _read_questions(stream) -> queue.Queue[str]:
    """The questions, read in a thread: when the parent is gone, this process ends too."""
    lines: queue.Queue[str] = queue.Queue()

    def pump() -> None:
        for line in stream:
            lines.put(line)
        if hasattr(os, "killpg") and os.getsid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with what it has forked
        os._exit(0)

    threading.Thread(target=pump, daemon=True).start()
    return lines


def _limit_resources() -> None:
    """Bound what this process may print or write and, on Linux, allocate: asking for more raises at once.

    RLIMIT_DATA counts memory that can be written, not the address space that a GPU driver reserves.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {resource.RLIMIT_FSIZE: int(os.environ[LARGEST_FILE])}
    if sys.platform == "linux":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits[resource.RLIMIT_DATA] = memory
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)  # a shell may have set it lower, and it cannot be raised
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as `python -m` has it, and not this file's folder
    main(sys.argv[1], sys.argv[2:])
