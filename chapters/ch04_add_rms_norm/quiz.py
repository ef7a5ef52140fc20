"""Predict-then-run questions of chapter 4; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.target import Target

from chapters.ch04_add_rms_norm.as_upstream import FuseAsUpstream
from chapters.toolkit.earlier import earlier
from chapters.toolkit.quiz import Question

CUDA = Target({"kind": "cuda", "arch": "sm_90a"})


@I.ir_module
class Layer:
    @R.function
    def main(
        x: R.Tensor(("n", 1, 4096), "float16"),
        residual: R.Tensor(("n", 1, 4096), "float16"),
        weight: R.Tensor((4096,), "float16"),
    ):
        with R.dataflow():
            total = R.add(x, residual)
            norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
            again = R.add(norm, total)
            last = R.nn.rms_norm(again, weight, axes=[-1], epsilon=1e-5)
            R.output(last, again)
        return (last, again)


@I.ir_module
class Sequences:
    @R.function
    def main(
        x: R.Tensor((4, 3, 64), "float16"),
        residual: R.Tensor((4, 3, 64), "float16"),
        weight: R.Tensor((64,), "float16"),
    ):
        with R.dataflow():
            norm = R.nn.rms_norm(R.add(x, residual), weight, axes=[-1], epsilon=1e-5)
            R.output(norm)
        return norm


def _kernels_of_a_pipeline() -> str:
    """How many CUDA kernels TVM's own pipeline makes of one pair."""
    with CUDA:
        executable = tvm.compile(Sequences, target=CUDA)
    source = executable.mod.imports[0].imports[0].inspect_source()
    return str(source.count('extern "C" __global__') // 2)  # a declaration and a definition each


def _kernels_of_two_layers() -> str:
    fused = earlier(4).FuseAddRMSNorm(CUDA)(Layer)
    return str(sum(isinstance(f, tvm.tirx.PrimFunc) for f in fused.functions.values()))


def _launches_of_two_layers() -> str:
    fused = earlier(4).FuseAddRMSNorm(CUDA)(Layer)
    return str(earlier(1).launches(fused)["main"])


def _threads_for_1000() -> str:
    return str(earlier(4).plan_threads(1000, "float16", 1024).threads)


def _upstream_on_sequences() -> str:
    fused = FuseAsUpstream()(Sequences)
    if not relax.analysis.check_well_formed(fused):
        return "a module that is not well-formed"
    return "a module that runs"


QUESTIONS = [
    Question(
        ask="TVM's default pipeline fuses operators by itself. How many CUDA kernels does it make of this pair?",
        show=lambda: Sequences.script(),
        choices=("1", "2", "3"),
        compute=_kernels_of_a_pipeline,
        because="rms_norm contains a reduction, and FuseOps does not put an add in front of one. This pass has to.",
    ),
    Question(
        ask="main has two pairs, with equal shapes and epsilons. How many kernels are in the module after the pass?",
        show=lambda: Layer.script(),
        choices=("1", "2", "4"),
        compute=_kernels_of_two_layers,
        because="Both pairs have the same key, so the second is given the first one's kernel.",
    ),
    Question(
        ask="And how many launches does one call of that main make, after the pass?",
        choices=("1", "2", "4"),
        compute=_launches_of_two_layers,
        because="One a pair: a kernel in the module is code, a launch is a use of it.",
    ),
    Question(
        ask="A row has 1000 float16 elements. How many threads does the plan give it, if a block may have 1024?",
        choices=("32", "64", "128", "1024"),
        compute=_threads_for_1000,
        because="Eight elements a load make 125 vectors. At four a thread, as in the reference, one warp holds them; "
        "a plan of your own with fewer each takes more.",
    ),
    Question(
        ask="What does FuseAsUpstream, which asks only whether the first dimension is 1, make of (4, 3, 64)?",
        show=lambda: Sequences.script(),
        choices=(
            "a module that runs",
            "a module that is not well-formed",
            "the same module: it finds no pair",
        ),
        compute=_upstream_on_sequences,
        because="It takes 4 for a batch of decode steps, and hands (4, 3, 64) to a kernel written for (n, 1, 64).",
    ),
]
