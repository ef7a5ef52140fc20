"""What chapter 6 says about this release of TVM, run. If a test here fails, a sentence of the course must go.

TVM 0.27.0.post1, November 2026. Where: the lesson's "Regions that lie" and "Substitution". docs/upstream has more.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir
from tvm.s_tir.schedule.instruction import InstructionKind

from chapters.ch06_reduction_epilogue.checks import nest, program, run_in_python
from chapters.kit.cases.example_programs import matmul_bias
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as reference
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue


def test_the_built_in_leaves_temp_allocated():
    sch = s_tir.Schedule(matmul_bias(4, 4, 4))
    sch.fuse_reduction_epilogue("matmul", "bias")
    assert [b.name for b in sch.get(sch.get_sblock("root")).alloc_buffers] == ["temp"]


def test_decompose_reduction_moves_the_init_over_the_block_that_makes_the_bias():
    func = program(before=nest("C[vi, vj] = E[vi, vj]", name="make"))
    sch = s_tir.Schedule(func)
    fuse_reduction_epilogue(sch, "matmul", "bias")
    rows = sch.get_loops("make")[0]
    sch.reverse_compute_at("matmul", rows)
    assert np.array_equal(run_in_python(func)[-1], run_in_python(sch.mod["main"])[-1])
    sch.decompose_reduction("matmul", rows)
    assert not np.array_equal(run_in_python(func)[-1], run_in_python(sch.mod["main"])[-1])


def test_python_still_registers_no_kind_of_instruction():
    """So the primitive is not in the trace, and a replay leaves it out, as the lesson says."""
    ours = [n for n in tvm_ffi.registry.list_global_func_names() if n.startswith("s_tir.schedule.")]
    mended = "mended: let the primitive record itself, and correct the lesson"
    assert [n for n in ours if "InstructionKind" in n] == ["s_tir.schedule.InstructionKindGet"], (
        mended
    )
    fields = {field.name for field in InstructionKind.__tvm_ffi_type_info__.fields}
    assert fields == {"name", "_is_pure"}, mended
    func = matmul_bias(8, 8, 8)
    for fuse, remain in (("ours", ["matmul", "bias"]), ("built-in", ["matmul"])):
        sch, replayed = s_tir.Schedule(func), s_tir.Schedule(func)
        if fuse == "ours":
            fuse_reduction_epilogue(sch, "matmul", "bias")
        else:
            sch.fuse_reduction_epilogue("matmul", "bias")
        sch.trace.apply_to_schedule(replayed, remove_postproc=False)
        root = replayed.get_sblock("root")
        names = [replayed.get(block).name_hint for block in replayed.get_child_blocks(root)]
        assert names == remain


@pytest.mark.parametrize(
    "name", ["parallel", "vectorize", "decompose_reduction", "split", "reorder"]
)
def test_what_an_unmapped_block_is_refused_by(name):
    """A block that the map of `replace` leaves out has no flags; not every primitive asks for them."""
    sch = s_tir.Schedule(matmul_bias(8, 8, 8))
    fusion = reference.analyse(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
    scope = reference.new_scope(fusion, reference.fused_block(fusion))
    sch.state.replace(fusion.site.scope_sref, scope, {fusion.site.scope: scope})
    i, j, k = sch.get_loops("matmul")
    arguments = {"decompose_reduction": ["matmul", k], "split": [i, [None, 2]], "reorder": [j, i]}
    works = name in ("split", "reorder")
    with contextlib.nullcontext() if works else pytest.raises(s_tir.ScheduleError):
        getattr(sch, name)(*arguments.get(name, [i if name == "parallel" else j]))
