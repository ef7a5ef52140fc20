"""What the page of results shows of GPUs: plots and tables of what was measured, or what a model predicts."""

from __future__ import annotations

import importlib
import statistics

from chapters.kit.bench import gpu_results as tables
from chapters.kit.bench.results import Several, Shown, made_with, not_yet
from chapters.kit.draw.table import Table, si
from docs.pages.folded import Folded
from docs.pages.plots import Bar, Figure, Size, Step, bandwidth, bars, roofline, steps


def norm_shown(name: str = "ch08_norm", chapter: int = 8) -> Several | Shown:
    """Add and RMSNorm: bytes per second over size for each dtype, and the small sizes within a CUDA graph."""
    results = tables.load(name)
    if results is None:
        return not_yet(chapter)
    measured = results["measured"]
    parts: list[Figure | Table | Shown] = []
    for dtype in dict.fromkeys(case["dtype"] for case in measured["cases"]):
        cases = [case for case in measured["cases"] if case["dtype"] == dtype]
        title = f"Add and RMSNorm in {dtype} on {tables.machine(results)}"
        drawn = [
            Size(tables.shape_text(c["shape"]), c["bytes"], tables.medians(c["seconds"]))
            for c in cases
        ]
        parts.append(bandwidth(drawn, measured["ceilings"]["copy_rate"], title))
    table = tables.graph_table(measured["cases"])
    return Several([*parts, *([table] if table.rows else []), tables.source(results)])


def steps_shown() -> Several | Shown:
    """The speed after each step of the schedule, beside PyTorch's linear."""
    results = tables.load("ch08_steps")
    if results is None:
        return not_yet(8)
    parts = []
    for case in results["measured"]["cases"]:
        title = f"{tables.layer_text(case)} in {case['dtype']} on {tables.machine(results)}, step by step"
        # if no step could be measured, only the libraries' times are known
        drawn = steps_figure(case, title) if tables.steps_of(case) else tables.linear_table([case])
        parts.append(drawn)
    return Several([*parts, tables.source(results)])


def steps_figure(case: dict, title: str) -> Figure:
    """The bars of one case of ch08_steps; PyTorch's linear, where it was measured, is the line for comparison."""
    seconds, limit = case["seconds"], None
    parts = ("median", "low", "high")
    taken = [Step(name, *(seconds[name][part] for part in parts)) for name in tables.steps_of(case)]
    if tables.LINEAR in seconds:
        limit = case["operations"] / seconds[tables.LINEAR]["median"], tables.LINEAR
    return steps(taken, case["operations"], title, limit)


SHOWN = {
    "ch04_gpu": lambda: norm_shown("ch04_gpu", chapter=4),
    "roofline": lambda: tables.roofline_shown(roofline),
    "ch08_norm": norm_shown,
    "ch08_linear": tables.SHOWN["ch08_linear"],
    "ch08_steps": steps_shown,
    "ch08_gelu": tables.SHOWN["ch08_gelu"],
}
TITLES = {
    "roofline": "The roofline",
    "ch08_norm": "Add and RMSNorm over size",
    "ch08_linear": "Linear layers",
    "ch08_steps": "Step by step",
    "ch08_gelu": "Linear layers with GELU",
}


def on_a_gpu() -> Several:
    """What `bench 8` measured; where it measured nothing, one line that says so, and what the model predicts."""
    parts: list[object] = []
    for name, title in TITLES.items():
        found = SHOWN[name]()
        if not isinstance(found, Shown):
            parts += [Shown(None, title), found]
    return Several(parts) if parts else predicted()


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


def predicted() -> Several | Shown:
    """A chart for each claim of the cost model, then its tables, folded; one sentence if there is no prediction."""
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
    source = f"{measured['compiler']}, {measured['disassembler']}; {made_with(results)}"
    charts = [_steps(entries), _norms(entries), _four_bits(entries), _against_published(published)]
    return Several([Shown(None, module.LABEL), *charts, *folded, Shown(None, source)])


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
    return bars(drawn, words, title, "Nothing here was measured.", table, limit, claim, unit="")


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
    caption = "Nothing here was measured. The kernel is chapter 4's wide_kernel: a thread reads 16 bytes at once."
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
    caption = "Nothing here was measured. Where the share is above that of the bytes, unpacking codes takes the time."
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
