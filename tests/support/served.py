"""A server of TVM's RPC on the loopback, as `python -m chapters serve-device` starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from chapters.child import patience
from chapters.runner.course import ROOT

KEY = "board"
needs_server = pytest.mark.skipif(
    sys.platform == "win32", reason="the tests end the server's processes by POSIX signals"
)


def free_port() -> int:
    """A port at which nothing listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """A running server. `address` is what --remote takes; `family` all of its processes."""

    def __init__(self, process: subprocess.Popen, port: int):
        self.process, self.port, self.address = process, port, f"127.0.0.1:{port}/{KEY}"

    @property
    def family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            mine = psutil.Process(self.process.pid)
            return [mine, *mine.children(recursive=True)]
        return []

    def kill(self) -> None:
        """End all processes at once, as when a machine loses its power."""
        for one in self.family:
            with contextlib.suppress(psutil.Error):
                one.kill()

    def end(self, how: signal.Signals = signal.SIGTERM) -> str:
        """End it by a signal; what it printed. Fails if one of its processes is left."""
        family = self.family
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, how)
        said, _ = self.process.communicate(timeout=20 * patience())
        assert not left(family)
        return said


def left(family: list[psutil.Process], seconds: float = 10) -> list[psutil.Process]:
    """Those processes that still run after a while."""
    until = time.monotonic() + seconds * patience()
    while True:
        alive = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.1)


@contextlib.contextmanager
def served(*arguments: str, key: str = KEY) -> Iterator[Server]:
    """A server; skips the test if a package that it needs is missing. No process is left at the end."""
    pytest.importorskip("cloudpickle", reason="needs `pip install -e '.[remote]'`")
    port = free_port()
    command = [sys.executable, "-u", "-m", "chapters", "serve-device", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--key", key, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    server = Server(process, port)
    family: list[psutil.Process] = []
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("Listening"):
                break
        else:
            raise AssertionError(f"The server did not start:\n{''.join(said)}")
        yield server
    finally:
        family = server.family
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=20 * patience())
        running = left(family)
        for one in running:
            one.kill()
        assert not running, "the server left a process behind"
