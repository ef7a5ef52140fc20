"""Answers that are wrong in a case that a check easily leaves out: each must be refused with the reason."""

from __future__ import annotations

import functools
import importlib
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import EQ, And, For, SeqStmt, Var, const

from chapters.kit.ir.tensor_ir import mentions, nodes, substitute, with_fields
from chapters.runner.course import chapter
from chapters.runner.failure import CheckFailed
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue
from solutions.ch07_when_fusion_is_sound import soundness
from solutions.ch09_the_compiler import pipeline
from tests.support.answers import mistaken


def drops_a_mixed_bound(nest):
    """7.3: drops every part of the predicate that mentions a reduction loop, even one that also bounds rows."""
    loops = soundness.reduction_loops(nest)
    parts = [EQ(loop.loop_var, loop.min + loop.extent - 1) for loop in loops]
    for part in soundness.conjuncts(nest.realize.predicate):
        if not any(mentions(part, loop.loop_var) for loop in loops):
            parts.append(part)
    return functools.reduce(And, parts, const(True, "bool"))


def affine_in_python_numbers(value, total):
    """7.1: Python's 0 and 1 for constants of the sum's dtype."""
    form = soundness.affine(value, total)
    if form is None:
        return None
    plain = [soundness.is_number(part, 0) or soundness.is_number(part, 1) for part in form]
    return tuple(int(p.value) if is_plain else p for p, is_plain in zip(form, plain, strict=True))


def takes_any_two_blocks(func):
    """9.3: gives every function with two blocks to chapter 7, which raises if the second is not an epilogue."""
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) == 2:
        pipeline.ch7.fuse_epilogue(sch, *blocks)
    return sch.mod["main"]


def pipeline_around_late_transposes(target, **facts):
    """9.5: a right pipeline around a wrong phase, in which FuseTransposeMatmul comes after LegalizeOps."""

    @tvm.transform.module_pass(opt_level=0, name="fusion_by_hand")
    def around(mod, _ctx):  # the phases are made when the pass runs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "graph_and_lower", late_transposes)
            return pipeline.fusion_pipeline(target, **facts)(mod)

    return around


def late_transposes(target):
    """9.2 as it is before it is solved."""
    with tempfile.TemporaryDirectory() as folder:
        answer = mistaken(Path(folder), chapter(9), "transposes_after_legalising")
    return answer.graph_and_lower(target)


def renews_the_other_loops(sch, *blocks):
    """6.5: gives a new variable to every loop of blocks that have nothing to do with the fusion."""

    def renewed(stmt, fused):
        if not isinstance(stmt, For) or any(one.same_as(fused) for one in nodes(stmt, SBlock)):
            return stmt
        var = Var(stmt.loop_var.name, stmt.loop_var.ty)
        body = substitute(renewed(stmt.body, fused), {stmt.loop_var: var})
        return For(var, stmt.min, stmt.extent, stmt.kind, body)

    def scope(fusion, fused):
        new = new_scope(fusion, fused)
        return with_fields(new, body=SeqStmt([renewed(part, fused) for part in new.body.seq]))

    new_scope = fuse_reduction_epilogue.new_scope
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_reduction_epilogue, "new_scope", scope)
        fuse_reduction_epilogue.fuse_reduction_epilogue(sch, *blocks)


RENEWING = {"fuse_reduction_epilogue": renews_the_other_loops}
LATE = {"fusion_pipeline": pipeline_around_late_transposes, "graph_and_lower": late_transposes}
REFUSED = [
    ("test_6_5_keeps_handles_and_flags", RENEWING, "loops of another block"),
    ("test_7_1_keeps_the_dtype", {"affine": affine_in_python_numbers}, "other dtypes"),
    ("test_7_3_a_mixed_bound_is_refused", {"last_step": drops_a_mixed_bound}, "i + k < 4"),
    ("test_9_3_leaves_the_rest", {"fuse_its_epilogue": takes_any_two_blocks}, "A refusal of"),
    ("test_9_5_reaches_the_vm", LATE, "exercise 9.2"),
]


@pytest.mark.parametrize("check, parts, says", [pytest.param(*r, id=r[0]) for r in REFUSED])
def test_refused(check: str, parts: dict, says: str) -> None:
    home = chapter(int(check.split("_")[1]))
    checks = importlib.import_module(f"chapters.{home.slug}.checks")
    reference = importlib.import_module(f"solutions.{home.slug}.{home.stub.stem}")
    getattr(checks, check)(reference)
    changed = ModuleType("changed")
    vars(changed).update(vars(reference), **parts)
    with pytest.raises(CheckFailed) as failed:
        getattr(checks, check)(changed)
    assert says in str(failed.value.failure.as_dict())
