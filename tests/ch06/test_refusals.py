"""Programs that the primitive must refuse although no check of chapter 6 asks for it, and random programs rarely do.

On each of these programs, starting the sum from the bias would be wrong or could not be proved right, and each must be
left exactly as it was.
"""

from __future__ import annotations

import pytest
import tvm
from tvm import s_tir, tirx

from chapters.ch06_reduction_epilogue.checks import nest, other, program
from chapters.kit.ir.parse_alone import from_source
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue


def assert_refused(sch: s_tir.Schedule, words: str) -> None:
    """The primitive refuses in one sentence that holds `words`, and changes nothing."""
    before, text = sch.mod, sch.mod.script()
    with pytest.raises(s_tir.ScheduleError) as caught:
        fuse_reduction_epilogue(sch, "matmul", "bias")
    message = str(caught.value)
    assert words in message and "\n" not in message, message
    assert sch.mod.same_as(before) and sch.mod.script() == text


def edit_program(old: str, new: str) -> tirx.PrimFunc:
    """The usual program with `old` in its text replaced."""
    text = program().script()
    assert old in text
    return from_source(text.replace(old, new))


TOUCHES = """T.reads({reads})
        T.writes(E[vi, vj])
        E = T.call_extern("int32", "touch", {pointer})"""
UNDER_A_CONDITION = """
for i, j in T.grid(4, 5):
    if A[0, 0] > 0:
        with T.sblock("bias"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = temp[vi, vj] + C[vi, vj]
"""
SECOND_NAME = """T.reads(temp[vi, vj], C[vi, vj])
        T.writes(D[vi, 0:5])
        row = T.match_buffer(D[vi, 0:5], (5,), "int32", offset_factor=1)
        row[vj] = temp + C"""
SHARED_AND_PRIVATE = """temp = T.sblock_alloc_buffer((4, 5), "int32", scope="shared")
    copy = T.sblock_alloc_buffer((4, 5), "int32", scope="local")"""
OPAQUE = """vi = T.axis.spatial(4, i)
        vj = T.axis.opaque(5, j)"""
# what stands in the way: a program, and words of the refusal
CASES = {
    "the init is a bias already": (program(init="C"), "its init is not 0"),
    "the init sets another element": (
        edit_program("temp[vi, vj] = 0", "temp[3 - vi, vj] = 0"),
        "another element",
    ),
    "a step that subtracts from x": (program(step="A - temp"), "does not add"),
    "a step that uses the sum twice": (program(step="temp + A * temp"), "does not add"),
    "a step that reads another element": (
        program(step="temp[vi, (vj + 1) % 5] + A"),
        "does not add",
    ),
    "the output is chosen by data": (program("D[J[vi], vj] = temp + C"), "two of its points"),
    "an epilogue with a predicate": (
        program(nest("T.where(i < 2)\n        D = temp + C")),
        "each point",
    ),
    "an epilogue under a condition": (program(UNDER_A_CONDITION), "something other than loops"),
    "an epilogue with an opaque axis": (program("D = temp + C", axes=OPAQUE), "not all spatial"),
    "a call between the two": (
        program(between='T.evaluate(T.call_extern("int32", "touch", D.data))'),
        "something other than loops",
    ),
    "an epilogue that stores through a second name": (
        program(nest(SECOND_NAME)),
        "matches buffers",
    ),
    "a pointer taken before": (
        program(
            before="p: T.let = T.address_of(C[0, 0])",
            between=other(TOUCHES.format(reads="", pointer="p")),
        ),
        "may be written before it",
    ),
    "a declaration that hides the sum": (
        edit_program("T.writes(temp[vi, vj])", "T.writes(E[vi, vj])"),
        "does not declare that it writes `temp`",
    ),
    "a declaration that hides the output": (
        program(nest("T.reads(temp[vi, vj])\n        T.writes()\n        D = temp + C")),
        "declare",
    ),
    "a block between the two that hands out the bias": (
        program(between=other(TOUCHES.format(reads="C[vi, vj]", pointer="C.data"))),
        "`C` may be written",
    ),
    "a second name of the output": (
        program(before="alias = T.decl_buffer((20,), 'int32', data=D.data)"),
        "second name",
    ),
    "partial sums in private memory": (
        program(
            "copy[vi, vj] = temp + C",
            allocation=SHARED_AND_PRIVATE,
            after=nest("D = copy[vi, vj]", name="last"),
        ),
        "another kind of memory",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refuses(case):
    func, words = CASES[case]
    assert_refused(s_tir.Schedule(func), words)


def test_refuses_blocks_of_two_scopes_the_root_and_an_unknown_name():
    sch = s_tir.Schedule(program())
    sch.blockize(sch.get_loops("bias")[1])
    assert_refused(sch, "not another block of the scope")
    for names, words in (
        (("matmul", "matmul"), "not another block"),
        (("root", "bias"), "root of its function"),
        (("matmul", "nothing"), "nothing"),
    ):
        before = sch.mod
        with pytest.raises(s_tir.ScheduleError, match=words):
            fuse_reduction_epilogue(sch, *names)
        assert sch.mod.same_as(before)


def test_fuses_what_is_computed_for_the_gpu():
    """Spatial loops bound to threads stay bound, and the source has no second kernel."""
    if tvm.get_global_func("target.build.cuda", allow_missing=True) is None:
        pytest.skip("this TVM writes no CUDA")
    sch = s_tir.Schedule(program())
    for name in ("matmul", "bias"):
        i, j = sch.get_loops(name)[:2]
        sch.bind(i, "blockIdx.x")
        sch.bind(j, "threadIdx.x")
    kernels = [_cuda(sch).count("__global__")]
    fuse_reduction_epilogue(sch, "matmul", "bias")
    kernels.append(_cuda(sch).count("__global__"))
    assert kernels == [4, 2]  # each is declared and defined


def _cuda(sch: s_tir.Schedule) -> str:
    built = tvm.compile(sch.mod, target=tvm.target.Target({"kind": "cuda", "arch": "sm_80"}))
    return built.mod.imports[0].inspect_source()
