"""Chapter 8's kernels in ten random orders of their threads: none is refused or changes the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

from chapters.ch08_gpu_targets import thread_schedule as by_threads
from chapters.checking.gpu_kernels import arrays, exact
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.mma import MmaTile, mma_matmul
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.wgmma import wgmma_matmul
from chapters.kit.gpu.wgmma_tile import WgmmaTile
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.orders import every_order
from tests.support.planted_faults import run_text, runs_here

pytestmark = runs_here
TILE = ch8.ThreadTile(16, 32, 8, 2, 4, vector=2)
SIZE = (32, 64, 24)


def _layer(func: tirx.PrimFunc, size: tuple, dtype: str = "float16") -> None:
    given = arrays(*size, dtype)
    HostProgram(func, CUDA, ASYNCHRONOUS).run(every_order, given)
    assert np.abs(given[3] - exact(*given[:3])).max() < 1e-3


LAYERS = {
    "naive": (
        lambda: by_threads.naive_matmul(matmul_bias(*SIZE), ch8.ThreadTile(8, 8, 8, 1, 1)),
        SIZE,
    ),
    "shared": (lambda: by_threads.shared_matmul(matmul_bias(*SIZE), TILE), SIZE),
    "pipelined": (lambda: by_threads.pipelined_matmul(matmul_bias(*SIZE), TILE), SIZE),
    "one row": (lambda: ch8.decode_matmul(16, 256, "float16"), (1, 16, 256)),
    "tensor cores": (lambda: ch8.tensor_core_matmul(matmul_bias(64, 64, 64)), (64, 64, 64)),
    "tensor cores, copies in flight": (
        lambda: ch8.tensor_core_matmul(matmul_bias(64, 64, 96), overlap=True),
        (64, 64, 96),
    ),
    "mma.sync": (
        lambda: mma_matmul(20, 64, 160, "float16", tile=MmaTile(16, 64, 32, 16, 32, 3)),
        (20, 64, 160),
    ),
    "wgmma": (
        lambda: wgmma_matmul(70, 24, 200, "float16", "float32", WgmmaTile(64, 16, 2), 2),
        (70, 24, 200),
    ),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_linear_layers_of_chapter_8(name):
    make, size = LAYERS[name]
    _layer(make(), size)


def test_an_order_that_changes_the_numbers_is_reported_with_its_seed():
    body = "if (atomicAdd(&(out_ptr[1]), 1.0f) == 0) out_ptr[0] = threadIdx.x;"
    with pytest.raises(LaunchError, match=r"main_kernel gives other numbers .* of seed \d+"):
        run_text(body, 64, engine=every_order, out=np.zeros(2, "float32"))
