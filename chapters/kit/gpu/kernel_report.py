"""Two tables about GPU kernels, made without a GPU: what they load, and what NVIDIA's compiler makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tvm import DataType, tirx

from chapters.kit.draw.table import Table
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.cuda_resources import Resources, resources
from chapters.kit.gpu.gpus import architecture
from chapters.kit.gpu.launches import HostProgram, lower_kernel
from chapters.kit.gpu.limits import WARP
from chapters.kit.gpu.targets import CUDA, cuda
from chapters.kit.gpu.warp_access import accesses, bytes_moved, conflicts
from chapters.kit.ir.tensor_ir import nodes, thread_axis


def memory_table(kernels: Mapping[str, tirx.PrimFunc]) -> Table:
    """For each kernel: bytes loaded of A and B, bytes of its widest load, barriers in its text, worst bank conflict."""
    rows = []
    for name, func in kernels.items():
        program = HostProgram(func, CUDA, ASYNCHRONOUS)
        text = "".join(kernel.source for kernel in program.kernels.values())
        moved = bytes_moved(func, CUDA)
        found = [access for access in accesses(func, CUDA) if access.buffer in ("A", "B")]
        wide = max(access.lanes * access.item_bytes for access in found)
        ways = max(conflicts(func, CUDA).values(), default=None)
        loaded = moved["A"] + moved["B"]
        barriers = text.count("__syncthreads()")
        worst = "no shared memory" if ways is None else f"{ways}-way"
        rows.append((name, loaded, wide, barriers, worst))
    loads = "bytes of A and B loaded", "bytes per load"
    return Table(("kernel", *loads, "barriers", "worst bank conflict"), rows)


def measure_resources(func: tirx.PrimFunc, arch: str) -> tuple[Resources, int]:
    """What the one kernel of `func` uses on `arch`, and the threads of its blocks. Needs NVIDIA's compiler."""
    (kernel,) = HostProgram(func, cuda(arch), ASYNCHRONOUS).kernels.values()
    used = resources(kernel.source, arch)
    (device,) = lower_kernel(func, cuda(arch))
    # the compiler does not count what the launch asks for
    dynamic_bytes = sum(map(bytes_of, buffers_in(device, "shared.dyn")))
    return replace(used, shared_bytes=used.shared_bytes + dynamic_bytes), threads_of(device)


def buffers_in(device: tirx.PrimFunc, *scopes: str) -> list[tirx.Buffer]:
    """The buffers in memory of these scopes that a device function allocates."""
    allocated = [one.buffer for one in nodes(device.body, tirx.AllocBuffer)]
    return [buffer for buffer in allocated if str(buffer.scope()) in scopes]


def bytes_of(buffer: tirx.Buffer) -> int:
    """The bytes of a buffer of constant size."""
    return math.prod(map(int, buffer.shape)) * DataType(str(buffer.dtype)).itemsize


def threads_of(func: tirx.PrimFunc, kind: str = "threadIdx") -> int:
    """The threads of a block: the product of the extents bound to threadIdx. kind: "blockIdx" gives the blocks."""
    extents = {thread_axis(loop): loop.extent for loop in nodes(func.body, tirx.For)}
    # functions that were written without a schedule bind threads by attributes
    bound = [a for a in nodes(func.body, tirx.AttrStmt) if str(a.attr_key) == "thread_extent"]
    extents |= {str(attribute.node.thread_tag): attribute.value for attribute in bound}
    # the number of blocks may be known at a call only
    return math.prod(int(extent) for tag, extent in extents.items() if tag.startswith(kind))


Counted = tuple[str, str, Resources, int]  # architecture, kernel, what it uses, threads of a block


def resources_of(counted: Iterable[Counted]) -> Table:
    """One row per kernel and architecture: registers, spilled bytes, shared memory and occupancy."""
    rows = []
    for arch, name, used, threads in counted:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        share = f"{100 * occupancy(used, threads, arch):.1f} %"
        rows.append((arch, name, threads, used.registers, spilled, used.shared_bytes, share))
    header = ("for", "kernel", "threads", "registers", "bytes spilled", "shared bytes", "occupancy")
    return Table(header, rows)


def resident_blocks(used: Resources, threads: int, arch: str) -> int:
    """How many blocks a multiprocessor of `arch` holds at a time; 0 if not even one fits.

    Raises UnknownArchitectureError for an architecture that the table does not have.
    """
    limit, warps = architecture(arch).multiprocessor, math.ceil(threads / WARP)
    portion = limit.register_portion
    of_warp = math.ceil(used.registers * WARP / portion) * portion
    with_registers = limit.registers // limit.warp_portion // max(of_warp, 1) * limit.warp_portion
    portion = limit.shared_portion
    shared = math.ceil((used.shared_bytes + limit.shared_reserved) / portion) * portion
    fitting = limit.threads // WARP // warps, with_registers // warps
    return min(limit.blocks, *fitting, limit.shared_bytes // shared if shared else limit.blocks)


def occupancy(used: Resources, threads: int, arch: str) -> float:
    """Return the share of a multiprocessor's threads that are resident while it runs this kernel, 0 to 1.

    threads: per block; they count in whole warps. 0 if not even one block fits. Raises UnknownArchitectureError for an
    architecture that the table does not have.
    """
    in_warps = math.ceil(threads / WARP) * WARP
    return (
        resident_blocks(used, threads, arch) * in_warps / architecture(arch).multiprocessor.threads
    )
