"""The two goals of exercise 8.2: what the kernel of one layer may use, and what it does use, counted in its IR."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass

from tvm import tirx
from tvm.ir import TensorLoad, Var

from chapters.kit.draw.table import Table
from chapters.kit.gpu.kernel_report import buffers_in, bytes_of, threads_of
from chapters.kit.gpu.launches import lower_kernel
from chapters.kit.gpu.limits import SECTOR_BYTES
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import Access, accesses, conflicts
from chapters.kit.ir.tensor_ir import nodes

SIZE = (64, 128, 64)  # m, n, k of the layer, in float32
LEAST_BLOCKS, LEAST_THREADS, MOST_THREADS = 8, 32, 128
SHARED = ("shared", "shared.dyn")


@dataclass(frozen=True)
class Use:
    """What a kernel uses, or may use at most.

    requested_bytes: of the sectors of global memory that all warps request, without caches. local_words: 32-bit words
    that a thread keeps in buffers of scope "local". shared_bytes: per block. ways: of the worst bank conflict, 1 for
    none.
    """

    requested_bytes: int
    local_words: int
    shared_bytes: int
    ways: int

    def exceeded(self, limit: Use) -> list[str]:
        """The names of the numbers that are above `limit`."""
        return [name for name, most in asdict(limit).items() if getattr(self, name) > most]


NAMES = {
    "requested_bytes": "bytes requested from global memory",
    "local_words": "words in a thread's registers",
    "shared_bytes": "bytes of shared memory per block",
    "ways": "worst bank conflict (1 is none)",
}


def list_numbers(numbers: Use) -> str:
    """A line per number, such as “worst bank conflict (1 is none): 2”."""
    return "\n".join(f"{text}: {getattr(numbers, name):,}" for name, text in NAMES.items())


def use_of(func: tirx.PrimFunc) -> Use:
    """What the kernels of `func` use. A load that a thread repeats in the same iteration counts once."""
    devices = lower_kernel(func, CUDA)
    return Use(
        sum(requested_by_buffer(func).values()),
        max(sum(map(bytes_of, buffers_in(device, "local"))) for device in devices) // 4,
        max(sum(map(bytes_of, buffers_in(device, *SHARED))) for device in devices),
        max(conflicts(func, CUDA).values(), default=1),
    )


def requested_by_buffer(func: tirx.PrimFunc) -> dict[str, int]:
    """The bytes of the sectors that all warps request of each buffer in global memory, loads and stores."""
    requested: Counter[str] = Counter()
    for access in dict.fromkeys(accesses(func, CUDA)):
        if access.scope == "global":
            requested[access.buffer] += _count_requested(access)
    return dict(requested)


def describe(func: tirx.PrimFunc, name: str) -> str:
    """Where the number `name` of a Use comes from in `func`, by buffer."""
    if name == "requested_bytes":
        by_buffer = requested_by_buffer(func)
        parts = [f"{requested:,} of {buffer}" for buffer, requested in by_buffer.items()]
        return f"By buffer: {', '.join(parts)}."
    if name == "ways":
        return (
            "By access: "
            + ", ".join(f"{key} {ways}" for key, ways in conflicts(func, CUDA).items())
            + "."
        )
    scopes = {"local_words": ("local",), "shared_bytes": SHARED}[name]
    made = [one for device in lower_kernel(func, CUDA) for one in buffers_in(device, *scopes)]
    return "Bytes by buffer: " + ", ".join(f"{b.name} {bytes_of(b):,}" for b in made) + "."


def _count_requested(access: Access) -> int:
    """Of one access, if every warp touches as many sectors as the first one does in its first iteration."""
    warps = math.ceil(access.times / len(access.first))
    return warps * access.sectors * SECTOR_BYTES


def list_launches(func: tirx.PrimFunc) -> list[tuple[int, int]]:
    """(blocks, threads per block) of each kernel of `func`."""
    return [
        (threads_of(device, "blockIdx"), threads_of(device)) for device in lower_kernel(func, CUDA)
    ]


def find_run_time_indices(func: tirx.PrimFunc) -> list[str]:
    """The buffers of scope "local" of which a sum's update uses an element whose index is not a constant.

    Registers cannot hold such a buffer. Loops that only set or store one are left out: NVIDIA's compiler unrolls them.
    """
    found = []
    stores = [
        one for device in lower_kernel(func, CUDA) for one in nodes(device.body, tirx.BufferStore)
    ]
    for store in stores:
        loaded = nodes(store.value, TensorLoad)
        if any(load.source.same_as(store.buffer) for load in loaded):
            used = [(store.buffer, store.indices), *((one.source, one.indices) for one in loaded)]
            found += [str(b.name) for b, at in used if str(b.scope()) == "local" and _varies(at)]
    return sorted(set(found))


def _varies(indices) -> bool:
    return any(nodes(index, Var) for index in indices)


# The first goal needs sums in registers, and numbers that a thread loads once for several sums. The second needs tiles
# that a block shares, small enough, and rows that begin in different banks.
GOALS = {
    1: Use(requested_bytes=2_000_000, local_words=40, shared_bytes=8192, ways=32),
    2: Use(requested_bytes=204_800, local_words=40, shared_bytes=8192, ways=2),
}


def goals_table(func: tirx.PrimFunc) -> Table:
    """One row per number that the goals limit: what `func` uses, and both limits."""
    used = asdict(use_of(func))
    rows = [
        (text, used[name], *(getattr(goal, name) for goal in GOALS.values()))
        for name, text in NAMES.items()
    ]
    return Table(("", "one element per thread", *(f"goal {n}" for n in GOALS)), rows)
