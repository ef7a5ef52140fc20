"""GPU kernels executed without a GPU: right kernels give right numbers, and faults in what TVM writes are caught."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, draw_inputs, reference
from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.ch08_gpu_targets import thread_schedule as by_threads
from chapters.checking.gpu_kernels import draw_arrays, exact
from chapters.checking.programs import poison
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.emulator import executors, wgsl_on_vulkan
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.emulator.wgsl_on_vulkan import run_wgsl
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.mma import MmaTile, mma_matmul
from chapters.kit.gpu.targets import CUDA, WEBGPU
from chapters.kit.gpu.wgmma import wgmma_matmul
from chapters.kit.gpu.wgmma_tile import WgmmaTile
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.injected_faults import (
    at_match,
    both_orders,
    every_order,
    needs_vulkan,
    run_changed,
    run_text,
    runs_here,
)
from tests.support.kernels import relative_error


@pytest.mark.skipif(not executors.required(), reason=f"{executors.REQUIRED} is not set")
def test_what_is_required_is_here():
    """In CI a missing executor must not pass for a skipped test."""
    assert [e.missing() for e in executors.executors() if e.missing()] == []
    assert wgsl_on_vulkan.missing("float16") == ""


ROWS, LENGTH = 3, 1000
DIMS = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", LENGTH)])


def _row(dtype: str = "float16") -> tirx.PrimFunc:
    return row_kernel(DIMS, LENGTH, dtype, 1e-5, 256)


def _execute(func, target, engine, change=None, dtype="float16") -> tuple[float, bool]:
    """(largest relative error of the norm, whether the sum is right), after `change` of the kernel's text."""
    arrays = draw_inputs((ROWS, LENGTH), dtype)
    norm, total = poison(arrays[0]), poison(arrays[0])
    run_changed(func, [*arrays, norm, total], change, target=target, engine=engine)
    exact, rounded = reference(*arrays, 1e-5)
    return relative_error(norm, exact), bool((total == rounded).all())


@runs_here
@pytest.mark.parametrize("engine", [CudaOnCpu(backwards=True), every_order])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_text_gives_the_right_numbers(dtype, engine):
    wide = wide_kernel(DIMS, LENGTH, dtype, 1e-5, Plan(64, 4, 2))
    for func in (_row(dtype), wide):
        error, sum_is_right = _execute(func, CUDA, engine, dtype=dtype)
        assert error < RELATIVE[dtype] and sum_is_right


@runs_here
def test_a_register_read_before_it_is_set_is_no_zero():
    error, _ = _execute(_row(), CUDA, CudaOnCpu(), at_match(r"partial_ptr\[0\] = 0x0p.*;"))
    assert not error < RELATIVE["float16"]


def _row_sums(rows_thread: str) -> tirx.PrimFunc:
    """out[i, j] = the sum of x[i, :], kept in shared memory, from where all 64 threads of the row read it."""

    @T.prim_func(private=True, s_tir=True)
    def sums(p_x: T.handle, p_out: T.handle):
        T.func_attr({"tirx.noalias": True})
        x = T.match_buffer(p_x, (ROWS, 64), "float32")
        out = T.match_buffer(p_out, (ROWS, 64), "float32")
        total = T.sblock_alloc_buffer((ROWS,), "float32", scope="shared")
        for i in T.thread_binding(ROWS, thread=rows_thread):
            for k in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("sum"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        total[vi] = T.float32(0)
                    total[vi] += x[vi, vk]
            for k in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("read"):
                    vi, vk = T.axis.remap("SS", [i, k])
                    out[vi, vk] = total[vi]

    return sums


@runs_here
@both_orders
def test_tvm_leaves_out_a_barrier_where_a_block_has_several_rows(backwards):
    """Why the kernels keep the sum in registers: through shared memory, its readers do not wait for its writer."""
    x = draw_inputs((ROWS, 64), "float32")[0]
    out = poison(x)
    HostProgram(_row_sums("blockIdx.x"), CUDA).run(CudaOnCpu(backwards), [x, out])
    np.testing.assert_allclose(out, np.repeat(x.sum(axis=1, keepdims=True), 64, axis=1), rtol=1e-4)
    with pytest.raises(LaunchError, match="no barrier separates them"):
        HostProgram(_row_sums("threadIdx.y"), CUDA).run(CudaOnCpu(backwards), [x, poison(x)])


@needs_vulkan
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wgsl_gives_the_right_numbers(dtype):
    if wgsl_on_vulkan.missing(dtype):
        pytest.skip(wgsl_on_vulkan.missing(dtype))
    error, sum_is_right = _execute(_row(dtype), WEBGPU, run_wgsl, dtype=dtype)
    assert error < RELATIVE[dtype] and sum_is_right


@needs_vulkan
def test_workgroup_memory_that_is_not_set_is_poison():
    """Without the store into workgroup memory the sum is poison, and not that of cleared memory."""
    change = at_match(r"red_buf0\[i32\(threadIdx\.x\)\] = partial\[0i\];")
    error, _ = _execute(_row("float32"), WEBGPU, run_wgsl, change, dtype="float32")
    assert not error < 0.5


@needs_vulkan
def test_a_grid_above_the_limit_is_folded():
    """70000 blocks are more than WebGPU takes in one dimension."""
    n, rows = tirx.Var("n", "int64"), 70000
    x = te.placeholder((n, 32), name="x")
    func = te.create_prim_func([x, te.compute((n, 32), lambda i, j: x[i, j] * 2, name="twice")])
    schedule = tvm.s_tir.Schedule(func)
    i, j = schedule.get_loops("twice")
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")
    given = np.arange(rows * 32, dtype="float32").reshape(rows, 32)
    result = poison(given)
    HostProgram(schedule.mod["main"], WEBGPU).run(run_wgsl, [given, result])
    assert (result == 2 * given).all()


def test_a_program_runs_again_on_other_arrays():
    """The host code looks a kernel's launcher up once; each run must reach its own engine and its own arrays."""
    program = HostProgram(_row("float32"), WEBGPU)
    for rows in (2, 5):
        arrays = draw_inputs((rows, LENGTH), "float32", seed=rows)
        seen = []
        launches = program.run(seen.append, [*arrays, poison(arrays[0]), poison(arrays[0])])
        assert seen == launches and [launch.grid for launch in launches] == [(rows, 1, 1)]
        given = [a for a in launches[0].arguments if isinstance(a, np.ndarray)]
        assert sum(np.array_equal(a, arrays[0]) for a in given) == 1


# --- chapter 8's kernels in ten random orders of their threads ------------------------------------

TILE = ch8.ThreadTile(16, 32, 8, 2, 4, vector=2)
SMALL = (32, 64, 24)


LAYERS = {
    "naive": (lambda: by_threads.naive_matmul(linear_bias(*SMALL), ch8.ThreadTile(8, 8, 8, 1, 1)), SMALL),
    "shared": (lambda: by_threads.shared_matmul(linear_bias(*SMALL), TILE), SMALL),
    "pipelined": (lambda: by_threads.pipelined_matmul(linear_bias(*SMALL), TILE), SMALL),
    "one row": (lambda: ch8.decode_matmul(16, 256, "float16"), (1, 16, 256)),
    "tensor cores": (lambda: ch8.tensor_core_matmul(linear_bias(64, 64, 64)), (64, 64, 64)),
    "tensor cores, copies in flight": (
        lambda: ch8.tensor_core_matmul(linear_bias(64, 64, 96), overlap=True),
        (64, 64, 96),
    ),
    "mma.sync": (lambda: mma_matmul(20, 64, 160, "float16", tile=MmaTile(16, 64, 32, 16, 32, 3)), (20, 64, 160)),
    "wgmma": (lambda: wgmma_matmul(70, 24, 200, "float16", "float32", WgmmaTile(64, 16, 2), 2), (70, 24, 200)),
}  # fmt: skip


@runs_here
@pytest.mark.parametrize("name", list(LAYERS))
def test_linear_layers_of_chapter_8(name):
    make, size = LAYERS[name]
    given = draw_arrays(*size, "float16")
    HostProgram(make(), CUDA, ASYNCHRONOUS).run(every_order, given)
    assert np.abs(given[3] - exact(*given[:3])).max() < 1e-3


@runs_here
def test_an_order_that_changes_the_numbers_is_reported_with_its_seed():
    body = "if (atomicAdd(&(out_ptr[1]), 1.0f) == 0) out_ptr[0] = threadIdx.x;"
    with pytest.raises(LaunchError, match=r"main_kernel gives other numbers .* of seed \d+"):
        run_text(body, 64, engine=every_order, out=np.zeros(2, "float32"))
