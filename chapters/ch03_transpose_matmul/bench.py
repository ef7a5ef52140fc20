"""Measure what chapter 3's pass gains on this CPU: a transpose and a matmul against one fused kernel.

Neither side has a schedule. Chapter 5 measures the schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chapters.kit.bench.cases import duration, ratio
from chapters.kit.bench.operands import check_product, compile_here, draw_tensors
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import measure_cases
from chapters.kit.draw.table import Table, tabulate

N = K = 4096
ROWS = (1, 16)  # unscheduled, more rows take minutes


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: the cases}."""
    n, k = (512, 512) if quick else (N, K)
    cases = [{"rows": rows, "n": n, "k": k} for rows in ROWS]
    return {"ch03_pass": measure_cases(__name__, ("unscheduled",), cases, rounds=3, say=say)}


def unscheduled(rows, n, k, seed):
    """Compile the module before the pass and after it, both with TVM's default pipeline and without a schedule."""
    from chapters.kit.cases.example_programs import linear_layer
    from chapters.runner.earlier import earlier

    x, w, (stored_w, stored_x, _) = draw_tensors(rows, n, k, seed)
    before = linear_layer(rows, n, k)
    calls = {}
    for name, mod in (("transposed", before), ("fused", earlier(3).FuseTransposeMatmul()(before))):
        call = partial(compile_here(mod), stored_x, stored_w)
        calls[name] = (call, check_product(call().numpy(), x, w))
    return calls


def pass_table(measured: dict) -> Table:
    """The pass alone: transpose and matmul against the fused kernel, both without a schedule."""
    columns = {
        "rows of x": "rows",
        "transpose and matmul": duration("transposed"),
        "NT_matmul": duration("fused"),
        "gain of the pass": ratio("transposed", "fused", "{:.1f}×"),
    }
    return tabulate(measured["cases"], columns)


TABLES = {"ch03_pass": pass_table}
show_results = partial(show_one, TABLES)
