"""What `bench 4` is made of: counted bytes, bounds that move what they claim, checked baselines; plans of threads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tvm

from chapters.ch04_add_rms_norm import bench, registers
from chapters.ch04_add_rms_norm.check_cases import RELATIVE, draw_inputs, launch, reference
from chapters.ch04_add_rms_norm.given import Plan, plan_threads
from chapters.ch04_add_rms_norm.gpu_norms import kernels
from chapters.kit.bench.cpu_bounds import CHUNK, two_in_two_out
from chapters.kit.bench.results import load
from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.gpu.targets import CUDA
from tests.support.injected_faults import needs_compiler, runs_here
from tests.support.kernels import relative_error


def test_bytes_are_two_reads_two_writes_and_the_weight():
    assert bench.bytes_counted((1, 512, 4096), "float16") == 4 * 512 * 4096 * 2 + 4096 * 2
    assert bench.bytes_counted((8, 16), "float32") == 4 * 8 * 16 * 4 + 16 * 4


@pytest.mark.parametrize("streaming", [False, True])
def test_the_bound_moves_every_byte(streaming):
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((3, CHUNK)).astype("float32") for _ in "ab")
    unset = np.full_like(a, np.nan)
    tensors = [tvm.runtime.tensor(x) for x in (a, b, unset, unset)]
    two_in_two_out(streaming, tvm.target.Target("llvm"))(*tensors)
    assert (tensors[2].numpy() == np.maximum(a, b)).all()
    assert (tensors[3].numpy() == np.minimum(a, b)).all()


@pytest.mark.parametrize("dtype", bench.DTYPES)
@pytest.mark.parametrize("candidate", ["ours", "unfused", "numpy_baseline"])
def test_a_candidate_is_checked_before_it_is_timed(candidate, dtype):
    for call, error in getattr(bench, candidate)((4, 1, 96), dtype, 1, 7).values():
        assert 0 <= error < bench.TOLERANCE[dtype]
        call()


def test_wrong_numbers_are_not_measured():
    arrays = bench.draw_inputs((4, 1, 96), "float32", 3)
    norm, total = reference(*arrays, bench.EPSILON)
    bench.check_norm(norm, total, arrays)
    for wrong in ((norm * 1.01, total), (norm, total + 1e-3), (np.full_like(norm, np.nan), total)):
        with pytest.raises(ValueError, match="wrong numbers"):
            bench.check_norm(*wrong, arrays)


@pytest.mark.parametrize("dtype", bench.DTYPES)
def test_numbers_are_rounded_alike_without_ml_dtypes(dtype):
    values = np.random.default_rng(1).standard_normal(5000).astype("float32")
    assert (bench.round_to(values, dtype) == values.astype(dtype).astype("float32")).all()


@runs_here
def test_the_kernels_that_a_gpu_would_be_given_are_right():
    """Up to the launch, which here is executed without a GPU."""
    arrays = draw_inputs((3, 1, 512), "bfloat16")
    exact, rounded = reference(*arrays, bench.EPSILON)
    for func in kernels((3, 1, 512), "bfloat16").values():
        norm, total, launches = launch(func, arrays, CUDA)
        error = relative_error(norm, exact)
        assert error < RELATIVE["bfloat16"] and (total == rounded).all() and len(launches) == 1


def test_a_peer_that_is_missing_has_a_dash():
    seconds = {"ours": 2e-3, "unfused": 6e-3, "plain stores": 1e-3, "streaming stores": 4e-3}
    case = {"shape": [1, 512, 4096], "dtype": "float32", "threads": 1, "seconds": seconds}
    (row,) = bench.cpu_table({"cases": [case]}).rows
    assert row[-4:] == ("3.0×", "–", "–", "–")


@needs_compiler
def test_the_counts_in_the_file_are_what_its_compiler_gives():
    kept, now = load(registers.NAME)["measured"], registers.count_registers(("sm_90a",))
    assert set(kept["kernels"]) == set(registers.ARCHITECTURES)
    assert set(kept["kernels"]["sm_90a"]) == set(now["kernels"]["sm_90a"])
    if kept["compiler"] == now["compiler"]:  # another release may count otherwise
        assert kept["kernels"]["sm_90a"] == now["kernels"]["sm_90a"]


# --- threads -----------------------------------------------------------------------------------------

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
