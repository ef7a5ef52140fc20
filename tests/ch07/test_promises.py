"""What the primitives of chapters 6 and 7 promise: programs hard to be right about, and others that are easy to refuse.

Fused programs are compiled and compared with the unfused one; arrays lie between guard zones, and outputs hold numbers
before the program runs.
"""

from __future__ import annotations

import platform
from functools import partial
from unittest import mock

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_cpu_has_features, llvm_get_system_cpu

from chapters.ch06_reduction_epilogue.checks import share_loops
from chapters.kit.cases.guard_zones import run_compiled
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.ir.parse_alone import from_source
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue
from solutions.ch07_when_fusion_is_sound.soundness import fuse_epilogue

RELU = "T.max(s, 0)"
BIAS = "s + C[wi, wj]"
MINUS = "s * 3 - C[wi, wj]"  # "scaled"


BOTH = (fuse_epilogue, fuse_reduction_epilogue)


def draw_arguments(func: tvm.tirx.PrimFunc) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    shapes = [(tuple(map(int, p.shape)), str(p.dtype)) for p in func.params]
    return [random.integers(-6, 7, shape).astype(dtype) for shape, dtype in shapes]


def fuse_and_compare(sch: s_tir.Schedule, fuse=fuse_epilogue, names=("matmul", "bias"), func=None):
    """Fuse, and compare with `func`, or with the schedule's program before; returns what `fuse` returned."""
    func = func or sch.mod["main"]
    given = draw_arguments(func)
    expected = run_compiled(tvm.IRModule({"main": func}), given)
    way = fuse(sch, *names)
    s_tir.Schedule(sch.mod)  # well-formed
    for got, wanted in zip(run_compiled(sch.mod, given), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    return way


def assert_refused(sch: s_tir.Schedule, fuse, words: str) -> None:
    before = sch.mod
    with pytest.raises(s_tir.ScheduleError, match=words):
        fuse(sch, "matmul", "bias")
    assert sch.mod.same_as(before)


def schedule_case(**fields) -> s_tir.Schedule:
    return s_tir.Schedule(Case("a promise", "a program", **fields).func)


def edit_schedule(text: str, old: str = "", new: str = "") -> s_tir.Schedule:
    """A schedule of the program `text` with `old`, which must occur, replaced by `new` where it occurs first."""
    assert old in text
    return s_tir.Schedule(from_source(text.replace(old, new, 1)))


# --- definitions are not doubled ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [f"({BIAS}) * LET", "LET - s", "s + LET", "s * LET + C[wi, wj]", "T.max(s, LET)"],
)
def test_a_let_is_defined_once(value):
    let = "T.Let(x * 2 + x, where={x: C[wi, wj]})"
    text = Case("a let", "a let", value=value.replace("LET", let)).text
    head = 'with T.sblock("bias"):\n'
    fuse_and_compare(edit_schedule(text, head, f"{head}{' ' * 16}x = T.int32()\n"))


# --- a refusal changes nothing, and neither does a failure ----------------------------------------


def test_a_block_may_be_called_anything():
    text = Case("names", "names", value=RELU, after="F[oi, oj] = D[oi, oj]").text
    sch = edit_schedule(text, '"after"', '"nobody_reads_this"')
    assert fuse_and_compare(sch).how == "last step"
    found = {sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))}
    assert found >= {"matmul", "bias", "nobody_reads_this"}


def test_a_failure_on_the_way_rolls_back():
    sch = s_tir.Schedule(CASES["relu"].func)
    handles = sch.get_sblock("matmul"), sch.get_sblock("bias")
    held, before, recorded = [sch.get(rv) for rv in handles], sch.mod, len(sch.trace.insts)
    with (
        mock.patch.object(s_tir.Schedule, "blockize", side_effect=RuntimeError("no memory")),
        pytest.raises(RuntimeError, match="no memory"),
    ):
        fuse_epilogue(sch, *handles)
    tvm.ir.assert_structural_equal(sch.mod, before, map_free_vars=True)
    assert all(sch.get(rv).same_as(block) for rv, block in zip(handles, held, strict=True))
    assert len(sch.trace.insts) == recorded
    assert fuse_and_compare(sch, names=handles).how == "last step"


# --- one bit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int1", "uint1"])
@pytest.mark.parametrize("value", [BIAS, "C[wi, wj] - s", "s * C[wi, wj]", "s"])
def test_sums_of_one_bit_never_start_from_the_epilogue(dtype, value):
    fields = {"dtype": dtype, "value": value, "init": f'T.Cast("{dtype}", 0)'}
    with pytest.raises(s_tir.ScheduleError):
        fuse_reduction_epilogue(schedule_case(**fields), "matmul", "bias")
    assert fuse_epilogue(schedule_case(**fields), "matmul", "bias").how == "last step"


# --- the order of rounding ------------------------------------------------------------------------


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names CPUs of x86")
def test_the_last_bit_is_the_same_where_nothing_is_contracted():
    sch = schedule_case(dtype="float32", init="T.float32(1)", step="t * A[vi, vk]")
    func, random = sch.mod["main"], np.random.default_rng(0)
    assert fuse_epilogue(sch, "matmul", "bias", reassociate=False).how == "last step"
    given = [random.normal(0, 1.5, tuple(map(int, p.shape))).astype("float32") for p in func.params]
    for cpu in ("x86-64", llvm_get_system_cpu()):
        target = Target({"kind": "llvm", "mcpu": cpu})
        contracts = llvm_cpu_has_features("fma", target)
        unfused = run_compiled(tvm.IRModule({"main": func}), given, target)[-1]
        got = run_compiled(sch.mod, given, target)[-1]
        correct = "correct the docstring: one rounding for two, on a CPU with FMA"
        assert np.array_equal(unfused, got) == (not contracts), correct
        np.testing.assert_allclose(got, unfused, rtol=1e-5, atol=1e-6)


# --- what need not be refused ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [BIAS, MINUS])
def test_all_loops_fused_to_one(value):
    sch = schedule_case(value=value)
    sch.fuse(*sch.get_loops("matmul"))
    assert fuse_and_compare(sch).how != "last step"


def test_the_last_step_needs_loops_of_its_own():
    sch = schedule_case(value=RELU)
    sch.fuse(*sch.get_loops("matmul"))
    assert_refused(sch, fuse_epilogue, "a spatial axis and a reduction at once")


CHAIN = """
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer((4, 3), "int32"),
    C: T.Buffer((4,), "int32"),
    E: T.Buffer((4,), "int32"),
    D: T.Buffer((4,), "int32"),
):
    temp = T.sblock_alloc_buffer((4,), "int32")
    for i, k in T.grid(4, 3):
        with T.sblock("matmul"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                temp[vi] = 0
            temp[vi] = temp[vi] + A[vi, vk]
    for i in range(4):
        with T.sblock("bias"):
            wi = T.axis.spatial(4, i)
            E[wi] = temp[wi] + C[wi]
        with T.sblock("relu"):
            wi = T.axis.spatial(4, i)
            D[wi] = T.max(E[wi], 0)
"""


def test_a_chain_of_which_both_are_fused():
    sch = edit_schedule(CHAIN)
    func = sch.mod["main"]
    fuse_epilogue(sch, "matmul", "bias")
    way = fuse_and_compare(sch, names=("matmul", "relu"), func=func)
    assert way.how == "last step"


@pytest.mark.parametrize("value", [BIAS, RELU])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_after_decompose_reduction(value, at):
    sch = schedule_case(value=value)
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[at])
    assert fuse_and_compare(sch, names=("matmul_update", "bias")).how == "last step"


def test_an_init_that_sets_sums_of_another_iteration():
    """In iteration o all sums start anew, so those of earlier iterations are lost."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4, 3), "int32"), D: T.Buffer((4,), "int32")):
        temp = T.sblock_alloc_buffer((4,), "int32")
        for o in range(4):
            for z in range(4):
                with T.sblock("zero"):
                    vz = T.axis.spatial(4, z)
                    temp[vz] = 7
            for k in range(3):
                with T.sblock("matmul"):
                    vi = T.axis.spatial(4, o)
                    vk = T.axis.reduce(3, k)
                    temp[vi] = temp[vi] + A[vi, vk]
        for i in range(4):
            with T.sblock("bias"):
                wi = T.axis.spatial(4, i)
                D[wi] = T.max(temp[wi], 0)

    assert_refused(s_tir.Schedule(main), fuse_epilogue, "may write `temp`")


def schedule_with_number(first: str, second: str) -> s_tir.Schedule:
    """A program with an axis of one value, as which the sum is written at `first` and read at `second`."""
    axis = "T.axis.spatial(1, j)"
    text = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 3), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((4, 1), "int32")):
    temp = T.sblock_alloc_buffer((4, 1), "int32")
    for i, j, k in T.grid(4, 1, 3):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.spatial(4, i), {axis}, T.axis.reduce(3, k)
            with T.init():
                temp[vi, {first}] = 0
            temp[vi, {first}] = temp[vi, {first}] + A[vi, vk]
    for i, j in T.grid(4, 1):
        with T.sblock("bias"):
            wi, wj = T.axis.spatial(4, i), {axis}
            D[wi, wj] = temp[wi, {second}] + C[wi]
"""
    return s_tir.Schedule(from_source(text))


LAYOUTS = {
    "the reduction's axes made one": {"matmul": lambda i, j, k: (i * 6 + j, k)},
    "the reduction's axes turned": {"matmul": lambda i, j, k: (j, i, k)},
    "the epilogue's axes made one": {"bias": lambda i, j: (i * 6 + j,)},
    "both made other axes": {
        "matmul": lambda i, j, k: (i * 3 + j // 2, j % 2, k),
        "bias": lambda i, j: (i, j // 3, j % 3),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [BIAS, MINUS, RELU])
def test_after_transform_block_layout(layout, value):
    sch = schedule_case(value=value, stores="wj, wi")
    for name, how in LAYOUTS[layout].items():
        sch.transform_block_layout(name, how)
    fuse_and_compare(sch)
    if value == BIAS:
        sch = schedule_case(value=value)
        for name, how in LAYOUTS[layout].items():
            sch.transform_block_layout(name, how)
        fuse_and_compare(sch, fuse_reduction_epilogue)


def schedule_of_rows(begin: int, end: int, written: str, read: str, stored: str) -> s_tir.Schedule:
    """A program whose epilogue has rows wi from `begin` to `end`: temp[written, vj] is written and temp[read, wj] read.

    The epilogue stores D[stored, wj]. The reduction has rows vi from 0 to 6.
    """
    text = f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer((6, 3), "int32"), C: T.Buffer((12, 4), "int32"), D: T.Buffer((12, 4), "int32")):
    temp = T.sblock_alloc_buffer((12, 4), "int32")
    for i, j, k in T.grid(6, 4, 3):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                temp[{written}, vj] = 0
            temp[{written}, vj] = temp[{written}, vj] + A[vi, vk] * (vj + 1)
    for i, j in T.grid({end - begin}, 4):
        with T.sblock("bias"):
            wi, wj = T.axis.spatial(({begin}, {end}), i + {begin}), T.axis.spatial(4, j)
            D[{stored}, wj] = temp[{read}, wj] + C[{stored}, wj]
"""
    return s_tir.Schedule(from_source(text))


def schedule_with_strides(strides: str) -> s_tir.Schedule:
    buffer = 'D: T.Buffer((6, 6), "int32"'
    return edit_schedule(Case("strides", "strides").text, buffer, f"{buffer}, strides={strides}")


@pytest.mark.parametrize("fuse", BOTH)
@pytest.mark.parametrize("strides", ["(8, 1)", "(1, 6)", "(1, 9)"])
def test_strides_that_keep_elements_apart(fuse, strides):
    sch = schedule_with_strides(strides)
    fuse(sch, "matmul", "bias")
    unfused = Case("strides", "strides")
    given = unfused.arguments()
    expected = run_compiled(tvm.IRModule({"main": unfused.func}), given)[-1]
    outer, inner = map(int, strides.strip("()").split(","))
    memory = np.full(6 * (outer + inner), 77, "int32")
    steps = (outer * 4, inner * 4)
    view = np.lib.stride_tricks.as_strided(memory, (6, 6), steps)
    kept = memory.copy()
    compiled = tvm.compile(sch.mod, target="llvm")["main"]
    compiled(*[tvm_ffi.from_dlpack(a) for a in given[:-1]], tvm_ffi.from_dlpack(view))
    np.testing.assert_array_equal(view, expected)
    np.lib.stride_tricks.as_strided(kept, (6, 6), steps)[...] = expected
    np.testing.assert_array_equal(memory, kept)


RENAMED = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 3), "int32"), C: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")):
    for o in range(1):
        with T.sblock("outer"):
            vo = T.axis.spatial(1, o)
            T.reads(A[0:4, 0:3], C[0:4])
            T.writes(D[0:4])
            E = T.match_buffer(D[0:4], (4,), "int32", offset_factor=1)
            temp = T.sblock_alloc_buffer((4,), "int32")
            for i, k in T.grid(4, 3):
                with T.sblock("matmul"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        temp[vi] = 0
                    temp[vi] = temp[vi] + A[vi, vk]
            for i in range(4):
                with T.sblock("bias"):
                    wi = T.axis.spatial(4, i)
                    E[wi] = temp[wi] + C[wi]
"""


STEP = "temp[vi] + A[vi, vk]"
OTHER_NAME_READ = RENAMED, f"{STEP}\n", f"{STEP} * D[3 - vi]\n"


# --- programs that both primitives fuse, and programs that both refuse ------------------------------


def schedule_of_shared_loops(depth: int) -> s_tir.Schedule:
    sch = schedule_case()
    sch.reverse_compute_at("bias", sch.get_loops("matmul")[depth])
    return sch


FUSED = {
    "shared loops that finish their sums": partial(schedule_of_shared_loops, 0),
    "two of them": partial(schedule_of_shared_loops, 1),
    "a chain in one nest": partial(edit_schedule, CHAIN),
    "an axis of one value is written as a number": partial(schedule_with_number, "0", "wj"),
    "an axis of one value is read as a number": partial(schedule_with_number, "vj", "0"),
    "rows from 1": partial(schedule_of_rows, 1, 7, "vi", "wi - 1", "wi"),
    "rows from 3, and sums from 2": partial(schedule_of_rows, 3, 9, "vi + 2", "wi - 1", "wi"),
    "rows and sums backwards": partial(schedule_of_rows, 2, 8, "5 - vi", "7 - wi", "wi"),
    "a matched buffer under its only name": partial(edit_schedule, RENAMED),
}
AHEAD = "a", "b * 2 + a"  # bias reads the sums of another iteration of the loop over a
READS_NO_SUM = "T.reads(temp[wi % 2 * 2 : wi % 2 * 2], C[wi]); T.writes(D[wi])"
LATER = "a later iteration of the shared loops"
OVERLAP = "strides with which elements may overlap"
RELU_OF_CHAIN = "D[wi] = T.max(E[wi], 0)"
# its step stores to D, its init to an element of C that the epilogue reads later
FOLLOWER = """        for k in range(2):
            with T.sblock("other"):
                oi, ok = T.axis.remap("SR", [i, k])
                with T.init():
                    C[3 - oi] = 9
                D[oi] = E[oi] + ok
"""
REFUSED = {  # and words of the refusal
    "a block claims to write all sums": (
        lambda: edit_schedule(share_loops(*AHEAD).script(), "T.writes(temp[vi])", "T.writes(temp[0:4])"),
        LATER,
    ),
    "a block claims to read no sum": (
        lambda: s_tir.Schedule(share_loops(*AHEAD, declared=READS_NO_SUM)), LATER,
    ),
    "an epilogue between the steps of its sum": (
        lambda: s_tir.Schedule(share_loops("k", "k * 2 + b")), "between steps of the sums",
    ),
    # not there yet, in the program as it was
    "a chain looks ahead": (partial(edit_schedule, CHAIN, "T.max(E[wi], 0)", "T.max(E[3 - wi], 0)"), "`[CE]`"),
    "a chain writes the bias of a later element": (
        partial(edit_schedule, CHAIN, RELU_OF_CHAIN, "C[3 - wi] = T.max(E[wi], 0)"), "`[CE]`",
    ),
    "a chain overwrites what it reads": (
        partial(edit_schedule, CHAIN, RELU_OF_CHAIN, "E[wi] = T.max(E[wi], 0)"), "`[CE]`",
    ),
    "a follower whose init writes the bias": (
        partial(edit_schedule, CHAIN, CHAIN[CHAIN.index('        with T.sblock("relu")') :], FOLLOWER),
        "cannot be fused",
    ),
    "four of the six rows": (partial(schedule_of_rows, 1, 5, "vi", "wi", "wi"), "another range"),
    "every other row": (partial(schedule_of_rows, 0, 6, "vi", "wi * 2", "wi"), "other indices"),
    "every other row, from 1": (partial(schedule_of_rows, 1, 7, "vi", "wi * 2 - 2", "wi"), "other indices"),
    "sums in every other row": (partial(schedule_of_rows, 0, 6, "vi * 2", "wi", "wi"), "other indices"),
    **{f"strides {s}": (partial(schedule_with_strides, s), OVERLAP) for s in ("(5, 1)", "(0, 1)", "(1, 1)")},
    "a matched buffer whose other name is used": (partial(edit_schedule, *OTHER_NAME_READ), "second name"),
}  # fmt: skip


@pytest.mark.parametrize("fuse", BOTH)
@pytest.mark.parametrize("name", FUSED)
def test_both_fuse(name, fuse):
    way = fuse_and_compare(FUSED[name](), fuse)
    if "of one value" in name:
        assert way is None or way.how == "init"


@pytest.mark.parametrize("fuse", BOTH)
@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(name, fuse):
    make, words = REFUSED[name]
    assert_refused(make(), fuse, words)


def test_threads_that_share_a_sum_cannot_start_from_a_bias():
    """The built-in fuses it, and TVM then finds no reducer: `check_reduction_loops` refuses with reason."""
    sch = schedule_case()
    sch.bind(sch.get_loops("matmul")[-1], "threadIdx.x")
    for fuse in BOTH:
        assert_refused(sch, fuse, "does not run serially")
    sch.fuse_reduction_epilogue("matmul", "bias")
    with pytest.raises(ValueError, match="No matched reducer"):
        tvm.compile(sch.mod, target=Target({"kind": "cuda", "arch": "sm_80"}))
