"""Chapter 8's kernels compile for three architectures without spills; their memory accesses are counted right."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

from chapters.ch08_gpu_targets import goals, registers
from chapters.ch08_gpu_targets.given import start_from_bias
from chapters.ch08_gpu_targets.thread_schedule import (
    naive_matmul,
    shared_matmul,
)
from chapters.checking.gpu_kernels import draw_arrays, exact, layer
from chapters.kit.bench import results
from chapters.kit.bench.kernel_counts import COMPILER, compiler, resource_table
from chapters.kit.bench.results import load
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.emulator import cuda_on_cpu
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.kernel_report import measure_resources, occupancy
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import Access, accesses, bytes_moved, conflicts
from solutions.ch08_gpu_targets import gpu_schedules as ch8
from tests.support.injected_faults import needs_compiler

HALF = ch8.ThreadTile(64, 64, 16, 4, 4, vector=2)
SPILLING = "16 × 16 per thread"  # the tile of the lesson that spills


def test_the_file_has_the_kernels_of_each_architecture():
    counted = load(registers.NAME)["measured"]["kernels"]
    assert {arch: list(kept) for arch, kept in counted.items()} == {
        arch: list(registers.kernels(arch)) for arch in registers.ARCHITECTURES
    }
    assert [arch for arch in counted if "wgmma, 128 × 256" in counted[arch]] == ["sm_90a"]
    for kept in counted.values():
        assert [name for name, one in kept.items() if one["stored"] or one["loaded"]] == [SPILLING]


@needs_compiler
def test_only_the_lesson_s_large_tile_spills_and_the_file_has_these_counts():
    """On the architecture that has all kernels; the others are given the same text of the rest."""
    arch = "sm_90a"
    measured = load(registers.NAME)["measured"]
    kept = measured["kernels"][arch]
    for name, make in registers.kernels(arch).items():
        used, threads = measure_resources(make(), arch)
        spilled = used.spill_store_bytes, used.spill_load_bytes
        assert (sum(spilled) > 0) == (used.stack_bytes > 0) == (name == SPILLING), name
        assert (used.registers == 255) == (name == SPILLING), name
        assert threads % 32 == 0 and 0 < occupancy(used, threads, arch) <= 1
        if measured["compiler"] == compiler():  # another release may count differently
            counted = threads, used.registers, *spilled, used.shared_bytes
            assert tuple(kept[name].values()) == counted, name


@pytest.mark.parametrize("overlap", [False, True])
def test_wider_tiles_of_tensor_cores(overlap):
    size, tile = (128, 128, 64), ch8.WarpTile(128, 128, 32, 64, 32)
    func = ch8.tensor_core_matmul(linear_bias(*size), tile, overlap)
    given = draw_arrays(*size, "float16")
    program = HostProgram(func, CUDA, ASYNCHRONOUS)
    (kernel,) = program.kernels.values()
    assert ("ptx_cp_async" in kernel.source) == overlap
    if cuda_on_cpu.missing():
        pytest.skip(cuda_on_cpu.missing())
    program.run(CudaOnCpu(backwards=True), given)
    assert np.abs(given[3] - exact(*given[:3])).max() < 1e-3


def test_registers_come_from_the_file(monkeypatch, tmp_path):
    told = str(registers.show_registers("sm_90a"))
    assert "16 × 16 per thread" in told and "sm_80" not in told and COMPILER in told
    assert "sm_80" in str(registers.show_registers())
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert f"`{registers.COMMAND}` does it" in str(registers.show_registers())


def test_what_is_missing_is_said_and_nothing_written(capsys):
    assert results.measure_and_save("none", dict, str, "none", "no compiler") == 1
    assert "no compiler" in capsys.readouterr().err and results.load("none") is None


@needs_compiler
def test_resources_are_a_table():
    func = ch8.decode_matmul(64, 512, "bfloat16")
    shown = str(resource_table({"one row": func}, ("sm_90a",)))
    assert "one row" in shown and "occupancy" in shown


def _access(first, lanes=1, item_bytes=4) -> Access:
    return Access("s", "shared", False, lanes, item_bytes, 1, tuple(first))


@pytest.mark.parametrize(
    ("access", "ways"),
    [
        (_access(range(32)), 1),
        (_access([0] * 32), 1),  # a word that all lanes read is broadcast
        (_access(range(0, 64, 2)), 2),
        (_access(range(0, 32 * 33, 33)), 1),
        (_access(range(0, 32 * 32, 32)), 32),
        (_access(range(32), item_bytes=2), 1),  # two threads share a word
        # accesses of 16 bytes are served a quarter of a warp at a time
        (_access(range(0, 128, 4), lanes=4), 1),
        (_access(range(0, 32 * 32, 32), lanes=4), 8),
        (_access(range(0, 64, 2), lanes=2), 1),
    ],
)
def test_bank_conflicts(access, ways):
    assert access.ways == ways


def test_sectors():
    assert _access(range(32)).sectors == _access(range(32)).least_sectors == 4
    spread = _access(range(0, 32 * 8, 8))
    assert spread.sectors == 32 and spread.least_sectors == 4
    assert _access(range(1, 33)).sectors == 5  # begins inside a sector


def test_conflicts_and_bytes_of_a_kernel():
    func = shared_matmul(linear_bias(64, 64, 64), HALF, padding=0)
    assert conflicts(func, CUDA)["read B_shared"] == 16
    assert conflicts(shared_matmul(linear_bias(64, 64, 64), HALF), CUDA)["read B_shared"] == 2
    moved = bytes_moved(func, CUDA)
    assert moved["A"] == moved["B"] == 64 * 64 * 2 and moved["D"] == 64 * 64 * 4


def test_conditions_count_as_if_they_held():
    @T.prim_func(s_tir=True)
    def copy(A: T.Buffer((100,), "float32"), B: T.Buffer((100,), "float32")):
        for i in range(100):
            with T.sblock("copy"):
                v = T.axis.spatial(100, i)
                B[v] = A[v]

    sch = s_tir.Schedule(copy)
    ch8.bind_elementwise(sch, sch.get_sblock("copy"), 32, 1)
    assert bytes_moved(sch.mod["main"], CUDA) == {"A": 128 * 4, "B": 128 * 4}
    assert [a.first for a in accesses(sch.mod["main"], CUDA)] == [tuple(range(32))] * 2


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((48, 80, 40), ch8.ThreadTile(16, 16, 8, 2, 2)),
        ((32, 96, 32), ch8.ThreadTile(32, 32, 32, 4, 8, vector=4)),
        ((8, 64, 16), ch8.ThreadTile(8, 64, 16, 1, 2, vector=1)),
    ],
)
def test_other_tiles_are_right_too(size, tile):
    func = shared_matmul(linear_bias(*size, "float32"), tile)
    layer(func, size, "float32", "", "", wgsl=True)


@pytest.mark.parametrize(
    ("k", "dtype"), [(200, "float32"), (100, "float32"), (300, "float16"), (0, "float16")]
)
def test_one_row_refuses_a_sum_it_would_cut_short(k, dtype):
    with pytest.raises(ValueError, match="the rest of the sum would be left out"):
        ch8.decode_matmul(8, k, dtype)


@pytest.mark.parametrize("size", [(72, 64, 32), (64, 72, 32), (64, 64, 40)])
def test_tensor_cores_refuse_sizes_that_are_no_tiles(size):
    with pytest.raises(s_tir.ScheduleError):
        ch8.tensor_core_matmul(linear_bias(*size, "float16"))


def test_the_goals_are_a_ladder():
    """One element per thread reaches no goal, sums in registers the first, copies with padded rows both."""
    layer_to_schedule = linear_bias(*goals.SIZE, "float32")
    tile = ch8.ThreadTile(32, 32, 16, 4, 4, vector=2)
    reached = [
        [not goals.use_of(func).exceeded(goal) for goal in goals.GOALS.values()]
        for func in (
            naive_matmul(layer_to_schedule, ch8.ThreadTile(8, 8, 16, 1, 1)),
            naive_matmul(layer_to_schedule, tile),
            shared_matmul(layer_to_schedule, tile, padding=0),
            shared_matmul(layer_to_schedule, tile),
        )
    ]
    assert reached == [[False, False], [True, False], [True, False], [True, True]]


def test_sums_that_are_not_unrolled_are_indexed_at_run_time():
    func = naive_matmul(linear_bias(16, 16, 8, "float32"), ch8.ThreadTile(8, 8, 8, 2, 2))
    assert goals.find_run_time_indices(func) == []
    sch, block = start_from_bias(linear_bias(16, 16, 8, "float32"))
    sch.cache_write(block, 0, "local")
    for one in (block, sch.get_sblock("D_local")):
        sch.bind(sch.get_loops(one)[0], "blockIdx.x")
    assert goals.find_run_time_indices(sch.mod["main"]) == ["D_local"]
    assert goals.list_launches(sch.mod["main"]) == [(16, 1), (16, 1)]
