"""What a kernel must cost on a GPU that is not there: a prediction, from counts, of which resource is busiest.

A kernel keeps several resources busy at the same time, and the busiest one decides. For each of them the least time is
known: what the kernel asks of it, divided by what it delivers per second.

| resource | what is counted | what it delivers |
|---|---|---|
| DRAM | bytes, with the cache model of `traffic.py` | the board's bandwidth |
| shared memory | cycles of the first-level cache and of shared memory | one request of 128 bytes per cycle |
| issue | instructions of warps, in the machine code | four per cycle |
| float32 | instructions on float32, in the machine code | 64 or 128 lanes per cycle |
| tensor cores | operations | the board's rate |

All but the first belong to a multiprocessor; the one with the most blocks decides.
The prediction adds the latency that nothing hides: where every resident block asks for data and waits for it, one
latency of DRAM passes per round.

Left out, because we found no source that says how much they deliver on each GPU: the second-level cache's bandwidth,
the number of load-store units, the rate of conversions, clocks below the boost clock. So the model is mostly
optimistic. `published_kernels.py` has what it is compared with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tvm import tirx

from chapters.kit.gpu import machine_code
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.cuda_resources import Resources, compiled
from chapters.kit.gpu.gpus import ARCHITECTURES, Board
from chapters.kit.gpu.kernel_report import resident_blocks, used_by
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.limits import WARP
from chapters.kit.gpu.targets import cuda
from chapters.kit.gpu.traffic import Traffic, traffic

# seconds from a load to its data from DRAM, on an H100: "Getting Memory-bound Kernels to Speed-of-Light",
# github.com/Dao-AILab/quack, media/2025-07-10-membound-sol.md, "finally ~400ns for accessing DRAM"
LATENCY = 400e-9
SCHEDULERS = 4  # of a multiprocessor; each issues one instruction per cycle (CUDA C++ Programming Guide, from 7.x on)
UNROLLED = (1, 2, 4, 8, 16)  # iterations that the compiler may join


@dataclass(frozen=True)
class Counts:
    """What is known of one kernel on one architecture, without a GPU.

    operations: of one launch. kinds: kind of instruction -> how many a warp executes, None if its loops cannot be read;
    static: the same as it stands in the code. requests of memory, blocks and threads are in `memory`.
    """

    arch: str
    used: Resources
    memory: Traffic
    operations: float
    static: Mapping[str, int]
    kinds: Mapping[str, int] | None = None

    @property
    def warps(self) -> int:
        return self.memory.blocks * math.ceil(self.memory.threads / WARP)

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds at a time."""
        return resident_blocks(self.used, self.memory.threads, self.arch)

    @property
    def on_tensor_cores(self) -> bool:
        return self.static.get("tensor core", 0) > 0


@dataclass(frozen=True)
class Prediction:
    """Seconds that each resource needs at least, and what the latency adds. dram_bytes: read and written."""

    least: Mapping[str, float]
    waiting: float
    dram_bytes: int
    lacking: tuple[str, ...] = field(default=())  # resources whose rate is unknown on this board

    @property
    def busiest(self) -> str:
        return max(self.least, key=self.least.__getitem__)

    @property
    def bound(self) -> float:
        """What the busiest resource needs, if it never waits."""
        return self.least[self.busiest]

    @property
    def seconds(self) -> float:
        """What we expect: the busiest resource, and the latency that nothing hides."""
        return self.bound + self.waiting


class DoesNotFitError(Exception):
    """Not one block of the kernel fits a multiprocessor, or it needs instructions that the architecture lacks."""


def counted(
    func: tirx.PrimFunc,
    arch: str,
    operations: float = 0,
    known: Traffic | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Counts:
    """Compile the one kernel of `func` for `arch` and count. Needs NVIDIA's compiler, and uses nvdisasm if it is there.

    known: its traffic, for a kernel whose loops and indices do not show it. sizes: of symbolic dimensions, by name.
    Raises CompileError, and ValueError for a kernel whose loops or indices cannot be counted.
    """
    (kernel,) = HostProgram(func, cuda(arch), ASYNCHRONOUS).kernels.values()
    used, _ = used_by(func, arch)
    memory = known or traffic(func, cuda(arch), sizes=sizes)
    static, kinds = Counter(), None
    if not machine_code.missing():
        code = machine_code.parsed(machine_code.listing(compiled(kernel.source, arch)[0]))
        static = code.static()
        warps = memory.blocks * math.ceil(memory.threads / WARP)
        # without tensor cores, a product is one multiply-add per thread
        products = None if static["tensor core"] else round(operations / 2 / WARP / warps)
        executed = None if known else code.executed(products)
        if executed is not None:
            kinds = machine_code.by_kind(executed)
            memory = _as_compiled(func, arch, memory, kinds["load shared"], sizes)
    if "cp_async" in kernel.source or "cp.async" in kernel.source:
        memory = replace(memory, rounds=1)
    return Counts(arch, used, memory, operations, static, kinds)


def _as_compiled(func, arch: str, memory: Traffic, loads: int, sizes: Mapping[str, int]) -> Traffic:
    """The traffic with loads of shared memory merged so that there are about as many as in the machine code."""

    def shared_loads(found: Traffic) -> float:
        warps = found.blocks * math.ceil(found.threads / WARP)
        shared = (r for r in found.requests if r.access.scope == "shared" and not r.access.writes)
        return sum(request.count for request in shared) / warps

    best = memory
    for unrolled in UNROLLED[1:]:
        if abs(shared_loads(best) - loads) <= 0.02 * loads:
            break
        other = traffic(func, cuda(arch), unrolled, sizes)
        if abs(shared_loads(other) - loads) < abs(shared_loads(best) - loads):
            best = other
    return best


def predicted(counts: Counts, board: Board) -> Prediction:
    """What `counts`, of the board's architecture, cost on `board`. Raises DoesNotFitError if no block fits."""
    resident = counts.resident
    if not resident:
        raise DoesNotFitError(
            f"A block of {counts.memory.threads} threads with {counts.used.registers} registers each and "
            f"{counts.used.shared_bytes} bytes of shared memory does not fit a multiprocessor of {counts.arch}."
        )
    memory, units = counts.memory, board.multiprocessors
    at_a_time = resident * units
    bytes_moved = sum(memory.from_dram(at_a_time, board.cache_bytes).values()) + sum(
        memory.written.values()
    )
    least: dict[str, float] = {}
    lacking = []
    if board.bandwidth:
        least["DRAM"] = bytes_moved / board.bandwidth
    else:
        lacking.append("DRAM")
    uneven = math.ceil(memory.blocks / units) * units / memory.blocks
    clock = board.float32 / (2 * ARCHITECTURES[board.arch].lanes * units)
    least["shared memory"] = uneven * sum(memory.wavefronts.values()) / (units * clock)
    if counts.kinds is not None:
        every = counts.warps * sum(counts.kinds.values())
        least["issue"] = uneven * every / (SCHEDULERS * units * clock)
        cycles = (
            counts.warps * counts.kinds.get("float32", 0) * WARP / ARCHITECTURES[board.arch].lanes
        )
        least["float32"] = uneven * cycles / (units * clock)
    elif not counts.on_tensor_cores:
        least["float32"] = uneven * counts.operations / board.float32
    if counts.on_tensor_cores:
        if board.tensor:
            least["tensor cores"] = uneven * counts.operations / board.tensor
        else:
            lacking.append("tensor cores")
    waves = max(1.0, memory.blocks / at_a_time)
    return Prediction(least, waves * memory.rounds * LATENCY, bytes_moved, tuple(lacking))
