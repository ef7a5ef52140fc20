"""Plots of what `bench 4`, `5`, `6`, `9` and `11` measured on a CPU, each from the numbers of a results file."""

from __future__ import annotations

import importlib
import itertools

from chapters.kit.draw.table import Table, si
from chapters.runner.course import chapter
from docs.pages import plots

# kernels that do only a part of the work: their time is not a speed of the whole
OURS = ("ours", "fusion_by_hand")
BOUNDS = ("read w", "multiply-add", "tile")


def _bench(number: int):
    return importlib.import_module(f"chapters.{chapter(number).slug}.bench")


def _given():
    return importlib.import_module(f"chapters.{chapter(11).slug}.given")


def matmul_speed(measured: dict) -> list[plots.Figure]:
    """ch05_kernels: operations per second over the rows of x, one figure for each number of threads."""
    return [
        _matmul_speed(measured["n"], measured["k"], int(threads), by_rows)
        for threads, by_rows in measured["threads"].items()
    ]


def _matmul_speed(n: int, k: int, threads: int, by_rows: dict[str, dict]) -> plots.Figure:
    peak = max(_bench(5).peak(seconds, threads) for seconds in by_rows.values())
    present = [name for seconds in by_rows.values() for name in seconds]
    names = [n for n in dict.fromkeys(present) if n not in BOUNDS]
    speeds = {
        name: {r: 2 * int(r) * n * k / s[name] for r, s in by_rows.items() if name in s}
        for name in names
    }

    def draw(axes) -> None:
        axes.set_xscale("log")
        axes.set_xlabel("rows of x")
        axes.set_ylabel("operations per second")
        points = {name: [(int(r), v) for r, v in s.items()] for name, s in speeds.items()}
        plots.draw_series(axes, list(itertools.starmap(plots.Series, points.items())))
        plots.guide(axes, peak, f"multiply-adds in registers: {si(peak, 'FLOP/s')}")
        plots.in_units(axes.yaxis, "")
        plots.as_numbers(axes.xaxis, [int(r) for r in by_rows])

    rows = [
        (r, *(si(speeds[s][r], "FLOP/s") if r in speeds[s] else "–" for s in names))
        for r in by_rows
    ]
    ratios = {r: _ahead({n: s[n] for n in names if n in s}) for r, s in by_rows.items()}
    ratios = {r: ratio for r, ratio in ratios.items() if ratio}
    claim = ""
    if ratios:
        best, worst = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
        claim = (
            f"Our kernel is {ratios[best]:.2g} times as fast as the better library at {best} rows, and "
            f"{ratios[worst]:.2g} times at {worst}."
        )
    on = f"{threads} thread{'s' if threads > 1 else ''}"
    title = f"x @ w.T for w of ({n}, {k}) in float32 on {on}"
    caption = "With few rows the time is that of reading w; the line is what the registers reach without any memory."
    return plots.figure(draw, title, caption, Table(("rows of x", *names), rows), claim=claim)


def _ahead(seconds: dict[str, float]) -> float | None:
    """How many times as long the fastest other takes; None if ours or all others are missing."""
    ours = next((s for name, s in seconds.items() if name in OURS), None)
    others = [s for name, s in seconds.items() if name not in OURS]
    return min(others) / ours if ours and others else None


YARDSTICK = (
    "The copy is a yardstick and no bound: it moves as many bytes, from one tensor to another and with other loops. "
    "Tensors of a few MB stay in the caches, so their rates say nothing about memory."
)


def norm_bandwidth(measured: dict) -> list[plots.Figure]:
    """ch04_cpu: bytes per second over size, one figure for each dtype, at the largest number of threads."""
    bench = _bench(4)
    threads = max(measured, key=int)
    by_dtype: dict[str, list[plots.Size]] = {}
    for case, seconds in measured[threads].items():
        dtype, shape = case.split(" ", 1)
        moved = bench.bytes_counted(tuple(int(n) for n in shape.strip("(,)").split(",")), dtype)
        by_dtype.setdefault(dtype, []).append(plots.Size(shape, moved, _renamed(seconds)))
    figures = []
    for dtype, cases in by_dtype.items():
        title = f"Add and RMSNorm in {dtype} on {threads} threads of a CPU"
        figures.append(plots.bandwidth(cases, None, title, YARDSTICK, _norm_claim(dtype, cases)))
    return figures


def _norm_claim(dtype: str, cases: list[plots.Size]) -> str:
    """What the largest case says, whose tensors come from memory."""
    largest = max(cases, key=lambda case: case.bytes)
    share = largest.seconds["copy"] / largest.seconds["ours"]
    ahead = _ahead({name: s for name, s in largest.seconds.items() if name != "copy"})
    others = f", {ahead:.2g} times as fast as the best of the others" if ahead else ""
    return (
        f"{si(largest.bytes, 'B')} of {dtype} move at {share:.0%} of the speed of a copy{others}."
    )


def _renamed(seconds: dict[str, float]) -> dict[str, float]:
    """`seconds` with the bound under the name "copy": the faster of two ways to copy as many bytes."""
    bounds = ("plain stores", "streaming stores")
    others = {name: time for name, time in seconds.items() if name not in bounds}
    return {"copy": min(seconds[name] for name in bounds if name in seconds), **others}


def bias_speedup(measured: dict) -> list[plots.Figure]:
    """ch06_int8: the speedup over a separate bias pass, over the length of the sums."""
    found: dict[str, list[tuple[int, float]]] = {}
    table = _bench(6).speedups(measured)
    lines = [row[1:6] for row in table.rows if row[0] == measured["m"]]
    for steps, unit, fused, predicted, at_the_tile in lines:
        gains = {"fused": fused, "predicted": predicted, "at the tile": at_the_tile}
        for what, times in gains.items():
            if times:
                found.setdefault(f"{unit}, {what}", []).append((int(steps), float(times)))

    def draw(axes) -> None:
        axes.set_xscale("log")
        axes.set_xlabel("K, the length of a sum")
        axes.set_ylabel("times as fast as a separate pass")
        plots.draw_series(axes, [plots.Series(name, points) for name, points in found.items()])
        plots.guide(axes, 1, "no gain")
        plots.as_numbers(axes.xaxis, [int(steps) for steps, *_ in lines])

    title = "Starting an int8 sum from the bias"
    caption = "The longer the sums, the less the bias pass counts. The prediction is one line of arithmetic."
    fused = {unit: points for unit, points in found.items() if unit.endswith("fused")}
    unit, points = next(iter(fused.items()))
    (short, most), (long, least) = min(points), max(points)
    claim = (
        f"Without a separate bias pass, {unit.split(',')[0]} is {most:.2g} times as fast at K = {short:,}, and "
        f"{least:.3g} times at K = {long:,}."
    )
    return [plots.figure(draw, title, caption, table, claim=claim)]


def decode_speed(measured: dict) -> list[plots.Figure]:
    """ch09_decoder: decode steps per second by compiler, one figure for each decoder."""
    return [_decode_speed(name, one["seconds"]) for name, one in measured.items()]


def _decode_speed(decoder: str, seconds: dict[str, float]) -> plots.Figure:
    decode = [key for key in seconds if key.endswith(" decode")]
    times = {key.removesuffix(" decode"): seconds[key] for key in decode}
    entries = [plots.Bar(name, 1 / time, _count(1 / time)) for name, time in times.items()]
    rows = [(name, si(time, "s"), _count(1 / time)) for name, time in times.items()]
    ahead = _ahead(times)
    claim = f"Our decode step is {ahead:.2g} times as fast as the next best." if ahead else ""
    title = f"One token through the decoder “{decoder}”"
    caption = "The same weights and the same tokens for everybody."
    table = Table(("compiled by", "a decode step", "steps per second"), rows)
    words = "decode steps per second, more is better"
    return plots.bars(entries, words, title, caption, table, claim=claim)


def _count(number: float) -> str:
    """Three digits, without an exponent: 7,950 and 2.91."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def chat_speed(measured: dict) -> list[plots.Figure]:
    """ch11_chat: tokens per second of each runtime, on all threads that were measured."""
    threads, found = list(measured["threads"].items())[-1]
    bench, context = _bench(11), measured["context"]
    times = {name: bench.seconds_of(found["seconds"], name, "decode") for name in bench.NAMES}
    times = {name: seconds for name, seconds in times.items() if seconds is not None}
    entries = [plots.Bar(name, 1 / time, f"{1 / time:.0f}") for name, time in times.items()]
    limit = found["bandwidth"] / measured["bytes"][bench.OURS]
    rows = [(name, si(time, "s"), f"{1 / time:.0f}") for name, time in times.items()]
    title = f"SmolLM2-135M: one token after {context}, on {threads} threads"
    caption = "The line: as many bytes as the 4-bit file has, only read. The first two and “llama.cpp” use this file."
    table = Table(("runtime", "a decode step", "tokens per second"), rows)
    words = "tokens per second, more is better"
    reading = (limit, "only reading the weights")
    peers = [
        f"{name} {1 / time:.0f}" for name, time in times.items() if name.startswith("llama.cpp")
    ]
    claim = f"Ours makes {1 / times[bench.OURS]:.0f} tokens per second; {' and '.join(peers)}."
    return [plots.bars(entries, words, title, caption, table, reading, claim)]


def weight_bytes(measured: dict) -> list[plots.Figure]:
    """ch11_perplexity: megabytes per token by the way the weights are stored."""
    sizes = _given().token_bytes(measured)
    entries = [plots.Bar(name, size / 1e6, f"{size / 1e6:.0f} MB") for name, size in sizes.items()]
    table = _given().bytes_table()
    title = "What one token of SmolLM2-135M reads"
    caption = "Each weight is read once per token, so bytes decide how fast a model answers."
    most, least = max(sizes.values()), min(sizes.values())
    times = f"{most / least:.2g} times as much"
    claim = (
        f"With 4-bit weights a token reads {least / 1e6:.0f} MB; as float32 it would read {times}."
    )
    words = "megabytes per token, less is better"
    return [plots.bars(entries, words, title, caption, table, claim=claim)]


PLOTS = {
    "ch05_kernels": matmul_speed,
    "ch04_cpu": norm_bandwidth,
    "ch06_int8": bias_speedup,
    "ch09_decoder": decode_speed,
    "ch11_chat": chat_speed,
    "ch11_perplexity": weight_bytes,
}
