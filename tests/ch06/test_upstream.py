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
from tvm import s_tir
from tvm.script import tirx as T

from chapters.kit.cases.guarded import WroteOutside, run_compiled
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cpu import int8_matmul, vnni
from chapters.runner.course import ROOT
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as reference
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue
from tests.ch06.checks import nest, program, results, without_dead_temp

# Importing the package of the intrinsic makes those of all GPUs too, half a minute; an empty one stands in for it.
STOCK = """
import pathlib, sys, types
import tvm
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
