"""The two schedules of NT_matmul on shapes that do not fit their tiles: every number right, nothing written outside.

Each result starts as poison between two guard zones, which shows a kernel that writes a row too many, or leaves an
element as it was.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from chapters.ch05_schedules_and_their_limits.check_products import inner_loop, times_w_is_loaded
from chapters.ch05_schedules_and_their_limits.check_products import unscheduled as kernel
from chapters.kit.cases.guard_zones import QUICK_HERE, run_compiled
from chapters.kit.cpu.matmul_tile import has_few_rows, matmul_tile, rows_at_a_time
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.machine import llvm_host
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch05_schedules_and_their_limits import schedules

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
SHAPES = [(*rows, *size) for rows in ROWS for size in SIZES[:2]]
SHAPES += [(*ROWS[at], *size) for at in (0, 1, 3, 9, -1) for size in SIZES[2:]]
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = [*((dtype, "float32") for dtype in FLOATS), ("int8", "int32")]


def numbers(shape, dtype, random) -> np.ndarray:
    if dtype == "int8":
        return random.integers(-9, 10, shape).astype("int8")
    return random.standard_normal(shape).astype(dtype)


def run_guarded(func, rows, n, k, dtype="float32", out_dtype="float32"):
    """(what func gives, what it should). Raises WroteOutside if func writes outside of its result."""
    random = np.random.default_rng(len(rows) + n + k)
    x, w = numbers((*rows, k), dtype, random), numbers((n, k), dtype, random)
    out = np.full((*rows, n), np.nan if out_dtype == "float32" else -123456789, out_dtype)
    given = [tvm.runtime.tensor(w), tvm.runtime.tensor(x), out]
    (yours,) = run_compiled(tvm.IRModule({"main": func}), given, QUICK_HERE)
    return yours, x.astype("float64") @ w.astype("float64").T


@pytest.mark.parametrize(("said", "rows", "n", "k"), SHAPES)
def test_schedules_are_right_and_stay_inside(said, rows, n, k):
    func = kernel(said, n, k)
    each = [schedules.schedule_prefill] if rows else []
    if has_few_rows(func, TARGET):
        each.append(schedules.schedule_decode)
    for one in each:
        yours, expected = run_guarded(one(func, TARGET), rows, n, k)
        np.testing.assert_allclose(yours, expected, 1e-4, 1e-4)


@pytest.mark.parametrize(("dtype", "out_dtype"), DTYPES)
def test_schedules_are_right_for_each_dtype(dtype, out_dtype):
    decode, prefill = schedules.schedule_decode, schedules.schedule_prefill
    for one, rows in ((decode, (1, 1)), (decode, (3,)), (prefill, (1, 45))):
        func = one(kernel(rows, 40, 96, dtype, out_dtype), TARGET)
        yours, expected = run_guarded(func, rows, 40, 96, dtype, out_dtype)
        np.testing.assert_allclose(yours, expected, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("cpu", "bits", "count"),
    [("haswell", 256, 16), ("skylake-avx512", 512, 32), ("nehalem", 128, 16)],
)
def test_the_tile_follows_the_target(cpu, bits, count):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    assert (vector_registers(target).bits, vector_registers(target).count) == (bits, count)
    for rows in ((5,), (64,), (500,), (N,)):
        tile = matmul_tile(kernel(rows, 4096, 4096), target)
        assert tile.lanes == bits // 32
        assert tile.vectors * tile.columns + tile.vectors < count
        assert 4096 % tile.block_n == 0 and 4096 % tile.block_k == 0


@pytest.mark.parametrize(
    ("cpu", "few", "members"),
    [("haswell", 4, [4, 4, 4, 2]), ("skylake-avx512", 8, [4, 4, 4, 4, 4, 4, 4, 2])],
)
def test_decode_keeps_the_sums_of_a_few_rows(cpu, few, members):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    funcs = [kernel((rows,), 4096, 4096) for rows in range(1, few + 1)]
    assert [rows_at_a_time(func, target) for func in funcs] == members
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


def in_another_order(n: int, k: int) -> tirx.PrimFunc:
    """(x, w, out) with a block NT_matmul that is right, but takes its operands the other way round."""
    x, w = te.placeholder((n, k), "float32", "x"), te.placeholder((n, k), "float32", "w")
    return te.create_prim_func([x, w, nt_matmul(w, x, "float32")], "int64")


def not_transposed(n: int, k: int) -> tirx.PrimFunc:
    """(w, x, out) with a block NT_matmul in which w is not transposed."""
    w, x = te.placeholder((k, n), "float32", "w"), te.placeholder((3, k), "float32", "x")
    at = te.reduce_axis((0, k), name="k")
    out = te.compute((3, n), lambda i, j: te.sum(x[i, at] * w[at, j], axis=at), name="NT_matmul")
    return te.create_prim_func([w, x, out], "int64")


def with_itself(n: int, k: int) -> tirx.PrimFunc:
    """(x, out): x times itself transposed."""
    x = te.placeholder((n, k), "float32", "x")
    return te.create_prim_func([x, nt_matmul(x, x, "float32")], "int64")


@pytest.mark.parametrize("make", [in_another_order, not_transposed, with_itself])
@pytest.mark.parametrize(("n", "k"), [(16, 16), (6, 40)])
def test_a_name_is_not_enough(make, n, k):
    func = make(n, k)
    assert not schedules.has_schedule(func)
    mod = tvm.IRModule({"main": func})
    assert tvm_ffi.structural_equal(schedules.schedule_kernels(mod, TARGET), mod)


WRITTEN = """
@T.prim_func(s_tir=True)
def main(w: T.Buffer((16, 32), "float32"), x: T.Buffer((ROWS, 32), "float32"), out: T.Buffer((ROWS, 16), "float32")):
    for LOOPS:
        with T.sblock("NT_matmul"):
            vi = T.axis.spatial(TAKEN, i)
            vj = T.axis.spatial(16, j)
            vk = T.axis.reduce(32, STEP)
            T.where(WHERE)
            T.reads(x[vi, vk], w[vj, vk])
            T.writes(out[vi, vj])
            with T.init():
                out[vi, vj] = T.float32(INIT)
            out[vi, vj] = UPDATE
"""
PLAIN = {
    "LOOPS": "i, j, k in T.grid(TAKEN, 16, 32)",
    "TAKEN": "ROWS",
    "WHERE": "True",
    "STEP": "k",
    "INIT": "0",
    "UPDATE": "out[vi, vj] + x[vi, vk] * w[vj, vk]",
}
OTHERS = {
    "some of the rows": {"TAKEN": "2"},
    "another order of loops": {"LOOPS": "k, j, i in T.grid(32, 16, TAKEN)"},
    "more iterations than k": {"LOOPS": "i, j, k in T.grid(TAKEN, 16, 40)", "WHERE": "k < 32"},
    "k in two loops": {"LOOPS": "i, j, ko, ki in T.grid(TAKEN, 16, 4, 8)", "STEP": "ko * 8 + ki"},
    "starts at 7": {"INIT": "7"},
    "forgets": {"UPDATE": "out[vi, vj] * T.float32(0.5) + x[vi, vk] * w[vj, vk]"},
    "distances": {"UPDATE": "out[vi, vj] + T.abs(x[vi, vk] - w[vj, vk])"},
    "the largest": {"UPDATE": "T.max(out[vi, vj], x[vi, vk] * w[vj, vk])"},
}


def written(rows: int, **changes: str) -> tirx.PrimFunc:
    """A kernel (w, x, out) by hand with a block NT_matmul."""
    text = WRITTEN
    for name, value in {**PLAIN, **changes, "ROWS": str(rows)}.items():
        text = text.replace(name, value)
    return from_source(text)


@pytest.mark.parametrize("rows", [3, 40])
def test_kernels_by_hand_that_are_no_sums_of_products_are_left_alone(rows):
    assert schedules.has_schedule(written(rows))
    for how, changes in OTHERS.items():
        func = written(rows, **changes)
        with pytest.warns(UserWarning, match="stays without a schedule"):
            assert not schedules.has_schedule(func), how
        mod = tvm.IRModule({"main": func})
        assert tvm_ffi.structural_equal(schedules.schedule_kernels(mod, TARGET), mod)


READ_W_FIRST = {"T.reads(x[vi, vk], w[vj, vk])": "T.reads(w[vj, vk], x[vi, vk])"}
SAME = {
    "w read and multiplied first": {
        **READ_W_FIRST,
        "UPDATE": "out[vi, vj] + w[vj, vk] * x[vi, vk]",
    },
    "w first, many rows": {**READ_W_FIRST, "ROWS": "67"},
    "w first, as many rows as w has": {**READ_W_FIRST, "ROWS": "16"},
    "the factors the other way round": {"UPDATE": "out[vi, vj] + w[vj, vk] * x[vi, vk]"},
    "one row, read at 0": {"UPDATE": "out[vi, vj] + x[0, vk] * w[vj, vk]", "ROWS": "1"},
}


@pytest.mark.parametrize("how", SAME)
def test_kernels_by_hand_that_say_the_same_in_other_words_are_scheduled(how):
    changes = dict(SAME[how])
    func = written(int(changes.pop("ROWS", 3)), **changes)
    assert schedules.has_schedule(func)
    rows = int(func.params[1].shape[0])
    yours, expected = run_guarded(schedules.schedule(func, TARGET), (rows,), 16, 32)
    np.testing.assert_allclose(yours, expected, 1e-4, 1e-4)


def test_an_x_that_is_longer_than_the_sum_is_left_alone():
    text = written(3).script().replace("(3, 32)", "(3, 40)")
    assert "x: T.Buffer((3, 40)" in text
    assert not schedules.has_schedule(from_source(text))


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


@pytest.mark.parametrize("rows", [said for said, _ in ROWS])
def test_every_kernel_of_the_pass_has_a_schedule(rows):
    assert schedules.has_schedule(kernel(rows, 24, 30))


def test_the_check_sees_how_often_w_is_loaded():
    func = kernel((4,), 64, 128)
    assert times_w_is_loaded(func) == 4
    assert times_w_is_loaded(schedules.schedule_decode(func, TARGET)) == 1


def test_the_check_finds_the_inner_loop_in_the_assembly():
    found = inner_loop(schedules.schedule_decode(kernel((4,), 128, 1024), TARGET), TARGET)
    assert found.lanes == vector_registers(TARGET).lanes("float32")
    assert found.multiplications >= 4 * found.spills
