"""The two schedules of NT_matmul on shapes that do not fit their tiles: every number right, nothing written outside.

Each result starts as poison between two guard zones, which shows a kernel that writes a row too many, or leaves an
element as it was.
"""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from chapters.ch05_schedules_and_their_limits.check_products import inner_loop
from chapters.ch05_schedules_and_their_limits.check_products import make_unscheduled as kernel
from chapters.kit.cpu.matmul_tile import has_few_rows, matmul_tile, rows_at_a_time
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.machine import llvm_host
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch05_schedules_and_their_limits import schedules
from tests.support.kernels import run_kernel

TARGET = llvm_host()["target"]
N, B = tirx.Var("n", "int64"), tirx.Var("b", "int64")
# x without its last dimension, as the kernel's type says it and as it is called
LINES = ((n,) for n in (1, 3, 4, 7, 8, 16, 17, 48, 65, 130))
KNOWN = [(), *LINES, (1, 1), (2, 1, 2), (2, 5)]
ROWS = [
    *((rows, rows) for rows in KNOWN),
    *(((N,), (1,)), ((N,), (37,)), ((1, N), (1, 70)), ((B, 1), (9, 1)), ((B, N), (3, 33))),
]
SIZES = [(96, 128), (7, 64), (24, 30), (1, 16), (20, 1), (16, 2048), (10, 67)]
# all rows with the first two sizes, and all sizes with no rows, one, a few, many and any number of rows
SHAPES = [(*rows, *size, "float32") for rows in ROWS for size in SIZES[:2]]
SHAPES += [(*ROWS[at], *size, "float32") for at in (0, 1, 3, 9, -1) for size in SIZES[2:]]
DTYPES = ("float32", "float16", "bfloat16", "int8")
SHAPES += [(r, r, 40, 96, dtype) for r in ((1, 1), (3,), (1, 45)) for dtype in DTYPES]


def check_numbers(func, rows, n, k, dtype="float32") -> None:
    random = np.random.default_rng(len(rows) + n + k)
    draw = partial(random.integers, -9, 10) if dtype == "int8" else random.standard_normal
    x, w = (draw(size=shape).astype(dtype) for shape in ((*rows, k), (n, k)))
    found = run_kernel(func, w, x, shape=(*rows, n))
    expected = x.astype("float64") @ w.astype("float64").T
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize(("said", "rows", "n", "k", "dtype"), SHAPES)
def test_schedules_are_right_and_stay_inside(said, rows, n, k, dtype):
    func = kernel(said, n, k, dtype, "int32" if dtype == "int8" else "float32")
    assert schedules.has_schedule(func)
    each = [schedules.schedule_prefill] if rows else []
    if has_few_rows(func, TARGET):
        each.append(schedules.schedule_decode)
    for one in each:
        check_numbers(one(func, TARGET), rows, n, k, dtype)


@pytest.mark.parametrize(
    ("cpu", "bits", "count", "few"),
    [("haswell", 256, 16, 4), ("skylake-avx512", 512, 32, 8), ("nehalem", 128, 16, 4)],
)
def test_tiles_and_sums_follow_the_target(cpu, bits, count, few):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    assert (vector_registers(target).bits, vector_registers(target).count) == (bits, count)
    for rows in ((5,), (64,), (500,), (N,)):
        tile = matmul_tile(kernel(rows, 4096, 4096), target)
        assert tile.lanes == bits // 32
        assert tile.vectors * tile.columns + tile.vectors < count
        assert 4096 % tile.block_n == 0 and 4096 % tile.block_k == 0
    funcs = [kernel((rows,), 4096, 4096) for rows in range(1, few + 1)]
    assert [rows_at_a_time(func, target) for func in funcs] == [4] * (few - 1) + [2]
    for rows in ((few + 1,), (2, few), (N,)):
        assert not has_few_rows(kernel(rows, 32, 64), target)
        with pytest.raises(ValueError, match="use the prefill schedule"):
            schedules.schedule_decode(kernel(rows, 32, 64), target)


def test_schedule_takes_the_one_for_the_rows():
    for one, rows in ((schedules.schedule_decode, 4), (schedules.schedule_prefill, 40)):
        func = kernel((rows,), 32, 64)
        assert tvm_ffi.structural_equal(schedules.schedule(func, TARGET), one(func, TARGET))


def test_refuses_a_weight_of_unknown_size():
    for one in (schedules.schedule_decode, schedules.schedule_prefill):
        with pytest.raises(ValueError, match="BindSymbolicVars"):
            one(kernel((4,), N, 16), TARGET)
    assert not schedules.has_schedule(kernel((4,), N, 16))


def test_schedule_kernels_takes_only_what_it_knows():
    func = kernel((1,), 32, 64).with_attr("global_symbol", "NT_matmul")
    symbolic = kernel((1,), N, 64).with_attr("global_symbol", "other")
    mod = tvm.IRModule({"NT_matmul": func, "other": symbolic})
    result = schedules.schedule_kernels(mod, TARGET)
    assert tvm_ffi.structural_equal(result["other"], symbolic)
    assert "tirx.is_scheduled" in result["NT_matmul"].attrs
    assert not schedules.has_schedule(result["NT_matmul"])


NT_MATMUL = """
@T.prim_func(s_tir=True)
def main(w: T.Buffer((16, 16), "float32"), x: T.Buffer((ROWS, 16), "float32"), out: T.Buffer((ROWS, 16), "float32")):
    for i, j, k in T.grid(ROWS, 16, 16):
        with T.sblock("NT_matmul"):
            vi, vj, vk = T.axis.spatial(ROWS, i), T.axis.spatial(16, j), T.axis.reduce(16, k)
            T.where(True)
            T.reads(x[vi, vk], w[vj, vk])
            T.writes(out[vi, vj])
            with T.init():
                out[vi, vj] = T.float32(0)
            out[vi, vj] = out[vi, vj] + x[vi, vk] * w[vj, vk]
"""
X_BUFFER = 'x: T.Buffer((ROWS, 16), "float32")'
OTHERS = {  # what NT_MATMUL is if these parts of it are replaced
    "some of the rows": {"grid(ROWS": "grid(2", "spatial(ROWS": "spatial(2"},
    "another order of loops": {
        "i, j, k in T.grid(ROWS, 16, 16)": "k, j, i in T.grid(16, 16, ROWS)"
    },
    "more iterations than k": {"ROWS, 16, 16)": "ROWS, 16, 24)", "where(True)": "where(k < 16)"},
    "k in two loops": {
        "i, j, k in T.grid(ROWS, 16, 16)": "i, j, ko, ki in T.grid(ROWS, 16, 2, 8)",
        "16, k)": "16, ko * 8 + ki)",
    },
    "starts at 7": {"float32(0)": "float32(7)"},
    "forgets": {"= out[vi, vj] +": "= out[vi, vj] * T.float32(0.5) +"},
    "distances": {"x[vi, vk] * w[vj, vk]": "T.abs(x[vi, vk] - w[vj, vk])"},
    "the largest": {
        "out[vi, vj] + x[vi, vk] * w[vj, vk]": "T.max(out[vi, vj], x[vi, vk] * w[vj, vk])"
    },
    "w is not transposed": {"w[vj, vk]": "w[vk, vj]"},
    "x is longer than the sum": {X_BUFFER: X_BUFFER.replace("16", "40")},
    "x before w": {X_BUFFER + ", ": "", "(w:": f"({X_BUFFER}, w:"},
    "x times itself": {X_BUFFER + ", ": "", "x[": "w["},
}


def edit_nt_matmul(rows: int, changes: dict[str, str]) -> tirx.PrimFunc:
    """NT_MATMUL for so many rows, with parts of its text replaced."""
    text = NT_MATMUL
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return from_source(text.replace("ROWS", str(rows)))


@pytest.mark.parametrize("how", OTHERS)
@pytest.mark.parametrize("rows", [3, 40])
def test_kernels_by_hand_that_are_something_else_are_left_alone(rows, how):
    assert schedules.has_schedule(edit_nt_matmul(rows, {}))
    func = edit_nt_matmul(16 if how == "x times itself" else rows, OTHERS[how])
    told = how != "x before w"
    with pytest.warns(match="stays without a schedule") if told else contextlib.nullcontext():
        assert not schedules.has_schedule(func)
    mod = tvm.IRModule({"main": func})
    assert tvm_ffi.structural_equal(schedules.schedule_kernels(mod, TARGET), mod)


W_TIMES_X = {"x[vi, vk] * w[vj, vk]": "w[vj, vk] * x[vi, vk]"}
READ_W_FIRST = {"T.reads(x[vi, vk], w[vj, vk])": "T.reads(w[vj, vk], x[vi, vk])"}


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        *((3, W_TIMES_X), (3, READ_W_FIRST | W_TIMES_X), (67, READ_W_FIRST), (16, READ_W_FIRST)),
        (1, {"x[vi, vk] *": "x[0, vk] *"}),
    ],
)
def test_kernels_by_hand_that_say_the_same_in_other_words_are_scheduled(rows, changes):
    func = edit_nt_matmul(rows, changes)
    assert schedules.has_schedule(func)
    check_numbers(schedules.schedule(func, TARGET), (rows,), 16, 16)


@pytest.mark.parametrize(("dtype", "known"), [("float8_e4m3fn", False), ("bfloat16", True)])
def test_types_without_vectors_are_left_alone(dtype, known):
    w, x = te.placeholder((16, 32), dtype, "w"), te.placeholder((40, 32), dtype, "x")
    func = te.create_prim_func([w, x, nt_matmul(w, x, dtype)], "int64")
    assert schedules.has_schedule(func) is known
    named = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    tvm.compile(schedules.schedule_kernels(named, TARGET), target=TARGET)


@pytest.mark.parametrize(
    ("rows", "n", "k"), [((3,), 8, 0), ((3,), 0, 8), ((0,), 8, 8), ((1,), 8, 0)]
)
def test_nothing_to_compute_needs_no_schedule(rows, n, k):
    assert not schedules.has_schedule(kernel(rows, n, k))


def test_the_check_finds_the_inner_loop_in_the_assembly():
    found = inner_loop(schedules.schedule_decode(kernel((4,), 128, 1024), TARGET), TARGET)
    assert found.lanes == vector_registers(TARGET).lanes("float32")
    assert found.multiplications >= 4 * found.spills
