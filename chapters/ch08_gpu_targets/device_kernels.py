"""The exercises of chapter 8 whose kernel runs on a device: `python -m chapters check 8.4 --device cuda`.

Each kernel is made of one exercise's answer and of the reference's other steps, so each exercise runs alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.measure.exercise_kernels import DeviceKernel
from solutions.ch08_gpu_targets import gpu_schedules as reference

# of the layer that is timed; the second where a CPU stands in for the GPU
SIDE, SLOW_SIDE = 1024, 256
MOST_THREADS = 1024
ONLY_NVIDIA = "it uses instructions of NVIDIA GPUs, so it needs --device cuda"
NVIDIA = dict.fromkeys(("metal", "vulkan", "llvm"), ONLY_NVIDIA)
GPU = {"llvm": "its threads share memory, and on a CPU they would run one after the other"}


@dataclass(frozen=True)
class Linear(Layer):
    """D = A @ B.T + C for A (m, k), B (n, k) of `dtype`, C (n,) and D (m, n) of float32."""

    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.m} × {self.n} × {self.k} {self.dtype}"

    @property
    def least_bytes(self) -> int:
        return self.bytes_moved("float32")

    def arrays(self, seed: int) -> list[np.ndarray]:
        drawn = np.random.default_rng(seed)
        a, b = (
            drawn.standard_normal((rows, self.k), dtype="float32").astype(self.dtype)
            for rows in (self.m, self.n)
        )
        c = (3 + 5 * drawn.random(self.n)).astype("float32")
        return [a, b, c, np.full((self.m, self.n), np.nan, "float32")]

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        a, b, c = (array.astype("float64") for array in arrays[:3])
        return a @ b.T + c

    def by_torch(self, a, b, c):
        from torch.nn import functional

        return functional.linear(a, b, c)


@dataclass(frozen=True)
class ScaledSum:
    """D = A + B * B, element by element, all of shape (rows, columns)."""

    rows: int
    columns: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.rows} × {self.columns} {self.dtype}"

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.columns

    @property
    def least_bytes(self) -> int:
        return 3 * self.rows * self.columns * np.dtype(self.dtype).itemsize

    def arrays(self, seed: int) -> list[np.ndarray]:
        drawn, shape = np.random.default_rng(seed), (self.rows, self.columns)
        a, b = (drawn.standard_normal(shape, dtype="float32").astype(self.dtype) for _ in "ab")
        return [a, b, np.full(shape, np.nan, self.dtype)]

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        a, b = (array.astype("float64") for array in arrays[:2])
        return a + b * b

    def by_torch(self, a, b):
        return a.addcmul(b, b)


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
    """func of DeviceKernel: the method `kernel` of the chapter's Kernels, with `steps` of the answer."""

    def func(answer, problem: Linear, tile):
        changed = {step: getattr(answer, step) for step in steps}
        kernels = dataclasses.replace(reference.KERNELS, **changed)
        layer = matmul_bias(problem.m, problem.n, problem.k, problem.dtype)
        return getattr(kernels, kernel)(layer, tile)

    return func


def _decode(answer, problem: Linear, _tile):
    return answer.decode_matmul(problem.n, problem.k, problem.dtype)


def _read_tile(kind: type, numbers: Sequence[int]) -> ThreadTile | WarpTile:
    """A ThreadTile or WarpTile of these numbers. Raises ValueError, which says what it takes."""
    names = [field.name for field in dataclasses.fields(kind)]
    if len(numbers) not in (5, 6):
        raise ValueError(f"a tile is {','.join(names[:5])} and, if wanted, {names[5]}")
    if min(numbers) < 1:
        raise ValueError("the numbers of a tile must be 1 or more")
    if kind is WarpTile and any(one % 16 for one in numbers[:5]):
        raise ValueError("the first five numbers of this tile must be multiples of 16")
    tile = kind(*numbers)
    if numbers[0] % numbers[3] or numbers[1] % numbers[4]:
        raise ValueError(
            "the fourth number of a tile must divide the first, and the fifth the second"
        )
    if (threads := math.prod(tile.threads)) > MOST_THREADS:
        raise ValueError(
            f"this tile needs blocks of {threads} threads, and {MOST_THREADS} are allowed"
        )
    return tile


def _read_cut(numbers: Sequence[int]) -> tuple[int, int]:
    if len(numbers) != 2 or min(numbers) < 1 or numbers[0] > MOST_THREADS:
        raise ValueError(
            f"a tile of this exercise is threads,vector: 1 to {MOST_THREADS}, and 1 or more"
        )
    return numbers[0], numbers[1]


def _square(dtype: str) -> Callable:
    """large of DeviceKernel: a square layer whose sides are whole blocks."""

    def large(tile, slow: bool) -> Linear:
        side = SLOW_SIDE if slow else SIDE
        blocks = tile.block_m, tile.block_n, tile.block_k
        return Linear(*(math.ceil(side / block) * block for block in blocks), dtype)

    return large


LAYERS = [
    (Linear(32, 64, 24), ThreadTile(16, 32, 8, 2, 4)),
    (Linear(8, 24, 16), ThreadTile(4, 12, 8, 1, 6)),
    (Linear(8, 16, 8), ThreadTile(4, 8, 4, 1, 1)),
]
COPIED = [(Linear(32, 64, 32), ThreadTile(16, 32, 16, 2, 4, 2)), *LAYERS[:1]]
TILED = {
    "large": _square("float32"),
    "tile": ThreadTile(64, 64, 16, 4, 4),
    "read_tile": functools.partial(_read_tile, ThreadTile),
}
KERNELS = {
    "8.2": DeviceKernel(
        _bound,
        [(ScaledSum(10, 30), (32, 4)), (ScaledSum(3, 64), (64, 2))],
        lambda cut, slow: ScaledSum(SIDE if slow else 4 * SIDE, 4 * SIDE),
        tile=(256, 4),
        read_tile=_read_cut,
    ),
    "8.4": DeviceKernel(_layer("naive_matmul", "tile_and_bind"), LAYERS, **TILED),
    "8.5": DeviceKernel(
        _layer("shared_matmul", "row_padding", "stage_in_shared"), COPIED, cannot=GPU, **TILED
    ),
    "8.7": DeviceKernel(
        _layer("pipelined_matmul", "overlap_copies"), COPIED, cannot=NVIDIA, **TILED
    ),
    "8.10": DeviceKernel(
        _decode,
        [(Linear(1, 12, 512), None), (Linear(1, 5, 256), None)],
        lambda _tile, slow: Linear(1, *([SIDE if slow else 4 * SIDE] * 2)),
        cannot=GPU,
    ),
    "8.11": DeviceKernel(
        _layer("tensor_core_matmul", "bias_fragment"),
        [(Linear(64, 128, 64, dtype), None) for dtype in ("float16", "bfloat16")],
        large=_square("float16"),
        tile=WarpTile(),
        read_tile=functools.partial(_read_tile, WarpTile),
        cannot=NVIDIA,
    ),
}
