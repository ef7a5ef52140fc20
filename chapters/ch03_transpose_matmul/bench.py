"""Measure what chapter 3's pass gains on this CPU: a transpose and a matmul against one fused kernel.

Neither side has a schedule. Chapter 5 measures the schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chapters.kit.bench.operands import check_product, draw_tensors
from chapters.kit.bench.results import SourcedTable, load, sourced_table
from chapters.kit.bench.timing import measure
from chapters.kit.draw.table import Table, format_duration

N = K = 4096
ROWS = (1, 16)  # unscheduled, more rows take minutes


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """Return {name of the results file: seconds per call}. Pass the table to `say`."""
    n, k = (512, 512) if quick else (N, K)
    rows = {}
    for r in ROWS:
        sizes = {"rows": r, "n": n, "k": k}
        rows[str(r)] = measure(__name__, ("unscheduled",), sizes, rounds=3, say=say)
    alone = {"n": n, "k": k, "rows": rows}
    say(f"\n{pass_table(alone)}\n")
    return {"ch03_pass": alone}


def unscheduled(rows, n, k, seed):
    """Compile the module before the pass and after it, both with TVM's default pipeline and without a schedule."""
    import tvm
    from tvm import relax

    from chapters.kit.cases.example_programs import linear_layer
    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    target = llvm_host()["target"]
    x, w, (stored_w, stored_x, _) = draw_tensors(rows, n, k, seed)
    before = linear_layer(rows, n, k)
    calls = {}
    for name, mod in (("transposed", before), ("fused", earlier(3).FuseTransposeMatmul()(before))):
        machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
        call = partial(machine["main"], stored_x, stored_w)
        calls[name] = (call, check_product(call().numpy(), x, w))
    return calls


def pass_table(measured: dict) -> Table:
    """Return the table of the pass alone: transpose and matmul against the fused kernel, both without a schedule."""
    rows = []
    for count, seconds in measured["rows"].items():
        before, after = seconds["transposed"], seconds["fused"]
        rows.append(
            (count, format_duration(before), format_duration(after), f"{before / after:.1f}×")
        )
    return Table(("rows of x", "transpose and matmul", "NT_matmul", "gain of the pass"), rows)


TABLES = {"ch03_pass": pass_table}


def show_results(name: str) -> SourcedTable:
    """Return the table of a results file with its source, or a sentence that says that it was not measured yet."""
    return sourced_table(load(name), 3, TABLES[name])
