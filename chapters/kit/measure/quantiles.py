"""Timings: of a short call, which is repeated; and of several things that take turns, as median and quartiles."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FEWEST = 3  # rounds, however long they take


@dataclass(frozen=True)
class Quantiles:
    """Seconds per call over `rounds` timings: the median, and the quartiles `low` and `high`."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Quantiles:
        """Those of at least two timings. Raises ValueError for fewer, or for one that is not positive."""
        if len(seconds) < 2:
            raise ValueError(f"Quartiles need two timings or more, and there are {len(seconds)}.")
        if not min(seconds) > 0:
            raise ValueError(f"A timing must be positive, and one is {min(seconds)!r}.")
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def time_repeated(
    run: Callable[[int], object], least: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds per call, where run(n) makes n calls and waits for their end; at least `least` seconds are measured."""
    repeat = 1
    while True:
        start = clock()
        run(repeat)
        spent = clock() - start
        if spent >= least:
            return spent / repeat
        repeat *= 4


def measure_in_turns(
    clocks: Mapping[str, Callable[[], Sequence[float]]],
    rounds: int,
    *,
    seconds: float = float("inf"),
    seed: int | None = None,
) -> dict[str, Quantiles]:
    """The Quantiles of what each clock returns over `rounds` rounds, in which all take turns in a new random order.

    clocks: name -> a function that measures once, and returns one or more timings in seconds. One more round comes
    first and does not count: it compiles, allocates and raises the frequency. seconds: after which no further round
    begins, but there are FEWEST at least, unless fewer are asked for.
    """
    shuffle, end = random.Random(seed), float("inf")
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(1 + rounds):
        if number > FEWEST and time.monotonic() > end:
            break
        for name in shuffle.sample(list(clocks), len(clocks)):
            timings = clocks[name]()
            taken[name] += timings if number else []
        end = end if number else time.monotonic() + seconds
    return {name: Quantiles.of(timings) for name, timings in taken.items()}
