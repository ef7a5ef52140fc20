"""The GPUs that people own: what a multiprocessor holds, and one named board of each kind.

All facts are in `ARCHITECTURES` and `BOARDS`, and each has a source. A number for which we found no source is None, or
left out, and `missing` says so. Nothing here needs a GPU.

Limits and allocation: the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide. A
test compares them with two headers of NVIDIA that come with the extra `gpu`: `cuda/__device/arch_traits.h` has the
limits, and `cuda_occupancy.h` is NVIDIA's occupancy calculator. Lanes: the guide's table "Throughput of Native
Arithmetic Instructions"; they are also each board's cores divided by its multiprocessors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GIGA, TERA, MIB = 1e9, 1e12, 1 << 20


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has for all its blocks: threads, blocks, registers (32 bits each), bytes of shared memory.

    They are allocated in portions: a warp's registers in units of 256, warps in fours, and a block's shared memory in
    units of `shared_portion` bytes, plus `shared_reserved` bytes that the driver takes.
    """

    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    register_portion: int = 256
    warp_portion: int = 4
    shared_portion: int = 128
    shared_reserved: int = 1024

    @property
    def block_shared_bytes(self) -> int:
        """The shared memory that one block may ask for: all of it, without what is reserved."""
        return self.shared_bytes - self.shared_reserved


@dataclass(frozen=True)
class Architecture:
    """An NVIDIA architecture. lanes: multiply-adds in float32 that a multiprocessor starts per cycle.

    suffix: the letter of the target that has all of its instructions, "" or "a".
    """

    name: str
    multiprocessor: Multiprocessor
    lanes: int
    suffix: str = ""

    @property
    def target(self) -> str:
        """The architecture to compile for, with all of its instructions: "sm_90a" for sm_90."""
        return self.name + self.suffix


@dataclass(frozen=True)
class Board:
    """One product. Rates per second; None where we found no source.

    float32: operations outside tensor cores. tensor: operations of tensor cores on float16, summed in float32, without
    sparsity. bandwidth: bytes of device memory. cache_bytes: the second-level cache. source: where the numbers are.
    """

    name: str
    arch: str
    multiprocessors: int
    bandwidth: float | None
    float32: float | None
    tensor: float | None
    cache_bytes: int | None
    source: str


_KIB = 1024
# Turing reserves no shared memory, and gives it in units of 256 bytes
_TURING_SM = Multiprocessor(1024, 16, 65536, 64 * _KIB, shared_portion=256, shared_reserved=0)
_BLACKWELL = Multiprocessor(2048, 32, 65536, 228 * _KIB)
_CONSUMER_BLACKWELL = Multiprocessor(1536, 24, 65536, 100 * _KIB)

_ALL = (
    Architecture("sm_75", _TURING_SM, 64),
    Architecture("sm_80", Multiprocessor(2048, 32, 65536, 164 * _KIB), 64),
    Architecture("sm_86", Multiprocessor(1536, 16, 65536, 100 * _KIB), 128),
    Architecture("sm_87", Multiprocessor(1536, 16, 65536, 164 * _KIB), 128),
    Architecture("sm_89", Multiprocessor(1536, 24, 65536, 100 * _KIB), 128),
    Architecture("sm_90", Multiprocessor(2048, 32, 65536, 228 * _KIB), 128, "a"),
    Architecture("sm_100", _BLACKWELL, 128, "a"),
    Architecture("sm_103", _BLACKWELL, 128, "a"),
    Architecture("sm_120", _CONSUMER_BLACKWELL, 128),
    Architecture("sm_121", _CONSUMER_BLACKWELL, 128),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({one.name: one for one in _ALL})

# Peaks at the boost clock. Papers of NVIDIA are cited as we found them quoted, with where they are quoted.
BOARDS: Mapping[str, Board] = MappingProxyType(
    {
        board.name: board
        for board in (
            Board(
                "T4", "sm_75", 40, 320 * GIGA, 8.1 * TERA, 65 * TERA, 4 * MIB,
                "NVIDIA T4 data sheet (320 GB/s, 8.1 and 65 TFLOPS), as in sysrqmts.com/en/gpus/nvidia/tesla/t4",
            ),
            Board(
                "A100 SXM 40 GB", "sm_80", 108, 1555 * GIGA, 19.5 * TERA, 312 * TERA, 40 * MIB,
                "NVIDIA A100 data sheet and Ampere whitepaper, as in glennklockwood.com/garden/processors/A100; "
                "cache: botcraftman.ru/de/gpu/a100-pcie-vs-rtx-a6000",
            ),
            Board(
                "RTX A6000", "sm_86", 84, 768 * GIGA, 38.7 * TERA, None, 6 * MIB,
                "sysrqmts.com/pl/gpus/compare/nvidia-rtx-a6000-vs-nvidia-tesla-p40",
            ),
            Board(
                "Jetson AGX Orin 64 GB", "sm_87", 16, None, 5.3 * TERA, None, 4 * MIB,
                "NVIDIA Jetson AGX Orin Series Technical Brief, as in mzph.cn/web/30785.shtml",
            ),
            Board(
                "RTX 4090", "sm_89", 128, 1008 * GIGA, 82.6 * TERA, 165.2 * TERA, 72 * MIB,
                "thefpsreview.com (1008 GB/s, 128 multiprocessors), holynerdvana.blogspot.com (82.6 TFLOPS, 72 MB), "
                "waredb.com/processor/nvidia-geforce-rtx-4090 (165.15 TFLOPS)",
            ),
            Board(
                "H100 SXM", "sm_90", 132, 3350 * GIGA, 66.9 * TERA, 989.4 * TERA, 50 * MIB,
                "NVIDIA H100 whitepaper, as in glennklockwood.com/garden/processors/h100 and "
                "archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html",
            ),
            Board(
                "H200", "sm_90", 132, 4800 * GIGA, 66.9 * TERA, 989.4 * TERA, 50 * MIB,
                "NVIDIA H200 data sheet (4.8 TB/s), as in gpuservers.com/nvidia-h100-vs-h200; the rest as H100 SXM: "
                "glennklockwood.com/garden/processors/h100 and hmc-tech.com/gpu/"
                "nvidia-h100-vs-nvidia-h200-sxm-vs-nvidia-gb200",
            ),
            Board(
                "B200", "sm_100", 148, 7700 * GIGA, 75 * TERA, 2250 * TERA, None,
                "hmc-tech.com/gpus/nvidia-b200-vs-nvidia-b100; sources differ on the cache (65 to 126 MB)",
            ),
            Board(
                "RTX 5090", "sm_120", 170, 1792 * GIGA, 104.8 * TERA, None, 96 * MIB,
                "pocketmags.com/linux-format-magazine/may-2025 (170 multiprocessors at 2407 MHz, 1792 GB/s, 96 MB); "
                "float32: 170 × 128 lanes × 2 × 2.407 GHz",
            ),
        )
    }
)  # fmt: skip


class UnknownArchitectureError(LookupError):
    """An architecture that the table does not have; the message lists those that it has."""


def architecture(name: str) -> Architecture:
    """The architecture called `name`, with or without a letter at its end: sm_90 and sm_90a have the same limits.

    Raises UnknownArchitectureError for any other name.
    """
    known = ARCHITECTURES.get(name) or ARCHITECTURES.get(name[:-1] if name[-1:] in "af" else name)
    if known is None:
        raise UnknownArchitectureError(
            f"The architecture {name!r} is not in the table of chapters/kit/gpu/gpus.py; "
            f"it has {', '.join(ARCHITECTURES)}, each also with the letter a or f."
        )
    return known
