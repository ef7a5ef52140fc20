"""Compiles a small layer, and says which pass scheduled each of its kernels."""

from __future__ import annotations

import tvm

from chapters.kit.schedules.warn_of_fallback import trace_schedulers
from chapters.runner.earlier import earlier

LLVM = tvm.target.Target("llvm")


def compile_layer(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, str]]:
    """Return (the kernels of `mod` before they get schedules, the name of the pass that schedules each), for a CPU."""
    phases = earlier(9).phases(LLVM)
    lowered, first = trace_schedulers(mod, [*phases["attach"], *phases["graph and lower"]], LLVM)
    return lowered, trace_schedulers(lowered, phases["schedule"], LLVM)[1] | first
