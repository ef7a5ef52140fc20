"""What the page of results shows of GPUs: what was measured, then predictions beside it, then predictions alone."""

from __future__ import annotations

import importlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chapters.kit.bench import gpu_results as tables
from chapters.kit.bench.gpu_ceilings import Ceilings, Point, best_of
from chapters.kit.bench.gpu_gelu_bench import EAGER as EAGER_GELU
from chapters.kit.bench.results import Several, Shown, not_yet
from chapters.kit.draw.table import Table, si
from docs.pages.folded import Folded
from docs.pages.plots import Bar, Figure, Size, Step, bandwidth, bars, roofline, steps

# the kernels of many rows that the charts show; the tables have the others
FASTEST = ("wgmma", "mma.sync")
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
        caption = f"All but “{EAGER_GELU}” may use one kernel for both."
        table = tables.linear_table([case], EAGER_GELU)
        figures.append(bars(drawn, "less is better", title, caption, table, claim=claim, unit="s"))
    return figures


def step_figures(cases: list[dict], ceilings: dict) -> list[Figure]:
    """The speed after each step of the schedule, beside PyTorch's linear."""
    return [_steps_of(case) for case in cases if tables.steps_of(case)]


def _steps_of(case: dict) -> Figure:
    seconds, parts = case["seconds"], ("median", "low", "high")
    taken = [
        Step(name, *(seconds[name].get(part) for part in parts)) for name in tables.steps_of(case)
    ]
    first, last = taken[0], taken[-1]
    claim = (
        f"“{last.name}” takes {si(last.median, 's')}, {first.median / last.median:,.0f} times less than "
        f"“{first.name}”"
    )
    limit = None
    if tables.LINEAR in seconds:
        usual = seconds[tables.LINEAR]["median"]
        limit = case["operations"] / usual, tables.LINEAR
        claim += f", and reaches {usual / last.median:.0%} of the speed of {tables.LINEAR}"
    title = f"{tables.layer_text(case)} in {case['dtype']}, step by step"
    return replace(steps(taken, case["operations"], title, limit), claim=f"{claim}.")


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

    Neither a copy nor our own kernels with a second launch count as another's.
    """
    ahead: list[float] = []
    behind: list[float] = []
    by = []
    for case in cases:
        others = [
            n for n in case[which] if n.removesuffix(tables.THEN_ADD) not in (*ours, tables.COPY)
        ]
        mine, best = best_of(case[which], ours), best_of(case[which], others)
        if mine and best and mine[1] <= best[1]:
            ahead.append(best[1] / mine[1] - 1)
        elif mine and best:
            behind.append(mine[1] / best[1] - 1)
            by.append(f"“{best[0]}”")
    count, told = len(ahead) + len(behind), []
    if ahead:
        told.append(f"This course is ahead of all others {_how_often(ahead, count)}")
    if behind:
        told.append(f"{' or '.join(dict.fromkeys(by))} is ahead {_how_often(behind, count)}")
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
) -> Several | Shown:
    """The figures of a results file and how it was made; its tables if there is nothing to draw."""
    results = tables.load(name)
    if results is None:
        return not_yet(chapter)
    drawn = [one for figures in _by_dtype(results, draw).values() for one in figures]
    return Several([*drawn, tables.source(results)]) if drawn else tables.SHOWN[name]()


SHOWN = {
    "ch04_gpu": lambda: _measured("ch04_gpu", 4, norm_figures),
    "roofline": lambda: tables.roofline_shown(_roofline),
    **{name: lambda n=name, draw=draw: _measured(n, 8, draw) for name, draw in FIGURES.items()},
}


def on_a_gpu() -> Several | Shown:
    """What `bench 8` measured: each file's figures in its first dtype, tables of the others; a line without a file."""
    found = {name: results for name in FIGURES if (results := tables.load(name))}
    if not found:
        return not_yet(8)
    shown: list[object] = []
    folded: dict[str, list[Shown | Table]] = {}
    for name, results in found.items():
        first, *others = _by_dtype(results, FIGURES[name]).items()
        shown += first[1]
        for dtype, figures in others:
            for figure in figures:
                folded.setdefault(dtype, []).extend((Shown(None, figure.claim), figure.table))
    drawn = SHOWN["roofline"]()
    shown += drawn.parts[:1] if isinstance(drawn, Several) else []
    shown += [Folded(f"The same in {dtype}", figures) for dtype, figures in folded.items()]
    shown += [_in_graphs(found["ch08_norm"])] if "ch08_norm" in found else []
    sources = dict.fromkeys(tables.source(results).source for results in found.values())
    return Several([*shown, *(Shown(None, one) for one in sources)])


def _in_graphs(results: dict) -> Folded | Several:
    """The small sizes of add and RMSNorm in a CUDA graph; empty where they were not measured so."""
    cases = [case for case in results["measured"]["cases"] if case["graph_seconds"]]
    if not cases:
        return Several([])
    verdict = Shown(None, _verdict(cases, tables.NORM_OURS, "graph_seconds"))
    return Folded("Add and RMSNorm in a CUDA graph", [verdict, tables.graph_table(cases)])


# --- predictions ----------------------------------------------------------------------------------

# what the columns of each table of predictions mean
COLUMNS = {
    "kernel_table": (
        "Occupancy is the share of a multiprocessor's threads that run at once. A warp asks memory for its 32 lanes "
        "together, in one request; a sector is 32 bytes, the least that memory delivers, so a request with few sectors "
        "wastes little; the least possible stands in brackets. A 4-way bank conflict means that a request to shared "
        "memory takes four cycles in place of one. "
        "“Bulk copies” are made by a unit of their own, whose requests the model does not count. Arithmetic intensity "
        "is operations per byte. “Unknown” instructions: the model could not tell how often a loop runs. Busiest is "
        "the part whose time is longest: memory (DRAM), shared memory, tensor cores, or the issue of instructions (a "
        "multiprocessor starts at most four per cycle). The roofline is the time that the data sheet's rates allow."
    ),
    "board_table": "A rate is unknown where we found no data sheet that states it.",
    "resources_table": "",
    "validation_table": (
        "Ratio is the predicted time divided by the published one; busiest is the part that the model blames."
    ),
}
SUMMARIES = {
    "kernel_table": "Each kernel on one H100 SXM: what was counted",
    "board_table": "Each kernel on each GPU: predicted time",
    "resources_table": "Each kernel on each GPU: registers and occupancy",
    "validation_table": "Published kernels: predicted beside measured by their authors",
}


def compared() -> Several | Shown:
    """The cost model beside what was measured; the predictions for every GPU are then folded."""
    module = importlib.import_module("chapters.ch08_gpu_targets.predicted_and_measured")
    pairs = module.find_pairs(tables.load)
    if not pairs:
        return predicted()
    drawn = [Bar(pair.case, pair.ratio, f"{pair.ratio:.2f}") for pair in pairs]
    boards = " and ".join(dict.fromkeys(pair.board for pair in pairs))
    caption = (
        f"1 is right; below 1 the kernel takes longer than the model says. {module.describe_details(pairs)} The model "
        f"has not been changed since {module.MODEL_DATE}, before any GPU had run these kernels. "
        f"{module.describe_rates(tables.load)}"
    )
    title, words = f"The cost model on one {boards}", "predicted time over measured time"
    table, claim = module.pairs_table(pairs), module.describe_error(pairs)
    figure = bars(drawn, words, title, caption, table, (1, "as measured"), claim)
    return Several(
        [figure, Folded("Predictions for every GPU", predicted(with_charts=False).parts)]
    )


def predicted(with_charts: bool = True) -> Several | Shown:
    """A chart for each claim of the cost model, then its tables, folded; one sentence if there is no prediction.

    with_charts: False for the tables alone, where measured times stand beside them.
    """
    module = _predictions()
    results = tables.load(module.NAME)
    if results is None:
        return module.shown()
    measured = results["measured"]
    entries, published = measured["predictions"], measured["validation"]
    given = {"validation_table": published}
    folded = []
    for name, summary in SUMMARIES.items():
        words = [Shown(None, COLUMNS[name])] if COLUMNS[name] else []
        table = getattr(module, name)(given.get(name, entries))
        folded.append(Folded(summary, [*words, _plain_words(table)]))
    drawn = _steps(entries), _norms(entries), _four_bits(entries), _against_published(published)
    charts = drawn if with_charts else ()
    source = Shown(None, module.source(results))
    return Several([Shown(None, module.LABEL), *charts, *folded, source])


def _plain_words(table: Table) -> Table:
    """`table` with words of the model replaced by those of the page."""
    words = {"issue": "issue of instructions", "loops not read": "unknown"}
    rows = [
        tuple(words.get(cell, cell) if isinstance(cell, str) else cell for cell in row)
        for row in table.rows
    ]
    return Table(table.header, rows, table.note)


def _steps(entries: list[dict]) -> Figure:
    """The kernels of one linear layer on one board, from the first step to the last."""
    module = _predictions()
    board, layer = module.SHOWN_BOARD, f"{module.STEPS.m} rows: "
    mine = [e for e in entries if e["board"] == board and e["kernel"].startswith(layer)]
    mine = [e for e in mine if e.get("seconds")]
    times = {e["kernel"].removeprefix(layer): e["seconds"] for e in mine}
    drawn = [
        Bar(name, operations / time, si(operations / time, "FLOP/s"), ours=True)
        for (name, time), operations in zip(
            times.items(), (e["operations"] for e in mine), strict=True
        )
    ]
    (first, slow), (last, fast) = next(iter(times.items())), list(times.items())[-1]
    pairs = list(zip(times, list(times)[1:], strict=False))
    worse = [after for before, after in pairs if times[after] > times[before]]
    allowed = mine[-1]["roofline"]
    claim = (
        f"Predicted for one {board}: the last kernel, {last}, takes {si(fast, 's')}, {slow / fast:,.0f} times less "
        f"than the first ({first}), and {fast / allowed - 1:.0%} more than the data sheet's rates allow."
    )
    if worse:
        claim += f" The model expects {' and '.join(f'“{name}”' for name in worse)} to be slower than the step before."
    rows = [(name, si(time, "s"), f"{allowed / time:.1%}") for name, time in times.items()]
    table = Table(("kernel", "predicted", "of the speed that the data sheet allows"), rows)
    title = f"A linear layer of {module.STEPS.m} rows in float16, step by step (predicted)"
    limit = mine[-1]["operations"] / allowed, "the data sheet's rate"
    words = "predicted FLOP/s, more is better"
    return bars(drawn, words, title, "", table, limit, claim, unit="")


def _by_board(entries: list[dict], kernel: str) -> dict[str, dict]:
    """board -> prediction of one kernel, where there is one."""
    return {e["board"]: e for e in entries if e["kernel"] == kernel and e.get("seconds")}


def _norms(entries: list[dict]) -> Figure:
    """Add and RMSNorm of the largest size on each board, beside what its memory allows."""
    found = _by_board(entries, "add and RMSNorm 8192 × 8192: wide_kernel")
    drawn = [
        Bar(board, e["seconds"], si(e["seconds"], "s"), ours=True) for board, e in found.items()
    ]
    over = {board: e["seconds"] / e["roofline"] - 1 for board, e in found.items()}
    claim = (
        f"Predicted: add and RMSNorm in one kernel takes {min(over.values()):.0%} to {max(over.values()):.0%} longer "
        f"than moving its bytes, on each of {len(found)} GPUs."
    )
    rows = [
        (board, si(e["seconds"], "s"), si(e["roofline"], "s"), f"{over[board]:+.1%}")
        for board, e in found.items()
    ]
    table = Table(("GPU", "predicted", "moving the bytes", "longer by"), rows)
    title = "Add and RMSNorm of 8192 × 8192 in float16 (predicted)"
    caption = "The kernel is chapter 4's wide_kernel: a thread reads 16 bytes at once."
    return bars(drawn, "predicted, less is better", title, caption, table, claim=claim, unit="s")


def _four_bits(entries: list[dict]) -> Figure:
    """One row of a linear layer with weights of 16 and of 4 bits, on each board."""
    whole, coded = (_by_board(entries, name) for name in ("1 row: decode", "1 row, 4-bit weights"))
    shares = {
        board: coded[board]["seconds"] / e["seconds"]
        for board, e in whole.items()
        if board in coded
    }
    drawn = [Bar(board, 100 * share, f"{share:.0%}", ours=True) for board, share in shares.items()]
    least = next(iter(coded.values()))["least_bytes"] / next(iter(whole.values()))["least_bytes"]
    claim = (
        f"Predicted: for one row, 4-bit weights take {min(shares.values()):.0%} to {max(shares.values()):.0%} of the "
        f"time of 16-bit weights. They have {least:.0%} of the bytes."
    )
    rows = [
        (board, si(whole[board]["seconds"], "s"), si(coded[board]["seconds"], "s"), f"{share:.0%}")
        for board, share in shares.items()
    ]
    table = Table(("GPU", "16-bit weights", "4-bit weights", "share"), rows)
    title = "One row times a weight of 4096 × 4096 (predicted)"
    caption = "Where the share is above that of the bytes, unpacking codes takes the time."
    words = "predicted per cent of the time with 16 bits, less is better"
    return bars(drawn, words, title, caption, table, claim=claim)


def _against_published(published: list[dict]) -> Figure:
    """The model's time over the one that an author published, for each published kernel."""
    ratios = {f"{e['kernel']} ({e['board']})": e["predicted"] / e["published"] for e in published}
    drawn = [Bar(name, ratio, f"{ratio:.2f}") for name, ratio in ratios.items()]
    low = sum(ratio < 1 for ratio in ratios.values())
    claim = (
        f"The model is too optimistic for {low} of {len(ratios)} kernels whose times others have published: it "
        f"predicts {min(ratios.values()):.2f} to {max(ratios.values()):.2f} of the published time, in the middle "
        f"{statistics.median(ratios.values()):.2f}."
    )
    rows = [
        (e["kernel"], e["board"], si(e["published"], "s"), si(e["predicted"], "s"))
        for e in published
    ]
    table = Table(("kernel", "GPU", "published", "predicted"), rows)
    title = "The cost model beside published times"
    caption = "1 is right; below 1 the kernel takes longer than the model says."
    limit = 1, "as published"
    return bars(drawn, "predicted time over published time", title, caption, table, limit, claim)


def gpus() -> Folded:
    """The GPUs that the course knows, with the sources of their numbers."""
    return Folded("The GPUs and their rates", [_predictions().gpus_table()])


def _predictions():
    """The chapter's module, which is imported only when a page asks for it."""
    return importlib.import_module("chapters.ch08_gpu_targets.predictions")
