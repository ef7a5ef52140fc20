"""Compares implementations fairly: each peer in a process of its own, measured in turn, medians of many rounds.

`compare(peers, …)` starts one process a peer, so that no library's threads disturb another's. In every round each
variant of each peer is measured once, in a new random order (A B A B and not A A B B), so that a clock that drifts or
a neighbour that wakes up meets all of them. With one thread the process is kept on one core and its CPU time is
counted, so that being interrupted does not count; with more threads wall-clock time is.

A peer checks its own numbers before anything is timed: what is wrong is not measured.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import random
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

THREAD_VARIABLES = (
    "TVM_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PLACED = {"OMP_PROC_BIND": "true"}  # each of OpenMP's threads keeps a core, as each of TVM's does
# seconds: a shorter measurement is repeated until it is this long, so that caches hold what the peer left in them
TOO_LITTLE = 1e-2
# seconds of calls that are not counted, where several threads share the work: threads that were asleep wake up on one
# core and wait for one another there, until the system has moved one of them; and another peer's may still be spinning
WARM_UP = 5e-2


@dataclass(frozen=True)
class Peer:
    """Something to measure: `function(**arguments)` of `module`, called in a process of its own.

    It returns {variant: (call, error)}: a function without arguments to time, and the largest error that it had
    against the reference, or None where there are no numbers to check. It raises MissingPeer where what it needs is not
    installed.
    """

    module: str
    function: str
    arguments: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median over the rounds, and each round's. error: against the reference."""

    seconds: float
    rounds: tuple[float, ...]
    error: float | None


class MissingPeer(Exception):
    """What a peer needs is not installed; the message says what, for a table's footnote."""


class PeerFailed(Exception):
    """A peer could not be built or gave wrong numbers; the message holds its traceback."""


def compare(
    peers: Sequence[Peer], *, threads: int, rounds: int, seed: int | None = None
) -> tuple[dict[str, Timing], list[str]]:
    """Measure all variants of all peers; returns (timings by variant, what was missing).

    Raises PeerFailed where a peer raised.
    """
    order = random.Random(seed)
    missing: list[str] = []
    with contextlib.ExitStack() as stack:
        running: dict[str, tuple[_Process, float | None]] = {}
        for peer in peers:
            process = stack.enter_context(_started(peer, threads))
            try:
                for name, error in process.variants().items():
                    running[name] = (process, error)
            except MissingPeer as reason:
                missing.append(str(reason))
        taken: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(rounds):
            for name in order.sample(list(running), len(running)):
                taken[name].append(running[name][0].measure(name))
    return {
        name: Timing(statistics.median(times), tuple(times), running[name][1])
        for name, times in taken.items()
    }, missing


class _Process:
    """The parent's end of a peer's process."""

    def __init__(self, peer: Peer, threads: int):
        context = multiprocessing.get_context("spawn")  # a fresh interpreter on every system
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, peer, threads), daemon=True)
        with _environment(threads):
            self.process.start()

    def variants(self) -> dict[str, float | None]:
        kind, value = self.receive()
        if kind == "missing":
            raise MissingPeer(value)
        return value

    def measure(self, name: str) -> float:
        self.pipe.send(name)
        return self.receive()[1]

    def receive(self) -> tuple[str, object]:
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            self.process.join(10)
            raise PeerFailed(f"A peer's process died ({self.process.exitcode}).") from None
        if kind == "failed":
            raise PeerFailed(value)
        return kind, value


@contextlib.contextmanager
def _started(peer: Peer, threads: int) -> Iterator[_Process]:
    process = _Process(peer, threads)
    try:
        yield process
    finally:
        with contextlib.suppress(OSError):  # it may be gone already
            process.pipe.send(None)
        process.process.join(10)
        process.process.kill()


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """The variables that libraries read when they are loaded, set for a child that is started inside.

    Threads of OpenMP that may wander wait for one another on one core, busily: a peer of 0.2 ms then takes 30.
    """
    wanted = {**{name: str(threads) for name in THREAD_VARIABLES}, **PLACED}
    old = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe, peer: Peer, threads: int) -> None:
    """The child: build the peer, say what it has, and time what is asked for."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        calls = getattr(importlib.import_module(peer.module), peer.function)(**peer.arguments)
        _stay_apart()
        pipe.send(("built", {name: error for name, (_, error) in calls.items()}))
        while (name := pipe.recv()) is not None:
            pipe.send(("seconds", time_call(calls[name][0], threads)))
    except MissingPeer as reason:
        pipe.send(("missing", str(reason)))
    except Exception:
        pipe.send(("failed", traceback.format_exc()))


def _stay_apart() -> None:
    """Keep this thread off the cores that others of this process are bound to.

    TVM binds its workers and not the thread that calls, which does a share of the work: on a worker's core it would
    halve the speed of both.
    """
    tasks = Path("/proc/self/task")
    if not (tasks.is_dir() and hasattr(os, "sched_getaffinity")):
        return
    taken: set[int] = set()
    for task in tasks.iterdir():
        with contextlib.suppress(ProcessLookupError):  # threads end
            cores = os.sched_getaffinity(int(task.name))
            if int(task.name) != threading.get_native_id() and len(cores) == 1:
                taken |= cores
    if free := os.sched_getaffinity(0) - taken:
        os.sched_setaffinity(0, free)


def time_call(call: Callable[[], object], threads: int) -> float:
    """Seconds one `call` takes, after those that are not counted; a short one is repeated."""
    call()
    if threads > 1:
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            call()
    clock = time.process_time if threads == 1 else time.perf_counter
    repeat = 1
    while True:
        start = clock()
        for _ in range(repeat):
            call()
        spent = clock() - start
        if spent >= TOO_LITTLE:
            return spent / repeat
        repeat *= 4
