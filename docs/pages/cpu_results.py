"""Plots of what the benches measured on a CPU, each from the numbers of a results file, with a sentence above it.

A ratio below 1 in a sentence means that another runtime is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping

from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import Table, count_noun, format_duration, format_si
from docs.pages import plots
from docs.pages.course_map import import_from_chapter
from docs.pages.plots import display_name

OURS = ("ours", "fusion_by_hand")
# kernels that do only a part of the work: their time is not a speed of the whole
BOUNDS = ("read w", "multiply-add", "tile", "copy")


def _find_best_baseline(seconds: Mapping[str, float]) -> str:
    """The fastest of those that do the same work as we do, and are not this course."""
    return min((n for n in seconds if not n.startswith(OURS) and n not in BOUNDS), key=seconds.get)


def _compute_speedup(seconds: Mapping[str, float]) -> float:
    """The time of the best baseline over ours."""
    ours = next(seconds[name] for name in OURS if name in seconds)
    return seconds[_find_best_baseline(seconds)] / ours


# --- chapters 3 and 5: the product ----------------------------------------------------------------


def draw_pass_gain(measured: dict) -> list[plots.Figure]:
    """ch03_pass: the time with a transpose and of the fused kernel, neither with a schedule."""
    entries, gains = [], []
    words = {"transposed": "TVM, transpose and matmul", "fused": "this course, fused"}
    for count, seconds in measured["rows"].items():
        rows = count_noun(int(count), "row")
        for key, name in words.items():
            entries.append(Bar(f"{name}, {rows}", seconds[key], format_si(seconds[key], "s")))
        gains.append(f"{seconds['transposed'] / seconds['fused']:.1f} times as fast for {rows}")
    claim = f"Without the transpose, a product is {' and '.join(gains)} of x."
    title = f"x @ w.T for w of ({measured['n']}, {measured['k']}), before and after the pass"
    caption = "Neither side has a schedule (loops tiled, vectorized, parallel): chapter 5 adds it."
    table = import_from_chapter(3).pass_table(measured)
    return [plots.draw_bars(entries, "less is better", title, caption, table, claim=claim)]


def draw_matmul_speeds(measured: dict) -> list[plots.Figure]:
    """ch05_kernels: operations per second over the rows of x, one figure for each number of threads."""
    return [
        _draw_matmul_speed(measured["n"], measured["k"], int(threads), by_rows)
        for threads, by_rows in measured["threads"].items()
    ]


def _draw_matmul_speed(n: int, k: int, threads: int, by_rows: dict[str, dict]) -> plots.Figure:
    peak = max(import_from_chapter(5).peak(seconds, threads) for seconds in by_rows.values())
    present = dict.fromkeys(name for seconds in by_rows.values() for name in seconds)
    names = [name for name in present if name not in BOUNDS]
    speeds = {
        name: {int(r): 2 * int(r) * n * k / s[name] for r, s in by_rows.items() if name in s}
        for name in names
    }
    rows = [
        (
            r,
            *(
                format_si(speeds[s][int(r)], "FLOP/s") if int(r) in speeds[s] else "–"
                for s in names
            ),
        )
        for r in by_rows
    ]
    ratios = {int(rows): _compute_speedup(seconds) for rows, seconds in by_rows.items()}
    best, worst = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
    where = count_noun(threads, "thread")
    claim = (
        f"On {where} our kernel is {ratios[best]:.3g} times as fast as the better library at "
        f"{count_noun(best, 'row')}, and {ratios[worst]:.3g} times at {count_noun(worst, 'row')}."
    )
    return plots.draw_lines(
        {name: list(found.items()) for name, found in speeds.items()},
        ("rows of x", "operations per second"),
        f"x @ w.T for w of ({n}, {k}) in float32 on {where}",
        "With few rows, reading w takes the time. The line is what the registers reach when no operand comes from "
        "memory.",
        Table(("rows of x", *map(display_name, names)), rows),
        claim,
        level=(peak, f"multiply-adds in registers: {format_si(peak, 'FLOP/s')}"),
        unit="",
    )


def draw_decode_gain(measured: dict) -> list[plots.Figure]:
    """ch05_decode: one decode step as exported, with chapter 3's pass, and with the schedules."""
    words = {
        "as exported": "TVM, as exported",
        "fused": "this course, fused",
        "fused and scheduled": "this course, fused and scheduled",
    }
    entries = [Bar(words[key], s, format_duration(s)) for key, s in measured.items()]
    whole, last = measured["as exported"], measured["fused and scheduled"]
    claim = (
        f"Fusing takes a decode step from {format_duration(whole)} to {format_duration(measured['fused'])}, schedules "
        f"take it to {format_duration(last)}: {whole / last:.3g} times as fast."
    )
    title = "One token through a small decoder of two layers, 1 thread"
    caption = "TVM has no schedule for a CPU, so “as exported” runs plain loops."
    table = import_from_chapter(5).decode_table(measured)
    return [plots.draw_bars(entries, "less is better", title, caption, table, claim=claim)]


# --- chapter 4: add and RMSNorm -------------------------------------------------------------------

YARDSTICK = (
    "The copy is a yardstick and no bound: it moves as many bytes with other loops. Tensors of a few MB stay in the "
    "caches, so rates there are above what memory delivers."
)


def draw_norm_bandwidth(measured: dict) -> list[plots.Figure]:
    """ch04_cpu: bytes per second over size, one figure for each dtype, at the largest number of threads."""
    bench = import_from_chapter(4)
    threads = max(measured, key=int)
    by_dtype: dict[str, list[plots.InputSize]] = {}
    for case, seconds in measured[threads].items():
        dtype, shape = case.split(" ", 1)
        moved = bench.bytes_counted(tuple(int(n) for n in shape.strip("(,)").split(",")), dtype)
        by_dtype.setdefault(dtype, []).append(plots.InputSize(shape, moved, _add_copy(seconds)))
    figures = []
    for dtype, cases in by_dtype.items():
        title = f"Add and RMSNorm in {dtype} on {count_noun(int(threads), 'thread')} of a CPU"
        figures.append(
            plots.draw_bandwidth(cases, None, title, YARDSTICK, _describe_norms(dtype, cases))
        )
    return figures


def _describe_norms(dtype: str, cases: list[plots.InputSize]) -> str:
    """The largest case, whose tensors come from memory; and the one that does worst beside the copy."""
    largest = max(cases, key=lambda case: case.bytes)
    seconds, best = largest.seconds, _find_best_baseline(largest.seconds)
    worst = max(cases, key=lambda case: case.seconds["ours"] / case.seconds["copy"])
    behind = worst.seconds["ours"] / worst.seconds["copy"]
    return (
        f"Our kernel moves {format_si(largest.bytes, 'B')} of {dtype} in {format_duration(seconds['ours'])}; a copy of "
        f"as many bytes takes {format_duration(seconds['copy'])}, the next best, {display_name(best)}, "
        f"{format_duration(seconds[best])}. Beside the copy we are slowest at {format_si(worst.bytes, 'B')}: "
        f"{behind:.2g} times its time."
    )


def _add_copy(seconds: dict[str, float]) -> dict[str, float]:
    """`seconds` with the bound under the name "copy": the faster of two ways to copy as many bytes."""
    bounds = ("plain stores", "streaming stores")
    others = {name: time for name, time in seconds.items() if name not in bounds}
    return {"copy": min(seconds[name] for name in bounds if name in seconds), **others}


# --- chapter 6: sums that start from the bias -----------------------------------------------------


def draw_bias_speedups(measured: dict) -> list[plots.Figure]:
    """ch06_int8: for each unit the speedup over a separate bias pass; then the speed beside PyTorch's."""
    table = import_from_chapter(6).speedups(measured)
    lines = [row[1:6] for row in table.rows if row[0] == measured["m"]]
    units = dict.fromkeys(unit for _, unit, *_ in lines)
    figures = [
        _draw_bias_speedup(unit, [line for line in lines if line[1] == unit], table)
        for unit in units
    ]
    return figures + _draw_beside_torch(measured)


def _draw_bias_speedup(unit: str, lines: list[tuple], table: Table) -> plots.Figure:
    """lines: (K, unit, fused, predicted, at the tile)."""
    names = ("this course, fused", "predicted", "this course, bias added per tile")
    series = {
        name: [(int(line[0]), float(line[at])) for line in lines if line[at]]
        for at, name in enumerate(names, 2)
    }
    (short, most), (long, least) = min(series[names[0]]), max(series[names[0]])
    claim = (
        f"With {unit}, a sum that starts from the bias is {most:.2g} times as fast at K = {short:,}, and "
        f"{least:.3g} times at K = {long:,}, where it hardly matters."
    )
    what = {"vpdpbusd": "vpdpbusd, an instruction of vector registers", "AMX": "AMX tiles"}
    title = f"Starting an int8 sum from the bias on {what.get(unit, unit)}"
    caption = "The longer the sums, the less the bias pass counts. The prediction is one line of arithmetic."
    level = 1, "a separate bias pass"
    labels = "K, the length of a sum", "times as fast"
    present = {name: points for name, points in series.items() if points}
    return plots.draw_lines(present, labels, title, caption, table, claim, level)


def _draw_beside_torch(measured: dict) -> list[plots.Figure]:
    """Operations per second of the tiles and of PyTorch, over the length of the sums; nothing without AMX."""
    size, steps = 2 * measured["m"] * measured["n"], measured["steps"]
    names = {"AMX, fused": "ours"} | {n: n for n in ("PyTorch", "PyTorch, packed ahead")}
    series = {
        name: [(int(k), int(k) * size / s[key]) for k, s in steps.items() if key in s]
        for key, name in names.items()
    }
    if not all(series.values()):
        return []

    packed = dict(series["PyTorch, packed ahead"])
    ratios = {k: rate / packed[k] for k, rate in series["ours"] if k in packed}
    best, worst = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
    claim = (
        "Beside PyTorch with weights packed ahead, as ours are, we are "
        f"{ratios[best]:.2g} times as fast at K = {best:,} and {ratios[worst]:.2g} times at K = {worst:,}."
    )
    title = f"int8 products of {measured['m']} rows with a bias, on AMX, 1 thread"
    caption = "“PyTorch” packs the weights anew in each call."
    labels, table = (
        ("K, the length of a sum", "operations per second"),
        import_from_chapter(6).beside_torch(measured),
    )
    return [plots.draw_lines(series, labels, title, caption, table, claim, unit="")]


# --- chapter 9: the whole compiler ----------------------------------------------------------------


def draw_decode_speeds(measured: dict) -> list[plots.Figure]:
    """ch09_decoder: decode steps per second by compiler, one figure for each decoder."""
    return [_draw_decode_speed(name, one["seconds"]) for name, one in measured.items()]


def _draw_decode_speed(decoder: str, seconds: dict[str, float]) -> plots.Figure:
    times, prefills = (
        {key.removesuffix(end): seconds[key] for key in seconds if key.endswith(end)}
        for end in (" decode", " prefill")
    )
    entries = [Bar(name, 1 / time, _format_three_digits(1 / time)) for name, time in times.items()]
    rows = [
        (display_name(name), format_si(time, "s"), _format_three_digits(1 / time))
        for name, time in times.items()
    ]
    next_best, at_prefill = (display_name(_find_best_baseline(one)) for one in (times, prefills))
    claim = (
        f"Our decode step is {_compute_speedup(times):.3g} times as fast as that of {next_best}, the next best; our "
        f"prefill {_compute_speedup(prefills):.3g} times as fast as {at_prefill}'s."
    )
    title = f"One token through the decoder “{decoder}”"
    caption = (
        "The same weights and the same tokens for everybody. TVM's default has no schedules for a CPU, so its bars say "
        "as much about its defaults as about our passes."
    )
    table = Table(("compiled by", "a decode step", "steps per second"), rows)
    words = "decode steps per second, more is better"
    return plots.draw_bars(entries, words, title, caption, table, claim=claim)


def _format_three_digits(number: float) -> str:
    """Three digits, without an exponent: 7,950 and 2.91."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def draw_epilogue_times(measured: dict) -> list[plots.Figure]:
    """ch09_epilogues: how many times our time torch.compile takes, for each epilogue, over the rows."""
    by_rows = {int(rows): seconds for rows, seconds in measured["rows"].items()}
    ours, torch = "fusion_by_hand, ", "torch.compile, "
    layers = [name.removeprefix(ours) for name in by_rows[min(by_rows)] if name.startswith(ours)]
    alone, *epilogues = layers
    ratios = {
        rows: {e: s[torch + e] / s[ours + e] for e in layers if torch + e in s}
        for rows, s in by_rows.items()
    }
    if not all(ratios.values()):  # measured without PyTorch
        return []
    low, high = ({rows: pick(r.values()) for rows, r in ratios.items()} for pick in (min, max))
    cost = max(s[ours + e] / s[ours + alone] for s in by_rows.values() for e in epilogues)
    few, many = min(ratios), max(ratios)
    claim = (
        f"An epilogue costs us at most {cost - 1:.0%} of the product. torch.compile takes {low[few]:.2g} to "
        f"{high[few]:.2g} times our time at {count_noun(few, 'row')}, and {low[many]:.3g} to {high[many]:.3g} times "
        f"at {many}."
    )
    size = f"{measured['k']} to {measured['n']}"
    title = f"A linear layer ({size}) and {len(epilogues)} epilogues on {count_noun(measured['threads'], 'thread')}"
    caption = "An epilogue is what follows the product in the same kernel: a bias, an activation, a residual."
    rows = [
        (name, *(f"{ratios[r][name]:.2f}×" if name in ratios[r] else "–" for r in ratios))
        for name in layers
    ]
    table = Table(("torch.compile's time", *(count_noun(count, "row") for count in ratios)), rows)
    series = {
        "this course, its best": list(high.items()),
        "this course, its worst": list(low.items()),
    }
    level = 1, "torch.compile as fast as this course"
    labels = "rows", "torch.compile's time, in ours"
    return [plots.draw_lines(series, labels, title, caption, table, claim, level, filled=True)]


# --- chapter 11: a real model ---------------------------------------------------------------------


def draw_chat_speed(measured: dict) -> list[plots.Figure]:
    """ch11_chat: tokens per second of each runtime, decoding and reading a prompt; then the time to a first token."""
    threads, found = list(measured["threads"].items())[-1]
    where, tokens = count_noun(int(threads), "thread"), measured["prefill"]
    bench = import_from_chapter(11, "bench_inputs")
    decode, prefill = (
        {
            name: count / seconds
            for name in bench.NAMES
            if (seconds := bench.seconds_of(found["seconds"], name, function))
        }
        for function, count in (("decode", 1), ("prefill", tokens))
    )
    claim = (
        f"Our decoder answers with {decode[bench.OURS]:,.0f} tokens per second; {_list_llama_rates(decode)}. Both "
        f"round activations to 8 bits; with float32 activations ours makes {decode[bench.EXACT]:,.0f}."
    )
    title = f"SmolLM2-135M: one token after {measured['context']}, on {where}"
    caption = (
        "The line: as many bytes as the 4-bit file has, only read. This course and “llama.cpp” use this file; "
        "Q4_0 is the format in which llama.cpp is fastest."
    )
    limit = found["bandwidth"] / measured["bytes"][bench.OURS], "only reading the weights"
    figures = [_draw_token_rates(decode, 1, title, caption, claim, limit)]
    claim = (
        f"Our decoder reads a prompt at {prefill[bench.OURS]:,.0f} tokens per second; {_list_llama_rates(prefill)}. "
        f"With float32 activations ours makes {prefill[bench.EXACT]:,.0f}."
    )
    title = f"SmolLM2-135M: a prompt of {tokens} tokens, on {where}"
    caption = "A prompt's tokens go through the model together, so arithmetic takes the time and not memory."
    figures.append(_draw_token_rates(prefill, tokens, title, caption, claim))
    first = measured["first token"]  # of ours alone, where no other runtime is installed
    return [*figures, _draw_first_token(first)] if len(first) > 1 else figures


def _draw_token_rates(
    rates: dict[str, float], tokens: int, title: str, caption: str, claim: str, limit=None
) -> plots.Figure:
    entries = [Bar(name, rate, f"{rate:,.0f}") for name, rate in rates.items()]
    rows = [
        (display_name(name), format_si(tokens / rate, "s"), f"{rate:,.0f}")
        for name, rate in rates.items()
    ]
    table = Table(("runtime", "time", "tokens per second"), rows)
    words = "tokens per second, more is better"
    return plots.draw_bars(entries, words, title, caption, table, limit, claim)


def _list_llama_rates(rates: dict[str, float]) -> str:
    """llama.cpp's rates in a sentence: "llama.cpp 110, llama.cpp with Q4_0 weights 120"."""
    llama = {name: rate for name, rate in rates.items() if name.startswith("llama.cpp")}
    return ", ".join(f"{_describe_runtime(name)} {rate:,.0f}" for name, rate in llama.items())


def _describe_runtime(name: str) -> str:
    """The name of a runtime in a sentence: "llama.cpp with Q4_0 weights"."""
    runtime, _, weights = name.partition(", ")
    return f"{runtime} with {weights} weights" if weights else runtime


def _draw_first_token(seconds: dict[str, float]) -> plots.Figure:
    best = _find_best_baseline(seconds)
    entries = [Bar(name, time, format_duration(time)) for name, time in seconds.items()]
    claim = (
        f"Our first token comes after {format_duration(seconds['fusion_by_hand'])}, that of {_describe_runtime(best)} "
        f"after {format_duration(seconds[best])}."
    )
    title = "From the start of a process to the first token"
    caption = "Everything was read from disk before. Chapter 11 shows where our time goes."
    table = import_from_chapter(11, "first_token").make_table(seconds)
    return plots.draw_bars(entries, "less is better", title, caption, table, claim=claim)


def draw_weight_bytes(measured: dict) -> list[plots.Figure]:
    """ch11_perplexity: megabytes per token by the way the weights are stored; and what rounding them costs."""
    given = import_from_chapter(11, "given")
    sizes = given.token_bytes(measured)
    entries = [
        Bar(name, size / 1e6, f"{size / 1e6:.0f} MB", ours="file" in name)
        for name, size in sizes.items()
    ]
    table = given.bytes_table()
    title = "What one token of SmolLM2-135M reads"
    caption = "Each weight is read once per token, so bytes decide how fast a model answers."
    most, least = max(sizes.values()), min(sizes.values())
    claim = (
        f"With 4-bit weights a token reads {least / 1e6:.0f} MB; as float32 it would read {most / least:.2g} times as "
        "much."
    )
    words = "megabytes per token, less is better"
    return [
        plots.draw_bars(entries, words, title, caption, table, claim=claim),
        _draw_perplexity(measured["variants"]),
    ]


def _draw_perplexity(variants: dict[str, dict]) -> plots.Figure:
    name, whole = next(iter(variants.items()))
    worse = {n: one["perplexity"] / whole["perplexity"] - 1 for n, one in variants.items()}
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
    return plots.draw_bars(entries, words, title, caption, table, claim=claim)


PLOTS = {
    "ch03_pass": draw_pass_gain,
    "ch04_cpu": draw_norm_bandwidth,
    "ch05_kernels": draw_matmul_speeds,
    "ch05_decode": draw_decode_gain,
    "ch06_int8": draw_bias_speedups,
    "ch09_decoder": draw_decode_speeds,
    "ch09_epilogues": draw_epilogue_times,
    "ch11_chat": draw_chat_speed,
    "ch11_perplexity": draw_weight_bytes,
}
