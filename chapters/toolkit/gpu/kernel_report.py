"""Two tables about GPU kernels that need no GPU: what they ask of memory, and what NVIDIA's compiler makes of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import tvm_ffi
from tvm import DataType, tirx
from tvm.target import Target

from chapters.toolkit.bench.results import Shown, save
from chapters.toolkit.gpu.call import ASYNCHRONOUS
from chapters.toolkit.gpu.cuda_resources import Resources, missing, resources
from chapters.toolkit.gpu.launches import HostProgram, lowered
from chapters.toolkit.gpu.warp_access import accesses, bytes_moved, conflicts
from chapters.toolkit.table import Table

COMPILER = "nvidia-cuda-nvrtc"  # the wheel whose version stands beside the counts


def cuda(arch: str) -> Target:
    """The target with nothing but an architecture."""
    return Target({"kind": "cuda", "arch": arch})


def memory_table(kernels: Mapping[str, tirx.PrimFunc], arch: str = "sm_90a") -> Table:
    """For each kernel: bytes loaded of A and B, load instructions a thread, barriers, the worst bank conflict."""
    rows = []
    for name, func in kernels.items():
        target = cuda(arch)
        program = HostProgram(func, target, ASYNCHRONOUS)
        text = "".join(kernel.source for kernel in program.kernels.values())
        moved = bytes_moved(func, target)
        wide = max(a.lanes * a.item_bytes for a in accesses(func, target) if a.buffer in "AB")
        ways = max(conflicts(func, target).values(), default=None)
        loaded = moved["A"] + moved["B"]
        barriers = text.count("__syncthreads()")
        rows.append(
            (name, loaded, wide, barriers, "no shared memory" if ways is None else f"{ways}-way")
        )
    header = (
        "kernel",
        "bytes of A and B loaded",
        "bytes a load",
        "barriers",
        "worst bank conflict",
    )
    return Table(header, rows)


def used_by(func: tirx.PrimFunc, arch: str) -> tuple[Resources, int]:
    """What the one kernel of `func` takes on `arch`, and the threads of its blocks. Needs NVIDIA's compiler."""
    (kernel,) = HostProgram(func, cuda(arch), ASYNCHRONOUS).kernels.values()
    used = resources(kernel.source, arch)
    (device,) = lowered(func, cuda(arch))
    shared_bytes = used.shared_bytes + dynamic_shared_bytes(device)
    return replace(used, shared_bytes=shared_bytes), threads_of(device)


def dynamic_shared_bytes(device: tirx.PrimFunc) -> int:
    """The shared memory that a launch of a device function asks for, a block; the compiler does not know of it."""
    sizes: list[int] = []

    def note(made: tirx.AllocBuffer) -> None:
        if str(made.buffer.scope()) == "shared.dyn":
            items = math.prod(int(extent) for extent in made.buffer.shape)
            sizes.append(items * DataType(str(made.buffer.dtype)).itemsize)

    tvm_ffi.structural_walk(device.body, (tirx.AllocBuffer, note))
    return sum(sizes)


def threads_of(func: tirx.PrimFunc) -> int:
    """The threads of a block: the product of the extents bound to threadIdx."""
    extents: dict[str, int] = {}

    def note(loop: tirx.For) -> None:
        if loop.thread_binding is not None and "threadIdx" in str(loop.thread_binding.thread_tag):
            extents[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    def note_launch(attr: tirx.AttrStmt) -> None:  # as a function written without a schedule has it
        if str(attr.attr_key) == "thread_extent" and "threadIdx" in str(attr.node.thread_tag):
            extents[str(attr.node.thread_tag)] = int(attr.value)

    tvm_ffi.structural_walk(func.body, [(tirx.For, note), (tirx.AttrStmt, note_launch)])
    return math.prod(extents.values())


Counted = tuple[str, str, Resources, int]  # architecture, kernel, what it takes, threads of a block


def resources_of(
    counted: Iterable[Counted], occupancy: Callable[[Resources, int, str], float]
) -> Table:
    """A row a kernel and architecture: registers, spilled bytes, shared memory, and `occupancy`'s share of threads."""
    rows = []
    for arch, name, used, threads in counted:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        share = f"{100 * occupancy(used, threads, arch):.1f} %"
        rows.append((arch, name, threads, used.registers, spilled, used.shared_bytes, share))
    header = ("for", "kernel", "threads", "registers", "bytes spilled", "shared bytes", "occupancy")
    return Table(header, rows)


def resource_table(
    kernels: Mapping[str, tirx.PrimFunc],
    architectures: tuple[str, ...],
    occupancy: Callable[[Resources, int, str], float],
) -> Shown:
    """`resources_of` these kernels, counted now; the sentence why not, where the compiler is missing."""
    if missing():
        return Shown(None, f"Not counted on this machine: {missing()}.")
    counted = (
        (arch, name, *used_by(func, arch))
        for arch in architectures
        for name, func in kernels.items()
    )
    source = "Counted by NVRTC; other versions count a little differently."
    return Shown(resources_of(counted, occupancy), source)


def save_counts(
    name: str,
    counted: Callable[[], dict],
    table: Callable[[dict], Table],
    lacking: str,
    command: str,
) -> int:
    """Count, print, and write the results file `name`; 1, and the reason, where `lacking` names what is missing."""
    if lacking:
        print(f"{lacking}: pip install -e '.[gpu]'", file=sys.stderr)
        return 1
    now = counted()
    print(table(now))
    path = save(name, now, command)
    print(f"written: {path.relative_to(path.parents[2])}")
    return 0
