"""Predict-then-run questions of chapter 6; TVM computes every answer."""

from __future__ import annotations

import numpy as np
from tvm import s_tir

from chapters.kit.cases.example_programs import matmul_bias
from chapters.kit.draw.trace_stores import execute
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier


def _fused(name: str = "ours") -> s_tir.Schedule:
    sch = s_tir.Schedule(matmul_bias(4, 4, 4))
    if name == "ours":
        earlier(6).fuse_reduction_epilogue(sch, "matmul", "bias")
    else:
        sch.fuse_reduction_epilogue("matmul", "bias")
    return sch


def _handle(which: str) -> str:
    sch = s_tir.Schedule(matmul_bias(4, 4, 4))
    handles = {name: sch.get_sblock(name) for name in ("matmul", "bias")}
    earlier(6).fuse_reduction_epilogue(sch, handles["matmul"], handles["bias"])
    try:
        return f"the fused block, called {sch.get(handles[which]).name_hint}"
    except Exception:
        return "an error"


def _allocations_of_the_built_in() -> str:
    sch = _fused("built-in")
    return str(len(sch.get(sch.get_sblock("root")).alloc_buffers))


def _reads_of_the_update() -> str:
    sch = _fused()
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    block = sch.get(sch.get_sblock("matmul_update"))
    return ", ".join(region.source.name for region in block.reads)


def _sixteen_bits() -> str:
    """2048 + 1 + 1 + 1 + 1 in float16, the 2048 first and the 2048 last."""
    ones, bias = [np.float16(1)] * 4, np.float16(2048)
    first, last = bias, np.float16(0)
    for one in ones:
        first, last = np.float16(first + one), np.float16(last + one)
    return f"{int(first)} and {int(np.float16(last + bias))}"


def _reads_and_writes() -> str:
    """How often the fused program reads an element of C and writes one of D, in a product of one element."""
    sch = s_tir.Schedule(matmul_bias(1, 1, 64))
    earlier(6).fuse_reduction_epilogue(sch, "matmul", "bias")
    shapes = {"A": (1, 64), "B": (1, 64), "C": (1, 1), "D": (1, 1)}
    stores = execute(sch.mod["main"], {name: np.ones(shape) for name, shape in shapes.items()})
    read = sum(one.buffer == "C" for store in stores for one in store.reads)
    return f"{read} and {sum(store.wrote.buffer == 'D' for store in stores)}"


PREDICT = [
    Question(
        ask="After the fusion, how often is an element of the bias read, and how often is an element of `D` written?",
        choices=("1 and 1", "1 and 64", "1 and 65", "64 and 64"),
        compute=_reads_and_writes,
        because="The bias is read once, when the sum starts from it. `D` now holds the partial sums, so it is written "
        "once at the start, and then at each of the 64 steps.",
    ),
]

QUESTIONS = [
    Question(
        ask="After `fuse_reduction_epilogue(sch, mm, bias)`, what does `sch.get(mm)` give?",
        choices=("the fused block, called matmul", "the fused block, called bias", "an error"),
        compute=lambda: _handle("matmul"),
        because="The dict for `replace` says that the fused block continues the reduction, so the handle stays valid.",
    ),
    Question(
        ask="And `sch.get(bias)`?",
        choices=("the fused block, called matmul", "the fused block, called bias", "an error"),
        compute=lambda: _handle("bias"),
        because="The dict names no block that continues the epilogue, so its reference is dead.",
    ),
    Question(
        ask="The built-in fuses the same two blocks. How many buffers does its root block allocate afterwards?",
        choices=("0", "1", "2"),
        compute=_allocations_of_the_built_in,
        because="It leaves `temp` allocated, although no block uses it. Ours removes it.",
    ),
    Question(
        ask="Fused and then decomposed: which buffers does the update block declare to read?",
        show=lambda: _fused().mod["main"].script(),
        choices=("D, A, B", "C, A, B", "D, C, A, B"),
        compute=_reads_of_the_update,
        because="`decompose_reduction` keeps all reads of the block, the bias too. `refresh_regions` corrects this.",
    ),
    Question(
        ask="In float16, add 1 four times and a bias of 2048. What is the sum with the bias first, and with it last?",
        choices=("2052 and 2052", "2048 and 2052", "2052 and 2048"),
        compute=_sixteen_bits,
        because="From 2048 on, float16 has only even numbers: 2048 + 1 is rounded to 2048, four times. See chapter 7.",
    ),
]
