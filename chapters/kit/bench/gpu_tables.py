"""Tables of a GPU's results files: add and RMSNorm, linear layers, each step of a schedule, the roofline.

Lessons show them. The page of results plots the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chapters.kit.bench.cases import (
    duration,
    find_fastest,
    list_candidates,
    ratio,
    select_medians,
)
from chapters.kit.bench.gpu_ceilings import Ceilings, Point
from chapters.kit.bench.gpu_clock import COPY
from chapters.kit.draw.table import Table, format_si, tabulate

LINEAR = "PyTorch's linear"
EAGER_GELU = f"{LINEAR}, then gelu"
LINEAR_OURS = ("decode", "tensor cores, copies in flight", "mma.sync", "wgmma")
THEN_ADD = ", then an add"
LINEAR_UNFUSED = tuple(f"{name}{THEN_ADD}" for name in ("PyTorch's matmul", *LINEAR_OURS))
NORM_OURS = ("wide_kernel", "row_kernel")
NORM_UNFUSED = ("PyTorch",)
QUARTILES = ("median", "low", "high")
SPACE = "\u00a0"  # no line breaks here: a narrow column would break sizes at every space
format_time = partial(format_si, unit="s")


# --- add and RMSNorm ------------------------------------------------------------------------------


def norm_tables(measured: dict) -> list[Table]:
    """Add and RMSNorm: the times of one call, and of a call within a CUDA graph if those were measured."""
    return [copy_table(measured["cases"]), graph_table(measured["cases"])]


def copy_table(cases: list[dict]) -> Table:
    """One row per case that was timed beside a copy: each implementation's time, and its share of the copy's speed."""
    beside = [case for case in cases if COPY in case["seconds"]]
    columns = {
        "one call (of the copy's speed)": case_text,
        "moves": lambda case: format_si(least_bytes(case), "B"),
    }
    for name in list_candidates(beside):
        time, share = duration(name, format_time), ratio(COPY, name, "{:.0%}")
        columns[name] = lambda case, time=time, share=share: f"{time(case)} ({share(case)})"
    return tabulate(beside, columns)


def least_bytes(case: dict) -> int:
    """The bytes that must move once; in a linear layer the kernels' results differ in size, and the least counts."""
    return case["bytes"] if isinstance(case["bytes"], int) else min(case["bytes"].values())


def graph_table(cases: list[dict]) -> Table:
    """One row per size that was timed in a CUDA graph: the time of one call, and its ratio to the fastest."""
    measured = [case for case in cases if case["graph_seconds"]]
    names = list_candidates(measured, "graph_seconds")
    rows = []
    for case in measured:
        medians = select_medians(case["graph_seconds"])
        best = min((time for name, time in medians.items() if name != COPY), default=0)
        ratios = {n: f"{format_time(time)} ({time / best:.2f})" for n, time in medians.items()}
        rows.append((f"{case_text(case)}, in a graph", *(ratios.get(name, "–") for name in names)))
    return Table(("one call (times the fastest)", *names), rows)


# --- linear layers --------------------------------------------------------------------------------


def linear_tables(measured: dict) -> list[Table]:
    """Linear layers beside PyTorch's, and those that were timed beside a copy."""
    return [linear_table(measured["cases"]), copy_table(measured["cases"])]


def linear_table(cases: list[dict], usual: str = LINEAR) -> Table:
    """One row per layer: the time of `usual`, PyTorch's way, and how many times as fast each of the others is."""
    others = [name for name in list_candidates(cases) if name not in (usual, COPY)]
    columns = {
        f"m × n × k (times as fast as {usual})": case_text,
        usual: duration(usual, format_time),
        **{name: ratio(usual, name, "{:.2f}") for name in others},
    }
    return tabulate(cases, columns)


def steps_table(cases: list[dict]) -> Table:
    """One row per step of each layer's schedule, and one for PyTorch's linear."""
    header = ("m × n × k", "step", "time", "speed", "times the one before", f"of {LINEAR}")
    rows = []
    for case in cases:
        medians, before = select_medians(case["seconds"]), None
        for name in (name for name in (*list_steps(case), LINEAR) if name in medians):
            speed = format_si(case["operations"] / medians[name], "FLOP/s")
            gain = f"{before / medians[name]:.2f}×" if before and name != LINEAR else "–"
            share = f"{medians[LINEAR] / medians[name]:.1%}" if LINEAR in medians else "–"
            median, *quartiles = (format_time(case["seconds"][name][q]) for q in QUARTILES)
            time = f"{median} ({' to '.join(quartiles)})"
            rows.append((case_text(case), name, time, speed, gain, share))
            before = medians[name]
    note = "The times in brackets are the middle half of the rounds."
    return Table(header, rows, note)


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


def register_table(measured: dict) -> Table:
    """The kernels' registers and shared memory as NVIDIA's compiler counts them: a row per architecture and kernel."""
    header = ("for", "kernel", "registers per thread", "bytes spilled", "shared bytes per block")
    rows = [
        (arch, name, used["registers"], used["stored"] + used["loaded"], used["shared"])
        for arch, by_kernel in measured["kernels"].items()
        for name, used in by_kernel.items()
    ]
    return Table(header, rows)


# --- the roofline ---------------------------------------------------------------------------------


def list_points(cases: list[dict]) -> list[Point]:
    """For each case: our fastest kernel, the fastest library that fuses, the fastest unfused way."""
    points = []
    for case in cases:
        is_norm = "shape" in case
        ours = NORM_OURS if is_norm else LINEAR_OURS
        unfused = NORM_UNFUSED if is_norm else LINEAR_UNFUSED
        libraries = [name for name in case["seconds"] if name not in (*ours, *unfused, COPY)]
        for group, names in (("ours", ours), ("best library", libraries), ("not fused", unfused)):
            if best := find_fastest(case["seconds"], names):
                moved = case["bytes"] if is_norm else case["bytes"][best]
                facts = case_text(case), case["operations"], moved
                points.append(Point(group, best, *facts, select_medians(case["seconds"])[best]))
    return points


def read_roofline(*measured: dict) -> tuple[list[Point], Ceilings]:
    """The points of several results files, and the ceilings of the last."""
    points = list_points([case for one in measured for case in one["cases"]])
    return points, Ceilings(**measured[-1]["ceilings"])


def roofline_table(points: Sequence[Point], ceilings: Ceilings) -> Table:
    """One row per case: its intensity, and for each group the share of the speed that the ceilings allow."""
    groups = list(dict.fromkeys(point.group for point in points))
    rows = []
    for case in dict.fromkeys(point.case for point in points):
        here = [point for point in points if point.case == case]
        shares = {p.group: f"{p.share(ceilings):.0%}, {p.name}" for p in here}
        intensity = format_intensity(here[0].intensity)
        rows.append((case, intensity, *(shares.get(group, "–") for group in groups)))
    return Table(("case", "operations per byte", *groups), rows)


# --- texts ----------------------------------------------------------------------------------------


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
