"""A storage that one branch allocates is not there after the other."""

import subprocess
import sys

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.passes.plan_straight_functions import PlanStraightFunctions, has_branch
from chapters.runner.course import ROOT
from tests.ch09.test_phases import Branches
from tests.support.compiled import run_main

LLVM = Target("llvm")
BY_TVM, BY_OURS = "tvm", "ours"


STRAIGHT = relax_module("""
@bare
def main(x: (64, 8)) -> R.Tensor((64, 8), "float32"):
    a = R.nn.softmax(x)
    b = R.nn.softmax(a, axis=0)
    c = R.nn.softmax(b)
    return R.nn.softmax(c, axis=0)
""")["main"]


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x.astype("float64"))
    return powers / powers.sum(axis, keepdims=True)


def run(choose: bool, pipeline) -> float:
    """The largest error of main."""
    x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
    found = run_main(Branches, np.array(choose), x, target=LLVM, pipeline=pipeline)
    exact = softmax(x, -1)
    if choose:
        exact = softmax(softmax(exact, 0), -1)
    for axis in (0, -1, 0):
        exact = softmax(exact, axis)
    return float(np.abs(found - exact).max())


def run_alone(whose: str) -> int:
    """The exit status of a process that takes the second branch."""
    command = [sys.executable, "-m", "tests.kit.test_plan_straight_functions", whose]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=120)
    return done.returncode


def test_ours_survives_the_other_branch():
    assert run_alone(BY_OURS) == 0  # in another process: a fault would end this one


def test_the_release_still_dies():
    """If this fails, TVM's planner was mended: PlanStraightFunctions can go."""
    assert run_alone(BY_TVM) not in (0, 1)  # 1 would be an exception or wrong numbers


def test_only_functions_with_branches_are_left_out():
    names = "LegalizeOps", "ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite"
    passes = [getattr(relax.transform, name)() for name in names]
    both = Branches.clone()
    both["straight"] = STRAIGHT.with_attr("global_symbol", "straight")
    mod = tvm.transform.Sequential(passes)(both)
    assert has_branch(mod["main"]) and not has_branch(mod["straight"])
    planned = PlanStraightFunctions()(mod)
    assert planned["main"].same_as(mod["main"])
    assert planned["straight"].script().count("alloc_storage") == 2
    assert "alloc_storage" not in mod["straight"].script()


if __name__ == "__main__":
    whose = None if sys.argv[1] == BY_OURS else "default_build"
    for taken in (True, False):
        if run(taken, whose) > 1e-6:
            sys.exit(1)
