"""What tests of the whole compiler share: modules after the reference's phases, compiled by it, and run."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from chapters.kit.cases.guard_zones import QUICK_HERE
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases

# the phases that make kernels and schedule them
KERNELS = ("attach", "graph and lower", "schedule")


def after_phases(mod: tvm.IRModule, target: Target, *names: str, **facts) -> tvm.IRModule:
    """`mod` after the phases `names` for `target`, by default KERNELS. facts: what the pipeline is told."""
    found = phases(target, **facts)
    with target:
        passes = [one for name in names or KERNELS for one in found[name]]
        return tvm.transform.Sequential(passes)(mod)


def run_main(
    mod: tvm.IRModule, *arrays: np.ndarray, target: Target = QUICK_HERE, pipeline=None
) -> np.ndarray | list[np.ndarray]:
    """What `main` returns, as one array or as a list of them. pipeline: if not chapter 9's, TVM's name of another.

    The kernels do not compare their arguments, which would take longer to compile than they do.
    """
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        made = tvm.compile(mod, target, relax_pipeline=pipeline or fusion_pipeline(target))
    found = relax.VirtualMachine(made, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    return found.numpy() if hasattr(found, "numpy") else [one.numpy() for one in found]


def draw(*shapes: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Random arrays of these shapes."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]
