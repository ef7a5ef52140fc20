"""The tables of `python -m chapters bench 6`, from made-up seconds, and the peers that check before they are timed."""

from __future__ import annotations

import numpy as np
import pytest

from chapters.ch06_reduction_epilogue import bench
from chapters.kit.bench import results
from chapters.kit.cpu import vnni
from chapters.kit.cpu.int8_matmul import WAYS

SECONDS = {
    "64": {"vpdpbusd, separate": 3e-3, "vpdpbusd, at the tile": 2e-3, "vpdpbusd, fused": 1.5e-3},
    "4096": {"vpdpbusd, separate": 32e-3, "vpdpbusd, at the tile": 31e-3, "vpdpbusd, fused": 30e-3},
}
MEASURED = {
    "m": 512,
    "n": 4096,
    "steps": {k: {**v, "bias pass alone": 1e-3} for k, v in SECONDS.items()},
    "tall": {
        "m": 2048,
        "k": 64,
        "seconds": {"vpdpbusd, separate": 5e-3, "vpdpbusd, fused": 2e-3, "bias pass alone": 2.4e-3},
    },
}
TILES = {
    "AMX, separate": 2e-3,
    "AMX, fused": 1.05e-3,
    "AMX, without bias": 1e-3,
    "PyTorch": 2.1e-3,
    "bias pass alone": 1e-3,
}


def test_table_compares_with_the_separate_pass():
    rows = bench.speedups(MEASURED).rows
    assert [row[:4] for row in rows] == [
        (512, 64, "vpdpbusd", "2.00"),
        (512, 4096, "vpdpbusd", "1.07"),
        (2048, 64, "vpdpbusd", "2.50"),
    ]
    assert rows[0][5] == "1.50" and rows[0][6] == f"{2 * 512 * 4096 * 64 / 1.5e-3 / 1e9:.0f}"


def test_what_the_bias_costs_and_what_torch_takes():
    table = bench.beside_torch({"m": 512, "n": 4096, "steps": {"64": SECONDS["64"], "256": TILES}})
    assert table.rows == [(256, "+5.0%", "2.00×", "–")]


def test_prediction_adds_a_pass_to_the_fused_kernel():
    """1.5 ms, of which the stores take 2/3 of the 1 ms of a pass that moves 12 bytes per element; plus that pass."""
    assert [row[4] for row in bench.speedups(MEASURED).rows] == [
        f"{(fused + 1) / fused:.2f}" if m == 512 else f"{(fused + 2.4) / fused:.2f}"
        for m, fused in ((512, 1.5), (512, 30), (2048, 2))
    ]


def test_page_says_where_its_numbers_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "load", lambda name: results.load(name, tmp_path))
    assert "bench 6" in str(bench.show_results())
    results.save("ch06_int8", MEASURED, "python -m chapters bench 6", tmp_path)
    assert "2.00" in str(bench.show_results()) and "bench 6" in str(bench.show_results())


@pytest.mark.skipif(not vnni.runs_here(), reason="this processor has no vpdpbusd")
def test_peers_are_exact_before_they_are_timed():
    found = bench.vnni(m=8, n=32, k=64, seed=1)
    assert set(found) == {f"vpdpbusd, {way}" for way in WAYS}
    assert all(error == 0.0 for _, error in found.values())
    with pytest.raises(ValueError, match="wrong numbers"):
        a, w, c = bench.numbers(8, 32, 64, 1)
        bench._check_exact(np.zeros((8, 32)), a, w, c)
