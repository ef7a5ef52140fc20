"""What chapter 13's primitive promises, and its check does not ask."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from chapters.ch13_fuse_reductions.check_programs import (
    Program,
    schedule,
)
from chapters.kit.cases.guard_zones import run_compiled
from solutions.ch13_fuse_reductions import fuse_reductions as reference


def test_handles_stay_and_primitives_go_on():
    sch = schedule(Program(rows=6, length=10, width=3, sums="both"))
    maximum, (i, k) = sch.get_sblock("maximum"), sch.get_loops("maximum")
    for block in ("total", "weighted"):
        reference.fuse_reductions(sch, maximum, sch.get_sblock(block))
    sch.split(i, [None, 4])
    k0, _ = sch.split(k, [None, 5])
    init = sch.decompose_reduction(maximum, k0)
    assert sch.get(init).body is not None
    assert [region.source.name for region in sch.get(maximum).writes] == ["M", "S", "W"]
    random = np.random.default_rng(0)
    x, v = (
        random.normal(size=(6, 10)).astype("float32"),
        random.normal(size=(10, 3)).astype("float32"),
    )
    results = [np.full(shape, 77, "float32") for shape in ((6,), (6,), (6, 3))]
    *_, largest, total, weighted = run_compiled(sch.mod, [x, v, *results])
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    assert np.array_equal(largest, x.max(axis=1))
    assert np.allclose(total, weights.sum(axis=1), rtol=1e-5)
    assert np.allclose(weighted, weights @ v, atol=1e-5)


def test_two_reduction_axes_and_axes_that_do_not_begin_at_0():
    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((4, 3, 5), "float32"),
        M: T.Buffer((4,), "float32"),
        S: T.Buffer((4,), "float32"),
    ):
        for i, a, b in T.grid(3, 3, 5):
            with T.sblock("maximum"):
                vi = T.axis.spatial((1, 4), i + 1)
                va, vb = T.axis.remap("RR", [a, b])
                with T.init():
                    M[vi] = -T.infinity("float32")
                M[vi] = T.max(M[vi], X[vi, va, vb])
        for b, a, i in T.grid(5, 3, 3):
            with T.sblock("total"):
                wb, wa = T.axis.remap("RR", [b, a])
                wi = T.axis.spatial((1, 4), i + 1)
                with T.init():
                    S[wi] = T.float32(0)
                S[wi] = S[wi] + T.exp(X[wi, wa, wb] - M[wi])

    sch = s_tir.Schedule(main)
    reference.fuse_reductions(sch, "maximum", "total")
    x = np.random.default_rng(0).normal(size=(4, 3, 5)).astype("float32")
    _, _, total = run_compiled(sch.mod, [x, *(np.full(4, 77, "float32") for _ in range(2))])
    rows = x.reshape(4, 15)
    right = np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)
    assert np.allclose(total[1:], right[1:], rtol=1e-5) and total[0] == 77


def test_a_refusal_says_why():
    sch = schedule(Program(2, 3, refused="a sum from 1"))
    with pytest.raises(
        tvm.s_tir.ScheduleError, match="Block `total` cannot be fused: it does not start from 0"
    ):
        reference.fuse_reductions(sch, "maximum", "total")
