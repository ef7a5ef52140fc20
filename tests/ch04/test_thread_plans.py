"""Chapter 4's given `plan_threads`: vectors, whole warps, blocks within the limit."""

from __future__ import annotations

import itertools
import math

import pytest

from chapters.ch04_add_rms_norm.given import Plan, plan_threads
from chapters.kit.gpu.limits import ITEM_BYTES

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
