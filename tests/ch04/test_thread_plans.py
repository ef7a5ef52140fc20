"""Chapter 4's given `plan_threads`: vectors, whole warps, blocks within the limit; and the wide kernel with them."""

from __future__ import annotations

import itertools
import math

import pytest
from tvm import tirx

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, inputs, launch, reference
from chapters.ch04_add_rms_norm.given import Plan, plan_threads, wide_kernel
from chapters.kit.emulator import cuda_on_cpu
from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.gpu.targets import CUDA

ROWS = (4096, 8192, 1000, 5120, 768, 100, 33, 8)
PLANS = [*itertools.product(ROWS, ("bfloat16", "float32"), (1024, 256))]
SMALL_BLOCKS = [(64, "bfloat16", 64), (4096, "float32", 64), (33, "float32", 32)]


@pytest.mark.parametrize(("hidden", "dtype", "limit"), [*PLANS, *SMALL_BLOCKS])
def test_a_plan_fills_vectors_warps_and_blocks(hidden, dtype, limit):
    plan = plan_threads(hidden, dtype, limit)
    whole = 16 // ITEM_BYTES[dtype]
    assert plan.vector == (whole if hidden % whole == 0 else 1)
    vectors = hidden // plan.vector
    each = math.ceil(vectors / plan.threads)
    assert plan.threads % 32 == 0 and plan.threads < vectors + 32
    assert each == 1 or (plan.threads > limit // 2 and vectors > limit)
    assert plan.rows == max(1, min(limit, 128) // plan.threads)
    assert plan.rows * plan.threads <= limit


def test_the_pages_examples():
    assert plan_threads(4096, "float16", 1024) == Plan(threads=512, vector=8, rows=1)
    assert plan_threads(12288, "float16", 1024) == Plan(threads=768, vector=8, rows=1)
    assert plan_threads(96, "float16", 1024) == Plan(threads=32, vector=8, rows=4)


@pytest.mark.skipif(bool(cuda_on_cpu.missing()), reason=cuda_on_cpu.missing())
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 1000), "bfloat16"),
        ((5, 64), "float16"),
        ((4, 100), "float32"),
        ((2, 4096), "float16"),
        ((3, 33), "float32"),  # one element per thread: its result shared the place of the sum
        ((5, 61), "float32"),
        ((3, 37), "bfloat16"),
    ],
)
def test_the_wide_kernel_gives_the_right_numbers(shape, dtype, backwards):
    plan = plan_threads(shape[-1], dtype, 1024)
    kernel = wide_kernel([tirx.Var("n", "int64")], shape[-1], dtype, 1e-5, plan)
    arrays = inputs(shape, dtype)
    norm, total = launch(kernel, arrays, CUDA, backwards)[:2]
    exact, rounded = reference(*arrays, 1e-5)
    assert (total.astype("float64") == rounded.astype("float64")).all()
    off = abs(norm.astype("float64") - exact)
    assert (off <= RELATIVE[dtype] * (abs(exact) + 1e-2)).all()
