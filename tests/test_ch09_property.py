"""An adversary for the whole pipeline: random Relax modules, compiled and run twice, wrong numbers allowed: none.

Modules have symbolic sizes, aliases, tuples, constants, branches, private functions, packed functions, kernels of their
own and updates in place, in three floating-point types. The numbers are NumPy's. `FUSION_DRAWS=1000 pytest
tests/test_ch09_property.py` draws more, `FUSION_FIRST_DRAW=5000` others.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.target import Target

from chapters.toolkit.machine import llvm_host
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases
from tests.property.relax_modules import draw

DRAWS = int(os.environ.get("FUSION_DRAWS", "40"))
FIRST = int(os.environ.get("FUSION_FIRST_DRAW", "0"))
PER_TEST = 10
# LLVM's time is most of it: half of the draws do without its optimisations, half have this machine's vectors
TARGETS = (Target({"kind": "llvm", "opt-level": 0}), Target(llvm_host()["target"]))
# of the largest number of a result; a dozen roundings in a row, two or three of them in fixed order
RELATIVE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


def run_twice(mod: tvm.IRModule, arguments: list, target: Target) -> list[np.ndarray]:
    """What main returns; AssertionError if a second run returns something else."""
    pipeline = fusion_pipeline(target, variable_bounds={"n": 8})
    main = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=pipeline), tvm.cpu())[
        "main"
    ]
    first, second = (
        [result.numpy() for result in main(*[tvm.runtime.tensor(a) for a in arguments])]
        for _ in range(2)
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b, "the second run differs")
    return first


def error(yours: np.ndarray, exact: np.ndarray) -> float:
    """The largest error relative to the largest number, or to 1 where all are smaller."""
    assert (yours.shape, yours.dtype) == (exact.shape, exact.dtype)
    exact = exact.astype("float64")
    scale = max(1.0, float(np.abs(exact).max(initial=0)))
    return float(np.abs(yours.astype("float64") - exact).max(initial=0)) / scale


def one_draw(seed: int) -> None:
    """Draw, compile, run, compare."""
    drawn, target = draw(seed), TARGETS[seed % 2]
    before = drawn.mod.clone()
    relax.analysis.well_formed(drawn.mod)
    found = run_twice(drawn.mod, drawn.arguments, target)
    assert tvm_ffi.structural_equal(drawn.mod, before), "the pipeline changed the module given"
    numbers = [*drawn.results, *drawn.arguments[1:]]
    allowed = max(RELATIVE[str(array.dtype)] for array in numbers)
    worst = max(error(a, b) for a, b in zip(found, drawn.results, strict=True))
    assert worst <= allowed, f"draw {seed}: off by {worst}\n{drawn.mod.script()}"


@pytest.mark.parametrize("start", range(FIRST, FIRST + DRAWS, PER_TEST))
def test_never_wrong(start):
    for seed in range(start, start + PER_TEST):
        one_draw(seed)


def test_the_draws_cover_what_they_are_for():
    """The property test would prove little if one of these were never drawn."""
    texts = [draw(seed).mod.script() for seed in range(40)]
    wanted = ("call_tir_inplace", "if choose", "helper", "call_dps_packed", "float16", "NT_matmul")
    for name in wanted:
        assert any(name in text for text in texts), f"no draw has {name}"
    mods = [draw(seed).mod for seed in range(20)]
    passes = phases(TARGETS[0])["graph and lower"][:3]
    fused = [tvm.transform.Sequential(passes)(mod) for mod in mods]
    names = [gvar.name_hint for mod in fused for gvar in mod.get_global_vars()]
    for kernel in ("fuse_add_norm", "NT_matmul"):
        assert sum(name.startswith(kernel) for name in names) > 4, f"too few draws have {kernel}"
