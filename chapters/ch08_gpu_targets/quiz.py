"""Predict-then-run questions of chapter 8; TVM computes every answer."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule, dlight

from chapters.ch08_gpu_targets.given import ThreadTile, start_from_bias
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul, shared_matmul
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.kernel_report import occupancy
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import bytes_moved, conflicts
from chapters.kit.quiz import Question, outcome
from chapters.runner.earlier import earlier

TILE = ThreadTile(64, 64, 16, 4, 4, vector=2)


def _cycles_without_padding() -> int:
    func = shared_matmul(linear_bias(64, 64, 32), TILE, 0)
    return conflicts(func, CUDA)["read B_shared"]


def _barriers_of_one_block_of_k() -> str:
    func = shared_matmul(linear_bias(64, 64, 16), TILE)
    (kernel,) = HostProgram(func, CUDA).kernels.values()
    return str(kernel.source.count("__syncthreads()"))


def _rule_on_a_fused_layer() -> str:
    sch, _ = start_from_bias(linear_bias(128, 128, 128, "float32"))
    taken = dlight.gpu.Matmul().apply(sch.mod["main"], CUDA, False)
    return "no: it declines" if taken is None else "yes"


def _shared_reduction() -> str:
    """What chapter 6's primitive does after a reduction loop was bound to threads."""
    sch = Schedule(linear_bias(16, 16, 64, "float32"))
    sch.bind(sch.get_loops(sch.get_sblock("matmul"))[2], "threadIdx.x")
    fuse = earlier(6).fuse_reduction_epilogue
    return outcome(lambda: fuse(sch, "matmul", "bias"), "it fuses", "it refuses")


def _too_few_blocks() -> str:
    """300 elements split into two blocks of 32 threads with 4 elements each."""
    sch = Schedule(linear_bias(10, 30, 4, "float32"))
    loop = sch.fuse(*sch.get_loops(sch.get_sblock("bias")))
    said = "44 elements are not computed", "split raises a ScheduleError"
    return outcome(lambda: sch.split(loop, [2, 32, 4]), *said)


def _loaded(func: tirx.PrimFunc) -> int:
    """The bytes of A and B that all threads of a kernel load together."""
    moved = bytes_moved(func, CUDA)
    return moved["A"] + moved["B"]


def _with_tiles_of_16() -> str:
    layer, tile = linear_bias(64, 64, 64), ThreadTile(16, 16, 16, 1, 1)
    less = _loaded(naive_matmul(layer, tile)) / _loaded(shared_matmul(layer, tile))
    return {2: "half of them", 16: "a sixteenth"}.get(less, "1 in 256")


def _with_a_larger_tile() -> str:
    small, large = (
        _loaded(shared_matmul(linear_bias(128, 128, 16), ThreadTile(edge, edge, 16, 4, 4)))
        for edge in (64, 128)
    )
    return {1: "as many", 2: "half as many", 4: "a quarter"}.get(small / large, "more")


def _with_one_more_register() -> str:
    return f"{occupancy(Resources(registers=33), 1024, 'sm_90a'):.0%}".replace("%", " %")


PREDICT = [
    Question(
        ask="m, n and k are 64. The naive kernel has blocks of 16 x 16 threads, and each thread computes one element "
        "of D. Now each block loads what its tile of D needs only once. How many of the bytes of A and B are still "
        "loaded?",
        choices=("half of them", "a sixteenth", "1 in 256"),
        compute=_with_tiles_of_16,
        because="In the naive kernel, each of the 256 threads of a block loads a row of A and a row of B. But their "
        "tile needs only 16 rows of each.",
    ),
    Question(
        ask="A block's tile of D gets twice as many rows and twice as many columns. How many bytes do all blocks "
        "together load then?",
        choices=("a quarter", "half as many", "as many", "more"),
        compute=_with_a_larger_tile,
        because="There are a quarter as many blocks, and each of them needs twice as many rows of A and twice as many "
        "columns of B.",
    ),
]

QUESTIONS = [
    Question(
        ask="A tile in shared memory has rows of 16 float16, without padding. In a block of 16 x 16 threads, the "
        "threads with threadIdx.x = x read row 4 * x. How many cycles does a read of one warp take?",
        choices=("1", "2", "16"),
        compute=_cycles_without_padding,
        because="A row is 8 words of 4 bytes, so four rows are 32 words. All 16 rows that the warp reads begin in the "
        "same bank. A warp has two rows of this block's threads. The second one reads the same words as the first, "
        "which costs nothing.",
    ),
    Question(
        ask="A kernel has tiles in shared memory, and its k is a single piece. How many barriers does TVM write?",
        choices=("0", "1", "2"),
        compute=_barriers_of_one_block_of_k,
        because="One barrier separates the copy from the reads. A second copy would need another one; here there is "
        "none.",
    ),
    Question(
        ask="A linear layer's bias is fused first. Does dlight's Matmul rule then schedule the layer?",
        choices=("no: it declines", "yes", "only in float32"),
        compute=_rule_on_a_fused_layer,
        because="The rule expects two operands, and the bias is a third one. So a layer that is fused first does not "
        "reach tensor cores by this rule.",
    ),
    Question(
        ask="A reduction loop is bound to threadIdx.x. What does chapter 6's primitive do with the bias?",
        choices=("it fuses", "it adds the bias once for each thread", "it refuses"),
        compute=_shared_reduction,
        because="Each thread would start from the bias, and the result would have it once per thread.",
    ),
    Question(
        ask="A loop has 300 iterations. What does `sch.split(loop, [2, 32, 4])` do, whose product is 256?",
        choices=("44 elements are not computed", "split raises a ScheduleError", "it adds a block"),
        compute=_too_few_blocks,
        because="`split` refuses factors that do not cover the loop. If you write a kernel by hand, nothing checks "
        "that.",
    ),
    Question(
        ask="On sm_90a, a kernel has blocks of 1024 threads and 32 registers per thread, and its occupancy is 100 %. "
        "After a change, a thread needs 33 registers. What is the occupancy now?",
        choices=("97 %", "75 %", "50 %"),
        compute=_with_one_more_register,
        because="A warp gets registers in portions of 256, so 33 registers per thread cost as much as 40. There are "
        "registers for 51 warps, and 48 can be used. But a block has 32 warps, and only whole blocks are resident.",
    ),
]
