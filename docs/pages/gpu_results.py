"""What the page of results shows of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chapters.kit.bench import gpu_results as tables
from chapters.kit.bench.gpu_ceilings import Ceilings, Point, best_of
from chapters.kit.bench.results import Several, SourcedTable, not_yet
from chapters.kit.draw.bars import Bar
from chapters.kit.draw.table import Table, si
from docs.pages.plots import Figure, Folded, Size, bandwidth, bars, roofline, steps

# the kernels of many rows that the charts show; the tables have the others
FASTEST = ("wgmma", "mma.sync")
EQUAL = 5e-4  # a share of a time: less is told as 0.0 %
NEAR = 0.8  # a share of what the ceilings allow
OF_COPY = "per cent of the copy's speed, more is better"
OF_LINEAR = f"per cent of the speed of {tables.LINEAR}, more is better"


# --- add and RMSNorm ------------------------------------------------------------------------------


def norm_figures(cases: list[dict], ceilings: dict) -> list[Figure]:
    """Add and RMSNorm: bytes per second over size."""
    sizes = [
        Size(tables.shape_text(c["shape"]), c["bytes"], tables.medians(c["seconds"])) for c in cases
    ]
    title = f"Add and RMSNorm in {cases[0]['dtype']}"
    drawn = bandwidth(sizes, ceilings["copy_rate"], title, claim=_norm_claim(cases))
    return [replace(drawn, table=tables.copy_table(cases))]


def _norm_claim(cases: list[dict]) -> str:
    """The largest size as shares of a copy's speed, of ours only the fastest; then who is ahead over all sizes."""
    largest = max(cases, key=lambda case: case["bytes"])
    best = best_of(largest["seconds"], tables.NORM_OURS)
    left_out = {tables.COPY, *tables.NORM_OURS} - set(best[:1] if best else ())
    shares = {n: s for n, (_, s) in tables.shares_of_copy(largest).items() if n not in left_out}
    told = ", ".join(f"{n} {s:.0%}" for n, s in sorted(shares.items(), key=lambda one: -one[1]))
    return (
        f"Add and RMSNorm of {tables.shape_text(largest['shape'])} in {largest['dtype']}, as shares of the speed of a "
        f"copy of as many bytes: {told}. {_verdict(cases, tables.NORM_OURS)}"
    )


# --- linear layers --------------------------------------------------------------------------------


def linear_figures(cases: list[dict], ceilings: dict) -> list[Figure]:
    """Layers of one row beside a copy, then layers of many rows beside PyTorch's linear, where ours were measured."""
    ours = [case for case in cases if best_of(case["seconds"], tables.LINEAR_OURS)]
    one = [case for case in ours if tables.COPY in case["seconds"]]
    many = [case for case in ours if case["m"] > 1 and tables.LINEAR in case["seconds"]]
    return [*([_one_row(one)] if one else []), *([_many_rows(many)] if many else [])]


def _one_row(cases: list[dict]) -> Figure:
    names, dtype = ("decode", tables.LINEAR), cases[0]["dtype"]
    claim = (
        f"One row of x in {dtype}, as shares of the speed of a copy of as many bytes: "
        f"{_shares(cases, names, tables.COPY)}. {_verdict(cases, tables.LINEAR_OURS)}"
    )
    title = f"Linear layers of one row in {dtype}"
    caption = "The names give rows of x × outputs × inputs. The table has all implementations."
    drawn = _share_bars(cases, lambda case: names, tables.COPY)
    limit = 100, "a copy of as many bytes"
    return bars(drawn, OF_COPY, title, caption, tables.copy_table(cases), limit, claim)


def _many_rows(cases: list[dict]) -> Figure:
    dtype = cases[0]["dtype"]
    usual = Counter(case["m"] for case in cases).most_common(1)[0][0]
    told = _shares([case for case in cases if case["m"] == usual], FASTEST, tables.LINEAR)
    claim = f"{usual} rows of x in {dtype}, as shares of the speed of {tables.LINEAR}, which is cuBLAS: "
    verdict = _verdict(cases, tables.LINEAR_OURS)
    claim = (
        f"{claim}{told}. Over all sizes, {verdict[:1].lower()}{verdict[1:]}" if told else verdict
    )
    title = f"Linear layers of many rows in {dtype}"
    caption = "The names give rows of x × outputs × inputs. The table has all implementations."
    drawn = _share_bars(cases, _drawn_of_ours, tables.LINEAR)
    limit = 100, tables.LINEAR
    return bars(drawn, OF_LINEAR, title, caption, tables.linear_table(cases), limit, claim)


def _drawn_of_ours(case: dict) -> Sequence[str]:
    """FASTEST; where neither was measured, the fastest of ours that was."""
    if any(name in case["seconds"] for name in FASTEST):
        return FASTEST
    return best_of(case["seconds"], tables.LINEAR_OURS)[:1]


def _share_bars(cases: list[dict], names: Callable[[dict], Sequence[str]], usual: str) -> list[Bar]:
    """A bar for each case and name: the per cent of the speed of `usual`."""
    found = []
    for case in cases:
        times = tables.medians(case["seconds"])
        for name in (name for name in names(case) if name in times):
            share, ours = times[usual] / times[name], name in tables.LINEAR_OURS
            label = f"{'this course, ' if ours else ''}{name}, {tables.layer_text(case)}"
            found.append(Bar(label, 100 * share, f"{share:.0%}", ours=ours))
    return found


def _shares(cases: list[dict], names: Sequence[str], usual: str) -> str:
    """The span of each name's share of the speed of `usual`, as in "wgmma 80% to 90%, mma.sync 50%"."""
    told = []
    for name in names:
        times = [tables.medians(case["seconds"]) for case in cases if name in case["seconds"]]
        if times:
            told.append(f"{name} {_span([time[usual] / time[name] for time in times])}")
    return ", ".join(told)


def gelu_figures(cases: list[dict], ceilings: dict) -> list[Figure]:
    """A linear layer and GELU: the time of each implementation, a figure for each case."""
    figures = []
    for case in cases:
        times = sorted(tables.medians(case["seconds"]).items(), key=lambda one: one[1])
        drawn = [
            Bar(name, time, si(time, "s"), ours=name in tables.LINEAR_OURS) for name, time in times
        ]
        told = "; ".join(f"{name} {si(time, 's')}" for name, time in times)
        claim = (
            f"A linear layer and GELU in {case['dtype']}: {told}. "
            f"{_verdict([case], tables.LINEAR_OURS)}"
        )
        title = f"Linear and GELU, {tables.layer_text(case)}, in {case['dtype']}"
        caption = f"All but “{tables.EAGER_GELU}” may use one kernel for both."
        table = tables.linear_table([case], tables.EAGER_GELU)
        figures.append(bars(drawn, "less is better", title, caption, table, claim=claim))
    return figures


def step_figures(cases: list[dict], ceilings: dict) -> list[Figure]:
    """The speed after each step of the schedule, beside PyTorch's linear."""
    return [_steps_of(case) for case in cases if tables.steps_of(case)]


def _steps_of(case: dict) -> Figure:
    seconds = case["seconds"]
    taken = {name: seconds[name] for name in tables.steps_of(case)}
    medians = [(name, one["median"]) for name, one in taken.items()]
    (first, slow), (last, fast) = medians[0], medians[-1]
    claim = f"“{last}” takes {si(fast, 's')}, {slow / fast:,.0f} times less than “{first}”"
    limit = None
    if tables.LINEAR in seconds:
        usual = seconds[tables.LINEAR]["median"]
        limit = case["operations"] / usual, tables.LINEAR
        claim += f", and reaches {usual / fast:.0%} of the speed of {tables.LINEAR}"
    title = f"{tables.layer_text(case)} in {case['dtype']}, step by step"
    return steps(taken, case["operations"], title, limit, f"{claim}.")


def _roofline(points: Sequence[Point], ceilings: Ceilings, machine: str) -> Figure:
    shares = [point.share(ceilings) for point in points if point.group == "ours"]
    near = sum(share >= NEAR for share in shares)
    claim = (
        f"In {near} of {len(shares)} cases our fastest kernel reaches {NEAR:.0%} or more of the speed that memory and "
        "tensor cores allow."
    )
    return replace(roofline(points, ceilings, machine), claim=claim if shares else "")


# --- who is ahead ---------------------------------------------------------------------------------


def _verdict(cases: list[dict], ours: Sequence[str], which: str = "seconds") -> str:
    """Who is ahead in how many of `cases`, and by how much; "" where there is nothing to compare.

    Times that differ by less than EQUAL are no lead. Neither a copy nor our own kernels with a second launch
    count as another's.
    """
    leads = []
    for case in cases:
        others = [
            n for n in case[which] if n.removesuffix(tables.THEN_ADD) not in (*ours, tables.COPY)
        ]
        mine, best = best_of(case[which], ours), best_of(case[which], others)
        if mine and best:
            leads.append((best[1] / mine[1] - 1, best[0]))
    count, told = len(leads), []
    ahead = [lead for lead, _ in leads if lead >= EQUAL]
    behind = [(1 / (1 + lead) - 1, name) for lead, name in leads if lead <= -EQUAL]
    if ahead:
        told.append(f"This course is ahead of all others {_how_often(ahead, count)}")
    if tied := count - len(ahead) - len(behind):
        who = "it is as fast as the best of them"
        if not ahead:
            who = "This course is as fast as the best of the others"
        told.append(f"{who} in {tied} of {count} cases")
    if behind:
        by = " or ".join(dict.fromkeys(f"“{name}”" for _, name in behind))
        told.append(f"{by} is ahead {_how_often([margin for margin, _ in behind], count)}")
    return f"{'; '.join(told)}." if told else ""


def _how_often(margins: Sequence[float], count: int) -> str:
    often = f"in {len(margins)} of {count} cases, "
    if len(margins) == count:
        often = {1: "", 2: "in both cases, "}.get(count, f"in all {count} cases, ")
    return f"{often}by {_span(margins)}"


def _span(shares: Sequence[float]) -> str:
    """The least and the largest, in per cent."""
    low, high = (
        f"{value:.1%}" if value < 0.1 else f"{value:.0%}" for value in (min(shares), max(shares))
    )
    return low if low == high else f"{low} to {high}"


# --- the parts of the page ------------------------------------------------------------------------

# name of a results file -> the figures of its cases that have one dtype, given the measured ceilings
FIGURES: Mapping[str, Callable[[list[dict], dict], list[Figure]]] = {
    "ch08_norm": norm_figures,
    "ch08_linear": linear_figures,
    "ch08_gelu": gelu_figures,
    "ch08_steps": step_figures,
}


def _by_dtype(
    results: dict, draw: Callable[[list[dict], dict], list[Figure]]
) -> dict[str, list[Figure]]:
    """dtype -> the figures of a results file."""
    where = f"Measured {results['date']} on one {tables.machine(results)}."
    cases, ceilings = results["measured"]["cases"], results["measured"]["ceilings"]
    found = {}
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        drawn = draw([case for case in cases if case["dtype"] == dtype], ceilings)
        found[dtype] = [replace(one, measured=where) for one in drawn]
    return found


def _measured(
    name: str, chapter: int, draw: Callable[[list[dict], dict], list[Figure]]
) -> Several | SourcedTable:
    """The figures of a results file and how it was made; its tables if there is nothing to draw."""
    results = tables.load(name)
    if results is None:
        return not_yet(chapter)
    drawn = [one for figures in _by_dtype(results, draw).values() for one in figures]
    return Several([*drawn, tables.source(results)]) if drawn else tables.SHOWN[name]()


SHOWN = {
    "ch04_gpu": lambda: _measured("ch04_gpu", 4, norm_figures),
    "roofline": lambda: tables.show_roofline(_roofline),
    **{name: lambda n=name, draw=draw: _measured(n, 8, draw) for name, draw in FIGURES.items()},
}


def on_a_gpu() -> Several | SourcedTable:
    """What `bench 8` measured: each file's figures in its first dtype, tables of the others; a line without a file."""
    found = {name: results for name in FIGURES if (results := tables.load(name))}
    if not found:
        return not_yet(8)
    shown: list[object] = []
    folded: dict[str, list[SourcedTable | Table]] = {}
    for name, results in found.items():
        first, *others = _by_dtype(results, FIGURES[name]).items()
        shown += first[1]
        for dtype, figures in others:
            for figure in figures:
                folded.setdefault(dtype, []).extend(
                    (SourcedTable(None, figure.claim), figure.table)
                )
    drawn = SHOWN["roofline"]()
    shown += drawn.parts[:1] if isinstance(drawn, Several) else []
    shown += [Folded(f"The same in {dtype}", figures) for dtype, figures in folded.items()]
    shown += [_in_graphs(found["ch08_norm"])] if "ch08_norm" in found else []
    sources = dict.fromkeys(tables.source(results).source for results in found.values())
    return Several([*shown, *(SourcedTable(None, one) for one in sources)])


def _in_graphs(results: dict) -> Folded | Several:
    """The small sizes of add and RMSNorm in a CUDA graph; empty where they were not measured so."""
    cases = [case for case in results["measured"]["cases"] if case["graph_seconds"]]
    if not cases:
        return Several([])
    verdict = SourcedTable(None, _verdict(cases, tables.NORM_OURS, "graph_seconds"))
    return Folded("Add and RMSNorm in a CUDA graph", [verdict, tables.graph_table(cases)])
