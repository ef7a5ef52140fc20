"""The cost model, on numbers by hand; and the file of predictions, which must be possible on its own terms."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from chapters.ch08_gpu_targets import predictions
from chapters.ch08_gpu_targets.bench import STEPS, steps
from chapters.kit.bench.kernel_counts import compiler
from chapters.kit.bench.results import load
from chapters.kit.gpu import machine_code
from chapters.kit.gpu.cost_model import LATENCY, Counts, DoesNotFitError, counted, predicted
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.gpus import ARCHITECTURES, BOARDS, Board
from chapters.kit.gpu.published_kernels import PUBLISHED, Tile, sgemm
from chapters.kit.gpu.traffic import Request, Traffic
from chapters.kit.gpu.warp_access import Access
from tests.support.planted import needs_compiler

needs_disassembler = pytest.mark.skipif(bool(machine_code.missing()), reason=machine_code.missing())
# ten multiprocessors of Ada at 1 GHz: 128 lanes, two operations each
TOY = Board("toy", "sm_89", 10, 1e11, 2.56e12, 1e13, 1000, "made up")


def counts(
    blocks=20, requests=(), kinds=None, operations=0.0, tensor=0, rounds=1, registers=32
) -> Counts:
    keys = np.arange(blocks)
    memory = Traffic(list(requests), blocks, 256, rounds, {"y": 6000}, 0, {"x": (keys, 200)})
    return Counts("sm_89", Resources(registers), memory, operations, {"tensor core": tensor}, kinds)


def test_dram_by_hand():
    found = predicted(counts(), TOY)
    assert found.dram_bytes == 20 * 200 + 6000
    assert found.least["DRAM"] == pytest.approx(10_000 / 1e11)
    # 6 blocks of 256 threads are resident on each of 10 multiprocessors, so all 20 at a time
    assert found.waiting == LATENCY and found.busiest == "DRAM"
    assert found.seconds == pytest.approx(1e-7 + LATENCY)


def test_the_multiprocessor_with_most_blocks_decides():
    column = Access("s", "shared", False, 1, 4, 1, tuple(range(0, 1024, 32)))  # 32 cycles
    for blocks, share in ((20, 2), (21, 3), (1, 1)):
        ask = [Request(column, 8 * blocks)]  # once per warp
        found = predicted(counts(blocks, ask), TOY)
        assert found.least["shared memory"] == pytest.approx(share * 8 * 32 / 1e9)


def test_instructions_by_hand():
    found = predicted(counts(kinds={"float32": 600, "branch": 200}), TOY)
    # two blocks of eight warps each: 16 × 800 instructions, four per cycle; 16 × 600 × 32 lanes, 128 per cycle
    assert found.least["issue"] == pytest.approx(16 * 800 / 4 / 1e9)
    assert found.least["float32"] == pytest.approx(16 * 600 * 32 / 128 / 1e9)
    assert found.bound == found.least["issue"] and found.busiest == "issue"


def test_without_machine_code_the_operations_count():
    assert predicted(counts(operations=2.56e9), TOY).least["float32"] == pytest.approx(1e-3)
    on_cores = predicted(counts(operations=1e10, tensor=1), TOY)
    assert on_cores.least["tensor cores"] == pytest.approx(1e-3) and "float32" not in on_cores.least


def test_each_round_that_nothing_hides_adds_a_latency():
    # 200 registers: one block of eight warps per multiprocessor, so 20 blocks take two turns
    assert predicted(counts(rounds=7, registers=200), TOY).waiting == pytest.approx(14 * LATENCY)
    assert predicted(counts(rounds=7), TOY).waiting == pytest.approx(7 * LATENCY)


def test_what_the_table_lacks_is_said_and_not_guessed():
    orin = BOARDS["Jetson AGX Orin 64 GB"]
    one = counts(operations=1e9, tensor=1)
    found = predicted(Counts("sm_87", one.used, one.memory, 1e9, one.static), orin)
    assert found.lacking == ("DRAM", "tensor cores")
    assert set(found.least) == {"shared memory"}


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(
        DoesNotFitError, match=r"256 threads with 32 registers.*110000 bytes.*sm_89"
    ):
        one = counts()
        predicted(Counts("sm_89", Resources(32, 0, 0, 0, 110_000), one.memory, 0, {}), TOY)


@needs_compiler
@needs_disassembler
def test_a_kernel_is_counted_as_it_was_compiled():
    n, tile = 256, Tile(64, 64, 8, 8, 1)
    found = counted(sgemm(n, tile), "sm_86", 2 * n**3)
    assert found.kinds["float32"] == n * 8  # eight sums per thread
    assert found.resident == 3 and found.memory.rounds == n // 8
    # the compiler joins four steps: 16 bytes of A per load
    loads = {
        r.access.lanes
        for r in found.memory.requests
        if r.access.buffer.startswith("A_") and not r.access.writes
    }
    assert loads == {4}


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept():
    return load(predictions.NAME)


def test_the_file_has_every_kernel_on_every_board(kept):
    entries = kept["measured"]["predictions"]
    pairs = {(e["kernel"], e["board"]) for e in entries}
    assert pairs == {(name, board) for name in predictions.cases() for board in BOARDS}
    for name in steps(STEPS):  # what `bench 8` would measure
        assert (f"{STEPS.m} rows: {name}", predictions.SHOWN_BOARD) in pairs
    assert (
        kept["command"] == predictions.COMMAND
        and "nvidia-cuda-nvrtc 1" in kept["measured"]["compiler"]
    )
    assert "nvdisasm" in kept["measured"]["disassembler"] and "gpu" not in kept


def test_nothing_is_faster_than_its_board(kept):
    entries = [e for e in kept["measured"]["predictions"] if e.get("seconds")]
    assert len(entries) > 80
    for e in entries:
        board = BOARDS[e["board"]]
        assert e["dram_bytes"] / e["seconds"] <= board.bandwidth
        rate = max(board.float32, board.tensor or 0)
        assert e["operations"] / e["seconds"] <= rate
        assert 0 < e["occupancy"] <= 1 and e["dram_bytes"] >= 0.99 * e["least_bytes"]
        if e["roofline"]:
            assert e["seconds"] >= e["roofline"]


def test_a_kernel_that_cannot_run_says_why(kept):
    why = {(e["kernel"], e["board"]): e.get("why", "") for e in kept["measured"]["predictions"]}
    rows = f"{STEPS.m} rows"
    assert why[f"{rows}: wgmma", "RTX 4090"] == "sm_89 has no wgmma"
    assert why[f"{rows}: wgmma", "B200"] == "sm_100a has no wgmma"
    assert not why[f"{rows}: wgmma", "H100 SXM"] and not why[f"{rows}: mma.sync", "RTX 5090"]
    assert why[f"{rows}: mma.sync", "T4"] == "sm_75 has no mma.sync m16n8k16"
    assert not why[f"{rows}: tensor cores, 64 × 64", "T4"]


def test_the_error_on_published_kernels_is_shown_as_it_is(kept):
    entries = kept["measured"]["validation"]
    assert [e["kernel"] for e in entries][: len(PUBLISHED)] == [one.name for one in PUBLISHED]
    assert all(
        e["published"] == pytest.approx(one.seconds)
        for e, one in zip(entries, PUBLISHED, strict=False)
    )
    ratios = [e["predicted"] / e["published"] for e in entries]
    assert min(ratios) > 0.25 and max(ratios) < 1.5  # what the page says of the model
    note = predictions.validation_table(entries).note
    assert (
        f"{min(ratios):.2f} to {max(ratios):.2f}" in note
        and f"{statistics.median(ratios):.2f}" in note
    )


@needs_compiler
@needs_disassembler
def test_the_file_is_what_its_versions_give(kept):
    measured = kept["measured"]
    if (measured["compiler"], measured["disassembler"]) != (
        compiler(),
        machine_code.disassembler_version(),
    ):
        pytest.skip("made with other releases of NVIDIA's compiler or disassembler")
    one = next(p for p in PUBLISHED if p.name == "SGEMM 3, shared memory")
    entry = next(e for e in measured["validation"] if e["kernel"] == one.name)
    board = BOARDS[one.board]
    found = predicted(counted(one.make(), ARCHITECTURES[board.arch].target, one.operations), board)
    assert found.seconds == pytest.approx(entry["predicted"], rel=1e-6)


def test_the_tables_say_that_they_are_predictions(monkeypatch):
    kept = {predictions.NAME: load(predictions.NAME)}
    monkeypatch.setattr(predictions, "load", kept.get)
    told = str(predictions.shown())
    assert (
        told.startswith("A prediction, not a measurement") and "python -m chapters bench 8" in told
    )
    assert "wide_kernel" in told and "of the published one" in told and predictions.COMMAND in told
    monkeypatch.setattr(predictions, "load", lambda name: None)
    assert predictions.COMMAND in str(predictions.shown())
    monkeypatch.setattr(predictions.cuda_resources, "missing", lambda: "no compiler")
    assert predictions.main() == 1


def test_registers_and_occupancy_on_every_board(kept):
    table = predictions.resources_table(kept["measured"]["predictions"])
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    row = rows["add and RMSNorm 8192 × 8192: row_kernel"]
    assert row["integrated"] == "1024 threads: too large" and row["Apple"] == "1024 threads: fits"
    assert row["RTX 4090"].endswith(", 67%")  # 1536 threads have no room for two blocks of 1024
    assert rows["4096 rows: wgmma"]["Apple"] == "NVIDIA only"
    assert rows["4096 rows: wgmma"]["T4"] == "sm_75 has no wgmma"


def test_the_table_of_gpus_shows_sources_and_what_has_none():
    told = str(predictions.gpus_table())
    for name in (*BOARDS, "M4 Max"):
        assert name in told
    assert "no source" in told and "wgmma" in told and "mma.sync m16n8k16" in told
    assert predictions.best_product("sm_75") == "wmma float16"
