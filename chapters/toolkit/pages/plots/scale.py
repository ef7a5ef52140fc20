"""From numbers to places on a drawing: linear and logarithmic axes, their ticks, and numbers with SI prefixes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


def si(value: float, unit: str, digits: int = 3) -> str:
    """`value` with a prefix: si(4.3e12, "B/s") is "4.3 TB/s"."""
    if value == 0:
        return f"0 {unit}".strip()
    power = 3 * math.floor(math.log10(abs(value)) / 3 + 1e-9)
    power = min(max(power, min(_PREFIXES)), max(_PREFIXES))
    number = f"{value / 10**power:.{digits}g}"
    if abs(float(number)) >= 1000 and power < max(_PREFIXES):  # 999.9 was rounded up
        number, power = f"{float(number) / 1000:g}", power + 3
    return f"{float(number):g} {_PREFIXES[power]}{unit}".strip()


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, drawn from place `start` to place `end`; `log`: equal ratios, equal distances."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self):
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"No axis goes from {self.low} to {self.high}.")

    def place(self, value: float) -> float:
        """Where `value` is drawn."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(v) for v in (value, low, high))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers within the axis: powers of ten, or five to ten equal steps; at least two."""
        if self.log:
            first, last = math.ceil(_lg(self.low) - 1e-9), math.floor(_lg(self.high) + 1e-9)
            decades = [10.0**p for p in range(first, last + 1)]
            if len(decades) >= 3:
                return decades
            between = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [t for t in between if self.low <= t <= self.high] or [self.low, self.high]
        step = _nice((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * n for n in range(first, last + 1)]


def around(values: Iterable[float], start: float, end: float, log: bool = False) -> Scale:
    """An axis that holds all `values` with room on both sides; a linear one starts at 0. Raises ValueError for none."""
    values = list(values)
    if not values:
        raise ValueError("There are no numbers to draw an axis for.")
    if log:
        return Scale(min(values) / 1.6, max(values) * 1.6, start, end, log=True)
    top = max(values)
    step = _nice(top / 5)
    return Scale(0.0, step * math.ceil(top / step + 1e-9), start, end)


def _nice(step: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `step`."""
    power = 10 ** math.floor(_lg(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))


def _lg(value: float) -> float:
    return math.log10(value)
