"""What stands in for tensor cores and asynchronous copies: right kernels pass, and each planted fault is caught."""

from __future__ import annotations

import numpy as np
import pytest

from chapters.ch08_gpu_targets.thread_schedule import pipelined_matmul
from chapters.checking.gpu_kernels import arrays
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.launches import LaunchError, UnknownWordError
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.planted_faults import (
    both_orders,
    off_by,
    run_changed,
    run_text,
    runs_here,
    source_of,
)

pytestmark = runs_here
SIZE = (64, 64, 64)


def _run(func, change=None, *, backwards=False, config=None, dtype="float16") -> float:
    """The largest error, after `change`, (old, new), of the kernel's text; infinite where an element was never set."""
    given = arrays(*SIZE, dtype)
    run_changed(func, given, change and (lambda text: text.replace(*change)), backwards, config)
    return float(off_by(given)[0].max())


def _shows(func, change, config=None) -> bool:
    """Whether the changed kernel is reported, or gives wrong numbers."""
    try:
        return _run(func, change, config=config) > 1
    except LaunchError:
        return True


def _cores(dtype: str = "float16"):
    return ch8.tensor_core_matmul(matmul_bias(*SIZE, dtype))


def _piped():
    return pipelined_matmul(matmul_bias(*SIZE), ch8.ThreadTile(32, 32, 16, 4, 4, vector=2))


@both_orders
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensor_cores_give_the_layer(dtype, backwards):
    assert _run(_cores(dtype), backwards=backwards, dtype=dtype) < 1e-3


PRODUCT = "nvcuda::wmma::mma_sync(D_wmma_accumulator_ptr[0]"
WRONG = {
    "rows of the bias far apart": ("row, 0, nvcuda", "row, 16, nvcuda"),
    "biases along the rows": ("0, nvcuda::wmma::mem_row_major", "0, nvcuda::wmma::mem_col_major"),
    "B read as if it were transposed": ("col_major> B_", "row_major> B_"),
    "sums not set": ("start_from_row(D_", "if (threadIdx.x > 99) start_from_row(D_"),
    "stored with the wrong stride": ("accumulator_ptr[1], 64,", "accumulator_ptr[1], 32,"),
    "half a warp multiplies": (PRODUCT, f"if (threadIdx.x < 16) {PRODUCT}"),
}


@pytest.mark.parametrize("fault", list(WRONG))
def test_a_wrong_fragment_shows(fault):
    assert _shows(_cores(), WRONG[fault])


@both_orders
def test_fragments_loaded_before_the_barrier_are_a_race(backwards):
    text = source_of(_cores())
    last = text[text.rindex("__syncthreads();") :]
    with pytest.raises(LaunchError, match="no barrier separates them"):
        _run(_cores(), (last, last.replace("__syncthreads();", "", 1)), backwards=backwards)


def test_a_tile_outside_the_arrays_is_caught():
    change = ("(&(C_ptr[", "(&(C_ptr[60 + ")
    with pytest.raises(LaunchError, match=r"touches C\[\d+\]|outside the kernel's arrays"):
        _run(_cores(), change)


def test_a_fragment_of_another_shape_is_unknown_and_not_wrong():
    with pytest.raises(UnknownWordError, match="16 x 16 x 16"):
        _run(_cores(), ("16, 16, 16, half", "32, 8, 16, half"))


@both_orders
def test_copies_under_way_give_the_layer(backwards):
    assert _run(_piped(), backwards=backwards, config=ASYNCHRONOUS) < 1e-3


WAIT = "tvm_builtin_ptx_cp_async_wait_group_async_wait_group"
NOT_WAITED_FOR = {
    "the last": (f"\n  {WAIT}_0();", ""),
    "those in the loop": (f"\n    {WAIT}_1();", ""),
    "too few groups": ('"cp.async.wait_group 1;"', '"cp.async.wait_group 2;"'),
}


@pytest.mark.parametrize("copies", list(NOT_WAITED_FOR))
def test_a_copy_that_is_not_waited_for_shows(copies):
    assert _shows(_piped(), NOT_WAITED_FOR[copies], ASYNCHRONOUS)


def _launch(body: str, block: int, size: int) -> np.ndarray:
    """What the kernel `body` leaves in `out`, of `size` float32."""
    out = np.full(size, np.nan, "float32")
    run_text(body, block, out=out)
    return out


SHARED = "__shared__ alignas(64) float s_ptr[64];\n"


def test_wide_stores_to_shared_memory_are_watched():
    body = SHARED + (
        "*(float4*)(s_ptr + (((int)threadIdx.x) * 4)) = make_float4(1, 2, 3, 4);\n"
        "out_ptr[threadIdx.x] = s_ptr[63 - threadIdx.x];"
    )
    with pytest.raises(LaunchError, match="no barrier separates them"):
        _launch(body, 16, 16)
    right = _launch(body.replace("out_ptr[", "__syncthreads();\nout_ptr[", 1), 16, 16)
    assert right.tolist() == [float(4 - t % 4) for t in range(16)]


def test_a_wide_store_that_is_not_aligned_is_caught():
    body = SHARED + "*(float4*)(s_ptr + (((int)threadIdx.x) * 4 + 1)) = make_float4(1, 2, 3, 4);"
    with pytest.raises(LaunchError, match="not aligned"):
        _launch(body, 8, 8)


# a fragment f that is filled and stored
STORED = """
nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;
{}
nvcuda::wmma::store_matrix_sync(&(out_ptr[0]), f, 16, nvcuda::wmma::mem_row_major);
"""


def test_which_lane_holds_an_element_is_scrambled():
    """A kernel that counts on a layout of fragments must not pass by luck."""
    fill = "for (int e = 0; e < f.num_elements; e++) f.x[e] = threadIdx.x * 8 + e;"
    tile = _launch(STORED.format(fill), 32, 256)
    assert sorted(tile.tolist()) == list(range(256)) and tile.tolist() != list(range(256))


def test_a_warp_of_sixteen_has_no_tensor_core():
    body = STORED.format("nvcuda::wmma::fill_fragment(f, 1.0f);")
    with pytest.raises(LaunchError, match="fewer than 32 threads"):
        _launch(body, 16, 256)
