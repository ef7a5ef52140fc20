"""The int8 kernels of chapter 6: the instruction is in the assembly; where the processor has it, results are exact."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from chapters.kit.cpu import amx, vnni
from chapters.kit.cpu.int8_matmul import WAYS, pack, schedule
from chapters.kit.cpu.int8_numbers import expected, numbers
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as primitives

SIZES = (64, 64, 128)
pytestmark = pytest.mark.skipif(not vnni.compiles_here(), reason="this LLVM writes no x86 code")


def _run(kernel, inputs: list[np.ndarray], more: list[np.ndarray]) -> np.ndarray:
    out = tvm.runtime.tensor(np.full(SIZES[:2], -7, np.int32))
    kernel(*map(tvm.runtime.tensor, inputs), out, *map(tvm.runtime.tensor, more))
    return out.numpy()


@pytest.mark.parametrize("way", WAYS)
def test_vnni(way):
    sch = schedule(*SIZES, way, primitives)
    allocated = len(sch.get(sch.get_sblock("root")).alloc_buffers)
    assert allocated == (0 if way == "fused" else 1)
    built = tvm.compile(sch.mod, target=vnni.target())
    assert "vpdpbusd" in built.mod.inspect_source("asm")
    if not vnni.runs_here():
        pytest.skip("this processor has no vpdpbusd")
    a, w, c = numbers(*SIZES, seed=3)
    assert (_run(built["main"], [a, pack(w), c], []) == expected(a, w, c)).all()


@pytest.mark.parametrize("way", amx.WAYS)
def test_amx(way):
    built = tvm.compile(amx.product(*SIZES, way), target=amx.target())
    assembly = built.mod.inspect_source("asm")
    assert "tdpbusd" in assembly and ("tilezero" in assembly) == (way != "fused")
    if not amx.runs_here():
        pytest.skip("there are no AMX tiles here")
    a, w, c = numbers(*SIZES, seed=4)
    more = [amx.configuration(), np.full(SIZES[:2], -7, np.int32)]
    exact = expected(a, w, np.zeros_like(c) if way == "without bias" else c)
    assert (_run(built["main"], [a, amx.pack(w), c], more) == exact).all()
