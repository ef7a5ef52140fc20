"""Tables of a GPU's results files: add and RMSNorm, linear layers, each step of a schedule, the roofline.

Lessons show them. The page of results plots the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from chapters.kit.bench.gpu_ceilings import Ceilings, Point, find_best
from chapters.kit.bench.gpu_clock import COPY
from chapters.kit.bench.results import Parts, SourcedTable, describe_missing, describe_origin, load
from chapters.kit.draw.table import Table, format_si

LINEAR = "PyTorch's linear"
EAGER_GELU = f"{LINEAR}, then gelu"
LINEAR_OURS = ("decode", "tensor cores, copies in flight", "mma.sync", "wgmma")
THEN_ADD = ", then an add"
LINEAR_UNFUSED = tuple(f"{name}{THEN_ADD}" for name in ("PyTorch's matmul", *LINEAR_OURS))
NORM_OURS = ("wide_kernel", "row_kernel")
NORM_UNFUSED = ("PyTorch",)
SPACE = "\u00a0"  # no line breaks here: a narrow column would break sizes at every space


def show_results(
    name: str, chapter: int, *tables: Callable[[list[dict]], Table]
) -> Parts | SourcedTable:
    """The cases of the results file `name` as `tables` with their source; `describe_missing` without such a file."""
    results = load(name)
    if results is None:
        return describe_missing(chapter)
    made = [table(results["measured"]["cases"]) for table in tables]
    return Parts([*(table for table in made if table.rows), describe_source(results)])


def describe_source(results: dict) -> SourcedTable:
    """The line that says how a results file was made, and which cases it lacks."""
    skipped = results["measured"]["skipped"]
    left = f"; not measured for want of time: {', '.join(skipped)}" if skipped else ""
    return SourcedTable(None, describe_origin(results) + left)


# --- add and RMSNorm ------------------------------------------------------------------------------


def show_norms(name: str = "ch08_norm", chapter: int = 8) -> Parts | SourcedTable:
    """Add and RMSNorm: the times of one call, and of a call within a CUDA graph if those were measured."""
    return show_results(name, chapter, copy_table, graph_table)


def copy_table(cases: list[dict]) -> Table:
    """One row per case that was timed beside a copy: each implementation's time, and its share of the copy's speed."""
    beside = [case for case in cases if COPY in case["seconds"]]
    names = _names(beside, "seconds")
    rows = []
    for case in beside:
        ratios = {n: f"{format_si(t, 's')} ({s:.0%})" for n, (t, s) in shares_of_copy(case).items()}
        rows.append((case_text(case), format_si(least_bytes(case), "B"), *_cells(ratios, names)))
    return Table(("one call (of the copy's speed)", "moves", *names), rows)


def shares_of_copy(case: dict) -> dict[str, tuple[float, float]]:
    """name -> (seconds, share of the speed of a copy of as many bytes), of everything that was timed, the copy too."""
    times = select_medians(case["seconds"])
    return {name: (time, times[COPY] / time) for name, time in times.items()}


def least_bytes(case: dict) -> int:
    """The bytes that must move once; in a linear layer the kernels' results differ in size, and the least counts."""
    return case["bytes"] if isinstance(case["bytes"], int) else min(case["bytes"].values())


def graph_table(cases: list[dict]) -> Table:
    """One row per size that was timed in a CUDA graph: the time of one call, and its ratio to the fastest."""
    measured = [case for case in cases if case["graph_seconds"]]
    names = _names(measured, "graph_seconds")
    rows = []
    for case in measured:
        times = select_medians(case["graph_seconds"])
        best = min((t for name, t in times.items() if name != COPY), default=0)
        ratios = {n: f"{format_si(t, 's')} ({t / best:.2f})" for n, t in times.items()}
        rows.append((f"{case_text(case)}, in a graph", *_cells(ratios, names)))
    return Table(("one call (times the fastest)", *names), rows)


# --- linear layers --------------------------------------------------------------------------------


def linear_table(cases: list[dict], usual: str = LINEAR) -> Table:
    """One row per layer: the time of `usual`, PyTorch's way, and how many times as fast each of the others is."""
    others = [name for name in _names(cases, "seconds") if name not in (usual, COPY)]
    rows = []
    for case in cases:
        times = select_medians(case["seconds"])
        reference = times.get(usual)
        ratios = {n: f"{reference / t:.2f}" for n, t in times.items()} if reference else {}
        took = format_si(reference, "s") if reference else "–"
        rows.append((case_text(case), took, *_cells(ratios, others)))
    return Table((f"m × n × k (times as fast as {usual})", usual, *others), rows)


def steps_table(cases: list[dict]) -> Table:
    """One row per step of each layer's schedule, and one for PyTorch's linear: time, speed, ratio to that linear."""
    rows = []
    for case in cases:
        times = select_medians(case["seconds"])
        for name in (*list_steps(case), *([LINEAR] if LINEAR in times else [])):
            speed = format_si(case["operations"] / times[name], "FLOP/s")
            ratio = f"{times[LINEAR] / times[name]:.2f}" if LINEAR in times else "–"
            rows.append((case_text(case), name, format_si(times[name], "s"), speed, ratio))
    return Table(("m × n × k", "step", "time", "speed", f"times as fast as {LINEAR}"), rows)


def list_steps(case: dict) -> list[str]:
    """The names of a schedule's steps among what was measured."""
    return [name for name in case["seconds"] if name not in (LINEAR, *LINEAR_UNFUSED, COPY)]


# --- what a GPU showed of a kernel -----------------------------------------------------------------


def stores_table(measured: dict) -> Table:
    """Layers by wgmma.py as it stored two results at a time, and as it stores eight: shares of PyTorch's speed."""
    rows = []
    for case in measured["stores"]:
        shares = (case[how][LINEAR] / case[how]["wgmma"] for how in ("two", "eight"))
        rows.append((case_text(case), *(f"{share:.0%}" for share in shares)))
    return Table(("m × n × k", f"two per store, of the speed of {LINEAR}", "eight per store"), rows)


def profiles_table(measured: dict) -> Table:
    """How busy NVIDIA's profiler found the parts of the GPU while a kernel ran."""
    parts = ("memory", "second-level cache", "tensor cores")
    rows = [
        (kernel, *(f"{busy[part]:.0%}" for part in parts), format_si(busy["clock"], "Hz"))
        for kernel, busy in measured["profiles"].items()
    ]
    return Table(("kernel", *(f"{part} busy" for part in parts), "clock"), rows)


# --- the roofline ---------------------------------------------------------------------------------


def show_roofline(draw: Callable | None = None) -> Parts | SourcedTable:
    """All measured kernels as shares of the speed that the machine's ceilings allow: `roofline_table`.

    draw: makes something else, such as a plot, of the points, the ceilings and the name of the machine.
    """
    found = {name: load(name) for name in ("ch08_norm", "ch08_linear")}
    there = {name: results for name, results in found.items() if results is not None}
    if not there:
        return describe_missing(8)
    points = [point for name, results in there.items() for point in list_points(name, results)]
    last = list(there.values())[-1]
    ceilings = Ceilings(**last["measured"]["ceilings"])
    drawn = draw(points, ceilings, machine(last)) if draw else roofline_table(points, ceilings)
    return Parts([drawn, *map(describe_source, there.values())])


def list_points(name: str, results: dict) -> list[Point]:
    """For each case of a results file: our fastest kernel, the fastest library that fuses, the fastest unfused way."""
    norm, linear = (NORM_OURS, NORM_UNFUSED), (LINEAR_OURS, LINEAR_UNFUSED)
    ours, unfused = norm if name == "ch08_norm" else linear
    points = []
    for case in results["measured"]["cases"]:
        libraries = [n for n in case["seconds"] if n not in (*ours, *unfused, COPY)]
        for group, names in (("ours", ours), ("best library", libraries), ("not fused", unfused)):
            best = find_best(case["seconds"], names)
            if best:
                moved = case["bytes"] if "shape" in case else case["bytes"][best[0]]
                facts = case_text(case), case["operations"], moved
                points.append(Point(group, best[0], *facts, best[1]))
    return points


def roofline_table(points: Sequence[Point], ceilings: Ceilings) -> Table:
    """One row per case: its intensity, and for each group the share of the speed that the ceilings allow."""
    groups = list(dict.fromkeys(point.group for point in points))
    rows = []
    for case in dict.fromkeys(point.case for point in points):
        here = [point for point in points if point.case == case]
        shares = {p.group: f"{p.share(ceilings):.0%}, {p.name}" for p in here}
        rows.append((case, format_intensity(here[0].intensity), *_cells(shares, groups)))
    return Table(("case", "operations per byte", *groups), rows)


# --- texts and cells ------------------------------------------------------------------------------


def machine(results: dict) -> str:
    """The GPU that a results file was measured on, else the processor."""
    return results.get("gpu", results["device"])


def shape_text(shape: list[int]) -> str:
    return f"({f',{SPACE}'.join(map(str, shape))})"


def layer_text(case: dict) -> str:
    return f"{SPACE}×{SPACE}".join(str(case[size]) for size in "mnk")


def case_text(case: dict) -> str:
    """The dtype and the sizes of a case."""
    return f"{case['dtype']} {shape_text(case['shape']) if 'shape' in case else layer_text(case)}"


def format_intensity(operations_per_byte: float) -> str:
    """Three digits, without an exponent."""
    return f"{operations_per_byte:{',.0f' if operations_per_byte >= 100 else '.3g'}}"


def _cells(texts: dict[str, str], names: Sequence[str]) -> list[str]:
    return [texts.get(name, "–") for name in names]


def select_medians(seconds: dict[str, dict]) -> dict[str, float]:
    return {name: time["median"] for name, time in seconds.items()}


def _names(cases: list[dict], what: str) -> list[str]:
    return list(dict.fromkeys(name for case in cases for name in case[what]))


SHOWN = {  # name of a results file of chapter 8, or "roofline" -> what a lesson shows of it
    "roofline": show_roofline,
    "ch08_norm": show_norms,
    "ch08_linear": lambda: show_results("ch08_linear", 8, linear_table, copy_table),
    "ch08_steps": lambda: show_results("ch08_steps", 8, steps_table),
    "ch08_gelu": lambda: show_results("ch08_gelu", 8, partial(linear_table, usual=EAGER_GELU)),
}
