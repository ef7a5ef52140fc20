"""GPU kernels executed without a GPU: right kernels give right numbers, and every planted fault is caught."""

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from chapters.ch04_add_rms_norm.check_cases import RELATIVE, inputs, reference
from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.checking.programs import poison
from chapters.kit.gpu import executors, wgsl_on_vulkan
from chapters.kit.gpu.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.targets import CUDA, WEBGPU
from chapters.kit.gpu.wgsl_on_vulkan import run_wgsl
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel
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
@both_orders
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_cuda_text_gives_the_right_numbers(dtype, backwards):
    for func in (_row(dtype), _wide(64, 4, 2, dtype=dtype)):
        error, sum_is_right = _execute(func, CUDA, CudaOnCpu(backwards), dtype=dtype)
        assert error < RELATIVE[dtype] and sum_is_right


BARRIER = r"__syncthreads\(\);"
RACE = r"thread .* and no barrier separates them: __syncthreads\(\).* is missing\."
TWO_BARRIERS = "if (threadIdx.x < 64) {\n__syncthreads();\n} else {\n__syncthreads();\n}"
STUCK = "never ends: 64 of 256 threads wait at a barrier"
OUTSIDE = r"touches \w+\[\d+\], and \w+ has \d+ elements"
UNALIGNED = r"total\[\d+\] 16 bytes wide, which is not aligned"
PLAN = 128, 4, 2  # two rows a block, four warps a row
NO_GUARD = at_match(re.escape("(((int)threadIdx.x) < 232)"), 0, "(true)")
FOR_SOME = at_match(BARRIER, 1, "if (threadIdx.x < 64) __syncthreads(); else return;")
ONE_OF_EACH_WARP = r"if \(\(\(\(int\)threadIdx\.x\) % 32\) == 0\)"
EVERY_OTHER_WARP = at_match(ONE_OF_EACH_WARP, 0, "if (threadIdx.x % 64 == 0)")
OFF_BY_ONE = at_match(r"\(total_ptr \+ ", 0, "(total_ptr + 1 + ")
REPORTED = {
    "the first barrier of a row": ((), at_match(BARRIER), RACE),
    "the second barrier of a row": ((), at_match(BARRIER, 1), RACE),
    "the first barrier of a wide row": (PLAN, at_match(BARRIER), RACE),
    "the second barrier of a wide row": (PLAN, at_match(BARRIER, 1), RACE),
    "the guard of the last elements": ((), NO_GUARD, OUTSIDE),
    "a barrier for some, and the others end": ((), FOR_SOME, STUCK),
    "different barriers": ((), at_match(BARRIER, 1, TWO_BARRIERS), "wait at different barriers"),
    "a wide access that is not aligned": ((32, 8, 1), OFF_BY_ONE, UNALIGNED),
    "a warp left out of the sum": (
        (),
        EVERY_OTHER_WARP,
        r"reads red_buf_staging\[\d\] .* before any",
    ),
}


@runs_here
@both_orders
@pytest.mark.parametrize("fault", list(REPORTED))
def test_a_fault_is_reported(fault, backwards):
    plan, change, said = REPORTED[fault]
    with pytest.raises(LaunchError, match=said):
        _execute(_wide(*plan) if plan else _row(), CUDA, CudaOnCpu(backwards), change)


SHUFFLE = r"t0_ptr\[0\] = __shfl_down_sync\(mask_ptr\[0\], red_buf0_ptr\[0\], 4, 32\);"


def _sum_is_wrong(error: float, right: bool) -> bool:
    return not right


def _norm_is_off(error: float, right: bool) -> bool:
    return error > 0.05 and right


SHOWN = {  # what is planted -> the change, and how the error of the norm and the sum show it
    "a wrong reduction": (at_match(SHUFFLE), _norm_is_off),
    "a sum that is not written": (at_match(r"total_ptr\[.*\] = held_ptr\[1\];"), _sum_is_wrong),
    "a norm that is not written": (
        at_match(r"norm_ptr\[.*\] = .*;", 1),
        lambda error, right: np.isnan(error) and right,
    ),
    "a register read before it is set, which is no zero": (
        at_match(r"partial_ptr\[0\] = 0x0p.*;"),
        lambda error, right: not error < RELATIVE["float16"],
    ),
}


@runs_here
@both_orders
@pytest.mark.parametrize("fault", list(SHOWN))
def test_a_fault_gives_wrong_numbers(fault, backwards):
    change, shows = SHOWN[fault]
    assert shows(*_execute(_row(), CUDA, CudaOnCpu(backwards), change))


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


SHOWN_IN_WGSL = {
    # without the store into workgroup memory the sum is rubbish, and not that of cleared memory
    "workgroup memory that is not set": (
        at_match(r"red_buf0\[i32\(threadIdx\.x\)\] = partial\[0i\];"),
        lambda error, right: not error < 0.5,
    ),
    "a sum that is not written": (at_match(r"total_ptr\[.*\] = held\[1i\];"), _sum_is_wrong),
    "a wrong reduction": (
        at_match(r"red_buf0\[i32\(threadIdx\.x\)\] = \(red_buf0.*", 2),
        _norm_is_off,
    ),
}
for number in (1, 2, 3):
    change = at_match(r"workgroupBarrier\(\);", number)
    SHOWN_IN_WGSL[f"no barrier {number}"] = change, lambda error, right: error > 0.05


@needs_vulkan
@pytest.mark.parametrize("fault", list(SHOWN_IN_WGSL))
def test_a_fault_in_wgsl_gives_wrong_numbers(fault):
    change, shows = SHOWN_IN_WGSL[fault]
    assert shows(*_execute(_row("float32"), WEBGPU, run_wgsl, change, dtype="float32"))


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
