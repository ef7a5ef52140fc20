"""The tables of `python -m chapters bench 6` on a processor without AMX, and baselines that are checked before timing.

The tables with AMX are on the page of results.
"""

from __future__ import annotations

import numpy as np
import pytest

from chapters.ch06_reduction_epilogue import bench
from chapters.kit.bench.results import load
from chapters.kit.cpu import vnni
from chapters.kit.cpu.int8_matmul import WAYS


def test_without_amx_the_tables_have_the_rows_of_vpdpbusd():
    measured = load("ch06_int8")["measured"]
    whole = bench.speedups(measured).rows
    for case in measured["cases"]:
        seconds = case["seconds"]
        case["seconds"] = {n: time for n, time in seconds.items() if not n.startswith("AMX")}
    assert bench.speedups(measured).rows == [row for row in whole if row[2] == "vpdpbusd"]
    assert len(whole) > len(bench.speedups(measured).rows) == len(measured["cases"])
    assert not bench.beside_torch(measured).rows


@pytest.mark.skipif(not vnni.runs_here(), reason="this processor has no vpdpbusd")
def test_peers_are_exact_before_they_are_timed():
    found = bench.vnni(m=8, n=32, k=64, seed=1)
    assert set(found) == {f"vpdpbusd, {way}" for way in WAYS}
    assert all(error == 0.0 for _, error in found.values())
    with pytest.raises(ValueError, match="wrong numbers"):
        a, w, c = bench.numbers(8, 32, 64, 1)
        bench._check_exact(np.zeros((8, 32)), a, w, c)
