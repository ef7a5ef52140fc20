"""One protocol for all timings on an NVIDIA GPU, so that all numbers are measured in the same way.

All contenders share one stream and take turns in a new random order every round. Before each call the caches are
overwritten; an event is recorded before and after the call, and the host waits only at the end of a round. A call that
is shorter than its launch is measured by GraphClock instead, as one of many in a CUDA graph.

The clocks need PyTorch, for its events, streams and graphs; `interleaved` needs only a clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from chapters.kit.bench.spread import Spread, spread

FLUSH_BYTES = 1 << 29  # several times the largest cache
WARM_ROUNDS = 3  # not counted: these compile, allocate and raise the GPU's frequency
FEWEST_ROUNDS = 7  # however long they take, unless fewer are asked for


class NoGpuError(Exception):
    """This machine has no GPU to measure; the message says why, and what runs here instead."""


def missing() -> str:
    """Why a GPU cannot be measured here; "" if it can."""
    from chapters.kit.machine import cuda_state, nvidia_gpu

    if not nvidia_gpu():
        return "the NVIDIA driver's nvidia-smi finds no GPU, or is not there"
    try:  # before TVM: it brings the CUDA library that TVM looks for
        import torch
    except ImportError:
        return "PyTorch, whose events, streams and graphs the measurement uses, is not installed"
    if not torch.cuda.is_available():
        return "PyTorch finds no NVIDIA GPU"
    state, sentence = cuda_state()
    return "" if state == "gpu" else sentence


def shared_bytes(otherwise: int) -> int:
    """How many bytes of shared memory a block may ask for on this machine's GPU; `otherwise` if it has none."""
    try:
        import torch
    except ImportError:
        return otherwise
    if not torch.cuda.is_available():
        return otherwise
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "shared_memory_per_block_optin", otherwise)


def nothing() -> None:
    """Do nothing: the `prepare` of a Contender that needs no preparation."""


@dataclass(frozen=True)
class Contender:
    """Something to time. prepare: restores what a call overwrites; called before each call and not timed."""

    call: Callable[[], object]
    prepare: Callable[[], object] = nothing


class Clock(Protocol):
    def round(self, order: list[tuple[str, Contender]]) -> dict[str, float]:
        """Seconds of one call of each contender, called in this order."""


def interleaved(
    contenders: Mapping[str, Contender],
    clock: Clock,
    *,
    rounds: int,
    seconds: float = float("inf"),
    seed: int | None = None,
    warm: int = WARM_ROUNDS,
) -> dict[str, Spread]:
    """The Spread of each contender over `rounds` rounds, fewer if they would take more than `seconds`.

    warm: rounds before, at least one, that do not count.
    """
    shuffle = random.Random(seed)

    def one_round() -> dict[str, float]:
        return clock.round(shuffle.sample(list(contenders.items()), len(contenders)))

    before = [one_round() for _ in range(warm)]
    rounds = _affordable(rounds, sum(before[-1].values()), seconds)
    taken = [one_round() for _ in range(rounds)]
    return {name: spread([times[name] for times in taken]) for name in contenders}


def _affordable(rounds: int, once: float, seconds: float) -> int:
    """`rounds`, or as many as take `seconds` if one takes `once` seconds, but at least FEWEST_ROUNDS of them."""
    if once * rounds <= seconds:
        return rounds
    return max(min(rounds, FEWEST_ROUNDS), int(seconds / once))


def usable(
    makers: Mapping[str, Callable[[], tuple[Contender, float]]], say: Callable[[str], None]
) -> tuple[dict[str, Contender], dict[str, float], dict[str, str]]:
    """Call `makers`, each of which returns (contender, error); returns (contenders, errors, why others are missing).

    A maker that raises does not end the run: its contender is missing, and `say` is told why.
    """
    contenders, errors, missing = {}, {}, {}
    for name, make in makers.items():
        try:
            contenders[name], errors[name] = make()
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [""]
            missing[name] = f"{type(problem).__name__}: {lines[0][:160]}"
            if isinstance(problem, ImportError) and problem.name:
                missing[name] = f"{problem.name} is not installed"
            say(f"  {name}: {missing[name]}")
    return contenders, errors, missing


class EventClock:
    """Times single calls from a cold cache, with CUDA events."""

    def __init__(self, flush_bytes: int | None = None, device: str = "cuda"):
        import torch

        self._rubbish = torch.empty(flush_bytes or FLUSH_BYTES, dtype=torch.int8, device=device)
        self._value = 0

    def round(self, order: list[tuple[str, Contender]]) -> dict[str, float]:
        return _timed(order, lambda name, contender: contender.call(), self._flush)

    def _flush(self) -> None:
        """Overwrite the caches. It takes so long that the host has queued the next call before the GPU is done."""
        self._value = (self._value + 1) % 100
        self._rubbish.fill_(self._value)


class GraphClock:
    """Times a call as one of `repeats` in a CUDA graph: without the cost of its launch, and with warm caches."""

    def __init__(self, repeats: int = 64):
        self.repeats = repeats
        self._graphs: dict[str, object] = {}

    def capture(self, name: str, contender: Contender) -> None:
        """Record `repeats` calls as a graph. Raises the library's own exception if its call cannot be recorded."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.repeats):
                contender.call()
        self._graphs[name] = graph

    def round(self, order: list[tuple[str, Contender]]) -> dict[str, float]:
        times = _timed(order, lambda name, contender: self._graphs[name].replay())
        return {name: seconds / self.repeats for name, seconds in times.items()}


def _timed(
    order: list[tuple[str, Contender]],
    call: Callable[[str, Contender], object],
    flush: Callable[[], None] = nothing,
) -> dict[str, float]:
    """Seconds between two events around `call` of each contender, after its preparation and `flush`."""
    import torch

    events = {}
    for name, contender in order:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        contender.prepare()
        flush()
        start.record()
        call(name, contender)
        end.record()
        events[name] = start, end
    torch.cuda.synchronize()
    return {name: start.elapsed_time(end) / 1e3 for name, (start, end) in events.items()}
