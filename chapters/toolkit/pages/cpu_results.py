"""Plots of what `bench 3`, `4`, `6` and `9` measured on a CPU, each from the numbers of a results file."""

from __future__ import annotations

import importlib

from chapters.toolkit.course import chapter
from chapters.toolkit.pages.plots.bandwidth import Case, bandwidth
from chapters.toolkit.pages.plots.bars import Bar, bars
from chapters.toolkit.pages.plots.chart import Axis, Guide, Series, chart
from chapters.toolkit.pages.plots.figure import Figure
from chapters.toolkit.pages.plots.scale import si
from chapters.toolkit.table import Table


def _bench(number: int):
    return importlib.import_module(f"chapters.{chapter(number).slug}.bench")


def matmul_speed(measured: dict) -> list[Figure]:
    """ch03_kernels: operations a second over the rows of x, one figure for each number of threads."""
    return [
        _matmul_speed(measured["n"], measured["k"], int(threads), by_rows)
        for threads, by_rows in measured["threads"].items()
    ]


def _matmul_speed(n: int, k: int, threads: int, by_rows: dict[str, dict]) -> Figure:
    peak = max(_bench(3).peak(seconds, threads) for seconds in by_rows.values())
    present = [name for seconds in by_rows.values() for name in seconds]
    names = [n for n in dict.fromkeys(present) if n not in ("read w", "multiply-add")]
    speeds = {
        name: {r: 2 * int(r) * n * k / s[name] for r, s in by_rows.items() if name in s}
        for name in names
    }
    series = [Series(name, [(int(r), v) for r, v in s.items()]) for name, s in speeds.items()]
    ends = [int(r) for r in by_rows]
    top = Guide(
        [(min(ends) / 1.6, peak), (max(ends) * 1.6, peak)],
        f"multiply-adds in registers: {si(peak, 'FLOP/s')}",
        (min(ends) / 1.5, peak),
    )
    x = Axis("rows of x", lambda tick: f"{tick:g}", log=True)
    y = Axis("operations a second", lambda tick: si(tick, ""), values=[1.05 * peak])
    drawing, size = chart(x, y, series, [top])
    rows = [
        (r, *(si(speeds[s][r], "FLOP/s") if r in speeds[s] else "–" for s in names))
        for r in by_rows
    ]
    title = (
        f"x @ w.T for w of ({n}, {k}) in float32 on {threads} thread{'s' if threads > 1 else ''}"
    )
    caption = "With few rows the time is that of reading w; the line is what the registers reach without any memory."
    return Figure(drawing, size, title, caption, Table(("rows of x", *names), rows))


def norm_bandwidth(measured: dict) -> list[Figure]:
    """ch04_cpu: bytes a second over size, one figure for each dtype, at the largest number of threads."""
    bench = _bench(4)
    threads = max(measured, key=int)
    by_dtype: dict[str, list[Case]] = {}
    for case, seconds in measured[threads].items():
        dtype, shape = case.split(" ", 1)
        moved = bench.bytes_counted(tuple(int(n) for n in shape.strip("(,)").split(",")), dtype)
        by_dtype.setdefault(dtype, []).append(Case(shape, moved, _renamed(seconds)))
    figures = []
    for dtype, cases in by_dtype.items():
        largest = max(cases, key=lambda case: case.bytes)
        rate = largest.bytes / largest.seconds["copy"]
        title = f"Add and RMSNorm in {dtype} on {threads} threads of a CPU"
        figures.append(bandwidth(cases, rate, title))
    return figures


def _renamed(seconds: dict[str, float]) -> dict[str, float]:
    """The bound under the name of what it is: the faster of two ways to copy as many bytes."""
    bounds = ("plain stores", "streaming stores")
    others = {name: time for name, time in seconds.items() if name not in bounds}
    return {"copy": min(seconds[name] for name in bounds if name in seconds), **others}


def bias_speedup(measured: dict) -> list[Figure]:
    """ch06_int8: how many times as fast as with a bias pass of its own, over the length of the sums."""
    found: dict[str, list[tuple[int, float]]] = {}
    table = _bench(6).speedups(measured)
    lines = [row[1:6] for row in table.rows if row[0] == measured["m"]]
    for steps, unit, fused, predicted, at_the_tile in lines:
        for what, times in (
            ("fused", fused),
            ("predicted", predicted),
            ("at the tile", at_the_tile),
        ):
            if times:
                found.setdefault(f"{unit}, {what}", []).append((int(steps), float(times)))
    series = [Series(name, points) for name, points in found.items()]
    x = Axis("K, the length of a sum", lambda tick: f"{tick:g}", log=True)
    y = Axis("times as fast as a separate pass", lambda tick: f"{tick:g}")
    ends = [steps for steps, *_ in lines]
    even = Guide([(min(ends) / 1.6, 1), (max(ends) * 1.6, 1)], "no gain", (min(ends) / 1.5, 1))
    drawing, size = chart(x, y, series, [even])
    title = "Starting an int8 sum from the bias"
    caption = "The longer the sums, the less the bias pass counts. The prediction is one line of arithmetic."
    return [Figure(drawing, size, title, caption, table)]


def decode_speed(measured: dict) -> list[Figure]:
    """ch09_decoder: decode steps a second by compiler, one figure for each decoder."""
    return [_decode_speed(name, one["seconds"]) for name, one in measured.items()]


def _decode_speed(decoder: str, seconds: dict[str, float]) -> Figure:
    times = {
        key.removesuffix(" decode"): time
        for key, time in seconds.items()
        if key.endswith(" decode")
    }
    entries = [
        Bar(name, 1 / time, f"{1 / time:.3g}", kind=number % 8)
        for number, (name, time) in enumerate(times.items())
    ]
    drawing, size = bars(entries, "decode steps a second, more is better")
    rows = [(name, si(time, "s"), f"{1 / time:.3g}") for name, time in times.items()]
    title = f"One token through the decoder “{decoder}”"
    caption = "The same weights and the same tokens for everybody."
    table = Table(("compiled by", "a decode step", "steps a second"), rows)
    return Figure(drawing, size, title, caption, table)


PLOTS = {
    "ch03_kernels": matmul_speed,
    "ch04_cpu": norm_bandwidth,
    "ch06_int8": bias_speedup,
    "ch09_decoder": decode_speed,
}
