"""Compares implementations fairly: each candidate in its own process, measured in turn, medians of many rounds.

`compare(candidates, …)` starts one process per candidate, so that no library's threads disturb another's. In every
round each variant of each candidate is measured once, in a new random order, so that a drifting clock or another busy
process slows all of them. With one thread, the process stays on one core and its CPU time is measured, so that
interruptions do not count. With more threads, wall-clock time is measured.

A candidate checks its own numbers before anything is timed, so that wrong results are never measured.

Only the standard library is imported here, because a candidate's process may be an interpreter without TVM.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chapters.child import Child, Lost
from chapters.kit.machine import baseline_python
from chapters.kit.measure.quantiles import measure_in_turns, time_repeated

THREAD_VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
THREAD_VARIABLES += ("MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# Bind each of OpenMP's threads to a core, as TVM binds its own. Without it several threads may share one core and spin
# there while they wait for one another: a call of 0.2 ms then takes 30 ms.
PLACED = {"OMP_PROC_BIND": "true"}
# seconds: shorter calls are repeated until they take this long, so that the caches hold what the candidate left there
TOO_LITTLE = 1e-2
# seconds of calls that are not counted, if several threads share the work: threads that were asleep wake up on one core
# and wait for one another there until the system moves them, and the workers of the candidate before still spin: TVM's
# for 0.12 s after their last call (measured), on the core to which this candidate's worker is bound
WARM_UP = 0.25
# at most, until a candidate is compiled and checked; torch.compile takes minutes
BUILD_SECONDS = 1800
MEASURE_SECONDS = 600  # at most, for one variant in one round
# bytes that a candidate may write into a file: the headers that PyTorch compiles in advance take more than 100 MB
MOST_WRITTEN = 2_000_000_000
# module -> the library that has it, as a sentence names it
LIBRARIES = {"torch": "PyTorch", "llama_cpp": "llama-cpp-python", "transformers": "Transformers"}
LIBRARIES |= {"torchao": "torchao"}


@dataclass(frozen=True)
class Candidate:
    """Something to measure: `function(**arguments)` of `module`, called in its own process.

    For `compare` it returns {variant: (call, error)}: a function without arguments to time, and its largest error
    against the reference, or None if there are no numbers to check. It raises Unavailable if something
    it needs is not installed. `arguments` go to the process as JSON, so a tuple arrives as a list.

    needs: the modules of other libraries that it imports, keys of LIBRARIES. If there are any, its process is the
    interpreter that the environment variable FUSION_PEER_PYTHON names, if it is set. That interpreter needs only these
    libraries and NumPy, so `module` imports TVM only inside the functions that use it.
    """

    module: str
    function: str
    arguments: dict = field(default_factory=dict)
    needs: Sequence[str] = ()


@dataclass(frozen=True)
class Timing:
    """Seconds per call, the median over the rounds. error: the largest against the reference."""

    seconds: float
    error: float | None


class Unavailable(Exception):
    """Something that a candidate needs is not installed; the message says what, for a table's footnote."""


class CandidateFailed(Exception):
    """A candidate could not be built or gave wrong numbers; the message holds its traceback."""


def not_installed(module: str) -> str:
    """The sentence that the library with `module` is missing."""
    return f"{LIBRARIES[module]} is not installed; FUSION_PEER_PYTHON may name an interpreter that has it"


def call_compiled(call: Callable[[], object]) -> object:
    """The result of the first `call` of something that torch.compile made; it is then that PyTorch compiles.

    Raises Unavailable, with PyTorch's reason, if that fails: torch.compile needs a C++ compiler.
    """
    try:
        return call()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise Unavailable(f"torch.compile does not work here: {reason}") from error


def bind_torch(
    function: Callable, *operands, threads: int | None = None, compiled: bool = False, **options
) -> tuple[Callable[[], Any], Any]:
    """(call, its first result) of a function of PyTorch, on these operands, through torch.compile if `compiled`."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    run = torch.compile(function, dynamic=False) if compiled else function

    @torch.inference_mode()
    def call() -> Any:
        return run(*operands, **options)

    return call, call_compiled(call) if compiled else call()


def compare(
    candidates: Sequence[Candidate], *, threads: int, rounds: int
) -> tuple[dict[str, Timing], list[str]]:
    """Measure all variants of all candidates; returns (timings by variant, what was missing).

    rounds: at least 2, after one that does not count. Raises CandidateFailed if a candidate raised an exception, died
    or took too long.
    """
    missing: list[str] = []
    with contextlib.ExitStack() as stack:
        running: dict[str, tuple[_Process, float | None]] = {}
        for candidate in candidates:
            process = _Process(candidate, threads)
            stack.enter_context(process.child)
            try:
                running |= {name: (process, error) for name, error in process.build().items()}
            except Unavailable as reason:
                missing.append(str(reason))
        clocks = {
            name: lambda name=name, process=process: [process.measure(name)]
            for name, (process, _) in running.items()
        }
        taken = measure_in_turns(clocks, rounds)
    timings = {name: Timing(taken[name].median, error) for name, (_, error) in running.items()}
    return timings, list(dict.fromkeys(missing))  # two candidates may need the same package


def call_apart(candidate: Candidate, threads: int) -> Any:
    """What the candidate's function returns, which JSON can hold, from a process of its own with so many threads.

    Raises Unavailable, or CandidateFailed if it raised another exception, died or took too long.
    """
    process = _Process(candidate, threads)
    with process.child:
        return process.call()


def measure_cases(
    module: str,
    functions: Sequence[str],
    cases: Sequence[dict],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, list[dict]]:
    """What a results file holds: {"cases": each of `cases` with the "seconds" per call of each variant}.

    The candidates `functions` of `module` are called with a case as arguments and a `seed`, so that all draw the same
    fresh numbers. They use `case["threads"]` threads, by default one. A function whose name begins with "torch" needs
    PyTorch. `say` gets each case as text.
    """
    measured = []
    for case in cases:
        seeded = {**case, "seed": random.getrandbits(32)}
        candidates = [
            Candidate(module, name, seeded, needs=("torch",) if name.startswith("torch") else ())
            for name in functions
        ]
        timings, missing = compare(candidates, threads=case.get("threads", 1), rounds=rounds)
        about = ", ".join(f"{name} {value}" for name, value in case.items())
        told = ", ".join(f"{name} {1e3 * t.seconds:.4g} ms" for name, t in timings.items())
        say("; ".join([f"{about}: {told}", *missing]))
        measured.append({**case, "seconds": {name: t.seconds for name, t in timings.items()}})
    return {"cases": measured}


class _Process:
    """The parent's end of a candidate's process."""

    def __init__(self, candidate: Candidate, threads: int):
        self.name = f"{candidate.function} of {candidate.module}"
        python = baseline_python() if candidate.needs else sys.executable
        variables = {name: str(threads) for name in THREAD_VARIABLES}
        try:
            arguments = json.dumps(asdict(candidate)), str(threads)
            self.child = Child(
                __name__,
                *arguments,
                python=python,
                environment=variables | PLACED,
                largest_file=MOST_WRITTEN,
            )
        except OSError as error:
            raise CandidateFailed(f"{self.name} cannot start {python}: {error}") from None

    def build(self) -> dict[str, float | None]:
        """The error of each variant. Raises Unavailable or CandidateFailed."""
        return self.call("build")

    def call(self, ask: str = "call") -> Any:
        """What the function returns. Raises Unavailable or CandidateFailed."""
        answer = self._ask({"ask": ask}, BUILD_SECONDS)
        if "missing" in answer:
            raise Unavailable(answer["missing"])
        return answer["returned"]

    def measure(self, variant: str) -> float:
        """Seconds per call of `variant`."""
        return self._ask({"ask": "measure", "variant": variant}, MEASURE_SECONDS)

    def _ask(self, question: dict, seconds: float):
        try:
            return self.child.ask(question, seconds)
        except Lost as lost:
            said = "\n".join(filter(None, (lost.printed, lost.stack)))
            raise CandidateFailed(f"The process of {self.name} died ({lost}).\n{said}") from None


# --- the candidate's process ----------------------------------------------------------------------


def make_answerer(candidate: str, threads: str) -> Callable[[dict], object]:
    """The function that answers questions in a candidate's process.

    To "call" it answers with what the function returns, or with what is missing; to "build", with the error of each
    variant that it returns; to "measure", with seconds.
    candidate: a Candidate as JSON. An exception ends the process; the parent then reports it with its traceback.
    """
    if threads == "1" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    calls: dict[str, Callable[[], object]] = {}

    def answer(question: dict) -> object:
        if question["ask"] == "measure":
            return time_call(calls[question["variant"]], int(threads))
        try:
            variants = _call(Candidate(**json.loads(candidate)))
        except Unavailable as reason:
            return {"missing": str(reason)}
        if question["ask"] == "call":
            return {"returned": variants}
        _stay_apart()
        calls.update({name: call for name, (call, _) in variants.items()})
        errors = {name: error for name, (_, error) in variants.items()}
        return {"returned": {n: None if e is None else float(e) for n, e in errors.items()}}

    return answer


def _call(candidate: Candidate) -> Any:
    for module in candidate.needs:
        if not importlib.util.find_spec(module):
            raise Unavailable(not_installed(module))
    function = getattr(importlib.import_module(candidate.module), candidate.function)
    return function(**candidate.arguments)


def _stay_apart() -> None:
    """Keep this thread off the cores to which other threads of this process are bound.

    TVM binds its workers, but not the calling thread, which does a share of the work: on a worker's core it would halve
    the speed of both.
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
    """Seconds per `call`, after calls that are not counted; a short call is repeated."""
    call()
    if threads > 1:
        end = time.perf_counter() + WARM_UP
        while time.perf_counter() < end:
            call()
    counts_cpu = threads == 1 and os.name != "nt"  # Windows counts CPU time in steps of 16 ms
    clock = time.process_time if counts_cpu else time.perf_counter

    def run(count: int) -> None:
        for _ in range(count):
            call()

    return time_repeated(run, TOO_LITTLE, clock)
