"""What stands in for tensor cores and asynchronous copies: right kernels pass, and each planted fault is caught."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chapters.toolkit.gpu import cuda_on_cpu
from chapters.toolkit.gpu.cuda_on_cpu import CudaOnCpu
from chapters.toolkit.gpu.gpu_matmul import matmul_bias
from chapters.toolkit.gpu.launches import HostProgram, Kernel, Launch, LaunchError, UnknownWordError
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.checks.gpu import CUDA, arrays, exact

pytestmark = pytest.mark.skipif(bool(cuda_on_cpu.missing()), reason=cuda_on_cpu.missing())
both_orders = pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
SIZE = (64, 64, 64)


def _run(func, change=None, *, backwards=False, config=None, size=SIZE, dtype="float16") -> float:
    """The largest error, after `change` of the kernel's text; infinite where an element was never set."""
    given = arrays(*size, dtype)
    program = HostProgram(func, CUDA, config)
    ((name, kernel),) = program.kernels.items()
    if change:
        text = kernel.source.replace(*change)
        assert text != kernel.source, (
            "the fault was not planted: TVM writes this kernel differently now"
        )
        program.kernels[name] = dataclasses.replace(kernel, source=text)
    program.run(CudaOnCpu(backwards), given)
    error = np.abs(given[3] - exact(*given[:3])).max()
    return float(error) if np.isfinite(error) else float("inf")


def _shows(func, change, config=None) -> bool:
    """Whether the changed kernel is reported, or gives wrong numbers."""
    try:
        return _run(func, change, config=config) > 1
    except LaunchError:
        return True


def _cores(dtype: str = "float16"):
    return ch8.tensor_core_matmul(matmul_bias(*SIZE, dtype))


def _piped():
    return ch8.pipelined_matmul(matmul_bias(*SIZE), ch8.Tile(32, 32, 16, 4, 4, vector=2))


@both_orders
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensor_cores_give_the_layer(dtype, backwards):
    assert _run(_cores(dtype), backwards=backwards, dtype=dtype) < 1e-3


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("row, 0, nvcuda", "row, 16, nvcuda"), id="rows of the bias far apart"),
        pytest.param(
            ("0, nvcuda::wmma::mem_row_major", "0, nvcuda::wmma::mem_col_major"),
            id="biases along the rows",
        ),
        pytest.param(("col_major> B_", "row_major> B_"), id="B read as if it were transposed"),
        pytest.param(
            ("start_from_row(D_", "if (threadIdx.x > 99) start_from_row(D_"), id="sums not set"
        ),
        pytest.param(
            ("D_wmma_accumulator_ptr[1], 64,", "D_wmma_accumulator_ptr[1], 32,"),
            id="stored with the wrong stride",
        ),
    ],
)
def test_a_wrong_fragment_shows(change):
    assert _shows(_cores(), change)


@both_orders
def test_fragments_loaded_before_the_barrier_are_a_race(backwards):
    text = next(iter(HostProgram(_cores(), CUDA).kernels.values())).source
    last = text[text.rindex("__syncthreads();") :]
    with pytest.raises(LaunchError, match="no barrier stands between them"):
        _run(_cores(), (last, last.replace("__syncthreads();", "", 1)), backwards=backwards)


def test_a_tile_outside_the_arrays_is_caught():
    change = ("(&(C_ptr[", "(&(C_ptr[60 + ")
    with pytest.raises(LaunchError, match=r"touches C\[\d+\]|outside the kernel's arrays"):
        _run(_cores(), change)


def test_half_a_warp_cannot_multiply():
    product = "nvcuda::wmma::mma_sync(D_wmma_accumulator_ptr[0]"
    assert _shows(_cores(), (product, f"if (threadIdx.x < 16) {product}"))


def test_a_fragment_of_another_shape_is_unknown_and_not_wrong():
    with pytest.raises(UnknownWordError, match="16 x 16 x 16"):
        _run(_cores(), ("16, 16, 16, half", "32, 8, 16, half"))


@both_orders
def test_copies_under_way_give_the_layer(backwards):
    assert _run(_piped(), backwards=backwards, config=ch8.ASYNCHRONOUS) < 1e-3


@pytest.mark.parametrize("group", ["0", "1"])
def test_a_copy_that_is_not_waited_for_shows(group):
    call = f"\n    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_{group}();"
    if group == "0":
        call = call.replace("    ", "  ")
    assert _shows(_piped(), (call, ""), ch8.ASYNCHRONOUS)


def test_waiting_for_too_few_groups_shows():
    change = ('"cp.async.wait_group 1;"', '"cp.async.wait_group 2;"')
    assert _shows(_piped(), change, ch8.ASYNCHRONOUS)


def _launch(body: str, block: int, size: int, prelude: str = "") -> np.ndarray:
    """What the kernel `body` leaves in `out`, of `size` float32; the text is written as TVM writes it."""
    head = (
        'extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ out_ptr)'
    )
    source = f"{prelude}\n{head};\n{head} {{\n{body}\n}}\n"
    out = np.full(size, np.nan, "float32")
    kernel = Kernel("main_kernel", source, ("handle",), ("out_ptr",), ("blockIdx.x", "threadIdx.x"))
    CudaOnCpu()(Launch(kernel, (1, 1, 1), (block, 1, 1), (out,)))
    return out


SHARED = "__shared__ alignas(64) float s_ptr[64];\n"


def test_wide_stores_to_shared_memory_are_watched():
    body = SHARED + (
        "*(float4*)(s_ptr + (((int)threadIdx.x) * 4)) = make_float4(1, 2, 3, 4);\n"
        "out_ptr[threadIdx.x] = s_ptr[63 - threadIdx.x];"
    )
    with pytest.raises(LaunchError, match="no barrier stands between them"):
        _launch(body, 16, 16)
    right = _launch(body.replace("out_ptr[", "__syncthreads();\nout_ptr[", 1), 16, 16)
    assert right.tolist() == [float(4 - t % 4) for t in range(16)]


def test_a_wide_store_that_is_not_aligned_is_caught():
    body = SHARED + "*(float4*)(s_ptr + (((int)threadIdx.x) * 4 + 1)) = make_float4(1, 2, 3, 4);"
    with pytest.raises(LaunchError, match="not aligned"):
        _launch(body, 8, 8)


def test_which_lane_holds_an_element_is_scrambled():
    """A kernel that counts on a layout of fragments must not pass by luck."""
    body = (
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;\n"
        "for (int e = 0; e < f.num_elements; e++) f.x[e] = threadIdx.x * 8 + e;\n"
        "nvcuda::wmma::store_matrix_sync(&(out_ptr[0]), f, 16, nvcuda::wmma::mem_row_major);"
    )
    tile = _launch(body, 32, 256)
    assert sorted(tile.tolist()) == list(range(256)) and tile.tolist() != list(range(256))


def test_a_warp_of_sixteen_has_no_tensor_core():
    body = (
        "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f;\n"
        "nvcuda::wmma::fill_fragment(f, 1.0f);\n"
        "nvcuda::wmma::store_matrix_sync(&(out_ptr[0]), f, 16, nvcuda::wmma::mem_row_major);"
    )
    with pytest.raises(LaunchError, match="fewer than 32 threads"):
        _launch(body, 16, 256)
