"""What kernels ask of memory: requests, banks, sectors, and bytes from DRAM, against counts by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from chapters.kit.gpu import machine_code
from chapters.kit.gpu.cuda_resources import compiled
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.kernel_report import used_by
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.mma import MmaTile, mma_matmul
from chapters.kit.gpu.published_kernels import Tile, sgemm, transpose
from chapters.kit.gpu.targets import CUDA, cuda
from chapters.kit.gpu.traffic import Request, Traffic, traffic, wgmma_traffic
from chapters.kit.gpu.warp_access import Access
from chapters.kit.gpu.wgmma import _WgmmaLayer
from chapters.kit.gpu.wgmma_tile import WgmmaTile
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.planted import needs_compiler

needs_disassembler = pytest.mark.skipif(bool(machine_code.missing()), reason=machine_code.missing())


def request(first, scope="shared", lanes=1, item_bytes=4) -> Request:
    return Request(Access("s", scope, False, lanes, item_bytes, 1, tuple(first)), 1)


@pytest.mark.parametrize(
    ("asked", "cycles"),
    [
        # 16 bytes per thread are served a quarter of a warp at a time: four cycles, even if all ask for the same word
        (request([0] * 32, lanes=4), 4),
        # threads 32 bytes apart: of eight threads, the fifth begins in the bank of the first
        (request(range(0, 256, 8), lanes=4), 8),
        # the same, but 16 threads and then the same 16 addresses again, as with 16 threads per row of a tile
        (request([8 * (t % 16) for t in range(32)], lanes=4), 8),
        (request(range(0, 1024, 32)), 32),  # a column of a tile whose rows are 32 words long
        (request(range(0, 1056, 33)), 1),  # and of one whose rows have one word more
        (request(range(32)), 1),
        (request([0] * 32), 1),  # a word that all ask for is delivered once
        (request(range(32), item_bytes=2), 1),  # two threads share a word
        (request(range(0, 64, 2), lanes=2), 2),  # 8 bytes each: two halves of a warp
        (request(range(0, 64, 2)), 2),  # every other word
        (request([0] * 31 + [32]), 2),  # one thread asks for another word of the same bank
    ],
)
def test_cycles_of_shared_memory(asked, cycles):
    assert asked.wavefronts == cycles


@pytest.mark.parametrize(
    ("asked", "lines", "sectors"),
    [
        (request(range(1, 33), "global"), 2, 5),  # one element off: another line, another sector
        (request(range(0, 32 * 4096, 4096), "global"), 32, 32),  # a column
        (request(range(0, 128, 4), "global", lanes=4), 4, 16),
        (request(range(32), "global"), 1, 4),
        (request([7] * 32, "global"), 1, 1),
        (request(range(0, 64, 2), "global"), 2, 8),  # every other word: twice the sectors
    ],
)
def test_lines_and_sectors_of_global_memory(asked, lines, sectors):
    assert asked.wavefronts == lines and asked.access.sectors == sectors


# --- the second-level cache -----------------------------------------------------------------------


def square(side: int = 4, size: int = 10) -> Traffic:
    """A product of side × side blocks: A's part depends on the row of blocks, B's on the column."""
    rows, columns = np.divmod(np.arange(side * side), side)
    panels = {"A": (rows, size), "B": (columns, size)}
    return Traffic([], side * side, 32, 1, {}, 0, panels)


@pytest.mark.parametrize(
    ("resident", "cache", "a", "b"),
    [
        # four at a time are a row of blocks. 39 bytes keep three parts: in each later row one part of B is gone
        (4, 39, 40, 40 + 3 * 10),
        (4, 40, 40, 40),  # what a row has read of A goes first, since B was used after it
        (4, 0, 40, 160),  # nothing is kept: B comes once per row
        (8, 0, 40, 80),  # two rows run in step, so that B comes once per two rows
        (16, 0, 40, 40),
        (1, 0, 160, 160),
        (3, None, 40, 40),  # a cache without end
    ],
)
def test_bytes_from_dram_by_hand(resident, cache, a, b):
    assert square().from_dram(resident, cache) == {"A": a, "B": b}


def test_what_no_two_blocks_share_is_read_once():
    rows = Traffic([], 6, 32, 1, {}, 0, {"x": (np.arange(6), 100), "w": (np.zeros(6, int), 7)})
    assert rows.from_dram(2, 0) == {"x": 600, "w": 21}
    assert rows.from_dram(2, 7) == {"x": 600, "w": 7}
    assert rows.read == {"x": 600, "w": 42}


# --- kernels --------------------------------------------------------------------------------------


def test_a_transpose_without_shared_memory():
    found = traffic(transpose(64, staged=False), CUDA)
    assert (found.blocks, found.threads, found.rounds) == (4, 1024, 1)
    assert found.sectors_per_request == ((4 + 32) / 2, 4)  # rows are read, columns are written
    assert found.wavefronts == {"shared": 0, "global": 4 * 32 * (1 + 32)}
    assert found.read == {"A": 64 * 64 * 4} and found.written == {"B": 64 * 64 * 4}
    assert found.worst_conflict == 0 and found.least == 2 * 64 * 64 * 4


@pytest.mark.parametrize(("padding", "cycles"), [(0, 32), (1, 1)])
@pytest.mark.parametrize("rows", [32, 8])
def test_a_transpose_through_shared_memory(rows, padding, cycles):
    found = traffic(transpose(64, rows, padding=padding), CUDA)
    warps = 4 * 32  # that much work, whether a warp does one row or several
    assert found.wavefronts == {"shared": warps * (1 + cycles), "global": warps * 2}
    assert found.sectors_per_request == (4, 4) and found.worst_conflict == cycles
    assert found.threads == 32 * rows


def test_a_naive_product_reads_a_column_per_warp():
    found = traffic(sgemm(64, Tile(32, 32), down_columns=True), CUDA)
    warps, per_warp = 4 * 32, 64
    lines = warps * (
        per_warp * (32 + 1) + 32
    )  # a column of A, one element of B; D is stored down a column
    assert found.wavefronts["global"] == lines
    # 32 rows of A and 32 columns of B for each of four blocks; sectors are whole, for B too
    assert found.read == {"A": 4 * 32 * 64 * 4, "B": 4 * 64 * 32 * 4}


def test_a_tiled_product_by_hand():
    found = traffic(sgemm(256, Tile(64, 64, 8, 8, 1)), CUDA, unrolled=4)
    assert (found.blocks, found.threads, found.rounds) == (16, 512, 256 // 8)
    counts: Counter = Counter()
    for one in found.requests:
        kind = one.access.scope, one.access.writes, one.access.lanes * 4
        counts[kind] += one.count / (16 * 16)  # warps
    assert counts["shared", False, 16] == 8 * 256 / 4  # 8 rows of A, four steps per load
    assert counts["shared", False, 4] == 256  # one column of B per step, for all 8 rows
    assert counts["shared", True, 4] == 2 * 256 / 8  # 64 × 8 elements of each, by 512 threads
    assert found.read == {"A": 16 * 64 * 256 * 4, "B": 16 * 64 * 256 * 4}


def test_of_two_rows_of_blocks_each_reads_all_of_b():
    found = traffic(sgemm(256, Tile(64, 64, 8, 8, 1)), CUDA)
    whole = 256 * 256 * 4
    assert found.from_dram(16, 0) == {"A": whole, "B": whole}
    assert found.from_dram(8, 0) == {"A": whole, "B": 2 * whole}


def test_a_pipeline_does_not_wait_in_every_round():
    tile = MmaTile(64, 64, 32, 32, 32, 4)
    assert traffic(mma_matmul(128, 128, 256, "float16", tile=tile), CUDA).rounds == 1
    assert (
        traffic(
            ch8.shared_matmul(matmul_bias(64, 64, 64), ch8.ThreadTile(64, 64, 16, 4, 4)), CUDA
        ).rounds
        == 4
    )


def test_fragments_of_tensor_cores_are_loaded_without_conflicts():
    found = traffic(ch8.tensor_core_matmul(matmul_bias(64, 64, 64)), CUDA)
    loads = [r for r in found.requests if r.access.scope == "shared" and not r.access.writes]
    # four warps; per step of 16, two fragments of A and two of B for each
    assert sum(r.count for r in loads) == 4 * 4 * (64 // 16)
    assert {r.wavefronts for r in loads} == {4}  # 512 bytes each
    assert found.written == {"D": 64 * 64 * 4}


@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (1000, 3000), (64, 256)])
def test_the_order_of_wgmma_s_tiles_is_that_of_the_kernel(m, n):
    tile = WgmmaTile(128, 256, 4)
    found = wgmma_traffic(m, n, 128, "bfloat16", tile)
    layer = _WgmmaLayer(m, n, 128, "bfloat16", "bfloat16", tile, 132)
    corners = []
    for number in range(found.blocks):
        block, turn = number % layer.blocks, number // layer.blocks
        corners.append([int(c) for c in layer.corner(block, turn)])
    rows, columns = np.array(corners).T
    assert (found.panels["A"][0] * 128 == rows).all()
    assert (found.panels["B"][0] * 256 == columns).all()
    # one step of k of one tile: 384 rows of 128 bytes are written, and 128 + 2 * 256 are read
    assert found.cycles == found.blocks * 2 * (384 + 640)


def test_a_loop_without_a_constant_number_of_turns_is_refused():
    from chapters.kit.gpu.wgmma import wgmma_matmul

    with pytest.raises(ValueError, match="no constant number of turns"):
        traffic(wgmma_matmul(4096, 4096, 4096), CUDA)


@needs_compiler
@needs_disassembler
@pytest.mark.parametrize(
    ("make", "unrolled"),
    [
        (lambda: sgemm(256, Tile(32, 32, 32)), 4),
        (lambda: sgemm(256, Tile(64, 64, 8, 8, 1)), 4),
        (lambda: transpose(256, 8, padding=1), 1),
        (lambda: mma_matmul(128, 128, 4096, "float16", tile=MmaTile(64, 64, 32, 32, 32, 4)), 1),
    ],
    ids=["one sum", "eight sums", "transpose", "mma"],
)
def test_the_machine_code_has_the_loads_and_stores_that_were_counted(make, unrolled):
    func = make()
    (kernel,) = HostProgram(func, cuda("sm_86")).kernels.values()
    code = machine_code.parsed(machine_code.listing(compiled(kernel.source, "sm_86")[0]))
    made: Counter = Counter()
    for one, times in code.executed():
        for start, kind in {"LDS": "load", "STS": "store"}.items():
            if one.opcode.startswith(start):
                made[kind, one.wide] += times
    found = traffic(func, cuda("sm_86"), unrolled)
    _, threads = used_by(func, "sm_86")
    warps = found.blocks * threads // 32
    ours: Counter = Counter()
    for one in found.requests:
        if one.access.scope == "shared" and not one.copied:
            wide = one.access.lanes * one.access.item_bytes
            ours["store" if one.access.writes else "load", wide] += one.count / warps
    if (
        "mma" in kernel.source
    ):  # the first and the last steps of its pipeline are not counted exactly
        assert ours["load", 16] == pytest.approx(made["load", 16], rel=0.1)
    else:
        assert ours == made
