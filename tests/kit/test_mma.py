"""The linear layer by `mma.sync`: right in any shape it serves, and each injected fault is caught, without a GPU."""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm

from chapters.checking.gpu_kernels import draw_arrays
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu import cuda_resources, mma
from chapters.kit.gpu.kernel_report import measure_resources, occupancy
from chapters.kit.gpu.launches import HostProgram, Launch, LaunchError, UnknownInstructionError
from chapters.kit.gpu.limits import block_shared_bytes
from chapters.kit.gpu.mma import TILES, MmaTile, choose_tile, mma_matmul, permute_row, swizzle
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import accesses, conflicts
from tests.support import injected_faults

by_tile = pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.block_m}x{t.block_n}")
SMALL = TILES[-1]
COMPILED_FOR = ["sm_80", "sm_90a", "sm_120"]  # a block has 163, 227 and 99 KiB of shared memory
SIZE = (77, 128, 192)  # rows that no tile divides, more steps than stages
ROUNDED = {"float32": 1e-5, "float16": 2**-11, "bfloat16": 2**-8}  # half a unit in the last place

_kernel = functools.lru_cache(maxsize=8)(mma_matmul)  # parsing one takes a second


def _error(
    size=SIZE, dtype="bfloat16", out="float32", tile=SMALL, change=None, backwards=False, seed=0
) -> float:
    """The largest error relative to max(1, |exact|), after `change` of the kernel's text; infinite for not-a-number."""
    given = draw_arrays(*size, dtype, seed, out)
    injected_faults.run_changed(_kernel(*size, dtype, out, tile), given, change, backwards)
    error, right = injected_faults.error_of_layer(given)
    return float((error / np.maximum(1, np.abs(right))).max())


# --- numbers --------------------------------------------------------------------------------------


UNUSUAL = [MmaTile(16, 64, 64, 16, 32, 3), MmaTile(32, 64, 32, 16, 64, 5)]
UNUSUAL += [MmaTile(96, 96, 32, 48, 96, 3), MmaTile(192, 128, 64, 96, 32, 3)]
LAYERS = [((t.block_m + 37, 2 * t.block_n, 5 * t.block_k), t) for t in TILES]
LAYERS += [((2 * t.block_m - 5, 2 * t.block_n, 4 * t.block_k), t) for t in UNUSUAL]
# fewer steps than there are stages in flight, as many, and one more
LAYERS += [((m, n, 32 * steps), SMALL) for m, n, steps in ((1, 64, 1), (127, 192, 3), (64, 128, 4))]


@injected_faults.runs_here
@pytest.mark.parametrize("case", range(len(LAYERS)))
def test_every_tile_gives_the_layer(case):
    (size, tile), odd = LAYERS[case], bool(case % 2)
    dtype = "bfloat16" if odd else "float16"
    assert _error(size, dtype, tile=tile, backwards=odd, seed=case) < 2e-4


@injected_faults.runs_here
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [True, False], ids=["float32", "rounded"])
def test_results_are_rounded_once(dtype, wide):
    out = "float32" if wide else dtype
    assert _error(SIZE, dtype, out, tile=None, seed=2) <= 1.1 * ROUNDED[out] + 1e-5


@injected_faults.runs_here
def test_rows_past_the_end_are_not_touched():
    """The result is a part of a larger array, whose other rows keep what they hold."""
    a, b, c, d = draw_arrays(130, 64, 32, "float16")
    program = HostProgram(mma_matmul(70, 64, 32, "float16", tile=SMALL), CUDA)
    (kernel,) = program.kernels.values()
    given = {"A": a[:70].copy().view("uint16"), "B": b.view("uint16"), "C": c, "D": d}
    arguments = tuple(given[name.removesuffix("_ptr")] for name in kernel.names)
    grid, block = (2, 1, 1), (SMALL.threads, 1, 1)
    CudaOnCpu()(Launch(kernel, grid, block, arguments, SMALL.shared_bytes))
    assert np.isfinite(d[:70]).all() and np.isnan(d[70:]).all()


# --- injected faults -------------------------------------------------------------------------------


def _replaced(old: str, new: str):
    return lambda text: text.replace(old, new)


FAULTS = {
    "waits one group too few": _replaced('"cp.async.wait_group 2;"', '"cp.async.wait_group 3;"'),
    "half a warp multiplies": injected_faults.at_match(
        r"(?<=\n) +(?=tvm_builtin_ptx_mma_sync)", instead="if (threadIdx.x & 16) "
    ),
    "a copy of 8 bytes past the caches": _replaced("[%1], 16;", "[%1], 8;"),
}  # fmt: skip


@injected_faults.runs_here
@pytest.mark.parametrize("name", list(FAULTS))
def test_an_injected_fault_is_reported(name):
    with pytest.raises(LaunchError):
        _error(change=FAULTS[name])


@injected_faults.runs_here
def test_an_unknown_word_is_said_to_be_unknown_and_not_wrong():
    change = _replaced("ldmatrix.sync.aligned.m8n8.x4", "ldmatrix.sync.aligned.m16n16.x4")
    with pytest.raises(UnknownInstructionError, match=r"ldmatrix\.sync.*no stand-in"):
        _error(change=change)


# --- the words themselves, against what the PTX ISA says ---------------------------------------------

HEAD = """
__forceinline__ __device__ void load(uint32_t& r0, uint32_t& r1, uint32_t p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2TRANS.shared.b16 {%0, %1}, [%2];"
               : "=r"(r0), "=r"(r1) : "r"(p) : "memory");
}
"""
BODY = """
  extern __shared__ __align__(64) half s_ptr[];
  for (int i = 0; i < 4; i++) s_ptr[threadIdx.x * 4 + i] = half((float)(threadIdx.x * 4 + i));
  __syncthreads();
  uint32_t r[2];
  load(r[0], r[1], __cvta_generic_to_shared(&(s_ptr[(threadIdx.x & 15) * 8])));
  for (int i = 0; i < 4; i++) {
    uint16_t bits = r[i / 2] >> (i % 2 * 16);
    half h; memcpy(&h, &bits, 2);
    out_ptr[threadIdx.x * 4 + i] = (float)h;
  }
"""


@injected_faults.runs_here
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_hands_out_rows_as_documented(transposed):
    head = HEAD.replace("TRANS", ".trans" if transposed else "")
    out = np.full(128, np.nan, "float32")
    injected_faults.run_text(BODY, 32, prelude=head, shared_bytes=256, out=out)
    # matrix i: the rows that lanes 8 i to 8 i + 7 point to
    matrices = np.arange(128).reshape(2, 8, 8)
    expected = np.swapaxes(matrices, 1, 2) if transposed else matrices
    assert (out.reshape(8, 4, 2, 2) == expected.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3)).all()


PRODUCT = """
__forceinline__ __device__ void multiply(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1,
    uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
    : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1),
      "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}
"""  # noqa: E501
ONE_PRODUCT = """
  int l = threadIdx.x;
  float sums[4];
  multiply(sums[0], sums[1], sums[2], sums[3], a_ptr[4 * l], a_ptr[4 * l + 1], a_ptr[4 * l + 2], a_ptr[4 * l + 3],
           b_ptr[2 * l], b_ptr[2 * l + 1], c_ptr[4 * l], c_ptr[4 * l + 1], c_ptr[4 * l + 2], c_ptr[4 * l + 3]);
  for (int i = 0; i < 4; i++) d_ptr[4 * l + i] = sums[i];
"""


def _function_of_tvm(path: str, name: str):
    """One function of a file of TVM's that takes long to import."""
    tree = ast.parse((Path(tvm.__file__).parent / path).read_text(encoding="utf-8"))
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    namespace: dict = {}
    exec(compile(ast.Module(found, []), path, "exec"), namespace)
    return namespace[name]


@injected_faults.runs_here
def test_mma_holds_fragments_where_tvm_says():
    """TVM's own map of a fragment, `shared_16x16_to_ldmatrix_32x8_layout`: (row, column) -> (lane, number in it)."""
    held = _function_of_tvm("s_tir/tensor_intrin/cuda.py", "shared_16x16_to_ldmatrix_32x8_layout")
    draw = np.random.default_rng(0)
    kinds = "float16", "float16", "float32"
    a, b, c = (draw.standard_normal((16, 16)).astype(kind) for kind in kinds)
    lanes_a, lanes_b, lanes_c = (np.zeros((32, 8), kind) for kind in kinds)
    for at in np.ndindex(16, 16):
        for lanes, matrix in ((lanes_a, a), (lanes_b, b), (lanes_c, c)):
            lanes[held(*at)] = matrix[at]
    d = np.full((32, 4), np.nan, "float32")
    # of 16 columns the product takes the first 8: rows 0 to 7 of b, numbers 0 to 3 of c
    given = {"a": lanes_a.view("uint32"), "b": lanes_b[:, [0, 1, 4, 5]].copy().view("uint32")}
    injected_faults.run_text(
        ONE_PRODUCT, 32, prelude=PRODUCT, **given, c=lanes_c[:, :4].copy(), d=d
    )
    right = c[:, :8] + a.astype("float64") @ b[:8].astype("float64").T
    found = np.array([[d[held(i, j)] for j in range(8)] for i in range(16)])
    assert np.abs(found - right).max() < 1e-5


# --- memory -----------------------------------------------------------------------------------------


@by_tile
def test_shared_memory_has_no_conflicts_and_global_memory_whole_sectors(tile):
    func = mma_matmul(tile.block_m, tile.block_n, 4 * tile.block_k, "bfloat16", "bfloat16", tile)
    ways = conflicts(func, CUDA)
    assert set(ways.values()) == {1} and {name.split()[0] for name in ways} == {"read", "write"}
    for access in accesses(func, CUDA):
        if access.scope == "global" and access.buffer != "C":
            assert access.sectors == access.least_sectors and access.lanes * access.item_bytes == 16


def test_without_the_swizzle_banks_conflict(monkeypatch):
    monkeypatch.setattr(mma, "swizzle", lambda row, piece, pieces: piece)
    assert max(conflicts(mma_matmul(64, 64, 128, "float16"), CUDA).values()) == 4


def test_maps_are_permutations():
    assert sorted(map(permute_row, range(64))) == list(range(64))
    for pieces in (4, 8):
        cells = itertools.product(range(64), range(pieces))
        assert len({(row, swizzle(row, piece, pieces)) for row, piece in cells}) == 64 * pieces
    # lane l of a quad holds columns 2 l and 2 l + 1 of product j: together eight neighbours
    for t in range(4):
        held = [permute_row(8 * j + 2 * t + e) for j in range(4) for e in range(2)]
        assert held == list(range(8 * t, 8 * t + 8))


# --- what it serves -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tile"),
    [((4096, 4096, 4096), TILES[0]), ((2048, 6144, 4096), TILES[0]), ((2048, 4096, 14336), TILES[0]),
     ((1024, 2048, 4096), TILES[1]), ((512, 2048, 1024), TILES[2]),
     ((512, 1024, 1024), TILES[3]), ((64, 64, 32), TILES[3]), ((16, 28672, 4096), TILES[1])],
)  # fmt: skip
def test_tiles_fit_the_size(size, tile):
    assert choose_tile(*size) == tile


def test_a_gpu_with_little_shared_memory_gets_a_smaller_tile():
    assert choose_tile(4096, 4096, 4096, 99 * 1024) == TILES[0]
    assert choose_tile(4096, 4096, 4096, 64 * 1024) == TILES[1]
    assert choose_tile(4096, 4096, 4096, 48 * 1024) == TILES[2]


NOT_SERVED = "n must be a multiple of 64 and k of 32"
WHOLE = (64, 64, 64, "float16", "float32")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((64, 96, 64, "float16"), NOT_SERVED),
        ((64, 64, 40, "float16"), NOT_SERVED),
        ((0, 64, 64, "float16"), NOT_SERVED),
        ((64, 64, 0, "float16"), NOT_SERVED),
        ((64, 64, 64, "float32"), "float16 or bfloat16"),
        ((64, 64, 64, "float16", "bfloat16"), "not float16 into bfloat16"),
        ((*WHOLE, TILES[0]), "not whole in tiles of 256 columns"),
        ((2**16, 2**16, 64, "float16"), "2\\*\\*31 elements"),
        ((*WHOLE, MmaTile(64, 64, 32, 32, 32, 2)), "stages is 3 or more"),
        ((256, 512, 64, "float16", "float32", MmaTile(256, 512, 64, 64, 32, 3)), "1024 at most"),
        ((*WHOLE, MmaTile(64, 64, 32, 0, 32, 3)), "cannot be"),
        ((*WHOLE, MmaTile(64, 0, 32, 32, 32, 3)), "cannot be"),
        ((*WHOLE, MmaTile(64, 64, 48, 32, 32, 3)), "block_k is 32 or 64"),
        ((*WHOLE, MmaTile(64, 64, 32, 32, 16, 3)), "multiples of 16 × 32"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        mma_matmul(*arguments)


# --- what NVIDIA's compiler makes of it --------------------------------------------------------------


def test_the_bias_costs_nothing_in_the_main_loop():
    text = injected_faults.source_of(mma_matmul(*SIZE, "bfloat16", tile=SMALL))
    body = text[text.rindex("__global__") :]
    start = body.index("for (int step")
    loop = body[start : body.index("\n  }\n", start)]
    assert "bias_ptr" not in loop and "C_ptr" not in loop
    assert body.count("mma_sync_aligned") == 2  # both halves of a step, and none beside the loop


@injected_faults.needs_compiler
@by_tile
@pytest.mark.parametrize("arch", COMPILED_FOR)
def test_compiles_and_spills_nothing(tile, arch):
    func = mma_matmul(1000, 2 * tile.block_n, 4 * tile.block_k, "bfloat16", "bfloat16", tile)
    used, threads = measure_resources(func, arch)
    assert threads == tile.threads and used.shared_bytes == tile.shared_bytes
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0
    fits = tile.shared_bytes <= block_shared_bytes(
        arch
    )  # of the largest tile, only data-centre GPUs and Jetsons
    assert (0 < occupancy(used, threads, arch) <= 1) == fits


@injected_faults.needs_compiler
@pytest.mark.parametrize("arch", COMPILED_FOR)
def test_the_machine_code_has_the_instructions(arch, tmp_path):
    source = injected_faults.source_of(mma_matmul(*SIZE, "float16", tile=SMALL))
    ptx = cuda_resources.compile_ptx(source, arch)
    words = "mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg.shared"
    assert all(word in ptx for word in words)
    # sums start from the bias, so no instruction adds it
    assert not re.search(r"\badd(\.\w+)*\.f32", ptx)
    if disassembler := _disassembler():
        code, _ = cuda_resources.compile_cuda(source, arch)
        file = tmp_path / "kernel.cubin"
        file.write_bytes(code)
        command = [disassembler, "-c", file]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        for word in (r"HMMA\.16816\.F32 ", r"LDSM\.16\.M88\.4 ", r"LDGSTS\.E\.BYPASS\S*\.128 "):
            assert re.search(word, said.stdout)
        assert "LDL" not in said.stdout and "STL" not in said.stdout


def _disassembler() -> str | None:
    """NVIDIA's nvdisasm, from a toolkit or its wheel."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(f) / "cu13/bin" for f in (spec and spec.submodule_search_locations) or []]
    there = [shutil.which("nvdisasm", path=folder) for folder in (None, *folders)]
    return next((path for path in there if path), None)
