"""What pages show of `bench 8`'s results files: plots with the tables of their numbers, and where they come from."""

from __future__ import annotations

from chapters.toolkit.bench.gpu_ceilings import Ceilings
from chapters.toolkit.bench.results import Several, Shown, load, made_with, not_yet
from chapters.toolkit.pages.plots.bandwidth import Case, bandwidth
from chapters.toolkit.pages.plots.figure import Figure
from chapters.toolkit.pages.plots.roofline import Point, best_of, roofline
from chapters.toolkit.pages.plots.scale import si
from chapters.toolkit.pages.plots.steps import Step, steps
from chapters.toolkit.table import Table

NORM_OURS = ("wide_kernel", "row_kernel")
LINEAR_OURS = (
    "decode",
    "tensor cores, 64 × 64",
    "tensor cores, 128 × 128",
    "tensor cores, copies under way",
    "mma.sync",
    "wgmma",
)
NORM_UNFUSED = ("PyTorch",)
LINEAR_UNFUSED = (
    "PyTorch's matmul, then an add",
    *(f"{name}, then an add" for name in LINEAR_OURS),
)
LINEAR = "PyTorch's linear"


def _results(name: str) -> dict | None:
    return load(name)


def _source(results: dict) -> Shown:
    skipped = results["measured"]["skipped"]
    left = f"; not measured for want of time: {', '.join(skipped)}" if skipped else ""
    return Shown(None, made_with(results) + left)


def _machine(results: dict) -> str:
    return results.get("gpu", results["device"])


def norm_shown(name: str = "ch08_norm", chapter: int = 8) -> Several | Shown:
    """Add and RMSNorm: bytes a second over size for each dtype, and the small sizes within a CUDA graph."""
    results = _results(name)
    if results is None:
        return not_yet(chapter)
    measured = results["measured"]
    parts: list[Figure | Table | Shown] = []
    for dtype in dict.fromkeys(case["dtype"] for case in measured["cases"]):
        cases = [case for case in measured["cases"] if case["dtype"] == dtype]
        title = f"Add and RMSNorm in {dtype} on {_machine(results)}"
        drawn = [Case(shape_text(c["shape"]), c["bytes"], _medians(c["seconds"])) for c in cases]
        parts.append(bandwidth(drawn, measured["ceilings"]["copy_rate"], title))
    table = graph_table(measured["cases"])
    return Several([*parts, *([table] if table.rows else []), _source(results)])


def graph_table(cases: list[dict]) -> Table:
    """Time of one call as one of many in a CUDA graph, with its ratio to the fastest; no rows where none was."""
    measured = [case for case in cases if case["graph_seconds"]]
    names = list(dict.fromkeys(name for case in measured for name in case["graph_seconds"]))
    rows = []
    for case in measured:
        times = _medians(case["graph_seconds"])
        best = min((t for name, t in times.items() if name != "copy"), default=0)
        cells = [
            f"{si(times[n], 's')} ({times[n] / best:.2f})" if n in times else "–" for n in names
        ]
        rows.append((f"{case['dtype']} {shape_text(case['shape'])}, in a graph", *cells))
    return Table(("one call (times the fastest)", *names), rows)


def linear_shown() -> Several | Shown:
    """Linear layers: the time of PyTorch's linear, and how many times as fast the others are."""
    results = _results("ch08_linear")
    if results is None:
        return not_yet(8)
    return Several([linear_table(results["measured"]["cases"]), _source(results)])


def linear_table(cases: list[dict]) -> Table:
    """A row a layer: the time of PyTorch's linear, and how many times as fast as it each of the others is."""
    names = list(dict.fromkeys(name for case in cases for name in case["seconds"]))
    others = [name for name in names if name != LINEAR]
    rows = []
    for case in cases:
        times = _medians(case["seconds"])
        reference = times.get(LINEAR)
        cells = [f"{reference / times[n]:.2f}" if reference and n in times else "–" for n in others]
        took = si(reference, "s") if reference else "–"
        rows.append((f"{case['dtype']} {layer_text(case)}", took, *cells))
    return Table(("m × n × k", LINEAR, *(f"{name}: times as fast" for name in others)), rows)


def steps_shown() -> Several | Shown:
    """What each step of the schedule is worth, beside PyTorch's linear."""
    results = _results("ch08_steps")
    if results is None:
        return not_yet(8)
    parts = []
    for case in results["measured"]["cases"]:
        title = f"{layer_text(case)} in {case['dtype']} on {_machine(results)}, step by step"
        # where no step could be measured the libraries' times are all there is
        drawn = steps_figure(case, title) if _steps_of(case) else linear_table([case])
        parts.append(drawn)
    return Several([*parts, _source(results)])


def steps_figure(case: dict, title: str) -> Figure:
    """The bars of one case of ch08_steps; PyTorch's linear, where it was measured, is the line to compare with."""
    seconds, limit = case["seconds"], None
    taken = [
        Step(name, seconds[name]["median"], seconds[name]["low"], seconds[name]["high"])
        for name in _steps_of(case)
    ]
    if LINEAR in seconds:
        limit = case["operations"] / seconds[LINEAR]["median"], "PyTorch's linear"
    return steps(taken, case["operations"], "FLOP/s", title, limit)


def _steps_of(case: dict) -> list[str]:
    return [name for name in case["seconds"] if name not in (LINEAR, *LINEAR_UNFUSED)]


def roofline_shown() -> Several | Shown:
    """All that was measured beneath the machine's ceilings: our best kernel, the best library, and not fused."""
    found = {name: _results(name) for name in ("ch08_norm", "ch08_linear")}
    there = {name: results for name, results in found.items() if results is not None}
    if not there:
        return not_yet(8)
    points = [point for name, results in there.items() for point in points_of(name, results)]
    last = list(there.values())[-1]
    ceilings = Ceilings(**last["measured"]["ceilings"])
    drawn = roofline(points, ceilings, _machine(last))
    return Several([drawn, *(_source(results) for results in there.values())])


SHOWN = {
    "roofline": roofline_shown,
    "ch08_norm": norm_shown,
    "ch08_linear": linear_shown,
    "ch08_steps": steps_shown,
}


def points_of(name: str, results: dict) -> list[Point]:
    """The points of one results file: for each case our fastest, the fastest library that fuses, the unfused."""
    ours, unfused = (
        (NORM_OURS, NORM_UNFUSED) if name == "ch08_norm" else (LINEAR_OURS, LINEAR_UNFUSED)
    )
    points = []
    for case in results["measured"]["cases"]:
        peers = [n for n in case["seconds"] if n not in (*ours, *unfused, "copy")]
        for group, names in (("ours", ours), ("best library", peers), ("not fused", unfused)):
            best = best_of(case["seconds"], names)
            if best:
                what = shape_text(case["shape"]) if "shape" in case else layer_text(case)
                moved = case["bytes"] if "shape" in case else case["bytes"][best[0]]
                text = f"{case['dtype']} {what}"
                points.append(Point(group, best[0], text, case["operations"], moved, best[1]))
    return points


def shape_text(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def layer_text(case: dict) -> str:
    return f"{case['m']} × {case['n']} × {case['k']}"


def _medians(seconds: dict[str, dict]) -> dict[str, float]:
    return {name: time["median"] for name, time in seconds.items()}
