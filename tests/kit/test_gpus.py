"""The table of GPUs agrees with NVIDIA's headers, and NVIDIA's compiler takes the kernels that TVM writes."""

from __future__ import annotations

import re

import pytest
from tvm import tirx

from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.checking.programs import kernels
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.gpu import cuda_resources
from chapters.kit.gpu.cuda_resources import CompileError, Resources, compile_cuda, resources
from chapters.kit.gpu.gpus import (
    ARCHITECTURES,
    BOARDS,
    UnknownArchitectureError,
    architecture,
)
from chapters.kit.gpu.kernel_report import occupancy, resident_blocks
from chapters.kit.gpu.limits import LEAST_BLOCK_SHARED_BYTES, block_shared_bytes
from chapters.kit.gpu.targets import cuda
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import FuseAddRMSNorm
from tests.support.injected_faults import needs_compiler, source_of

# (arch, threads per block, registers, shared bytes, blocks that are resident): by hand, the hard cases first
BY_HAND = [
    # 33 registers take 5 portions of 256 per warp; 51 warps have registers, 48 in fours; 48 is also the most
    ("sm_89", 512, 33, 0, 3),
    # 41 registers take 6 portions: 42 warps, 40 in fours; blocks of 3 warps: 13 fit into 40, 16 into 48 warps
    ("sm_86", 96, 41, 0, 13),
    ("sm_86", 32, 16, 0, 16),  # one warp per block: 16 blocks, a third of the threads
    ("sm_89", 32, 16, 0, 24),  # the same on Ada: 24 blocks
    ("sm_120", 1024, 32, 0, 1),  # 1536 threads have no room for two blocks of 1024
    ("sm_75", 1024, 64, 0, 1),  # 64 registers for 1024 threads are all 65536
    ("sm_75", 1024, 65, 0, 0),
    # Turing reserves nothing: two blocks of 32 KiB fill its 64 KiB; one byte more takes a portion of 256
    ("sm_75", 128, 32, 32 * 1024, 2),
    ("sm_75", 128, 32, 32 * 1024 + 1, 1),
    # later ones reserve 1 KiB per block: of 100 KiB two blocks may have 49 each, not 50
    ("sm_86", 128, 32, 49 * 1024, 2),
    ("sm_86", 128, 32, 49 * 1024 + 1, 1),
    ("sm_87", 128, 32, 163 * 1024, 1),
    ("sm_89", 128, 32, 99 * 1024 + 1, 0),
    ("sm_80", 128, 32, 437 * 128 - 1024, 3),  # a third of 164 KiB is between 437 and 438 portions
    ("sm_80", 128, 32, 437 * 128 - 1023, 2),
]


@pytest.mark.parametrize("case", BY_HAND, ids=lambda c: " ".join(map(str, c)))
def test_resident_blocks_by_hand(case):
    arch, threads, registers, shared, blocks = case
    assert resident_blocks(Resources(registers, 0, 0, 0, shared), threads, arch) == blocks


def test_occupancy_counts_whole_warps():
    assert occupancy(Resources(20), 48, "sm_80") == 1  # 48 threads count as two whole warps
    # 48 warps have registers, and a block needs 32
    assert occupancy(Resources(33), 1024, "sm_90a") == 0.5
    assert occupancy(Resources(128), 1024, "sm_90a") == 0


def test_the_limits_are_those_of_nvidia_s_header():
    root = cuda_resources._find_toolkit()
    if root is None:
        pytest.skip(cuda_resources.missing())
    text = (root / "include/cccl/cuda/__device/arch_traits.h").read_text("utf-8")
    names = {"threads": "max_threads", "blocks": "max_blocks", "shared_bytes": "max_shared_memory"}

    def value(arch: str, field: str) -> int:
        """A field of the function for `arch`; where that copies another architecture, the field of that one."""
        body = text[text.index(f"arch_traits<arch_id::{arch}>() noexcept") :].split("};")[0]
        found = re.search(rf"{field}_per_multiprocessor\s*= ([\d* ]+);", body)
        if not found:
            return value(re.search(r"arch_traits<arch_id::(\w+)>\(\);", body)[1], field)
        factors = map(int, found[1].split("*"))
        return next(factors) * next(factors, 1)

    for name, one in ARCHITECTURES.items():
        for field, wanted in names.items():
            assert getattr(one.multiprocessor, field) == value(name, wanted), (name, field)
        reserved = 1024 if int(name[3:]) >= 80 else 0  # __common_arch_traits says so
        assert one.multiprocessor.shared_reserved == reserved
    assert "__cc >= compute_capability{80}) ? 1024 : 0" in text
    assert re.search(r"max_registers_per_multiprocessor = 64 \* 1024", text)


def test_a_letter_at_the_end_changes_no_limit():
    assert architecture("sm_90a") is architecture("sm_90")
    assert architecture("sm_100f") is architecture("sm_100a")
    assert architecture("sm_90").target == "sm_90a" and architecture("sm_89").target == "sm_89"


@pytest.mark.parametrize("name", ["sm_70", "sm_99", "sm_9", "", "a", "gfx1100", "sm_90b"])
def test_an_unknown_architecture_is_one_clear_sentence(name):
    with pytest.raises(UnknownArchitectureError) as caught:
        occupancy(Resources(32), 128, name)
    said = str(caught.value)
    assert repr(name) in said and "sm_75, sm_80" in said and said.count(". ") == 0
    assert "\n" not in said and said.endswith(".")


def test_shared_memory_of_a_block():
    kib = {name: block_shared_bytes(name) // 1024 for name in ARCHITECTURES}
    assert kib["sm_75"] == 64 and kib["sm_80"] == kib["sm_87"] == 163
    assert kib["sm_86"] == kib["sm_89"] == kib["sm_120"] == 99 and kib["sm_90"] == 227
    assert block_shared_bytes("sm_999") == LEAST_BLOCK_SHARED_BYTES == 99 * 1024


def test_every_board_has_a_source():
    for board in BOARDS.values():
        assert board.arch in ARCHITECTURES and len(board.source) > 20
        # the rate is lanes times two operations times a clock between 1 and 3 GHz
        clock = board.float32 / (2 * ARCHITECTURES[board.arch].lanes * board.multiprocessors)
        assert 1e9 < clock < 3e9, (board.name, clock)
    assert {b.arch for b in BOARDS.values()} >= {"sm_75", "sm_80", "sm_86", "sm_87", "sm_89"}
    assert {b.arch for b in BOARDS.values()} >= {"sm_90", "sm_100", "sm_120"}


# --- NVIDIA's compiler ----------------------------------------------------------------------------

ROWS = [(8192, "bfloat16"), (1000, "float16"), (16384, "float32")]


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
@pytest.mark.parametrize(("hidden", "dtype"), ROWS)
def test_the_pass_gives_kernels_that_spill_nothing(arch, hidden, dtype):
    target = cuda(arch)
    (kernel,) = kernels(FuseAddRMSNorm(target)(unfused_add_norm(("n", 1, hidden), dtype))).values()
    used = resources(source_of(kernel, target), arch)
    assert 0 < used.registers <= 64  # so that a multiprocessor holds its 1024 threads and more
    assert used.spill_store_bytes == used.spill_load_bytes == used.stack_bytes == 0


@needs_compiler
def test_spilled_registers_are_counted():
    dims = row_dimensions([tirx.Var("n", "int64"), tirx.IntImm("int64", 65536)])
    spilling = wide_kernel(dims, 65536, "float16", 1e-5, Plan(1024, 8, 1))
    used = resources(source_of(spilling), "sm_90a")
    assert used.spill_store_bytes > 0 and used.spill_load_bytes > 0 and used.stack_bytes > 0


@needs_compiler
def test_machine_code_is_made():
    code, report = compile_cuda('extern "C" __global__ void nothing() {}', "sm_80")
    assert code[:4] == b"\x7fELF" and "nothing" in report


@needs_compiler
def test_text_that_is_not_cuda_is_refused_with_the_compilers_message():
    with pytest.raises(CompileError, match="nonsense"):
        compile_cuda("nonsense", "sm_80")
