"""An adversary for the whole pipeline: random Relax modules, compiled and run twice, and no wrong number.

Modules have symbolic sizes, aliases, tuples, constants, branches, private functions, packed functions, kernels of their
own and updates in place, in three floating-point types. The numbers are NumPy's. `FUSION_DRAWS=1000 pytest
tests/ch09/test_property.py` draws more, `FUSION_SEED=1` draws others. Hypothesis shrinks a module that fails.
"""

from __future__ import annotations

import os

import numpy as np
import tvm
import tvm_ffi
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.target import Target

from chapters.checking.draws import SAME_EVERYWHERE
from chapters.checking.relax_modules import Module, modules
from chapters.kit.cases.guard_zones import QUICK
from chapters.kit.machine import llvm_host
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases
from tests.support.kernels import compile_main, try_draws

DRAWS = int(os.environ.get("FUSION_DRAWS", "40"))
SEED = int(os.environ.get("FUSION_SEED", "0"))
# LLVM's time is most of it: half of the draws do without its optimizations, half have this machine's vectors
TARGETS = (QUICK, llvm_host()["target"])
# of the largest number of a result; a dozen roundings in a row, two or three of them in fixed order
RELATIVE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def run_twice(mod: tvm.IRModule, arguments: list, target: Target) -> list[np.ndarray]:
    """What main returns; AssertionError if a second run returns something else."""
    pipeline = fusion_pipeline(target, variable_bounds={"n": 8})
    main = compile_main(mod, target, pipeline, checked=True)
    first, second = ([result.numpy() for result in main(*arguments)] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b, "the second run differs")
    return first


def error(yours: np.ndarray, exact: np.ndarray) -> float:
    """The largest error relative to the largest number, or to 1 where all are smaller."""
    assert (yours.shape, yours.dtype) == (exact.shape, exact.dtype)
    exact = exact.astype("float64")
    scale = max(1.0, float(np.abs(exact).max(initial=0)))
    return float(np.abs(yours.astype("float64") - exact).max(initial=0)) / scale


@seed(SEED)
@settings(SAME_EVERYWHERE, max_examples=DRAWS)
@given(modules(), st.sampled_from(TARGETS))
def test_never_wrong(drawn: Module, target: Target):
    before = drawn.mod.clone()
    relax.analysis.well_formed(drawn.mod)
    found = run_twice(drawn.mod, drawn.arguments, target)
    assert tvm_ffi.structural_equal(drawn.mod, before), "the pipeline changed the module given"
    numbers = [*drawn.results, *drawn.arguments[1:]]
    allowed = max(RELATIVE[str(array.dtype)] for array in numbers)
    worst = max(error(a, b) for a, b in zip(found, drawn.results, strict=True))
    assert worst <= allowed


def test_the_draws_cover_what_they_are_for():
    """Without these, the property test would prove little. Each version of Hypothesis draws differently."""
    mods: list[tvm.IRModule] = []
    try_draws(lambda drawn: mods.append(drawn.mod), modules(), number=100, part=SEED)
    texts = [mod.script() for mod in mods]
    wanted = ("call_tir_inplace", "if choose", "helper", "call_dps_packed", "float16", "NT_matmul")
    for name in wanted:
        assert any(name in text for text in texts), f"no draw has {name}"
    passes = phases(TARGETS[0])["graph and lower"]
    names = [str(one.info.name) for one in passes]
    passes = passes[: names.index("FuseTransposeMatmul") + 1]
    fused = [tvm.transform.Sequential(passes)(mod) for mod in mods[:40]]
    names = [gvar.name_hint for mod in fused for gvar in mod.get_global_vars()]
    for kernel in ("fuse_add_norm", "NT_matmul"):
        assert sum(name.startswith(kernel) for name in names) > 4, f"too few draws have {kernel}"
