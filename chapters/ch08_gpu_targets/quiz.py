"""Predict-then-run questions of chapter 8; TVM computes every answer."""

from __future__ import annotations

from tvm.s_tir import Schedule, dlight

from chapters.ch08_gpu_targets.given import ThreadTile, start_from_bias
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import conflicts
from chapters.kit.quiz import Question, outcome
from chapters.runner.earlier import earlier

TILE = ThreadTile(64, 64, 16, 4, 4, vector=2)


def _cycles_without_padding() -> int:
    func = earlier(8).shared_matmul(matmul_bias(64, 64, 32), TILE, 0)
    return conflicts(func, CUDA)["read B_shared"]


def _barriers_of_one_block_of_k() -> str:
    func = earlier(8).shared_matmul(matmul_bias(64, 64, 16), TILE)
    (kernel,) = HostProgram(func, CUDA).kernels.values()
    return str(kernel.source.count("__syncthreads()"))


def _rule_on_a_fused_layer() -> str:
    sch, _ = start_from_bias(matmul_bias(128, 128, 128, "float32"))
    taken = dlight.gpu.Matmul().apply(sch.mod["main"], CUDA, False)
    return "no: it declines" if taken is None else "yes"


def _shared_reduction() -> str:
    """Chapter 6's primitive, asked to fuse after a reduction loop was bound to threads."""
    sch = Schedule(matmul_bias(16, 16, 64, "float32"))
    sch.bind(sch.get_loops(sch.get_sblock("matmul"))[2], "threadIdx.x")
    fuse = earlier(6).fuse_reduction_epilogue
    return outcome(lambda: fuse(sch, "matmul", "bias"), "it fuses", "it refuses")


def _too_few_blocks() -> str:
    """300 elements split into two blocks of 32 threads with 4 elements each."""
    sch = Schedule(matmul_bias(10, 30, 4, "float32"))
    loop = sch.fuse(*sch.get_loops(sch.get_sblock("bias")))
    said = "44 elements are not computed", "split raises a ScheduleError"
    return outcome(lambda: sch.split(loop, [2, 32, 4]), *said)


QUESTIONS = [
    Question(
        ask="Rows of 16 float16, not padded. In a block of 16 x 16 threads, those with threadIdx.x = x read row 4 * x. "
        "How many cycles does a warp's access take?",
        choices=("1", "2", "16"),
        compute=_cycles_without_padding,
        because="Four rows are 32 words, so all 16 rows that a warp reads begin in the same bank. A warp is two rows "
        "of this block; its second row of threads reads the same words, which costs nothing more.",
    ),
    Question(
        ask="A kernel with tiles in shared memory whose k is a single block: how many barriers does TVM write?",
        choices=("0", "1", "2"),
        compute=_barriers_of_one_block_of_k,
        because="One barrier separates the copy from the reads. There is no second copy, which would need another.",
    ),
    Question(
        ask="Does dlight's Matmul rule schedule a linear layer whose bias was fused before?",
        choices=("yes", "no: it declines", "only in float32"),
        compute=_rule_on_a_fused_layer,
        because="The rule expects two operands; the bias is a third. A layer fused first loses its tensor cores.",
    ),
    Question(
        ask="The reduction loop is bound to threadIdx.x. What does chapter 6's primitive do with the bias?",
        choices=("it fuses", "it refuses", "it adds the bias once for each thread"),
        compute=_shared_reduction,
        because="Each thread would start from the bias. TVM adds up threads' sums only if they start from 0.",
    ),
    Question(
        ask="300 elements, `sch.split(loop, [2, 32, 4])`, which is 256 iterations. What happens?",
        choices=("44 elements are not computed", "split raises a ScheduleError", "it adds a block"),
        compute=_too_few_blocks,
        because="split proves that its factors cover the loop. In a kernel written by hand, there is no such check.",
    ),
]
