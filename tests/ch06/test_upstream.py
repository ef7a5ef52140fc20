"""What chapter 6 says about this release of TVM, run. If a test here fails, a sentence of the course must go.

TVM 0.27.0.post1, November 2026. Where: chapters/kit/cpu/vnni.py, the lesson's "Regions that lie" and "Measure it",
tests/support/reductions.py.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir.schedule.instruction import InstructionKind
from tvm.script import tirx as T

from chapters.ch06_reduction_epilogue.checks import nest, program, results, without_dead_temp
from chapters.kit.cases.guard_zones import WroteOutside, run_compiled
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cpu import int8_matmul, vnni
from chapters.runner.course import ROOT
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as reference
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue

# Importing the package of the intrinsic makes those of all GPUs too, half a minute; an empty one stands in for it.
STOCK = """
import pathlib, sys, types
import tvm
import tvm_ffi
package = types.ModuleType("tvm.s_tir.tensor_intrin")
package.__path__ = [str(pathlib.Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
sys.modules[package.__name__] = package
from tvm.s_tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN
from chapters.kit.cpu import int8_matmul, vnni
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as primitives
int8_matmul.register = lambda: VNNI_DOT_16x4_INTRIN
sch = int8_matmul.schedule(8, 32, 4, "fused", primitives)
tvm.compile(sch.mod, target=vnni.target())
"""


@pytest.mark.skipif(not vnni.compiles_here(), reason="this LLVM writes no x86 code")
def test_the_stock_vnni_intrinsic_does_not_compile():
    done = subprocess.run(
        [sys.executable, "-c", STOCK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode != 0 and "does not match function signature" in done.stderr


def test_equals_the_built_in_after_tensorize_too():
    """Split, reordered, decomposed and tensorized: the same module except for the built-in's dead temp."""
    built_in = SimpleNamespace(
        fuse_reduction_epilogue=lambda sch, *blocks: sch.fuse_reduction_epilogue(*blocks),
        refresh_regions=reference.refresh_regions,
    )
    mine = int8_matmul.schedule(8, 32, 8, "fused", reference)
    theirs = int8_matmul.schedule(8, 32, 8, "fused", built_in)
    assert "vpdpbusd" in mine.mod.script()
    tvm.ir.assert_structural_equal(mine.mod, without_dead_temp(s_tir.Schedule(theirs.mod)))


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
    assert np.array_equal(results(func)[-1], results(sch.mod["main"])[-1])
    sch.decompose_reduction("matmul", rows)
    assert not np.array_equal(results(func)[-1], results(sch.mod["main"])[-1])


def test_an_index_that_this_release_compiles_wrongly():
    @T.prim_func(s_tir=True)
    def main(D: T.Buffer((2, 2, 2), "int32")):
        for i, j in T.grid(4, 2):
            with T.sblock("store"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[(3 - vi) // 2, vj, (3 - vi) % 2] = vi

    expected = results(main)[0]
    try:
        (got,) = run_compiled(tvm.IRModule({"main": main}), [np.zeros((2, 2, 2), np.int32)])
    except WroteOutside:
        return
    assert not np.array_equal(got, expected)


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


def test_what_an_unmapped_block_is_refused_by():
    """A block that the map of `replace` leaves out has no flags; not every primitive asks for them."""

    def unmapped() -> tuple[s_tir.Schedule, list]:
        sch = s_tir.Schedule(matmul_bias(8, 8, 8))
        fusion = reference.analyse(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
        scope = reference.new_scope(fusion, reference.fused_block(fusion))
        sch.state.replace(fusion.site.scope_sref, scope, {fusion.site.scope: scope})
        return sch, sch.get_loops("matmul")

    for name, at in (("parallel", 0), ("vectorize", 1)):
        sch, loops = unmapped()
        with pytest.raises(s_tir.ScheduleError):
            getattr(sch, name)(loops[at])
    sch, loops = unmapped()
    with pytest.raises(s_tir.ScheduleError):
        sch.decompose_reduction("matmul", loops[2])
    sch, (i, j, _k) = unmapped()
    sch.split(i, [None, 2])
    sch, (i, j, _k) = unmapped()
    sch.reorder(j, i)
