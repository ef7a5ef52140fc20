"""Many timings of one thing as three numbers: the median and the quartiles around it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Spread:
    """Seconds per call over `rounds` rounds: the median, and the quartiles `low` and `high`."""

    median: float
    low: float
    high: float
    rounds: int

    def json(self) -> dict[str, float]:
        """The fields, as a results file keeps them."""
        return asdict(self)


def spread(seconds: Sequence[float]) -> Spread:
    """The Spread of at least two timings. Raises ValueError for fewer, or for one that is not positive."""
    if len(seconds) < 2:
        raise ValueError(f"A spread needs two timings or more, and this has {len(seconds)}.")
    if not min(seconds) > 0:
        raise ValueError(f"A timing must be positive, and one is {min(seconds)!r}.")
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Spread(median, low, high, len(seconds))
