"""Plots of what the benches measured on a CPU, each from the numbers of a results file, with a sentence above it.

A ratio below 1 in a sentence means that another runtime is ahead.
"""

from __future__ import annotations

from chapters.kit.bench.cases import divide, find_fastest, list_candidates
from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import Table, count_noun, format_duration, format_si, tabulate
from docs.pages import plots
from docs.pages.course_map import import_from_chapter
from docs.pages.plots import display_name

OURS = ("ours", "fusion_by_hand")
# kernels that do only a part of the work: their time is not a speed of the whole
BOUNDS = ("read w", "multiply-add", "tile")


# --- chapters 3 and 5: the product ----------------------------------------------------------------


def draw_pass_gain(measured: dict) -> list[plots.Figure]:
    """ch03_pass: the time with a transpose and of the fused kernel, neither with a schedule."""
    entries, gains = [], []
    words = {"transposed": "TVM, transpose and matmul", "fused": "this course, fused"}
    for case in measured["cases"]:
        rows, seconds = count_noun(case["rows"], "row"), case["seconds"]
        entries += [plots.time_bar(f"{words[key]}, {rows}", seconds[key]) for key in words]
        gains.append(f"{seconds['transposed'] / seconds['fused']:.1f} times as fast for {rows}")
    claim = f"Without the transpose, a product is {' and '.join(gains)} of x."
    title = f"x @ w.T for w of ({case['n']}, {case['k']}), before and after the pass"
    caption = "Neither side has a schedule (loops tiled, vectorized, parallel): chapter 5 adds it."
    return [plots.draw_bars(entries, "time, less is better", title, caption, claim)]


def draw_matmul_speeds(measured: dict) -> list[plots.Figure]:
    """ch05_kernels: operations per second over the rows of x, one figure for each number of threads."""
    counts = dict.fromkeys(case["threads"] for case in measured["cases"])
    return [
        _draw_matmul_speed([case for case in measured["cases"] if case["threads"] == threads])
        for threads in counts
    ]


def _draw_matmul_speed(cases: list[dict]) -> plots.Figure:
    bench, where = import_from_chapter(5), count_noun(cases[0]["threads"], "thread")
    peak = max(map(bench.peak, cases))
    speeds = {
        name: [(one["rows"], bench.speed(one, name)) for one in cases if name in one["seconds"]]
        for name in list_candidates(cases)
        if name not in BOUNDS
    }
    by_rows = {count_noun(case["rows"], "row"): case["seconds"] for case in cases}
    return plots.draw_lines(
        speeds,
        ("rows of x", "operations per second"),
        f"x @ w.T for w of ({cases[0]['n']}, {cases[0]['k']}) in float32 on {where}",
        "With few rows, reading w takes the time. The line is what the registers reach when no operand comes from "
        "memory.",
        plots.describe_fastest(f"on {where}", by_rows, OURS, (*OURS, *BOUNDS)),
        level=(peak, f"multiply-adds in registers: {format_si(peak, 'FLOP/s')}"),
        unit="FLOP/s",
    )


def draw_decode_gain(measured: dict) -> list[plots.Figure]:
    """ch05_decode: one decode step as exported, with chapter 3's pass, and with the schedules."""
    seconds = measured["cases"][0]["seconds"]
    words = {
        "as exported": "TVM, as exported",
        "fused": "this course, fused",
        "fused and scheduled": "this course, fused and scheduled",
    }
    entries = [plots.time_bar(words[key], taken) for key, taken in seconds.items()]
    whole, last = seconds["as exported"], seconds["fused and scheduled"]
    claim = (
        f"Fusing takes a decode step from {format_duration(whole)} to {format_duration(seconds['fused'])}, schedules "
        f"take it to {format_duration(last)}: {whole / last:.3g} times as fast."
    )
    title = "One token through a small decoder of two layers, 1 thread"
    caption = "TVM has no schedule for a CPU, so “as exported” runs plain loops."
    return [plots.draw_bars(entries, "time, less is better", title, caption, claim)]


# --- chapter 4: add and RMSNorm -------------------------------------------------------------------

YARDSTICK = (
    "The copy is a yardstick and no bound: it moves as many bytes with other loops. Tensors of a few MB stay in the "
    "caches, so rates there are above what memory delivers."
)


def draw_norm_bandwidth(measured: dict) -> list[plots.Figure]:
    """ch04_cpu: bytes per second over size, one figure for each dtype, at the largest number of threads."""
    bench = import_from_chapter(4)
    threads = max(case["threads"] for case in measured["cases"])
    by_dtype: dict[str, list[dict]] = {}
    for case in measured["cases"]:
        if case["threads"] == threads:
            names = [name for name in case["seconds"] if name not in bench.COPIES]
            seconds = {display_name(name): case["seconds"][name] for name in names}
            copy = {"copy": bench.copy_seconds(case), **seconds}
            moved = {**case, "bytes": bench.count_bytes(case), "seconds": copy}
            by_dtype.setdefault(case["dtype"], []).append(moved)
    where = f"{count_noun(threads, 'thread')} of a CPU"
    return [
        plots.draw_bandwidth(
            cases, f"Add and RMSNorm in {dtype} on {where}", YARDSTICK, _describe_norms(cases)
        )
        for dtype, cases in by_dtype.items()
    ]


def _describe_norms(cases: list[dict]) -> str:
    """The largest case, whose tensors come from memory; and the one that does worst beside the copy."""
    ours = display_name("ours")
    largest = max(cases, key=lambda case: case["bytes"])
    times = {name: format_duration(time) for name, time in largest["seconds"].items()}
    best = find_fastest(largest["seconds"], set(times) - {ours, "copy"})
    behind, bytes_there = max((divide(case, ours, "copy"), case["bytes"]) for case in cases)
    return (
        f"Our kernel moves {format_si(largest['bytes'], 'B')} of {largest['dtype']} in {times[ours]}; a copy of as "
        f"many bytes takes {times['copy']}, the next best, {best}, {times[best]}. Beside the copy we are slowest at "
        f"{format_si(bytes_there, 'B')}: {behind:.2g} times its time."
    )


# --- chapter 6: sums that start from the bias -----------------------------------------------------


def draw_bias_speedups(measured: dict) -> list[plots.Figure]:
    """ch06_int8: for each unit the speedup over a separate bias pass; then the speed beside PyTorch's."""
    m = measured["cases"][0]["m"]
    cases = [case for case in measured["cases"] if case["m"] == m]
    units = [unit for unit in ("vpdpbusd", "AMX") if f"{unit}, fused" in cases[0]["seconds"]]
    return [_draw_bias_speedup(unit, cases) for unit in units] + _draw_beside_torch(cases)


def _draw_bias_speedup(unit: str, cases: list[dict]) -> plots.Figure:
    bench = import_from_chapter(6)
    fused = {case["k"]: bench.compute_speedup(unit, case, "fused") for case in cases}
    series = {
        "this course, fused": list(fused.items()),
        "predicted": [(case["k"], bench.predict(unit, case)) for case in cases],
    }
    if f"{unit}, at the tile" in cases[0]["seconds"]:
        series["this course, bias added per tile"] = [
            (case["k"], bench.compute_speedup(unit, case, "at the tile")) for case in cases
        ]
    short, long = min(fused), max(fused)
    claim = (
        f"With {unit}, a sum that starts from the bias is {fused[short]:.2g} times as fast at K = {short:,}, and "
        f"{fused[long]:.3g} times at K = {long:,}, where it hardly matters."
    )
    what = {"vpdpbusd": "vpdpbusd, an instruction of vector registers", "AMX": "AMX tiles"}
    title = f"Starting an int8 sum from the bias on {what[unit]}"
    caption = "The longer the sums, the less the bias pass counts. The prediction is one line of arithmetic."
    labels = "K, the length of a sum", "times as fast"
    return plots.draw_lines(series, labels, title, caption, claim, (1, "a separate bias pass"))


def _draw_beside_torch(cases: list[dict]) -> list[plots.Figure]:
    """Operations per second of the tiles and of PyTorch, over the length of the sums; nothing without AMX."""
    bench, packed = import_from_chapter(6), "PyTorch, packed ahead"
    names = {"AMX, fused": "ours", "PyTorch": "PyTorch", packed: packed}
    series = {
        name: [
            (case["k"], bench.count_operations(case) / case["seconds"][key])
            for case in cases
            if key in case["seconds"]
        ]
        for key, name in names.items()
    }
    if not all(series.values()):
        return []

    by_size = {
        f"K = {case['k']:,}": {n: case["seconds"][n] for n in names if n in case["seconds"]}
        for case in cases
    }
    claim = plots.describe_fastest("on AMX", by_size, ["AMX, fused"], ["AMX, fused"])
    title = f"int8 products of {cases[0]['m']} rows with a bias, on AMX, 1 thread"
    caption = "“PyTorch” packs the weights anew in each call; ours, and PyTorch's other way, are packed ahead."
    labels = "K, the length of a sum", "operations per second"
    return [plots.draw_lines(series, labels, title, caption, claim, unit="operations/s")]


# --- chapter 9: the whole compiler ----------------------------------------------------------------


def draw_decode_speeds(measured: dict) -> list[plots.Figure]:
    """ch09_decoder: decode steps per second by compiler, one figure for each decoder."""
    return [_draw_decode_speed(case["decoder"], case["seconds"]) for case in measured["cases"]]


def _draw_decode_speed(decoder: str, seconds: dict[str, float]) -> plots.Figure:
    times, prefills = (
        {key.removesuffix(end): seconds[key] for key in seconds if key.endswith(end)}
        for end in (" decode", " prefill")
    )
    entries = [Bar(name, 1 / time, _format_three_digits(1 / time)) for name, time in times.items()]
    cases = {"a decode step": times, "a prefill": prefills}
    claim = plots.describe_fastest(f"in “{decoder}”", cases, OURS, OURS)
    title = f"One token through the decoder “{decoder}”"
    caption = (
        "The same weights and the same tokens for everybody. TVM's default has no schedules for a CPU, so its bars say "
        "as much about its defaults as about our passes."
    )
    words = "decode steps per second, more is better"
    return plots.draw_bars(entries, words, title, caption, claim)


def _format_three_digits(number: float) -> str:
    """Three digits, without an exponent: 7,950 and 2.91."""
    return f"{float(f'{number:.3g}'):,.0f}" if number >= 100 else f"{number:.3g}"


def draw_epilogue_times(measured: dict) -> list[plots.Figure]:
    """ch09_epilogues: how many times our time torch.compile takes, for each epilogue, over the rows."""
    cases = measured["cases"]
    ours, torch = "fusion_by_hand, ", "torch.compile, "
    layers = [n.removeprefix(ours) for n in cases[0]["seconds"] if n.startswith(ours)]
    if not all(set(case["seconds"]) & {torch + layer for layer in layers} for case in cases):
        return []  # measured without PyTorch

    ratios = {
        case["rows"]: [
            divide(case, torch + one, ours + one)
            for one in layers
            if torch + one in case["seconds"]
        ]
        for case in cases
    }
    low, high = ({rows: pick(found) for rows, found in ratios.items()} for pick in (min, max))
    alone, *epilogues = layers
    cost = max(divide(case, ours + e, ours + alone) for case in cases for e in epilogues)
    few, many = min(ratios), max(ratios)
    claim = (
        f"An epilogue costs us at most {cost - 1:.0%} of the product. torch.compile takes {low[few]:.2g} to "
        f"{high[few]:.2g} times our time at {count_noun(few, 'row')}, and {low[many]:.3g} to {high[many]:.3g} times "
        f"at {many}."
    )
    size = f"{cases[0]['k']} to {cases[0]['n']}"
    threads = count_noun(cases[0]["threads"], "thread")
    title = f"A linear layer ({size}) and {len(epilogues)} epilogues on {threads}"
    caption = "An epilogue is what follows the product in the same kernel: a bias, an activation, a residual."
    columns = {"torch.compile's time": str}
    for case in cases:
        columns[count_noun(case["rows"], "row")] = lambda one, case=case: (
            f"{divide(case, torch + one, ours + one):.2f}×"
        )
    series = {
        "this course, its best": list(high.items()),
        "this course, its worst": list(low.items()),
    }
    level = 1, "torch.compile as fast as this course"
    labels, table = ("rows", "torch.compile's time, in ours"), tabulate(layers, columns)
    return [
        plots.draw_lines(series, labels, title, caption, claim, level, table=table, filled=True)
    ]


# --- chapter 11: a real model ---------------------------------------------------------------------


def draw_chat_speed(measured: dict) -> list[plots.Figure]:
    """ch11_chat: tokens per second of each runtime, decoding and reading a prompt; then the time to a first token."""
    found = measured["cases"][-1]
    where, tokens = count_noun(found["threads"], "thread"), measured["prefill"]
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
        (display_name(one.name), format_si(tokens / one.value, "s"), one.words) for one in entries
    ]
    table = Table(("runtime", "time", "tokens per second"), rows)
    words = "tokens per second, more is better"
    return plots.draw_bars(entries, words, title, caption, claim, limit, table)


def _list_llama_rates(rates: dict[str, float]) -> str:
    """llama.cpp's rates in a sentence: "llama.cpp 110, llama.cpp with Q4_0 weights 120"."""
    llama = {name: rate for name, rate in rates.items() if name.startswith("llama.cpp")}
    return ", ".join(f"{_describe_runtime(name)} {rate:,.0f}" for name, rate in llama.items())


def _describe_runtime(name: str) -> str:
    """The name of a runtime in a sentence: "llama.cpp with Q4_0 weights"."""
    runtime, _, weights = name.partition(", ")
    return f"{runtime} with {weights} weights" if weights else runtime


def _draw_first_token(seconds: dict[str, float]) -> plots.Figure:
    best = find_fastest(seconds, [name for name in seconds if not name.startswith(OURS)])
    entries = [plots.time_bar(name, time) for name, time in seconds.items()]
    claim = (
        f"Our first token comes after {format_duration(seconds['fusion_by_hand'])}, that of {_describe_runtime(best)} "
        f"after {format_duration(seconds[best])}."
    )
    title = "From the start of a process to the first token"
    caption = "Everything was read from disk before. Chapter 11 shows where our time goes."
    return plots.draw_bars(entries, "time, less is better", title, caption, claim)


def draw_weight_bytes(measured: dict) -> list[plots.Figure]:
    """ch11_perplexity: megabytes per token by the way the weights are stored; and what rounding them costs."""
    given = import_from_chapter(11, "given")
    sizes = given.token_bytes(measured)
    entries = [
        Bar(name, size / 1e6, f"{size / 1e6:.0f} MB", ours="file" in name)
        for name, size in sizes.items()
    ]
    title = "What one token of SmolLM2-135M reads"
    caption = "Each weight is read once per token, so bytes decide how fast a model answers."
    most, least = max(sizes.values()), min(sizes.values())
    claim = (
        f"With 4-bit weights a token reads {least / 1e6:.0f} MB; as float32 it would read {most / least:.2g} times as "
        "much."
    )
    words = "megabytes per token, less is better"
    return [
        plots.draw_bars(entries, words, title, caption, claim, table=given.bytes_table()),
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
    return plots.draw_bars(entries, words, title, caption, claim, table=table)


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
