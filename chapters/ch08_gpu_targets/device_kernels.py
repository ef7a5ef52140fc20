"""The exercises of chapter 8 whose kernel runs on a device: `python -m chapters check 8.2 --device cuda`.

Each kernel is made of one exercise's answer and of given code, so each exercise runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from chapters.ch08_gpu_targets.given import WarpTile, start_from_bias
from chapters.ch08_gpu_targets.warp_schedule import schedule_for_tensor_cores
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.measure.exercise_kernels import DeviceKernel
from solutions.ch08_gpu_targets import gpu_schedules as reference  # noqa: F401  the runner times it beside the answer

# why a kernel cannot run on a kind of device
NVIDIA = dict.fromkeys(
    ("metal", "vulkan", "llvm"), "it uses instructions of NVIDIA GPUs, so it needs --device cuda"
)
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


def scaled_sum(shape: tuple[int, ...], dtype: str) -> PrimFunc:
    """D = A + B * B, element by element, not yet scheduled; its block is called `D`."""
    a, b = (te.placeholder(shape, dtype, name) for name in "AB")
    total = te.compute(shape, lambda *at: a(*at) + b(*at) * b(*at), "D")
    func = te.create_prim_func([a, b, total])
    return func.with_attrs({"tirx.noalias": True, "global_symbol": "main"})


def _bind_elementwise(answer, problem: ScaledSum, cut: tuple[int, int]):
    sch = Schedule(scaled_sum((problem.rows, problem.columns), problem.dtype))
    answer.bind_elementwise(sch, sch.get_sblock("D"), *cut)
    return sch.mod["main"]


def _schedule(answer, problem: Linear, _tile):
    sch, block = start_from_bias(linear_bias(problem.m, problem.n, problem.k, problem.dtype))
    answer.schedule_within_limits(sch, block)
    return sch.mod["main"]


def _schedule_tensor_cores(answer, problem: Linear, tile: WarpTile):
    layer = linear_bias(problem.m, problem.n, problem.k, problem.dtype)
    return schedule_for_tensor_cores(layer, tile, answer.bias_fragment())


def _make_decode(answer, problem: Linear, _tile):
    return answer.decode_matmul(problem.n, problem.k, problem.dtype)


def _square(side: int, dtype: str = "float32") -> Linear:
    return Linear(side, side, side, dtype)


KERNELS = {
    "8.1": DeviceKernel(
        _bind_elementwise,
        [(ScaledSum(10, 30), (32, 4)), (ScaledSum(3, 64), (64, 2))],
        (ScaledSum(4096, 4096), ScaledSum(1024, 4096)),
        (256, 4),
    ),
    "8.2": DeviceKernel(
        _schedule,
        [(Linear(64, 128, 64), None), (Linear(128, 64, 128), None)],
        (_square(1024), _square(256)),
        cannot=GPU,
    ),
    "8.4": DeviceKernel(
        _make_decode,
        [(Linear(1, 12, 512), None), (Linear(1, 5, 256), None)],
        (Linear(1, 4096, 4096), Linear(1, 1024, 1024)),
        cannot=GPU,
    ),
    "8.5": DeviceKernel(
        _schedule_tensor_cores,
        [(Linear(64, 128, 64, dtype), WarpTile()) for dtype in ("float16", "bfloat16")],
        (_square(1024, "float16"), _square(256, "float16")),
        WarpTile(),
        cannot=NVIDIA,
    ),
}
