"""What a kernel asks of memory, counted without a GPU: requests of warps, bytes from the caches, bytes from DRAM.

`warp_access.py` evaluates the index expressions of a lowered kernel for one warp. This module evaluates them for a
whole block and for all blocks. Two models turn that into numbers, and both are simple enough to be stated in full:

* **What the compiler merges.** It loads a word once if the same statement sequence asks for it again, and it merges
  neighbouring loads from shared memory into one of up to 16 bytes: those of neighbouring statements, and those of
  neighbouring iterations of the innermost loop. It does not merge loads of global memory.
* **What the second-level cache keeps.** Blocks start in the order of blockIdx.x, then y, then z. As many as are
  resident at a time run in step, so what several of them read comes from DRAM once. Of what earlier blocks read, the
  cache keeps what was used last, up to its size. The unit is all that a block reads of one buffer. What is written goes
  to DRAM once. Register spills are not counted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import tvm
from tvm import DataType, tirx

from chapters.kit.gpu.launches import lowered
from chapters.kit.gpu.limits import SECTOR_BYTES, VECTOR_BYTES, WARP
from chapters.kit.gpu.warp_access import (
    _OPERATORS,
    Access,
    _item_bytes,
    _op_name,
    _pointed_at,
    _Walk,
)
from chapters.kit.gpu.wgmma_tile import GROUP, OPERAND_BYTES, WgmmaTile
from chapters.kit.ir.tensor_ir import nodes, substitute

LINE_BYTES = 128  # of the first-level cache: a request takes a cycle for each line that it touches
MOST = 1 << 26  # addresses that are evaluated at a time
_VECTOR = {**_OPERATORS, tirx.Min: np.minimum, tirx.Max: np.maximum}
_VECTOR |= {tirx.LT: np.less, tirx.LE: np.less_equal, tirx.EQ: np.equal}


@dataclass(frozen=True)
class Request:
    """An instruction of a warp that loads or stores. count: how often all warps together execute it.

    access: the addresses of the first warp, `lanes` elements per thread. copied: a cp.async, which needs no register.
    """

    access: Access
    count: int
    copied: bool = False

    @property
    def wavefronts(self) -> int:
        """How many cycles one execution takes: 128 bytes of shared memory each, or a line of the first-level cache."""
        one = self.access
        if one.scope == "shared":
            return sum(one.bank_cycles)
        begins = np.array(one.first) * one.item_bytes
        ends = begins + one.lanes * one.item_bytes - 1
        return len(np.union1d(begins // LINE_BYTES, ends // LINE_BYTES))


@dataclass
class _Raw:
    """An access as it stands in the kernel. loops: (variable, extent), outermost first. part: barriers before it."""

    buffer: tirx.Buffer
    scope: str
    writes: bool
    lanes: int
    start: tvm.ir.Expr
    loops: tuple[tuple[tirx.Var, int], ...]
    part: int
    copied: bool = False

    @property
    def item_bytes(self) -> int:
        return _item_bytes(self.buffer)


class _Nest(_Walk):
    """Walks a kernel and keeps every access with the loops around it."""

    def __init__(self, kernel: tirx.PrimFunc, body: tirx.Stmt):
        super().__init__(kernel, [])
        self.raw: list[_Raw] = []
        self.loops: list[tuple[tirx.Var, int]] = []
        self.barriers: list[tuple[tirx.Var, ...]] = []  # the loops around each barrier
        self.copying = False
        self.visit(body, 1)

    def visit(self, node, times: int) -> None:
        if isinstance(node, tirx.For):
            if not isinstance(node.extent, tirx.IntImm):
                raise ValueError(f"The loop over {node.loop_var} has no constant number of turns.")
            self.loops.append((node.loop_var, int(node.extent)))
            super().visit(node, times)
            self.loops.pop()
        elif isinstance(node, tirx.Evaluate) and _op_name(node.value).endswith(
            ("storage_sync", "cta_sync")
        ):
            self.barriers.append(tuple(var for var, _ in self.loops))
        elif isinstance(node, tirx.Evaluate) and "load_matrix_sync" in _op_name(node.value):
            self.fragment(node.value)
        elif isinstance(node, tirx.Evaluate) and _op_name(node.value) in (
            "tirx.tvm_store_matrix_sync",
            "tirx.cuda.func_call",
        ):
            pass  # a fragment's rows go to global memory, which is counted as written anyway
        else:
            super().visit(node, times)

    def fragment(self, call) -> None:
        """A fragment of 16 × 16 elements: every lane of the warp names the row and the half that it loads."""
        (load,), row_length = _pointed_at(call.args[5]), call.args[6]
        (lane,) = [var for tag, (var, extent) in self.threads.items() if tag == "threadIdx.x"]
        row, half = tirx.floormod(lane, 16), tirx.floordiv(lane, 16)
        index = load.indices[0] + row * row_length + half * 8
        self.note(load.source, [index], False, 1, 8)

    def assembly(self, call, times: int) -> None:
        self.copying = "cp_async" in _op_name(call)
        super().assembly(call, times)
        self.copying = False

    def keep(self, buffer, scope, writes, lanes, start, times) -> None:
        place = scope, writes, lanes, start, tuple(self.loops), len(self.barriers)
        self.raw.append(_Raw(buffer, *place, self.copying))

    # --- evaluation over arrays -------------------------------------------------------------------

    def involved(self, index) -> set[tirx.Var]:
        """The variables of threads, blocks and loops that an index depends on."""
        own = {var for var, _ in self.threads.values()}
        found: set[tirx.Var] = set()
        rest = list(nodes(index, tvm.ir.Var))
        while rest:
            var = rest.pop()
            bound = self.values.get(var)
            if var in own or bound is None or isinstance(bound, tirx.IntImm):
                found.add(var)
            else:
                rest += nodes(bound, tvm.ir.Var)
        return found

    def at(self, index, values: dict[tirx.Var, np.ndarray]):
        """`index` for arrays of values of its variables; 0 for those that are not among them."""
        if isinstance(index, tirx.IntImm):
            return int(index)
        if isinstance(index, tvm.ir.Var):
            if index in values:
                return values[index]
            bound = self.values.get(index)
            return 0 if bound is None else self.at(bound, values)
        if isinstance(index, tirx.Cast):
            return self.at(index.value, values)
        if isinstance(index, tirx.Select):
            parts = index.condition, index.true_value, index.false_value
            return np.where(*(self.at(part, values) for part in parts))
        apply = _VECTOR.get(type(index))
        if apply is None:
            raise ValueError(f"The index {index} is not made of the operators known here.")
        return apply(self.at(index.a, values), self.at(index.b, values))

    def over(self, index, extents: dict[tirx.Var, int]) -> np.ndarray:
        """`index` for all combinations of those of the given variables that it depends on, as a flat array."""
        extents = {var: extents[var] for var in extents if var in self.involved(index)}
        if math.prod(extents.values()) > MOST:
            raise ValueError("A block reads more elements than are counted here.")
        axes = np.meshgrid(*map(np.arange, extents.values()), indexing="ij", sparse=True)
        found = self.at(index, dict(zip(extents, axes, strict=True)))
        return np.atleast_1d(np.broadcast_to(found, tuple(extents.values()))).ravel()


@dataclass
class Traffic:
    """What a launch asks of memory. Sizes in bytes, for all blocks together unless said otherwise.

    requests: of warps. blocks, threads: of the launch. read: buffer -> what its blocks read, each its own part once,
    from the second-level cache. written: buffer -> its size. least: all buffers once. rounds: how often a block waits,
    one time after another, for data that it has just asked for. cycles: of shared memory, for bulk copies and for
    products that read it themselves, which are no requests of warps.
    """

    requests: list[Request]
    blocks: int
    threads: int
    rounds: int
    written: dict[str, int]
    least: int
    panels: dict[str, tuple[np.ndarray, int]] = field(repr=False, default_factory=dict)
    cycles: int = 0

    @property
    def read(self) -> dict[str, int]:
        return {name: len(keys) * size for name, (keys, size) in self.panels.items()}

    def from_dram(self, resident: int, cache_bytes: int | None) -> dict[str, int]:
        """Buffer -> bytes read from DRAM, with `resident` blocks at a time and a cache of this size.

        cache_bytes None: of a cache that keeps everything.
        """
        capacity = math.inf if cache_bytes is None else cache_bytes
        missed = dict.fromkeys(self.panels, 0)
        shared = {}
        for name, (keys, size) in self.panels.items():
            # parts that no two blocks share are read once, whatever the cache keeps
            if len(np.unique(keys)) == len(keys):
                missed[name] = len(keys) * size
            else:
                shared[name] = keys, size
        kept: OrderedDict[tuple[str, int], int] = OrderedDict()
        held = 0
        for start in range(0, self.blocks if shared else 0, resident):
            for name, (keys, size) in shared.items():
                for key in np.unique(keys[start : start + resident]).tolist():
                    if (name, key) in kept:
                        kept.move_to_end((name, key))
                        continue
                    missed[name] += size
                    kept[name, key] = size
                    held += size
            while held > capacity:
                _, size = kept.popitem(last=False)
                held -= size
        return missed

    @property
    def sectors_per_request(self) -> tuple[float, float]:
        """(sectors of 32 bytes that a request of global memory touches on average, and the least for its bytes)."""
        found = [(r.count, r.access) for r in self.requests if r.access.scope == "global"]
        total = sum(count for count, _ in found) or 1
        touched = sum(count * one.sectors for count, one in found)
        return touched / total, sum(count * one.least_sectors for count, one in found) / total

    @property
    def worst_conflict(self) -> int:
        """The most words that one bank must deliver for a request; 1 is free of conflicts, 0 without shared memory."""
        return max((r.access.ways for r in self.requests if r.access.scope == "shared"), default=0)

    @property
    def wavefronts(self) -> dict[str, int]:
        """Cycles of the first-level cache and shared memory, summed over all multiprocessors, by scope."""
        found = {"shared": self.cycles, "global": 0}
        for request in self.requests:
            found[request.access.scope] += request.count * request.wavefronts
        return found


def traffic(
    func: tirx.PrimFunc,
    target: tvm.target.Target,
    unrolled: int = 1,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Traffic:
    """What the one kernel of `func` asks of memory. Sizes must be constant, and loops have constant numbers of turns.

    unrolled: how many iterations of the innermost loops the compiler joins; it can merge their loads. sizes: of
    symbolic dimensions, by name. Raises ValueError for a kernel with other loops or indices.
    """
    (kernel,) = lowered(func, target)
    given = {
        p: tirx.IntImm(str(p.ty.dtype), sizes[p.name]) for p in kernel.params if p.name in sizes
    }
    nest = _Nest(kernel, substitute(kernel.body, given))
    block = {v: e for tag, (v, e) in nest.threads.items() if tag.startswith("thread")}
    grid = {v: e for tag, (v, e) in _by_speed(nest) if tag.startswith("block")}
    threads, blocks = math.prod(block.values()), math.prod(grid.values())
    warps = math.ceil(threads / WARP) * blocks
    requests = [
        Request(access, warps * times, copied)
        for access, times, copied in _merged(nest, list(_distinct(nest)), unrolled)
    ]
    buffers = {str(buffer.name): _bytes(buffer, sizes) for buffer in func.params}
    written = {str(raw.buffer.name) for raw in nest.raw if raw.writes and raw.scope == "global"}
    written |= _stored_fragments(kernel)
    return Traffic(
        requests,
        blocks,
        threads,
        _rounds(nest),
        {name: size for name, size in buffers.items() if name in written},
        sum(buffers.values()),
        _panels(nest, block, grid),
    )


def wgmma_traffic(m: int, n: int, k: int, out_dtype: str, tile: WgmmaTile) -> Traffic:
    """The traffic of `wgmma.py`'s kernel: one tile after another takes the place of a block.

    In each step of a tile, copies write its parts of A and B to shared memory once, and each product of 64 rows reads
    its part of A and all of B.
    """
    k_bytes = k * OPERAND_BYTES
    rows, columns = tile.grid(m, n)
    number = np.arange(rows * columns)
    above = number // (GROUP * columns) * GROUP  # the order of wgmma.py's `corner`
    high, inside = np.minimum(rows - above, GROUP), number % (GROUP * columns)
    row, column = above + inside % high, inside // high
    copied = tile.block_m + tile.block_n
    multiplied = tile.block_m + tile.consumers * tile.block_n
    sizes = {"A": m * k_bytes, "B": n * k_bytes, "C": 4 * n}
    written = m * n * DataType(out_dtype).itemsize
    return Traffic(
        [],
        rows * columns,
        tile.threads,
        1,
        {"D": written},
        sum(sizes.values()) + written,
        {"A": (row, tile.block_m * k_bytes), "B": (column, tile.block_n * k_bytes)},
        rows * columns * (copied + multiplied) * k_bytes // LINE_BYTES,
    )


def _bytes(buffer, sizes: Mapping[str, int]) -> int:
    shape = (sizes[n.name] if isinstance(n, tvm.ir.Var) else int(n) for n in buffer.shape)
    return math.prod(shape) * _item_bytes(buffer)


def _by_speed(nest: _Nest) -> list[tuple[str, tuple[tirx.Var, int]]]:
    """The axes of threads and blocks, those that run slowest first: z, y, x."""
    return sorted(nest.threads.items(), key=lambda item: item[0][-1], reverse=True)


def _stored_fragments(kernel) -> set[str]:
    """The buffers that tensor cores' fragments are stored to."""
    found = set()
    for call in (e.value for e in nodes(kernel.body, tirx.Evaluate)):
        if _op_name(call) == "tirx.tvm_store_matrix_sync":
            found |= {str(load.source.name) for load in _pointed_at(call.args[5])}
    return found


def _rounds(nest: _Nest) -> int:
    """The turns of the outermost loop that loads global memory and has a barrier; 1 if copies are in flight, or none.

    In such a loop every turn asks for data and waits for it. Elsewhere the loads of a thread are in flight together.
    """
    if any(raw.copied for raw in nest.raw):
        return 1
    stepping = {loops[0] for loops in nest.barriers if loops}
    turns = [
        extent
        for raw in nest.raw
        if raw.scope == "global" and not raw.writes
        for var, extent in raw.loops[:1]
        if var in stepping
    ]
    return max(turns, default=1)


def _distinct(nest: _Nest) -> Iterator[_Raw]:
    """The accesses without loads that the compiler saves, because the same address was loaded just before."""
    seen: set = set()
    for raw in nest.raw:
        key = str(raw.buffer.name), raw.lanes, str(raw.start), raw.loops[-1:], raw.part
        if raw.writes or key not in seen:
            yield raw
        seen.add(key)


def _merged(nest: _Nest, raws: list[_Raw], unrolled: int) -> Iterator[tuple[Access, int, bool]]:
    """(the first warp's access, how often a warp executes it, whether it is a cp.async), merged as said above."""
    warp = nest.first_warp()
    lanes = {v: np.array([one.get(v, 0) for one in warp]) for v, _ in nest.threads.values()}
    found: list[tuple[Access, int, bool, tuple]] = []
    for raw in raws:
        first = np.broadcast_to(nest.at(raw.start, lanes), len(warp))
        times = math.prod(extent for _, extent in raw.loops)
        access = Access(
            str(raw.buffer.name),
            raw.scope,
            raw.writes,
            raw.lanes,
            raw.item_bytes,
            times,
            tuple(map(int, first)),
        )
        if unrolled > 1 and _may_merge(raw):
            var, extent = raw.loops[-1]
            step = nest.at(raw.start, {**lanes, var: np.ones(len(warp), dtype=int)}) - first
            most = min(unrolled, VECTOR_BYTES // (raw.lanes * raw.item_bytes))
            wide = math.gcd(extent, most)
            while wide > 1 and not _aligned(first, raw, wide):
                wide //= 2
            if (step == raw.lanes).all() and wide > 1:
                access = replace(access, lanes=raw.lanes * wide, times=times // wide)
        found.append((access, access.times, raw.copied, (raw.loops[-1:], raw.part)))
    yield from _neighbours(found)


def _may_merge(raw: _Raw) -> bool:
    """Whether the compiler knows the alignment: that of shared memory, and not that of a pointer it was given."""
    return (
        raw.scope == "shared"
        and not raw.writes
        and bool(raw.loops)
        and raw.lanes * raw.item_bytes < 16
    )


def _aligned(first: np.ndarray, raw: _Raw, wide: int) -> bool:
    return bool(
        (np.asarray(first) * raw.item_bytes % (wide * raw.lanes * raw.item_bytes) == 0).all()
    )


def _neighbours(found: list[tuple[Access, int, bool, tuple]]) -> Iterator[tuple[Access, int, bool]]:
    """Merge loads of shared memory that are neighbours in every lane, pair by pair, up to 16 bytes."""
    merged = True
    while merged:
        merged, kept = False, []
        for access, times, copied, place in found:
            for position, (other, _, _, there) in enumerate(kept):
                if place == there and _joined(other, access):
                    kept[position] = replace(other, lanes=2 * other.lanes), times, copied, place
                    merged = True
                    break
            else:
                kept.append((access, times, copied, place))
        found = kept
    for access, times, copied, _ in found:
        yield access, times, copied


def _joined(a: Access, b: Access) -> bool:
    """Whether one load can do the work of both: `b` begins where `a` ends, and `a` is aligned to both."""
    if a.scope != "shared" or a.writes or b.writes or (a.buffer, a.lanes) != (b.buffer, b.lanes):
        return False
    wide = 2 * a.lanes * a.item_bytes
    if wide > VECTOR_BYTES or a.times != b.times:
        return False
    return all(
        y - x == a.lanes and x * a.item_bytes % wide == 0
        for x, y in zip(a.first, b.first, strict=True)
    )


def _panels(nest: _Nest, block: dict, grid: dict) -> dict[str, tuple[np.ndarray, int]]:
    """Buffer -> (which part each block reads, in the order in which blocks start; bytes of such a part)."""
    by_buffer: dict[str, list[_Raw]] = {}
    for raw in nest.raw:
        if raw.scope == "global" and not raw.writes:
            by_buffer.setdefault(str(raw.buffer.name), []).append(raw)
    found = {}
    axes = np.meshgrid(*map(np.arange, grid.values()), indexing="ij", sparse=True)
    values = dict(zip(grid, axes, strict=True))
    for name, raws in by_buffer.items():
        keys = np.broadcast_to(nest.at(raws[0].start, values), tuple(grid.values())).ravel()
        sectors = [_sectors_of_block(nest, raw, block) for raw in raws]
        found[name] = keys, len(np.unique(np.concatenate(sectors))) * SECTOR_BYTES
    return found


def _sectors_of_block(nest: _Nest, raw: _Raw, block: dict) -> np.ndarray:
    """The sectors that the first block touches by one access, in all turns of its loops."""
    begins = np.unique(nest.over(raw.start, {**block, **dict(raw.loops)})) * raw.item_bytes
    ends = begins + raw.lanes * raw.item_bytes - 1
    return np.union1d(begins // SECTOR_BYTES, ends // SECTOR_BYTES)
