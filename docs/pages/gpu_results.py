"""What the page of results shows of GPUs: plots and tables of what was measured, or what a model predicts."""

from __future__ import annotations

import importlib

from chapters.kit.bench import gpu_results as tables
from chapters.kit.bench.results import Several, Shown, not_yet
from chapters.kit.draw.table import Table
from docs.pages.plots import Figure, Size, Step, bandwidth, roofline, steps


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
    return Several([*parts, *([] if parts else [_predictions().shown()])])


def gpus() -> Table:
    """The GPUs that the course knows, with the sources of their numbers."""
    return _predictions().gpus_table()


def _predictions():
    """The chapter's module, which is imported only when a page asks for it."""
    return importlib.import_module("chapters.ch08_gpu_targets.predictions")
