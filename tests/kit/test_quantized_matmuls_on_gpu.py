"""Products that unpack their own matrix, as GPU code: right numbers, and no kernel stores the floats of the matrix.

The text of CUDA and WGSL runs without a GPU. References are NumPy in float64. Results start as NaN.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod

import numpy as np
import pytest
from tvm import te, tirx
from tvm.target import Target

from chapters.kit.emulator import wgsl_on_vulkan
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.emulator.wgsl_on_vulkan import run_wgsl
from chapters.kit.gpu.cuda_resources import resources
from chapters.kit.gpu.launches import Engine, HostProgram
from chapters.kit.gpu.targets import DLIGHT_CUDA, WEBGPU, cuda
from chapters.kit.gpu.warp_access import accesses
from chapters.kit.ir.tensor_ir import nodes
from chapters.kit.quantized.dequantize import kernel
from chapters.kit.quantized.quantized_matmuls_on_gpu import FEW, schedule
from chapters.kit.quantized.weight_blocks import PackedLayout, pack
from chapters.kit.schedules.gemv_within_bounds import GEMVWithinBounds
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import joined
from tests.support.injected_faults import every_order, needs_compiler, runs_here
from tests.support.quantized import (
    M,
    assert_close,
    draw_quantized,
    draw_rows,
    gated_epilogue,
    quantized_matmul,
)

LANES = 16
FORMS = {
    "Q4_1": PackedLayout(4, 32, True, "float16", LANES),
    "Q8_0": PackedLayout(8, 32, False, "float16", LANES),
    "Q6_K": PackedLayout(8, 16, False, "float32", LANES),
    "Q4_K": PackedLayout(4, 32, True, "float32", LANES),
    "Q4_0, 1 lane": PackedLayout(4, 32, False, "float16", 1),
    "Q4_1, 1 lane": PackedLayout(4, 32, True, "float16", 1),
    "Q4_1, 32 lanes": PackedLayout(4, 32, True, "float16", 32),
}
no_vulkan = wgsl_on_vulkan.missing() or wgsl_on_vulkan.missing("float16")
needs_vulkan = pytest.mark.skipif(bool(no_vulkan), reason=no_vulkan)
ENGINES: dict[str, tuple[Target, Engine]] = {
    "CUDA, first thread first": (DLIGHT_CUDA, CudaOnCpu()),
    "CUDA, last thread first": (DLIGHT_CUDA, CudaOnCpu(backwards=True)),
    "WGSL": (WEBGPU, run_wgsl),
}
each_engine = pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=needs_vulkan if name == "WGSL" else runs_here) for name in ENGINES],
)
each_target = pytest.mark.parametrize("target", [DLIGHT_CUDA, WEBGPU], ids=["CUDA", "WGSL"])


@cache
def host_program(func: tirx.PrimFunc, target: Target) -> HostProgram:
    return HostProgram(func, target)


def device_source(func: tirx.PrimFunc, target: Target) -> str:
    """The device code of `func`."""
    return "".join(kernel.source for kernel in host_program(func, target).kernels.values())


def keeps_no_float_matrix(func: tirx.PrimFunc, target: Target, size: int) -> bool:
    """Whether no array of global memory, and none that the text declares, has room for `size` floats."""
    buffers = {var for var in nodes(func, tirx.Var) if tirx.is_buffer_var(var)}
    for buffer in buffers:
        is_global = str(buffer.scope()) in ("", "global")
        extents = [int(n) for n in buffer.shape if isinstance(n, tirx.IntImm)]
        if is_global and str(buffer.dtype) == "float32":
            assert prod(extents) < size, f"{buffer} holds {extents}"
    in_cuda = re.findall(r"\w+_ptr\[(\d+)\];", device_source(func, target))
    in_wgsl = re.findall(r"array<\w+, (\d+)>", device_source(func, target))
    declared = [int(number) for number in in_cuda + in_wgsl]
    return max(declared, default=0) < size


def halves(y, bias, gate, residual, _w):
    """y plus the other half of y's columns, so that a result reads a sum that is not its own."""
    n = y.shape[-1]

    def element(*i):
        added = bias(i[-1]) + gate(*i) + residual(*i)
        return y(*i[:-1], (i[-1] + n // 2) % n) + added

    return te.compute(y.shape, element, "halves")


SHAPES = [(), (1,), (FEW,), (FEW + 1,), (2, 3), (3, 5), (M,), (3, M)]  # M is 9 when a kernel runs
PRODUCTS = [
    *[("Q4_1", rows, gated_epilogue) for rows in SHAPES],
    *[("Q4_1", rows, None) for rows in [(1,), (M,)]],
    *[(kind, rows, gated_epilogue) for kind in FORMS for rows in [(3,), (M,)] if kind != "Q4_1"],
]


def name_of(value) -> str:
    return value.__name__ if callable(value) else str(value)


def check_numbers(
    form: PackedLayout, rows: tuple, behind, engine: str, n: int, k: int
) -> tirx.PrimFunc:
    """The kernel of one product, after its numbers are compared as an engine of ENGINES gives them."""
    target, run = ENGINES[engine]
    if engine == "CUDA, first thread first" and rows == (3,):
        run = every_order
    func = schedule(quantized_matmul(form, rows, n=n, k=k, behind=behind), target)
    assert "tirx.is_scheduled" in func.attrs and len(host_program(func, target).kernels) == 1
    rows = [9 if one is M else one for one in rows]
    matrix = draw_quantized(form, n, k)
    x = draw_rows(*rows, k) / np.float32(64)  # so that the results are about 1
    others = [draw_rows(n), draw_rows(*rows, n), draw_rows(*rows, n)] if behind else []
    out = np.full((*rows, n), np.nan, "float32")
    host_program(func, target).run(run, [*pack(matrix, form), x, *others, out])
    exact = x.astype("float64") @ matrix.floats().astype("float64").T
    if behind:
        bias, gate, residual = others
        y = exact + bias
        exact = y / (1 + np.exp(-y)) * gate + residual
    assert_close(out, exact)
    return func


@each_engine
@pytest.mark.parametrize(("kind", "rows", "behind"), PRODUCTS, ids=name_of)
def test_a_product(kind, rows, behind, engine):
    target, n, k = ENGINES[engine][0], 96, 160
    func = check_numbers(FORMS[kind], rows, behind, engine, n, k)
    assert keeps_no_float_matrix(func, target, n * k)


@each_engine
@pytest.mark.parametrize("rows", [(1,), (8,)], ids=name_of)
@pytest.mark.parametrize(("group", "bits", "lanes"), [(4, 8, 1), (8, 4, 16), (32, 4, 48)], ids=str)
def test_a_row_that_threads_cannot_share(group, bits, lanes, rows, engine):
    """An odd number of words per row, or of threads per panel: one thread adds up a whole row."""
    form = PackedLayout(bits, group, bits == 4, "float16", lanes)
    check_numbers(form, rows, None, engine, n=lanes * 3, k=group * 3)


@each_engine
def test_a_residual_that_is_x(engine):
    """x + x @ w.T: the kernel has x once, and the epilogue reads it again."""
    form, (target, run), n = FORMS["Q4_1"], ENGINES[engine], 64
    size = tirx.IntImm("int64", n)
    w, x = te.placeholder((size, size), name="w"), te.placeholder((1, size), name="x")
    y = nt_matmul(w, x, "float32")
    out = te.compute(y.shape, lambda *i: y(*i) + x(*i), name="out")
    both = joined(kernel(form, (n, n)), te.create_prim_func([w, x, out], "int64"))
    matrix, given = draw_quantized(form, n, n), draw_rows(1, n)
    result = np.full((1, n), np.nan, "float32")
    host_program(schedule(both, target), target).run(run, [*pack(matrix, form), given, result])
    assert_close(result, given + given.astype("float64") @ matrix.floats().astype("float64").T)


@each_target
@pytest.mark.parametrize("rows", [(1,), (3,), (1, M)], ids=name_of)
def test_a_result_of_other_sums_gets_the_fallback(rows, target):
    """Its sums go through memory, from one kernel to the next; the floats of the matrix do not."""
    n, k = 96, 160
    func = schedule(quantized_matmul(FORMS["Q4_1"], rows, n=n, k=k, behind=halves), target)
    assert len(host_program(func, target).kernels) == 2
    assert keeps_no_float_matrix(func, target, n * k)


def test_other_kernels_stay():
    func = te.create_prim_func([x := te.placeholder((4, 4)), te.compute((4, 4), lambda *i: x(*i))])
    assert schedule(func, DLIGHT_CUDA).same_as(func)


def test_the_rule_for_one_row_stops_at_minima():
    """Why `schedule_many_rows` does not ask it; if this fails, TVM's rule has learned to read two scales."""
    func = quantized_matmul(FORMS["Q4_1"], (1,), n=96, k=160)
    with DLIGHT_CUDA, pytest.raises(AssertionError):
        GEMVWithinBounds().apply(func, DLIGHT_CUDA, False)


# --- what the kernels load and use ----------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 8, 16, 32])
def test_a_warp_reads_contiguous_codes(lanes):
    func = schedule(
        quantized_matmul(PackedLayout(4, 32, True, "float16", lanes), (1,), n=256, k=2048),
        DLIGHT_CUDA,
    )
    found = [one for one in accesses(func, DLIGHT_CUDA) if one.scope == "global"]
    for one in found:
        assert one.sectors == one.least_sectors
    (codes,) = [one for one in found if one.buffer == "codes"]
    assert codes.sectors == 4 and codes.bytes_moved == 256 * 2048 // 2  # each code once
    elements = [one.sectors for one in found if one.buffer == "x"]
    assert elements == {1: [16, 16], 8: [2, 2], 16: [1, 1], 32: [1, 1]}[lanes]


def test_several_rows_load_each_code_once():
    for rows in (1, 4, FEW):
        func = schedule(
            quantized_matmul(FORMS["Q4_1"], (rows,), n=96, k=256, behind=gated_epilogue),
            DLIGHT_CUDA,
        )
        moved = [one.bytes_moved for one in accesses(func, DLIGHT_CUDA) if one.buffer == "codes"]
        assert moved == [96 * 256 // 2]


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rows", [1, FEW])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_nothing_spills(kind, rows, arch):
    target = cuda(arch)
    func = schedule(
        quantized_matmul(FORMS[kind], (rows,), n=2048, k=2048, behind=gated_epilogue), target
    )
    used = resources(device_source(func, target), arch)
    assert 0 < used.registers <= 64
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0
