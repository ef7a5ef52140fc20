"""Predict-then-run questions of chapter 4; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.ch04_add_rms_norm.as_upstream import FuseAsUpstream
from chapters.ch04_add_rms_norm.given import plan_threads
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.targets import CUDA
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

LAYER = relax_module("""
def main(
    x: ("n", 1, 4096, "float16"), residual: ("n", 1, 4096, "float16"), weight: (4096, "float16")
):
    total = R.add(x, residual)
    norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
    again = R.add(norm, total)
    last = R.nn.rms_norm(again, weight, axes=[-1], epsilon=1e-5)
    return (last, again)
""")

SEQUENCES = relax_module("""
def main(x: (4, 3, 64, "float16"), residual: (4, 3, 64, "float16"), weight: (64, "float16")):
    norm = R.nn.rms_norm(R.add(x, residual), weight, axes=[-1], epsilon=1e-5)
""")


def _kernels_of_a_pipeline() -> str:
    """How many CUDA kernels TVM's own pipeline makes of one pair."""
    with CUDA:
        executable = tvm.compile(SEQUENCES, target=CUDA)
    source = executable.mod.imports[0].imports[0].inspect_source()
    return str(source.count('extern "C" __global__') // 2)  # a declaration and a definition each


def _two_layers() -> tvm.IRModule:
    return earlier(4).FuseAddRMSNorm(CUDA)(LAYER)


def _kernels_of_two_layers() -> int:
    return sum(isinstance(f, tvm.tirx.PrimFunc) for f in _two_layers().functions.values())


def _upstream_on_sequences() -> str:
    fused = FuseAsUpstream()(SEQUENCES)
    if not relax.analysis.check_well_formed(fused):
        return "a module that is not well-formed"
    return "a module that runs"


def _crossings() -> str:
    """How often a tensor crosses the memory bus, before and after the pass."""
    tensor = 512 * 4096 * 2
    before, after = earlier(4).bytes_moved(unfused_add_norm((1, 512, 4096)), CUDA, {})
    return f"{before // tensor} and {after // tensor}"  # the weight, a single row, is the remainder


PREDICT = [
    Question(
        ask="How many times does a tensor of (1, 512, 4096) cross the memory bus, on the left and on the right?",
        choices=("4 and 3", "5 and 4", "6 and 4"),
        compute=_crossings,
        because="Unfused, add reads two tensors and writes the sum, and rms_norm reads the sum and writes its result. "
        "In the fused kernel the sum is still written, but not read back.",
    ),
]

QUESTIONS = [
    Question(
        ask="TVM's default pipeline fuses operators by itself. How many CUDA kernels does it make of this add and "
        "norm?",
        show=SEQUENCES.script,
        choices=("1", "2", "3"),
        compute=_kernels_of_a_pipeline,
        because="FuseOps moves an add into a plain sum that follows it. But rms_norm has pattern kind 4, like a "
        "matmul. FuseOps moves into such a kernel only what comes after it, and this add comes before.",
    ),
    Question(
        ask="This main has two pairs, with equal shapes and epsilons. How many kernels does the module have after "
        "FuseAddRMSNorm?",
        show=LAYER.script,
        choices=("1", "2", "4"),
        compute=_kernels_of_two_layers,
        because="Both pairs have the same key, so the second pair uses the kernel of the first.",
    ),
    Question(
        ask="After the pass, how many kernel launches does one call of that main make?",
        choices=("1", "2", "4"),
        compute=lambda: earlier(1).launches(_two_layers())["main"],
        because="One per pair. A kernel is code that the module has once; a launch is one use of it.",
    ),
    Question(
        ask="A row has 1000 float16 elements, and a block may have 1024 threads. How many threads does plan_threads "
        "give to a row?",
        choices=("32", "64", "128", "1024"),
        compute=lambda: plan_threads(1000, "float16", 1024).threads,
        because="With eight elements per load, a row has 125 vectors. Each of them gets a thread, and threads come in "
        "whole warps. So a row has four warps, and three threads of the last one are idle.",
    ),
    Question(
        ask="FuseAsUpstream asks only whether the first dimension is 1. What does it make of tensors of (4, 3, 64)?",
        show=SEQUENCES.script,
        choices=("a module that runs", "a module that is not well-formed", "the same module"),
        compute=_upstream_on_sequences,
        because="The first dimension is not 1, so the pass calls the decode kernel, which is written for (n, 1, 64). "
        "The second dimension does not fit.",
    ),
]
