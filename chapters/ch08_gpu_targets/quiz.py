"""Predict-then-run questions of chapter 8; TVM computes every answer."""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError, dlight
from tvm.target import Target

from chapters.toolkit.earlier import earlier
from chapters.toolkit.gpu.gpu_matmul import matmul_bias
from chapters.toolkit.gpu.launches import HostProgram
from chapters.toolkit.gpu.warp_access import conflicts
from chapters.toolkit.quiz import Question
from solutions.ch08_gpu_targets import gpu_schedules as kernels

CUDA = Target({"kind": "cuda", "arch": "sm_90a"})
TILE = kernels.Tile(64, 64, 16, 4, 4, vector=2)


def _worst(padding: int) -> str:
    func = kernels.shared_matmul(matmul_bias(64, 64, 32), TILE, padding)
    return str(conflicts(func, CUDA)["read B_shared"])


def _barriers(k: int) -> str:
    func = kernels.shared_matmul(matmul_bias(64, 64, k), TILE)
    (kernel,) = HostProgram(func, CUDA).kernels.values()
    return str(kernel.source.count("__syncthreads()"))


def _rule(fused: bool) -> str:
    func = matmul_bias(128, 128, 128, "float32")
    if fused:
        sch, _ = kernels.start_from_bias(func)
        func = sch.mod["main"]
    taken = dlight.gpu.Matmul().apply(func, CUDA, False) is not None
    return "yes" if taken else "no: it declines"


def _shared_reduction() -> str:
    """Chapter 6's primitive, asked to fuse after a reduction loop was bound to threads."""
    sch = Schedule(matmul_bias(16, 16, 64, "float32"))
    sch.bind(sch.get_loops(sch.get_sblock("matmul"))[2], "threadIdx.x")
    try:
        earlier(6).fuse_reduction_epilogue(sch, "matmul", "bias")
    except ScheduleError:
        return "it refuses"
    return "it fuses"


def _too_few_blocks() -> str:
    """300 elements split into two blocks of 32 threads with 4 elements each."""
    sch = Schedule(matmul_bias(10, 30, 4, "float32"))
    loop = sch.fuse(*sch.get_loops(sch.get_sblock("bias")))
    try:
        sch.split(loop, [2, 32, 4])
    except ScheduleError:
        return "split raises a ScheduleError"
    return "44 elements are not computed"


QUESTIONS = [
    Question(
        ask="Rows of 16 float16, not padded; thread x of a warp reads row 4 * x. How many turns does it take?",
        choices=("1", "2", "16"),
        compute=lambda: _worst(0),
        because="Four rows are 32 words, so all 16 rows that a warp reads begin in the same bank.",
    ),
    Question(
        ask="A kernel with tiles in shared memory whose k is a single block: how many barriers does TVM write?",
        choices=("0", "1", "2"),
        compute=lambda: _barriers(16),
        because="Nothing is copied a second time, so only copying and reading must be kept apart.",
    ),
    Question(
        ask="Does dlight's Matmul take a linear layer whose bias was fused before?",
        choices=("yes", "no: it declines", "only in float32"),
        compute=lambda: _rule(fused=True),
        because="It wants two reads, and the bias is a third. Fused first, the layer loses its tensor cores.",
    ),
    Question(
        ask="The reduction loop is bound to threadIdx.x. What does chapter 6's primitive do with the bias?",
        choices=("it fuses", "it refuses", "it adds the bias once for each thread"),
        compute=_shared_reduction,
        because="Each thread would start from the bias, and the threads' sums are added.",
    ),
    Question(
        ask="300 elements, `sch.split(loop, [2, 32, 4])`: 256 places. What happens?",
        choices=(
            "44 elements are not computed",
            "split raises a ScheduleError",
            "a third block is added",
        ),
        compute=_too_few_blocks,
        because="split proves that its factors cover the loop. In a kernel written by hand, nobody does.",
    ),
]
