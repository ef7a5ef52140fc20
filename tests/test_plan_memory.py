"""A storage that one branch allocates is not there after the other."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.target import Target

from chapters.toolkit.pipeline.plan_memory import PlanStraightFunctions, has_branch
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

LLVM = Target("llvm")
BY_TVM, BY_OURS = "tvm", "ours"


@I.ir_module
class Branches:
    @R.function
    def main(choose: R.Tensor((), "bool"), x: R.Tensor((64, 8), "float32")) -> R.Tensor(
        (64, 8), "float32"
    ):
        if choose:
            a = R.nn.softmax(x)
            b = R.nn.softmax(a, axis=0)
            inside = R.nn.softmax(b)
        else:
            inside = R.nn.softmax(x)
        first = R.nn.softmax(inside, axis=0)
        second = R.nn.softmax(first)
        return R.nn.softmax(second, axis=0)

    @R.function
    def straight(x: R.Tensor((64, 8), "float32")) -> R.Tensor((64, 8), "float32"):
        a = R.nn.softmax(x)
        b = R.nn.softmax(a, axis=0)
        c = R.nn.softmax(b)
        return R.nn.softmax(c, axis=0)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x.astype("float64"))
    return powers / powers.sum(axis, keepdims=True)


def run(choose: bool, pipeline) -> float:
    """The largest error of main."""
    x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
    executable = tvm.compile(Branches, LLVM, relax_pipeline=pipeline)
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = main(tvm.runtime.tensor(np.array(choose)), tvm.runtime.tensor(x)).numpy()
    exact = softmax(x, -1)
    if choose:
        exact = softmax(softmax(exact, 0), -1)
    for axis in (0, -1, 0):
        exact = softmax(exact, axis)
    return float(np.abs(found - exact).max())


def run_alone(whose: str) -> int:
    """The exit status of a process that takes the second branch."""
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "tests.test_plan_memory", whose]
    return subprocess.run(
        command, cwd=root, capture_output=True, check=False, timeout=120
    ).returncode


def test_ours_survives_the_other_branch():
    assert run_alone(BY_OURS) == 0  # in a process of its own: a fault would end this one


def test_the_release_still_dies():
    """If this fails, TVM's planner was mended: PlanStraightFunctions can go."""
    assert run_alone(BY_TVM) != 0


def test_only_functions_with_branches_are_left_out():
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    mod = tvm.transform.Sequential(passes)(Branches)
    assert has_branch(mod["main"]) and not has_branch(mod["straight"])
    planned = PlanStraightFunctions()(mod)
    assert planned["main"].same_as(mod["main"])
    assert planned["straight"].script().count("alloc_storage") == 2
    assert "alloc_storage" not in mod["straight"].script()


if __name__ == "__main__":
    whose = fusion_pipeline(LLVM) if sys.argv[1] == BY_OURS else "default_build"
    for taken in (True, False):
        if run(taken, whose) > 1e-6:
            sys.exit(1)
