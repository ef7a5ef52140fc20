"""What `RewriteCUDAGraph` captures of a module: kernels launched from a graph and kernels launched one by one.

This needs no GPU: the pass rewrites the IR, and moves what it captures into separate functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.passes.planned_storage import lower

RUN_OR_CAPTURE = "vm.builtin.cuda_graph.run_or_capture"


@dataclass(frozen=True)
class Captured:
    """For one Relax function: `kernels` launched in all, `captured` of them from `graphs` graphs."""

    function: str
    kernels: int
    captured: int
    graphs: int


def rewrite_graphs(mod: tvm.IRModule, use_cuda_graph: bool = True) -> tvm.IRModule:
    """`mod` lowered through the memory planner and `RewriteCUDAGraph`.

    use_cuda_graph: the configuration flag relax.backend.use_cuda_graph, without which the pass does nothing.
    """
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": use_cuda_graph}):
        return lower(mod, relax.transform.RewriteCUDAGraph())


def count_captured(mod: tvm.IRModule, name: str, use_cuda_graph: bool = True) -> Captured:
    """How much is captured of the Relax function `name` of `mod`, a module not lowered yet."""
    low = rewrite_graphs(mod, use_cuda_graph)
    direct, graphs = _split_calls(low[name])
    inside = [_split_calls(low[graph])[0] for graph in graphs]
    # two equal graphs share one function, so count the calls, not the functions
    return Captured(name, direct + sum(inside), sum(inside), len(graphs))


def sizes_of_graphs(mod: tvm.IRModule, name: str) -> list[tuple[str, ...]]:
    """For each graph of the Relax function `name` of `mod`: the symbolic sizes with which it is recorded."""
    calls = calls_in(rewrite_graphs(mod)[name].body)
    runs = [call.args[1].fields for call in calls if _is_run_or_capture(call)]
    # the function, its arguments, a number and, if it has symbolic sizes, a shape that holds them
    return [tuple(size.name for shape in run[3:] for size in shape.values) for run in runs]


def _split_calls(func: relax.Function) -> tuple[int, list[tvm.ir.GlobalVar]]:
    """How many kernels `func` launches itself, and the functions it runs as graphs."""
    calls = calls_in(func.body)
    kernels = sum(isinstance(call.op, tvm.ir.GlobalVar) for call in calls)
    return kernels, [call.args[1].fields[0] for call in calls if _is_run_or_capture(call)]


def _is_run_or_capture(call: relax.Call) -> bool:
    builtin = call.op == tvm.ir.Op.get("relax.call_builtin_with_ctx")
    return builtin and call.args[0].global_symbol == RUN_OR_CAPTURE
