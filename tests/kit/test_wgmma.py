"""The layer with Hopper's instructions: right at every edge, each injected fault caught, compiled without spills."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.target import Target

from chapters.ch08_gpu_targets import gelu_layers
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul
from chapters.checking.gpu_kernels import draw_arrays
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.gpu import call, cuda_resources, tensor_maps
from chapters.kit.gpu.kernel_report import occupancy
from chapters.kit.gpu.launches import HostProgram, LaunchError, UnknownInstructionError, target_of
from chapters.kit.gpu.targets import cuda
from chapters.kit.gpu.wgmma import ARCH, wgmma_matmul
from chapters.kit.gpu.wgmma_tile import TILES, WgmmaTile, best_tile
from tests.support import injected_faults

SMALL = WgmmaTile(128, 32, 3)
# rows past the end, columns past the end, a part of k past the end, more k than stages, three tiles a block
SIZE = (200, 88, 456)
DEALT = (200, 96, 456)  # the rows of B are whole groups, and the last group lies past the end

_kernel = functools.lru_cache(maxsize=8)(wgmma_matmul)  # parsing one takes a second


def _error(
    size=SIZE, dtype="bfloat16", out="float32", tile=SMALL, blocks=2, change=None, backwards=False
) -> float:
    """The largest relative error, after `change` of the kernel's text; infinite where an element was never set."""
    func = _kernel(*size, dtype, out, tile, blocks)
    given = draw_arrays(*size, dtype, out=out)
    injected_faults.run_changed(
        func, given, change and (lambda text: re.sub(*change, text)), backwards
    )
    error, right = injected_faults.error_of_layer(given)
    return float(error.max() / np.abs(right).max())


# --- the numbers ----------------------------------------------------------------------------------


@injected_faults.runs_here
@injected_faults.both_orders
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("size", "tile"), [(SIZE, SMALL), (DEALT, WgmmaTile(128, 64, 3))])
def test_every_edge(size, tile, dtype, backwards):
    assert _error(size, dtype, tile=tile, backwards=backwards) < 1e-5


@injected_faults.runs_here
@pytest.mark.parametrize(
    ("size", "tile", "blocks"),
    [
        ((1, 8, 8), WgmmaTile(64, 16, 2), 132),  # one row, and less than a tile in every direction
        ((64, 48, 64), WgmmaTile(64, 48, 2), 132),  # exactly one tile, one step
        ((65, 16, 64), WgmmaTile(64, 16, 2), 1),  # one step a tile, one block for both
        ((130, 264, 136), WgmmaTile(128, 256, 4), 3),
        ((70, 136, 1096), WgmmaTile(64, 128, 8), 2),
        ((2200, 40, 16), WgmmaTile(128, 16, 2), 5),  # more tiles along m than are taken together
        ((130, 288, 136), WgmmaTile(128, 256, 4), 3),
        ((70, 160, 1096), WgmmaTile(64, 128, 8), 2),
        ((64, 64, 64), WgmmaTile(64, 48, 2), 132),  # tiles that do not hold whole groups
    ],
)
def test_other_tiles(size, tile, blocks):
    assert _error(size, tile=tile, blocks=blocks) < 1e-5


@injected_faults.runs_here
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 1e-3), ("bfloat16", 8e-3)])
@pytest.mark.parametrize("size", [SIZE, DEALT])
def test_the_result_in_the_operands_dtype(size, dtype, bound):
    assert _error(size, dtype, dtype) < bound


@injected_faults.runs_here
@pytest.mark.parametrize("size", [SIZE, DEALT])
def test_what_comes_after_the_sum_is_applied_before_rounding(size):
    func = wgmma_matmul(*size, "float16", "float16", SMALL, 2, gelu_layers.gelu)
    a, b, c, d = given = draw_arrays(*size, "float16", out="float16")
    injected_faults.run_changed(func, given)
    total = a.astype("float64") @ b.astype("float64").T + c
    right = total * 0.5 * (1 + np.vectorize(math.erf)(total * 0.5**0.5))
    assert np.abs(d - right).max() < 1e-3 * np.abs(right).max()


# --- injected faults -------------------------------------------------------------------------------

# where the text is the same for consumers and producer, the consumers' call is the one with turn_1
_FULL_WAIT = r"tvm_builtin_cuda_mbarrier_wait\([^;]*turn_1[^;]*;"
_EMPTY_WAIT = r"tvm_builtin_cuda_mbarrier_wait\([^;]*\(turn \*[^;]*;"
_WGMMA = r"tvm_builtin_ptx_wgmma_bf16_ss\w+\([^;]*\);"
_SYNC = "_sync_aligned"
READ, FILLED = "which a wgmma in flight still reads", "which a bulk copy still fills"
CAUGHT = {
    "the bytes are not waited for": ((_FULL_WAIT, ""), FILLED),
    "the readers are not waited for": ((_EMPTY_WAIT, ""), "arrivals of its phase"),
    "the sums are read before they are there": ((f"wait_group{_SYNC}_0\\(\\)", f"wait_group{_SYNC}_1()"), READ),
    "the products are not committed": ((r"tvm_builtin_ptx_wgmma_commit\w+\(\);", ""), READ),
    "the sums are not fenced": ((r"tvm_builtin_ptx_wgmma_fence\w+\(\);", ""), "no wgmma.fence"),
    "the sums of the second tile are not fenced": (
        (r"tvm_builtin_ptx_wgmma_fence\w+\(\);", r"if (turn_1 == 0) \g<0>"),
        "wrote a sum after the last wgmma.fence",
    ),
    "a sum is written between the first fence and the first product": (
        (r"tvm_builtin_ptx_wgmma_fence\w+\(\);", r"\g<0> if (turn_1 + kb_1 == 0) totals_ptr[5] += 1;"),
        r"In main_kernel, thread \(\d+, 0, 0\) of block \(\d, 0, 0\) wrote a sum after the last wgmma.fence, "
        "number 5 of the product's: a wgmma.fence is missing between the write and the product",
    ),
    "a sum is touched while products are in flight": (
        (r"tvm_builtin_ptx_wgmma_commit\w+\(\);", r"\g<0> totals_ptr[5] += 1;"),
        "writes a sum while a wgmma that adds to it is in flight",
    ),
    "the copies do not know the mbarriers": (
        (r"tvm_builtin_ptx_fence_proxy\w+\(\);", ""),
        "no proxy fence since it was made",
    ),
    "too many bytes are expected": ((r"\(uint\)20480", "(uint)20496"), "waits for an mbarrier"),
    "one warp does not multiply": ((_WGMMA, r"if (threadIdx.x / 32 != 6) { \g<0> }"), "for its warpgroup"),
    "warps multiply by different descriptors": (
        (r"desc_ptr\[1\](?= \+ \(\(uint64_t\)\([^;]*256\)\)\), \(uint\)1)", r"\g<0> + (threadIdx.x > 99 ? 2 : 0)"),
        "by different descriptors",
    ),
    "the ring is not where the swizzle begins": (
        (r"\(nv_bfloat16\*\)pool_ptr\)\[", "(nv_bfloat16*)pool_ptr)[64 + "),
        "where no tile of this swizzle can begin",
    ),
    "a stage lies past the end": ((r"\* 2048\) \+ 24576\)", "* 2048) + 44032)"), "and the block has 61488 bytes"),
}  # fmt: skip


@injected_faults.runs_here
@injected_faults.both_orders
@pytest.mark.parametrize("name", list(CAUGHT))
def test_a_fault_is_reported(name, backwards):
    change, said = CAUGHT[name]
    with pytest.raises(LaunchError, match=said):
        _error(change=change, backwards=backwards)


@injected_faults.runs_here
def test_an_instruction_of_another_kind_is_unknown_and_not_wrong():
    with pytest.raises(UnknownInstructionError):
        _error(change=(r"_1_1_0_0\(", "_1_1_0_1("))  # B transposed


@injected_faults.runs_here
def test_as_many_coordinates_as_the_map_has_dimensions():
    change = r"_tensor_2d(_\w+\([^;]*?, \(kb \* 64\), )([^;]*;)", r"_tensor_5d\g<1>0, 0, 0, \g<2>"
    with pytest.raises(LaunchError, match="copies by 5 coordinates, and the tensor map has 2 dim"):
        _error(change=change)


@injected_faults.runs_here
@pytest.mark.parametrize(
    ("name", "layout_type", "width"),
    [("NONE", 0, 64), ("32B_ATOM", 3, 16), ("64B_ATOM", 2, 32), ("128B_ATOM", 1, 64)],
)
def test_descriptors_mean_what_tvm_s_own_layouts_say(name, layout_type, width):
    """Where each element of a tile (64, width) lies, 16 columns at a time, as TVM's layout for such tiles has it."""
    rows = 64
    # without a swizzle TVM puts pieces of 16 bytes one beneath the other, column after column
    across, down = (rows, 8) if not layout_type else (1, width)  # in units of 16 bytes
    shape = [rows, width]
    layout = mma_shared_layout("bfloat16", SwizzleMode[f"SWIZZLE_{name}"], tuple(shape))
    wanted = [int(layout.apply(*at, shape=shape)["m"]) for at in np.ndindex(*shape)]
    step = 2 * across if not layout_type else 2
    body = f"""
    for (int r = 0; r < {rows}; r++) for (int c = 0; c < {width}; c++) {{
      uint64_t start = WINDOW / 16 + c / 16 * {step};
      Descriptor d(start | {across}ull << 16 | {down}ull << 32 | {layout_type}ull << 62);
      out_ptr[r * {width} + c] = (d.at(r, c % 16) - WINDOW) / 2;
    }}"""
    out = np.full(rows * width, np.nan, "float32")
    injected_faults.run_text(body, 1, out=out)
    assert out.tolist() == wanted


# --- tensor maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"base": 72}, "begins at 72"),
        ({"pitches": [200]}, r"\[200\] bytes apart"),
        ({"box": [64, 257]}, "more than 256"),
        ({"box": [68, 64]}, "136 bytes, which is no multiple"),
        ({"box": [128, 64]}, "swizzle is 128 wide"),
    ],
)
def test_a_map_that_the_driver_would_refuse(wrong, said):
    array = {"dtype": "float16", "base": 64, "size": [96, 40], "pitches": [192]}
    right = {**array, "box": [64, 64], "swizzle": 3}
    assert len(tensor_maps.pack_map(**right)) == 128
    with pytest.raises(ValueError, match=said):
        tensor_maps.pack_map(**(right | wrong))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "dtype", "out", "said"),
    [
        ((64, 60, 64), "float16", "float32", "64 × 60 × 64; n and k must be multiples of 8"),
        ((64, 64, 68), "float16", "float32", "64 × 64 × 68; n and k must be multiples of 8"),
        ((0, 64, 64), "float16", "float32", "0 × 64 × 64"),
        ((64, 64, 64), "float32", "float32", "takes float16 or bfloat16"),
        ((64, 64, 64), "float16", "bfloat16", "writes float32 or float16"),
        ((2**16, 2**15, 64), "float16", "float16", "2147483648 elements"),
    ],
)
def test_a_layer_that_is_not_served(size, dtype, out, said):
    with pytest.raises(ValueError, match=said):
        wgmma_matmul(*size, dtype, out)


@pytest.mark.parametrize(
    "tile", [(192, 128, 2), (64, 264, 2), (64, 24, 2), (64, 64, 1), (128, 256, 5)]
)
def test_a_tile_that_cannot_be(tile):
    with pytest.raises(ValueError, match="take "):
        WgmmaTile(*tile)


def test_other_architectures_are_refused():
    func = wgmma_matmul(64, 16, 64)
    said = f"instructions that only {ARCH} has, and the target is"
    for refused in (cuda("sm_100a"), cuda("sm_80"), Target("metal")):
        for make in (HostProgram, call.compile_kernel):
            with pytest.raises(ValueError, match=said):
                make(func, refused)
    # a driver calls Hopper sm_90; the kernel gets the instructions that are Hopper's own
    named = target_of(func, cuda("sm_90"))
    assert str(named.attrs["arch"]) == ARCH
    assert callable(call.compile_kernel(func, named))


# --- which tile -----------------------------------------------------------------------------------


def test_wide_tiles_for_large_layers_and_small_ones_where_few_are_needed():
    assert {best_tile(m, n) for m, n in ((4096, 4096), (8192, 8192), (2048, 28672))} == {TILES[0]}
    assert best_tile(1, 4096) == best_tile(64, 6144) == TILES[2]
    assert best_tile(4096, 4096, 4) == TILES[0]


# --- what NVIDIA's compiler makes of it -----------------------------------------------------------


@injected_faults.needs_compiler
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_compiles_without_spills_and_runs_on_while_it_multiplies(tile, out):
    source = injected_faults.source_of(wgmma_matmul(1000, 2048, 1024, "bfloat16", out, tile))
    _, report = cuda_resources.compile_cuda(source, ARCH)
    used = cuda_resources.resources(source, ARCH)
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0
    used = dataclasses.replace(used, shared_bytes=tile.shared_bytes)
    assert occupancy(used, tile.threads, ARCH) > 0
    # ptxas says so where it makes each wgmma wait for the one before
    assert not re.search("C75|serializ", report)


@injected_faults.needs_compiler
def test_the_instructions_are_there():
    text = cuda_resources.compile_ptx(
        injected_faults.source_of(wgmma_matmul(256, 256, 256, tile=TILES[0])), ARCH
    )
    for instruction, times in {
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16": 4,
        "cp.async.bulk.tensor.2d.shared::cluster.global": 1,
        "cp.async.bulk.tensor.5d.shared::cluster.global": 1,
        "mbarrier.try_wait.parity": 2,
        "wgmma.fence": 1,
    }.items():
        assert text.count(instruction) == times, instruction
    # 128 sums of a thread, and half as many biases, four at a time
    assert len(re.findall(r"st\.global\.v4\.\w+", text)) == 128 // 4
    assert len(re.findall(r"ld\.global(?:\.nc)?\.v4\.\w+", text)) == 64 // 4
    # the bias costs no addition, anywhere; a kernel that adds has them
    addition = r"\b(add|fma)(\.rn)?(\.ftz)?\.f32"
    assert not re.search(addition, text)
    adding = naive_matmul(linear_bias(64, 64, 64), ThreadTile(16, 16, 16, 1, 1))
    assert re.search(addition, cuda_resources.compile_ptx(injected_faults.source_of(adding), ARCH))


@injected_faults.needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_no_other_architecture_has_them(arch):
    source = injected_faults.source_of(wgmma_matmul(64, 16, 64, tile=WgmmaTile(64, 16, 2)))
    with pytest.raises(cuda_resources.CompileError):
        cuda_resources.compile_cuda(source, arch)
