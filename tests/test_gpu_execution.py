"""GPU kernels executed without a GPU: right kernels give right numbers, and every planted fault is caught."""

import dataclasses
import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from chapters.toolkit import executors
from chapters.toolkit.gpu import cuda_on_cpu, wgsl_on_vulkan
from chapters.toolkit.gpu.cuda_on_cpu import CudaOnCpu
from chapters.toolkit.gpu.launches import HostProgram, LaunchError
from chapters.toolkit.gpu.wgsl_on_vulkan import run_wgsl
from chapters.toolkit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import Plan, row_kernel, wide_kernel
from tests.checks.add_norm import RELATIVE, inputs, poison, reference
from tests.checks.gpu import CUDA, WEBGPU

needs_cuda_text = pytest.mark.skipif(bool(cuda_on_cpu.missing()), reason=cuda_on_cpu.missing())
needs_vulkan = pytest.mark.skipif(bool(wgsl_on_vulkan.missing()), reason=wgsl_on_vulkan.missing())
both_orders = pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])


@pytest.mark.skipif(not executors.required(), reason=f"{executors.REQUIRED} is not set")
def test_what_is_required_is_here():
    """In CI a missing executor must not pass for a skipped test."""
    assert [e.missing() for e in executors.executors() if e.missing()] == []
    assert wgsl_on_vulkan.missing("float16") == ""


ROWS, LENGTH = 3, 1000
DIMS = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", LENGTH)])


def _row(dtype: str = "float16", threads: int = 256) -> tirx.PrimFunc:
    return row_kernel(DIMS, LENGTH, dtype, 1e-5, threads)


def _wide() -> tirx.PrimFunc:
    """Two rows a block, four warps a row."""
    return wide_kernel(DIMS, LENGTH, "float16", 1e-5, Plan(128, 4, 2))


def _execute(func, target, engine, change=None, dtype="float16") -> tuple[float, bool]:
    """(largest relative error of the norm, whether the sum is right), after `change` of the kernel's text."""
    arrays = inputs((ROWS, LENGTH), dtype)
    program = HostProgram(func, target)
    ((name, kernel),) = program.kernels.items()
    if change:
        text = change(kernel.source)
        assert text != kernel.source, (
            "the fault was not planted: TVM writes this kernel differently now"
        )
        program.kernels[name] = dataclasses.replace(kernel, source=text)
    norm, total = poison(arrays[0]), poison(arrays[0])
    program.run(engine, [*arrays, norm, total])
    exact, rounded = reference(*arrays, 1e-5)
    error = np.abs(norm.astype("float64") - exact).max() / np.abs(exact).max()
    return float(error), bool((total == rounded).all())


def _without(pattern: str, which: int = 0, instead: str = ""):
    """A change of a text: the match number `which` of `pattern` replaced."""

    def change(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert len(found) > which, f"{pattern} is not in the kernel"
        return text[: found[which].start()] + instead + text[found[which].end() :]

    return change


@needs_cuda_text
@both_orders
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_text_gives_the_right_numbers(dtype, backwards):
    for func in (_row(dtype), wide_kernel(DIMS, LENGTH, dtype, 1e-5, Plan(64, 4, 2))):
        error, sum_is_right = _execute(func, CUDA, CudaOnCpu(backwards), dtype=dtype)
        assert error < RELATIVE[dtype] and sum_is_right


@needs_cuda_text
@both_orders
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kernel", ["row", "wide"])
def test_a_missing_barrier_is_a_race(kernel, which, backwards):
    func = _row() if kernel == "row" else _wide()
    with pytest.raises(LaunchError, match=r"Thread .* and no barrier stands between them\."):
        _execute(func, CUDA, CudaOnCpu(backwards), _without(r"__syncthreads\(\);", which))


@needs_cuda_text
@both_orders
def test_a_missing_guard_is_out_of_bounds(backwards):
    with pytest.raises(LaunchError, match=r"touches \w+\[\d+\], and \w+ has \d+ elements"):
        _execute(
            _row(),
            CUDA,
            CudaOnCpu(backwards),
            lambda text: text.replace("(((int)threadIdx.x) < 232)", "(true)"),
        )


@needs_cuda_text
@both_orders
def test_a_divergent_barrier_is_a_deadlock(backwards):
    change = _without(
        r"__syncthreads\(\);", 1, "if (threadIdx.x < 64) __syncthreads(); else return;"
    )
    with pytest.raises(LaunchError, match=r"never ends: 64 of 256 threads wait at a barrier"):
        _execute(_row(), CUDA, CudaOnCpu(backwards), change)


@needs_cuda_text
@both_orders
def test_threads_at_different_barriers_are_reported(backwards):
    change = _without(
        r"__syncthreads\(\);",
        1,
        "if (threadIdx.x < 64) {\n__syncthreads();\n} else {\n__syncthreads();\n}",
    )
    with pytest.raises(LaunchError, match="wait at different barriers"):
        _execute(_row(), CUDA, CudaOnCpu(backwards), change)


@needs_cuda_text
@both_orders
def test_a_misaligned_wide_access_is_reported(backwards):
    func = wide_kernel(DIMS, LENGTH, "float16", 1e-5, Plan(32, 8, 1))
    change = _without(r"\(total_ptr \+ ", 0, "(total_ptr + 1 + ")
    with pytest.raises(LaunchError, match=r"total\[\d+\] 16 bytes wide, which is not aligned"):
        _execute(func, CUDA, CudaOnCpu(backwards), change)


@needs_cuda_text
@both_orders
def test_a_wrong_reduction_gives_wrong_numbers(backwards):
    shuffle = r"t0_ptr\[0\] = __shfl_down_sync\(mask_ptr\[0\], red_buf0_ptr\[0\], 4, 32\);"
    error, sum_is_right = _execute(_row(), CUDA, CudaOnCpu(backwards), _without(shuffle))
    assert error > 0.05 and sum_is_right


@needs_cuda_text
@both_orders
def test_a_warp_left_out_of_the_sum_gives_wrong_numbers(backwards):
    """What the second warp hands over is never written, and shared memory is no zero before."""
    change = _without(
        r"if \(\(\(\(int\)threadIdx\.x\) % 32\) == 0\)", 0, "if (threadIdx.x % 64 == 0)"
    )
    error, sum_is_right = _execute(_row(), CUDA, CudaOnCpu(backwards), change)
    assert not error < 0.05 and sum_is_right


@needs_cuda_text
@both_orders
def test_an_unwritten_output_stays_poisoned(backwards):
    _, sum_is_right = _execute(
        _row(), CUDA, CudaOnCpu(backwards), _without(r"total_ptr\[.*\] = held_ptr\[1\];")
    )
    assert not sum_is_right


@needs_cuda_text
@both_orders
def test_an_unwritten_norm_stays_poisoned(backwards):
    error, sum_is_right = _execute(
        _row(), CUDA, CudaOnCpu(backwards), _without(r"norm_ptr\[.*\] = .*;", 1)
    )
    assert np.isnan(error) and sum_is_right


@needs_cuda_text
@both_orders
def test_a_register_read_before_it_is_set_is_no_zero(backwards):
    error, _ = _execute(_row(), CUDA, CudaOnCpu(backwards), _without(r"partial_ptr\[0\] = 0x0p.*;"))
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


@needs_cuda_text
@both_orders
def test_tvm_leaves_out_a_barrier_where_a_block_has_several_rows(backwards):
    """Why the kernels keep the sum in registers: through shared memory, its readers do not wait for its writer."""
    x = inputs((ROWS, 64), "float32")[0]
    out = poison(x)
    HostProgram(_row_sums("blockIdx.x"), CUDA).run(CudaOnCpu(backwards), [x, out])
    np.testing.assert_allclose(out, np.repeat(x.sum(axis=1, keepdims=True), 64, axis=1), rtol=1e-4)
    with pytest.raises(LaunchError, match="no barrier stands between them"):
        HostProgram(_row_sums("threadIdx.y"), CUDA).run(CudaOnCpu(backwards), [x, poison(x)])


@needs_vulkan
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wgsl_gives_the_right_numbers(dtype):
    if wgsl_on_vulkan.missing(dtype):
        pytest.skip(wgsl_on_vulkan.missing(dtype))
    error, sum_is_right = _execute(_row(dtype), WEBGPU, run_wgsl, dtype=dtype)
    assert error < RELATIVE[dtype] and sum_is_right


@needs_vulkan
def test_wgsl_workgroup_memory_starts_poisoned():
    """Without the store into workgroup memory the sum is rubbish, and not that of cleared memory."""
    store = r"red_buf0\[i32\(threadIdx\.x\)\] = partial\[0i\];"
    error, _ = _execute(_row("float32"), WEBGPU, run_wgsl, _without(store), dtype="float32")
    assert not error < 0.5


@needs_vulkan
def test_wgsl_output_that_is_not_written_stays_poisoned():
    change = _without(r"total_ptr\[.*\] = held\[1i\];")
    _, sum_is_right = _execute(_row("float32"), WEBGPU, run_wgsl, change, dtype="float32")
    assert not sum_is_right


@needs_vulkan
def test_wgsl_with_a_wrong_reduction_gives_wrong_numbers():
    change = _without(r"red_buf0\[i32\(threadIdx\.x\)\] = \(red_buf0.*", 2)
    error, sum_is_right = _execute(_row("float32"), WEBGPU, run_wgsl, change, dtype="float32")
    assert error > 0.05 and sum_is_right


@needs_vulkan
@pytest.mark.parametrize("which", [1, 2, 3])
def test_wgsl_without_a_barrier_gives_wrong_numbers(which):
    error, _ = _execute(
        _row("float32"),
        WEBGPU,
        run_wgsl,
        _without(r"workgroupBarrier\(\);", which),
        dtype="float32",
    )
    assert error > 0.05


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
