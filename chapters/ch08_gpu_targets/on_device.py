"""The exercises of chapter 8 whose kernel runs on a device: `python -m chapters check 8.4 --device cuda`.

Each kernel is made of one exercise's answer and of the reference's other steps, so each exercise runs alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tvm.s_tir import Schedule
from tvm.script import tirx as T

from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile
from chapters.kit.bench.on_device import Linear, OnDevice, ScaledSum
from chapters.kit.gpu.gpu_matmul import matmul_bias
from solutions.ch08_gpu_targets import gpu_schedules as reference

SIDE, SLOW_SIDE = (
    1024,
    256,
)  # of the layer that is timed; the second where a CPU stands in for the GPU
MOST_THREADS = 1024
NVIDIA = "it uses instructions of NVIDIA GPUs, so it needs --device cuda"
LAYERS = [
    (Linear(32, 64, 24), ThreadTile(16, 32, 8, 2, 4)),
    (Linear(8, 24, 16), ThreadTile(4, 12, 8, 1, 6)),
    (Linear(8, 16, 8), ThreadTile(4, 8, 4, 1, 1)),
]
COPIED = [(Linear(32, 64, 32), ThreadTile(16, 32, 16, 2, 4, 2)), *LAYERS[:1]]


def scaled_sum(problem: ScaledSum):
    """D = A + B * B, not yet scheduled; its block is called `sum`."""
    shape, dtype = (problem.rows, problem.columns), problem.dtype

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer(shape, dtype), B: T.Buffer(shape, dtype), D: T.Buffer(shape, dtype)):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(*shape):
            with T.sblock("sum"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] + B[vi, vj] * B[vi, vj]

    return main.with_attr("global_symbol", "main")


def _bound(answer, problem: ScaledSum, cut: tuple[int, int]):
    sch = Schedule(scaled_sum(problem))
    answer.bind_elementwise(sch, sch.get_sblock("sum"), *cut)
    return sch.mod["main"]


def _layer(kernel: str, *steps: str) -> Callable:
    """func of OnDevice: the method `kernel` of the chapter's Kernels, with `steps` of the answer."""

    def func(answer, problem: Linear, tile):
        own = {step: getattr(answer, step) for step in steps}
        kernels = dataclasses.replace(reference.KERNELS, **own)
        layer = matmul_bias(problem.m, problem.n, problem.k, problem.dtype)
        return getattr(kernels, kernel)(layer, tile)

    return func


def _decode(answer, problem: Linear, _tile):
    return answer.decode_matmul(problem.n, problem.k, problem.dtype)


def _thread_tile(numbers: Sequence[int]) -> ThreadTile:
    if len(numbers) not in (5, 6):
        raise ValueError(
            "a tile is block_m,block_n,block_k,thread_m,thread_n and, if wanted, vector"
        )
    return _sound(ThreadTile(*numbers), math.prod(numbers) > 0 and min(numbers) > 0)


def _warp_tile(numbers: Sequence[int]) -> WarpTile:
    if len(numbers) not in (5, 6):
        raise ValueError("a tile is block_m,block_n,block_k,warp_m,warp_n and, if wanted, vector")
    if any(one % 16 for one in numbers[:5]):
        raise ValueError("the first five numbers of this tile must be multiples of 16")
    return _sound(WarpTile(*numbers), min(numbers) > 0)


def _sound(tile, positive: bool):
    own = (
        (tile.thread_m, tile.thread_n)
        if isinstance(tile, ThreadTile)
        else (tile.warp_m, tile.warp_n)
    )
    if not positive:
        raise ValueError("the numbers of a tile must be 1 or more")
    if tile.block_m % own[0] or tile.block_n % own[1]:
        raise ValueError(
            "the fourth number of a tile must divide the first, and the fifth the second"
        )
    if math.prod(tile.threads) > MOST_THREADS:
        raise ValueError(
            f"this tile needs blocks of {math.prod(tile.threads)} threads, and {MOST_THREADS} are allowed"
        )
    return tile


def _elements(numbers: Sequence[int]) -> tuple[int, int]:
    if len(numbers) != 2 or min(numbers) < 1 or numbers[0] > MOST_THREADS:
        raise ValueError(
            f"a tile of this exercise is threads,vector: 1 to {MOST_THREADS}, and 1 or more"
        )
    return numbers[0], numbers[1]


def _square(dtype: str) -> Callable:
    """large of OnDevice: a square layer whose sides are whole blocks."""

    def large(tile, slow: bool) -> Linear:
        side = SLOW_SIDE if slow else SIDE
        blocks = tile.block_m, tile.block_n, tile.block_k
        return Linear(*(math.ceil(side / block) * block for block in blocks), dtype)

    return large


TILED = {
    "large": _square("float32"),
    "tile": ThreadTile(64, 64, 16, 4, 4),
    "read_tile": _thread_tile,
}
EXERCISES = {
    "8.2": OnDevice(
        _bound,
        [(ScaledSum(10, 30), (32, 4)), (ScaledSum(3, 64), (64, 2))],
        lambda cut, slow: ScaledSum(SIDE if slow else 4 * SIDE, 4 * SIDE),
        tile=(256, 4),
        read_tile=_elements,
    ),
    "8.4": OnDevice(_layer("naive_matmul", "tile_and_bind"), LAYERS, **TILED),
    "8.5": OnDevice(
        _layer("shared_matmul", "row_padding", "stage_in_shared"), COPIED, on_cpu=False, **TILED
    ),
    "8.7": OnDevice(
        _layer("pipelined_matmul", "overlap_copies"), COPIED, only=("cuda", NVIDIA), **TILED
    ),
    "8.10": OnDevice(
        _decode,
        [(Linear(1, 12, 512), None), (Linear(1, 5, 256), None)],
        lambda _tile, slow: Linear(1, *([SIDE if slow else 4 * SIDE] * 2)),
        on_cpu=False,
    ),
    "8.11": OnDevice(
        _layer("tensor_core_matmul", "bias_fragment"),
        [(Linear(64, 128, 64, dtype), None) for dtype in ("float16", "bfloat16")],
        large=_square("float16"),
        tile=WarpTile(),
        read_tile=_warp_tile,
        only=("cuda", NVIDIA),
    ),
}
