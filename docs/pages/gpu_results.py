"""Plots of what the benches measured on a GPU, each from the numbers of a results file, with a sentence above it.

A plot shows the first dtype of its file; the tables beneath have all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from chapters.kit.bench import gpu_tables as tables
from chapters.kit.bench.cases import divide, find_fastest, select_medians
from chapters.kit.bench.results import load
from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import count_noun, format_si
from docs.pages.plots import Figure, InputSize, draw_bandwidth, draw_bars, draw_roofline

# the kernels of many rows that the charts show; the tables have the others
FASTEST = ("wgmma", "mma.sync")
NEAR = 0.8  # a share of what the ceilings allow
EQUAL = 5e-4  # two times that differ by a smaller share are equal
SIZES = "The names give rows of x × outputs × inputs. The table has all implementations."


def _select_first_dtype(measured: dict) -> tuple[list[dict], str]:
    """The cases of the first dtype, and that dtype."""
    dtype = measured["cases"][0]["dtype"]
    return [case for case in measured["cases"] if case["dtype"] == dtype], dtype


def draw_norms(measured: dict) -> list[Figure]:
    """ch08_norm and ch04_gpu: bytes per second of add and RMSNorm over size."""
    cases, dtype = _select_first_dtype(measured)
    sizes = [
        InputSize(tables.shape_text(c["shape"]), c["bytes"], select_medians(c["seconds"]))
        for c in cases
    ]
    largest = max(cases, key=lambda case: case["bytes"])
    names = [name for name in largest["seconds"] if name != tables.COPY]
    shares = {name: divide(largest, tables.COPY, name) for name in names}
    by_speed = sorted(shares.items(), key=lambda one: -one[1])
    claim = (
        f"Add and RMSNorm of {tables.shape_text(largest['shape'])} in {dtype}, as shares of the speed of a copy of as "
        f"many bytes: {', '.join(f'{name} {share:.0%}' for name, share in by_speed)}."
    )
    copy_rate = measured["ceilings"]["copy_rate"]
    drawn = draw_bandwidth(sizes, copy_rate, f"Add and RMSNorm in {dtype}", claim=claim)
    caption = _compare_with_others(measured["cases"], tables.NORM_OURS) + drawn.caption
    return [replace(drawn, table=tables.copy_table(cases), caption=caption)]


def draw_linear(measured: dict) -> list[Figure]:
    """ch08_linear: layers of one row beside a copy, then layers of many rows beside PyTorch's linear."""
    _, dtype = _select_first_dtype(measured)
    all_one = [case for case in measured["cases"] if "decode" in case["seconds"]]
    all_many = [case for case in measured["cases"] if set(FASTEST) & set(case["seconds"])]
    one, many = (
        [case for case in found if case["dtype"] == dtype] for found in (all_one, all_many)
    )
    figures = []
    if one:
        names = ("decode", tables.LINEAR)
        claim = (
            f"One row of x in {dtype}, as shares of the speed of a copy of as many bytes: "
            f"{_describe_shares(one, names, tables.COPY)}."
        )
        drawn = _make_share_bars(one, names, tables.COPY)
        words = "per cent of the copy's speed, more is better"
        limit = 100, "a copy of as many bytes"
        title = f"Linear layers of one row in {dtype}"
        caption = _compare_with_others(all_one, tables.LINEAR_OURS) + SIZES
        table = tables.copy_table(one)
        figures.append(draw_bars(drawn, words, title, caption, claim, limit, table))
    if many:
        claim = (
            f"Many rows of x in {dtype}, as shares of the speed of {tables.LINEAR}, which is cuBLAS: "
            f"{_describe_shares(many, FASTEST, tables.LINEAR)}."
        )
        drawn = _make_share_bars(many, FASTEST, tables.LINEAR)
        words = f"per cent of the speed of {tables.LINEAR}, more is better"
        title, limit = f"Linear layers of many rows in {dtype}", (100, tables.LINEAR)
        caption = _compare_with_others(all_many, tables.LINEAR_OURS) + SIZES
        table = tables.linear_table(many)
        figures.append(draw_bars(drawn, words, title, caption, claim, limit, table))
    return figures


def _make_share_bars(cases: list[dict], names: Sequence[str], usual: str) -> list[Bar]:
    """A bar for each case and name: the per cent of the speed of `usual`."""
    found = []
    for case in cases:
        times = select_medians(case["seconds"])
        for name in (name for name in names if name in times):
            share, ours = times[usual] / times[name], name in tables.LINEAR_OURS
            label = f"{'this course, ' if ours else ''}{name}, {tables.layer_text(case)}"
            found.append(Bar(label, 100 * share, f"{share:.0%}", ours=ours))
    return found


def _describe_shares(cases: list[dict], names: Sequence[str], usual: str) -> str:
    """Each name's least and largest share of the speed of `usual`, as in "wgmma 80% to 90%, mma.sync 50% to 60%"."""
    texts = []
    for name in names:
        times = [select_medians(case["seconds"]) for case in cases if name in case["seconds"]]
        if times:
            shares = [time[usual] / time[name] for time in times]
            texts.append(f"{name} {min(shares):.0%} to {max(shares):.0%}")
    return ", ".join(texts)


def _compare_with_others(cases: Sequence[dict], ours: Sequence[str]) -> str:
    """For each dtype: who is the fastest in how many cases, and the time of the best of the others in ours.

    A sentence per dtype, with a space behind it; "" if no case has both. Neither a copy nor our own kernels with a
    second launch count as another's.
    """
    text, known = "", {*ours, tables.COPY}
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        ratios, fastest = [], Counter()
        for case in (case for case in cases if case["dtype"] == dtype):
            seconds = select_medians(case["seconds"])
            others = [name for name in seconds if name.removesuffix(tables.THEN_ADD) not in known]
            mine, other = find_fastest(seconds, ours), find_fastest(seconds, others)
            if mine and other:
                ratio = seconds[other] / seconds[mine]
                ratios.append(ratio)
                winner = "this course" if ratio > 1 else f"“{other}”"
                fastest["a tie" if abs(ratio - 1) < EQUAL else winner] += 1
        if ratios:
            counts = [f"{name} in {count}" for name, count in fastest.most_common()]
            span = " to ".join(dict.fromkeys(f"{pick(ratios):.3g}" for pick in (min, max)))
            text += (
                f"Fastest in {dtype}, of {count_noun(len(ratios), 'case')}: {', '.join(counts)}; the best of the "
                f"others takes {span} times our time. "
            )
    return text


def draw_gelu(measured: dict) -> list[Figure]:
    """ch08_gelu: the time of each implementation of a linear layer and GELU, a figure for each case."""
    figures = []
    cases, dtype = _select_first_dtype(measured)
    for case in cases:
        times = sorted(select_medians(case["seconds"]).items(), key=lambda one: one[1])
        drawn = [
            Bar(name, time, format_si(time, "s"), ours=name in tables.LINEAR_OURS)
            for name, time in times
        ]
        by_speed = "; ".join(f"{name} {format_si(time, 's')}" for name, time in times)
        claim = f"A linear layer and GELU in {dtype}: {by_speed}."
        title = f"Linear and GELU, {tables.layer_text(case)}, in {dtype}"
        caption = f"All but “{tables.EAGER_GELU}” may use one kernel for both."
        figures.append(draw_bars(drawn, "time, less is better", title, caption, claim))
    return figures


def draw_schedule_steps(measured: dict) -> list[Figure]:
    """ch08_steps: the speed after each step of the schedule, beside PyTorch's linear."""
    return [
        _draw_steps_of_case(case)
        for case in _select_first_dtype(measured)[0]
        if tables.list_steps(case)
    ]


def _draw_steps_of_case(case: dict) -> Figure:
    operations, times = case["operations"], select_medians(case["seconds"])
    names, library = tables.list_steps(case), times[tables.LINEAR]
    speeds = {name: operations / times[name] for name in names}
    entries = [Bar(n, s, format_si(s, "FLOP/s"), ours=True) for n, s in speeds.items()]
    first, last = names[0], names[-1]
    claim = (
        f"“{last}” takes {format_si(times[last], 's')}, {times[first] / times[last]:,.0f} times less than “{first}”, "
        f"and reaches {library / times[last]:.0%} of the speed of {tables.LINEAR}."
    )
    title = f"{tables.layer_text(case)} in {case['dtype']}, step by step"
    caption = "A bar ends at the median. The table has the middle half of the rounds in brackets."
    limit, words = (operations / library, tables.LINEAR), "FLOP/s, more is better"
    return draw_bars(entries, words, title, caption, claim, limit, tables.steps_table([case]))


def draw_kernels_in_roofline() -> Figure:
    """ch08_norm and ch08_linear, those of them that are there, beneath the ceilings of the last."""
    found = [one for one in map(load, ("ch08_norm", "ch08_linear")) if one]
    points, ceilings = tables.read_roofline(*(one["measured"] for one in found))
    shares = [point.share(ceilings) for point in points if point.group == "ours"]
    near = sum(share >= NEAR for share in shares)
    claim = (
        f"In {near} of {len(shares)} cases our fastest kernel reaches {NEAR:.0%} or more of the speed that memory and "
        "tensor cores allow."
    )
    return draw_roofline(points, ceilings, found[-1]["gpu"], claim)


PLOTS = {
    "ch04_gpu": draw_norms,
    "ch08_norm": draw_norms,
    "ch08_linear": lambda measured: [*draw_linear(measured), draw_kernels_in_roofline()],
    "ch08_gelu": draw_gelu,
    "ch08_steps": draw_schedule_steps,
}
