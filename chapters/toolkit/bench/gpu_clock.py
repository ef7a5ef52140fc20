"""One protocol for timing anything on an NVIDIA GPU, so that nobody's numbers come from another way of measuring.

All contenders share one stream and take turns in a new random order every round; before each call the caches are
overwritten; an event stands before and one after the call, and the host waits only at a round's end. Where a call is
shorter than what it takes to launch it, GraphClock measures it as one of many in a CUDA graph instead.

The clocks need PyTorch, for its events, streams and graphs; `interleaved` needs only a clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from chapters.toolkit.bench.spread import Spread, spread

FLUSH_BYTES = 1 << 29  # several times the largest cache
WARM_ROUNDS = 3  # these compile, allocate and raise the clock's frequency
FEWEST_ROUNDS = 7


def missing() -> str:
    """Why nothing can be measured here, "" if it can."""
    from chapters.toolkit.machine import cuda_state, nvidia_gpu

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
    """How much shared memory a block may ask for on the GPU that is there; `otherwise` where none is."""
    try:
        import torch
    except ImportError:
        return otherwise
    if not torch.cuda.is_available():
        return otherwise
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "shared_memory_per_block_optin", otherwise)


@dataclass(frozen=True)
class Contender:
    """Something to time. prepare: what must be restored before each call, outside of the time."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None


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
) -> dict[str, Spread]:
    """The Spread of each contender over `rounds` rounds, fewer if they would take more than `seconds`."""
    shuffle = random.Random(seed)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    warm = WARM_ROUNDS
    for number in range(warm + rounds):
        order = shuffle.sample(list(contenders.items()), len(contenders))
        found = clock.round(order)
        if number < warm:
            rounds = _affordable(rounds, sum(found.values()), seconds)
            continue
        if number >= warm + rounds:
            break
        for name, once in found.items():
            taken[name].append(once)
    return {name: spread(times) for name, times in taken.items()}


def _affordable(rounds: int, once: float, seconds: float) -> int:
    if once * rounds <= seconds:
        return rounds
    return max(min(rounds, FEWEST_ROUNDS), int(seconds / once))


class EventClock:
    """Times single calls from a cold cache, with CUDA events."""

    def __init__(self, flush_bytes: int | None = None, device: str = "cuda"):
        import torch

        self._rubbish = torch.empty(flush_bytes or FLUSH_BYTES, dtype=torch.int8, device=device)
        self._value = 0

    def round(self, order: list[tuple[str, Contender]]) -> dict[str, float]:
        import torch

        events = {}
        for name, contender in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if contender.prepare:
                contender.prepare()
            # long enough for the host to have queued all that follows before the GPU gets there
            self._value = (self._value + 1) % 100
            self._rubbish.fill_(self._value)
            start.record()
            contender.call()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        return {name: start.elapsed_time(end) / 1e3 for name, (start, end) in events.items()}


class GraphClock:
    """Times a call as one of `repeats` in a CUDA graph: what launching costs drops out, and caches stay warm."""

    def __init__(self, repeats: int = 64):
        self.repeats = repeats
        self._graphs: dict[str, object] = {}

    def capture(self, name: str, contender: Contender) -> None:
        """Record the calls. Raises what the library raises if it cannot be recorded."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.repeats):
                contender.call()
        self._graphs[name] = graph

    def round(self, order: list[tuple[str, Contender]]) -> dict[str, float]:
        import torch

        events = {}
        for name, contender in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if contender.prepare:
                contender.prepare()
            start.record()
            self._graphs[name].replay()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        return {
            name: start.elapsed_time(end) / 1e3 / self.repeats
            for name, (start, end) in events.items()
        }
