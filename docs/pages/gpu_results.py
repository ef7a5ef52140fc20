"""Plots of what the benches measured on a GPU, each from the numbers of a results file, with a sentence above it.

A plot shows the first dtype of its file; the tables beneath have all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chapters.kit.bench import gpu_tables as tables
from chapters.kit.bench.cases import divide, select_medians
from chapters.kit.bench.results import load
from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import format_si
from docs.pages.plots import (
    Figure,
    describe_fastest,
    draw_bandwidth,
    draw_bars,
    draw_roofline,
)

# the kernels of many rows that the charts show; the tables have the others
FASTEST = ("wgmma", "mma.sync")
NEAR = 0.8  # a share of what the ceilings allow
SIZES = "The names give rows of x × outputs × inputs. The table has all implementations."


def _select_first_dtype(measured: dict) -> tuple[list[dict], str]:
    """The cases of the first dtype, and that dtype."""
    dtype = measured["cases"][0]["dtype"]
    return [case for case in measured["cases"] if case["dtype"] == dtype], dtype


def draw_norms(measured: dict) -> list[Figure]:
    """ch08_norm: bytes per second of add and RMSNorm over size."""
    cases, dtype = _select_first_dtype(measured)
    largest = max(cases, key=lambda case: case["bytes"])
    names = [name for name in largest["seconds"] if name != tables.COPY]
    shares = {name: divide(largest, tables.COPY, name) for name in names}
    by_speed = sorted(shares.items(), key=lambda one: -one[1])
    claim = (
        f"Add and RMSNorm of {tables.shape_text(largest['shape'])} in {dtype}, as shares of the speed of a copy of as "
        f"many bytes: {', '.join(f'{name} {share:.0%}' for name, share in by_speed)}."
    )
    title, copy_rate = f"Add and RMSNorm in {dtype}", measured["ceilings"]["copy_rate"]
    caption = _compare_with_others(measured["cases"], tables.NORM_OURS).strip()
    return [draw_bandwidth(cases, title, caption, claim, copy_rate)]


def draw_linear(measured: dict) -> list[Figure]:
    """ch08_linear: layers of one row beside a copy, then layers of many rows beside PyTorch's linear."""
    one = [case for case in measured["cases"] if "decode" in case["seconds"]]
    many = [case for case in measured["cases"] if set(FASTEST) & set(case["seconds"])]
    beside_copy = tables.COPY, "a copy of as many bytes", tables.copy_table
    beside_torch = tables.LINEAR, f"{tables.LINEAR}, which is cuBLAS", tables.linear_table
    return [
        *_draw_shares("One row", one, ("decode", tables.LINEAR), *beside_copy),
        *_draw_shares("Many rows", many, FASTEST, *beside_torch),
    ]


def _draw_shares(
    rows: str, cases: list[dict], names: Sequence[str], base: str, base_words: str, table: Callable
) -> list[Figure]:
    """A bar for each case of the first dtype and each name: the share of the speed of `base`. None without cases."""
    dtype = cases[0]["dtype"] if cases else ""
    drawn = [case for case in cases if case["dtype"] == dtype]
    bars, shares = [], {}
    for case in drawn:
        for name in (name for name in names if name in case["seconds"]):
            share, ours = divide(case, base, name), name in tables.LINEAR_OURS
            shares.setdefault(name, []).append(share)
            label = f"{'this course, ' if ours else ''}{name}, {tables.layer_text(case)}"
            bars.append(Bar(label, 100 * share, f"{share:.0%}", ours=ours))
    spans = (f"{name} {min(found):.0%} to {max(found):.0%}" for name, found in shares.items())
    claim = f"{rows} of x in {dtype}, as shares of the speed of {base_words}: {', '.join(spans)}."
    words = "per cent of the speed of the line, more is better"
    title, limit = f"Linear layers of {rows.lower()} in {dtype}", (100, base_words)
    caption = _compare_with_others(cases, tables.LINEAR_OURS) + SIZES
    return [draw_bars(bars, words, title, caption, claim, limit, table(drawn))] if bars else []


def _compare_with_others(cases: Sequence[dict], ours: Sequence[str]) -> str:
    """`describe_fastest` for each dtype; neither a copy nor our kernels with a second launch count as another's."""
    known = (*ours, *(f"{name}{tables.THEN_ADD}" for name in ours), tables.COPY)
    by_dtype: dict[str, dict] = {}
    for case in cases:
        size = tables.shape_text(case["shape"]) if "shape" in case else tables.layer_text(case)
        by_dtype.setdefault(case["dtype"], {})[size] = case["seconds"]
    sentences = (describe_fastest(f"in {d}", found, ours, known) for d, found in by_dtype.items())
    return "".join(f"{sentence} " for sentence in sentences if sentence)


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
    "ch08_norm": draw_norms,
    "ch08_linear": lambda measured: [*draw_linear(measured), draw_kernels_in_roofline()],
    "ch08_gelu": draw_gelu,
    "ch08_steps": draw_schedule_steps,
}
