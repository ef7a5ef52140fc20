"""Plots of what the benches measured on a CPU, each from the numbers of a results file, with a sentence above it.

A ratio below 1 in a sentence means that another runtime is ahead.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import Table, duration, si
from chapters.runner.course import chapter
from docs.pages import plots
from docs.pages.plots import display_name

OURS = ("ours", "fusion_by_hand")
# kernels that do only a part of the work: their time is not a speed of the whole
BOUNDS = ("read w", "multiply-add", "tile", "copy")


def _bench(number: int, module: str = "bench"):
    return importlib.import_module(f"chapters.{chapter(number).slug}.{module}")


def _given():
    return importlib.import_module(f"chapters.{chapter(11).slug}.given")


def _rivals(seconds: Mapping[str, float]) -> dict[str, float]:
    """Who does the same work as we do, and is not this course."""
    return {n: s for n, s in seconds.items() if not n.startswith(OURS) and n not in BOUNDS}


def _best(seconds: Mapping[str, float]) -> str:
    """The fastest of those who are not this course; "" if there is none."""
    rivals = _rivals(seconds)
    return min(rivals, key=rivals.get) if rivals else ""


def _ahead(seconds: Mapping[str, float]) -> float | None:
    """How many times as long the fastest other takes; None if ours or all others are missing."""
    ours, best = next((s for n, s in seconds.items() if n in OURS), None), _best(seconds)
    return seconds[best] / ours if ours and best else None


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio < 10 else f"{ratio:.0f} times"


def _rows(count: object) -> str:
    return f"{count} row{'' if str(count) == '1' else 's'}"


def _threads(count: object) -> str:
    return f"{count} thread{'' if str(count) == '1' else 's'}"


# --- chapters 3 and 5: the product ----------------------------------------------------------------


def pass_gain(measured: dict) -> list[plots.Figure]:
    """ch03_pass: the time with a transpose and of the fused kernel, neither with a schedule."""
    entries, gains = [], []
    words = {"transposed": "TVM, transpose and matmul", "fused": "this course, fused"}
    for rows, seconds in measured["rows"].items():
        for key, name in words.items():
            entries.append(Bar(f"{name}, {_rows(rows)}", seconds[key], si(seconds[key], "s")))
        gains.append(
            f"{seconds['transposed'] / seconds['fused']:.1f} times as fast for {_rows(rows)}"
        )
    claim = f"Without the transpose, a product is {' and '.join(gains)} of x."
    title = f"x @ w.T for w of ({measured['n']}, {measured['k']}), before and after the pass"
    caption = "Neither side has a schedule (loops tiled, vectorized, parallel): chapter 5 adds it."
    table = _bench(3).pass_table(measured)
    return [plots.bars(entries, "less is better", title, caption, table, claim=claim)]


def matmul_speed(measured: dict) -> list[plots.Figure]:
    """ch05_kernels: operations per second over the rows of x, one figure for each number of threads."""
    return [
        _matmul_speed(measured["n"], measured["k"], int(threads), by_rows)
        for threads, by_rows in measured["threads"].items()
    ]


def _matmul_speed(n: int, k: int, threads: int, by_rows: dict[str, dict]) -> plots.Figure:
    peak = max(_bench(5).peak(seconds, threads) for seconds in by_rows.values())
    present = dict.fromkeys(name for seconds in by_rows.values() for name in seconds)
    names = [name for name in present if name not in BOUNDS]
    speeds = {
        name: {int(r): 2 * int(r) * n * k / s[name] for r, s in by_rows.items() if name in s}
        for name in names
    }
    rows = [
        (r, *(si(speeds[s][int(r)], "FLOP/s") if int(r) in speeds[s] else "–" for s in names))
        for r in by_rows
    ]
    return plots.lines(
        {name: list(found.items()) for name, found in speeds.items()},
        ("rows of x", "operations per second"),
        f"x @ w.T for w of ({n}, {k}) in float32 on {_threads(threads)}",
        "With few rows, reading w takes the time. The line is what the registers reach when no operand comes from "
        "memory.",
        Table(("rows of x", *map(display_name, names)), rows),
        _matmul_claim(threads, by_rows),
        level=(peak, f"multiply-adds in registers: {si(peak, 'FLOP/s')}"),
        unit="",
    )


def _matmul_claim(threads: int, by_rows: dict[str, dict]) -> str:
    """Where we are furthest ahead of the better library, and where least."""
    ratios = {rows: ratio for rows, seconds in by_rows.items() if (ratio := _ahead(seconds))}
    best, worst = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
    return (
        f"On {_threads(threads)} our kernel is {_times(ratios[best])} as fast as the better library at {_rows(best)}, "
        f"and {ratios[worst]:.3g} times at {_rows(worst)}."
    )


def decode_gain(measured: dict) -> list[plots.Figure]:
    """ch05_decode: one decode step as exported, with chapter 3's pass, and with the schedules."""
    words = {
        "as exported": "TVM, as exported",
        "fused": "this course, fused",
        "fused and scheduled": "this course, fused and scheduled",
    }
    entries = [Bar(words[key], s, duration(s)) for key, s in measured.items()]
    whole, last = measured["as exported"], measured["fused and scheduled"]
    claim = (
        f"Fusing takes a decode step from {duration(whole)} to {duration(measured['fused'])}, schedules take it to "
        f"{duration(last)}: {_times(whole / last)} as fast."
    )
    title = "One token through a small decoder of two layers, 1 thread"
    caption = "TVM has no schedule for a CPU, so “as exported” runs plain loops."
    table = _bench(5).decode_table(measured)
    return [plots.bars(entries, "less is better", title, caption, table, claim=claim)]


# --- chapter 4: add and RMSNorm -------------------------------------------------------------------

YARDSTICK = (
    "The copy is a yardstick and no bound: it moves as many bytes with other loops. Tensors of a few MB stay in the "
    "caches, so rates there are above what memory delivers."
)


def norm_bandwidth(measured: dict) -> list[plots.Figure]:
    """ch04_cpu: bytes per second over size, one figure for each dtype, at the largest number of threads."""
    bench = _bench(4)
    threads = max(measured, key=int)
    by_dtype: dict[str, list[plots.Size]] = {}
    for case, seconds in measured[threads].items():
        dtype, shape = case.split(" ", 1)
        moved = bench.bytes_counted(tuple(int(n) for n in shape.strip("(,)").split(",")), dtype)
        by_dtype.setdefault(dtype, []).append(plots.Size(shape, moved, _with_copy(seconds)))
    figures = []
    for dtype, cases in by_dtype.items():
        title = f"Add and RMSNorm in {dtype} on {_threads(threads)} of a CPU"
        figures.append(plots.bandwidth(cases, None, title, YARDSTICK, _norm_claim(dtype, cases)))
    return figures


def _norm_claim(dtype: str, cases: list[plots.Size]) -> str:
    """The largest case, whose tensors come from memory; and the one that does worst beside the copy."""
    largest = max(cases, key=lambda case: case.bytes)
    seconds, best = largest.seconds, _best(largest.seconds)
    claim = (
        f"Our kernel moves {si(largest.bytes, 'B')} of {dtype} in {duration(seconds['ours'])}; a copy of as many "
        f"bytes takes {duration(seconds['copy'])}"
    )
    claim += f", the next best, {display_name(best)}, {duration(seconds[best])}." if best else "."
    worst = max(cases, key=lambda case: case.seconds["ours"] / case.seconds["copy"])
    behind = worst.seconds["ours"] / worst.seconds["copy"]
    return f"{claim} Beside the copy we are slowest at {si(worst.bytes, 'B')}: {behind:.2g} times its time."


def _with_copy(seconds: dict[str, float]) -> dict[str, float]:
    """`seconds` with the bound under the name "copy": the faster of two ways to copy as many bytes."""
    bounds = ("plain stores", "streaming stores")
    others = {name: time for name, time in seconds.items() if name not in bounds}
    return {"copy": min(seconds[name] for name in bounds if name in seconds), **others}


# --- chapter 6: sums that start from the bias -----------------------------------------------------


def bias_speedup(measured: dict) -> list[plots.Figure]:
    """ch06_int8: for each unit the speedup over a separate bias pass; then the speed beside PyTorch's."""
    table = _bench(6).speedups(measured)
    lines = [row[1:6] for row in table.rows if row[0] == measured["m"]]
    units = dict.fromkeys(unit for _, unit, *_ in lines)
    figures = [_speedup(unit, [line for line in lines if line[1] == unit], table) for unit in units]
    return figures + _beside_torch(measured)


def _speedup(unit: str, lines: list[tuple], table: Table) -> plots.Figure:
    """lines: (K, unit, fused, predicted, at the tile)."""
    found: dict[str, list[tuple[int, float]]] = {}
    names = ("this course, fused", "predicted", "this course, bias added per tile")
    for steps, _, *gains in lines:
        for name, gain in zip(names, gains, strict=True):
            if gain:
                found.setdefault(name, []).append((int(steps), float(gain)))

    (short, most), (long, least) = min(found[names[0]]), max(found[names[0]])
    claim = (
        f"With {unit}, a sum that starts from the bias is {most:.2g} times as fast at K = {short:,}, and "
        f"{least:.3g} times at K = {long:,}, where it hardly matters."
    )
    what = {"vpdpbusd": "vpdpbusd, an instruction of vector registers", "AMX": "AMX tiles"}
    title = f"Starting an int8 sum from the bias on {what.get(unit, unit)}"
    caption = "The longer the sums, the less the bias pass counts. The prediction is one line of arithmetic."
    level = 1, "a separate bias pass"
    labels = "K, the length of a sum", "times as fast"
    return plots.lines(found, labels, title, caption, table, claim, level)


def _beside_torch(measured: dict) -> list[plots.Figure]:
    """Operations per second of the tiles and of PyTorch, over the length of the sums; nothing without AMX."""
    size = 2 * measured["m"] * measured["n"]
    keys = {"AMX, fused": "ours", "PyTorch": "PyTorch"}
    keys["PyTorch, packed ahead"] = "PyTorch, packed ahead"
    found = {
        name: [(int(k), int(k) * size / s[key]) for k, s in measured["steps"].items() if key in s]
        for key, name in keys.items()
    }
    if not all(found.values()):
        return []

    packed = dict(found["PyTorch, packed ahead"])
    ratios = {k: mine / packed[k] for k, mine in found["ours"] if k in packed}
    best, worst = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
    claim = (
        "Beside PyTorch with weights packed ahead, as ours are, we are "
        f"{ratios[best]:.2g} times as fast at K = {best:,} and {ratios[worst]:.2g} times at K = {worst:,}."
    )
    title = f"int8 products of {measured['m']} rows with a bias, on AMX, 1 thread"
    caption = "“PyTorch” packs the weights anew in each call."
    labels, table = (
        ("K, the length of a sum", "operations per second"),
        _bench(6).beside_torch(measured),
    )
    return [plots.lines(found, labels, title, caption, table, claim, unit="")]


# --- chapter 9: the whole compiler ----------------------------------------------------------------


def decode_speed(measured: dict) -> list[plots.Figure]:
    """ch09_decoder: decode steps per second by compiler, one figure for each decoder."""
    return [_decode_speed(name, one["seconds"]) for name, one in measured.items()]


def _decode_speed(decoder: str, seconds: dict[str, float]) -> plots.Figure:
    times, prefills = (
        {key.removesuffix(end): seconds[key] for key in seconds if key.endswith(end)}
        for end in (" decode", " prefill")
    )
    entries = [Bar(name, 1 / time, _count(1 / time)) for name, time in times.items()]
    rows = [(display_name(name), si(time, "s"), _count(1 / time)) for name, time in times.items()]
    claim = ""
    if ahead := _ahead(times):
        claim = f"Our decode step is {_times(ahead)} as fast as that of {display_name(_best(times))}, the next best"
        prefill = _ahead(prefills)
        claim += (
            f"; our prefill {prefill:.2g} times as fast as {display_name(_best(prefills))}'s."
            if prefill
            else "."
        )
    title = f"One token through the decoder “{decoder}”"
    caption = (
        "The same weights and the same tokens for everybody. TVM's default has no schedules for a CPU, so its bars say "
        "as much about its defaults as about our passes."
    )
    table = Table(("compiled by", "a decode step", "steps per second"), rows)
    words = "decode steps per second, more is better"
    return plots.bars(entries, words, title, caption, table, claim=claim)


def _count(number: float) -> str:
    """Three digits, without an exponent: 7,950 and 2.91."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def epilogue_times(measured: dict) -> list[plots.Figure]:
    """ch09_epilogues: how many times our time torch.compile takes, for each epilogue, over the rows."""
    by_rows = {int(rows): seconds for rows, seconds in measured["rows"].items()}
    ours, theirs = "fusion_by_hand, ", "torch.compile, "
    layers = [name.removeprefix(ours) for name in by_rows[min(by_rows)] if name.startswith(ours)]
    alone, *epilogues = layers
    ratios = {
        rows: {e: s[theirs + e] / s[ours + e] for e in layers if theirs + e in s}
        for rows, s in by_rows.items()
    }
    if not all(ratios.values()):
        return []
    low, high = (
        [(rows, pick(found.values())) for rows, found in ratios.items()] for pick in (min, max)
    )

    cost = max(s[ours + e] / s[ours + alone] for s in by_rows.values() for e in epilogues)
    few, many = min(ratios), max(ratios)
    claim = (
        f"An epilogue costs us at most {cost - 1:.0%} of the product. torch.compile takes {dict(low)[few]:.2g} to "
        f"{dict(high)[few]:.2g} times our time at {_rows(few)}, and {dict(low)[many]:.3g} to {dict(high)[many]:.3g} "
        f"times at {many}."
    )
    size = f"{measured['k']} to {measured['n']}"
    title = (
        f"A linear layer ({size}) and {len(epilogues)} epilogues on {_threads(measured['threads'])}"
    )
    caption = "An epilogue is what follows the product in the same kernel: a bias, an activation, a residual."
    rows = [
        (name, *(f"{ratios[r][name]:.2f}×" if name in ratios[r] else "–" for r in ratios))
        for name in layers
    ]
    table = Table(("torch.compile's time", *map(_rows, ratios)), rows)
    series = {"this course, its best": high, "this course, its worst": low}
    level = 1, "torch.compile as fast as this course"
    labels = "rows", "torch.compile's time, in ours"
    return [plots.lines(series, labels, title, caption, table, claim, level, filled=True)]


# --- chapter 11: a real model ---------------------------------------------------------------------


def chat_speed(measured: dict) -> list[plots.Figure]:
    """ch11_chat: tokens per second of each runtime, decoding and reading a prompt; then the time to a first token."""
    threads, found = list(measured["threads"].items())[-1]
    bench = _bench(11, "bench_inputs")
    limit = found["bandwidth"] / measured["bytes"][bench.OURS], "only reading the weights"
    context, prefill = measured["context"], measured["prefill"]
    figures = []
    for function, tokens, line in (("decode", 1, limit), ("prefill", prefill, None)):
        times = {n: bench.seconds_of(found["seconds"], n, function) for n in bench.NAMES}
        rates = {name: tokens / seconds for name, seconds in times.items() if seconds}
        entries = [Bar(name, rate, f"{rate:,.0f}") for name, rate in rates.items()]
        rows = [
            (display_name(name), si(tokens / rate, "s"), f"{rate:,.0f}")
            for name, rate in rates.items()
        ]
        if function == "decode":
            title = f"SmolLM2-135M: one token after {context}, on {_threads(threads)}"
            caption = (
                "The line: as many bytes as the 4-bit file has, only read. This course and “llama.cpp” use this file; "
                "Q4_0 is the format in which llama.cpp is fastest."
            )
        else:
            title = f"SmolLM2-135M: a prompt of {prefill} tokens, on {_threads(threads)}"
            caption = "A prompt's tokens go through the model together, so arithmetic takes the time and not memory."
        words = "tokens per second, more is better"
        table = Table(("runtime", "time", "tokens per second"), rows)
        claim = _chat_claim(function, rates)
        figures.append(plots.bars(entries, words, title, caption, table, line, claim))
    return figures + _first_token(measured["first token"])


def _chat_claim(function: str, rates: dict[str, float]) -> str:
    peers = {name: rate for name, rate in rates.items() if name.startswith("llama.cpp")}
    told = ", ".join(f"{_with_format(name)} {rate:,.0f}" for name, rate in peers.items())
    does = "answers with" if function == "decode" else "reads a prompt at"
    bench = _bench(11, "bench_inputs")
    claim = f"Our decoder {does} {rates[bench.OURS]:,.0f} tokens per second; {told}."
    if exact := rates.get(bench.EXACT):
        start = "Both round activations to 8 bits; with" if function == "decode" else "With"
        claim += f" {start} float32 activations ours makes {exact:,.0f}."
    return claim


def _with_format(name: str) -> str:
    """The name of a runtime in a sentence: "llama.cpp with Q4_0 weights"."""
    runtime, _, weights = name.partition(", ")
    return f"{runtime} with {weights} weights" if weights else runtime


def _first_token(seconds: dict[str, float]) -> list[plots.Figure]:
    """From the start of a process to its first token."""
    best = _best(seconds)
    if not best:
        return []
    entries = [Bar(name, time, duration(time)) for name, time in seconds.items()]
    claim = (
        f"Our first token comes after {duration(seconds['fusion_by_hand'])}, that of {_with_format(best)} after "
        f"{duration(seconds[best])}."
    )
    title = "From the start of a process to the first token"
    caption = "Everything was read from disk before. Chapter 11 shows where our time goes."
    table = _bench(11, "first_token").make_table(seconds)
    return [plots.bars(entries, "less is better", title, caption, table, claim=claim)]


def weight_bytes(measured: dict) -> list[plots.Figure]:
    """ch11_perplexity: megabytes per token by the way the weights are stored; and what rounding them costs."""
    sizes = _given().token_bytes(measured)
    entries = [
        Bar(name, size / 1e6, f"{size / 1e6:.0f} MB", ours="file" in name)
        for name, size in sizes.items()
    ]
    table = _given().bytes_table()
    title = "What one token of SmolLM2-135M reads"
    caption = "Each weight is read once per token, so bytes decide how fast a model answers."
    most, least = max(sizes.values()), min(sizes.values())
    claim = (
        f"With 4-bit weights a token reads {least / 1e6:.0f} MB; as float32 it would read {most / least:.2g} times as "
        "much."
    )
    words = "megabytes per token, less is better"
    return [plots.bars(entries, words, title, caption, table, claim=claim), _perplexity(measured)]


def _perplexity(measured: dict) -> plots.Figure:
    variants = measured["variants"]
    name, whole = next(iter(variants.items()))
    worse = {n: one["perplexity"] / variants[name]["perplexity"] - 1 for n, one in variants.items()}
    entries = [
        Bar(n, 100 * share, f"{100 * share:+.1f} %", ours=n.startswith("file,"))
        for n, share in worse.items()
        if n != name
    ]
    ours, q4_0 = "file, x in 8 bits", "Q4_0, x in 8 bits"
    claim = (
        f"8-bit activations raise the perplexity by {worse[ours]:.1%}. All weights in Q4_0, llama.cpp's fastest "
        f"format, raise it by {worse[q4_0]:.0%}."
    )
    title = f"Perplexity of SmolLM2-135M, over that of {name}"
    caption = (
        "Perplexity is how many tokens the model wavers between, on average over a text: less is better. “file” is the "
        "4-bit file that the chat uses; x is a layer's input. float32 weights are the file's, unpacked."
    )
    rows = [(n, f"{one['perplexity']:.2f}", f"{worse[n]:+.1%}") for n, one in variants.items()]
    table = Table(("weights", "perplexity", f"over {name}"), rows)
    words = f"per cent above {whole['perplexity']:.1f}, less is better"
    return plots.bars(entries, words, title, caption, table, claim=claim)


PLOTS = {
    "ch03_pass": pass_gain,
    "ch04_cpu": norm_bandwidth,
    "ch05_kernels": matmul_speed,
    "ch05_decode": decode_gain,
    "ch06_int8": bias_speedup,
    "ch09_decoder": decode_speed,
    "ch09_epilogues": epilogue_times,
    "ch11_chat": chat_speed,
    "ch11_perplexity": weight_bytes,
}
