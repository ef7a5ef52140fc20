"""GPU kernels executed without a GPU: right kernels give right numbers, and faults in what TVM writes are caught."""

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, inputs, reference
from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.checking.programs import poison
from chapters.kit.emulator import executors, wgsl_on_vulkan
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.emulator.wgsl_on_vulkan import run_wgsl
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.targets import CUDA, WEBGPU
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel
from tests.support.orders import every_order
from tests.support.planted_faults import at_match, both_orders, run_changed, runs_here

needs_vulkan = pytest.mark.skipif(bool(wgsl_on_vulkan.missing()), reason=wgsl_on_vulkan.missing())


@pytest.mark.skipif(not executors.required(), reason=f"{executors.REQUIRED} is not set")
def test_what_is_required_is_here():
    """In CI a missing executor must not pass for a skipped test."""
    assert [e.missing() for e in executors.executors() if e.missing()] == []
    assert wgsl_on_vulkan.missing("float16") == ""


ROWS, LENGTH = 3, 1000
DIMS = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", LENGTH)])


def _row(dtype: str = "float16") -> tirx.PrimFunc:
    return row_kernel(DIMS, LENGTH, dtype, 1e-5, 256)


def _wide(*plan: int, dtype: str = "float16") -> tirx.PrimFunc:
    return wide_kernel(DIMS, LENGTH, dtype, 1e-5, Plan(*plan))


def _execute(func, target, engine, change=None, dtype="float16") -> tuple[float, bool]:
    """(largest relative error of the norm, whether the sum is right), after `change` of the kernel's text."""
    arrays = inputs((ROWS, LENGTH), dtype)
    norm, total = poison(arrays[0]), poison(arrays[0])
    run_changed(func, [*arrays, norm, total], change, target=target, engine=engine)
    exact, rounded = reference(*arrays, 1e-5)
    error = np.abs(norm.astype("float64") - exact).max() / np.abs(exact).max()
    return float(error), bool((total == rounded).all())


@runs_here
@pytest.mark.parametrize("engine", [CudaOnCpu(backwards=True), every_order])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_text_gives_the_right_numbers(dtype, engine):
    for func in (_row(dtype), _wide(64, 4, 2, dtype=dtype)):
        error, sum_is_right = _execute(func, CUDA, engine, dtype=dtype)
        assert error < RELATIVE[dtype] and sum_is_right


NO_GUARD = at_match(re.escape("(((int)threadIdx.x) < 232)"), 0, "(true)")
NO_BARRIER = at_match(r"__syncthreads\(\);")
RACE = r"thread .* and no barrier separates them: __syncthreads\(\).* is missing\."
REPORTED = {  # two rows per block, four warps per row
    "the first barrier of a row": ((), NO_BARRIER, RACE),
    "the first barrier of a wide row": ((128, 4, 2), NO_BARRIER, RACE),
    "the guard of the last elements": (
        (),
        NO_GUARD,
        r"touches \w+\[\d+\], and \w+ has \d+ elements",
    ),
}


@runs_here
@pytest.mark.parametrize("fault", list(REPORTED))
def test_a_fault_is_reported(fault):
    plan, change, said = REPORTED[fault]
    with pytest.raises(LaunchError, match=said):
        _execute(_wide(*plan) if plan else _row(), CUDA, CudaOnCpu(), change)


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
    x = inputs((ROWS, 64), "float32")[0]
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
def test_workgroup_memory_that_is_not_set_is_rubbish():
    """Without the store into workgroup memory the sum is rubbish, and not that of cleared memory."""
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
        arrays = inputs((rows, LENGTH), "float32", seed=rows)
        seen = []
        launches = program.run(seen.append, [*arrays, poison(arrays[0]), poison(arrays[0])])
        assert seen == launches and [launch.grid for launch in launches] == [(rows, 1, 1)]
        given = [a for a in launches[0].arguments if isinstance(a, np.ndarray)]
        assert sum(np.array_equal(a, arrays[0]) for a in given) == 1
