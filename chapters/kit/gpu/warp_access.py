"""Which addresses the 32 threads of a warp access at once, computed from the index expressions of a lowered kernel.

Shared memory has 32 banks: different words of one bank are fetched one after the other; a word that several threads
ask for is fetched once. Global memory is fetched in sectors of 32 bytes. So the addresses decide the cost of both.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx

from chapters.kit.gpu.launches import lower_kernel
from chapters.kit.gpu.limits import BANK_BYTES, BANKS, SECTOR_BYTES, WARP
from chapters.kit.ir.tensor_ir import nodes

THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class Access:
    """One load or store in a kernel. scope: "shared" or "global". lanes: elements that a thread accesses at once.

    times: how often all threads of the grid together execute it, if all conditions around it hold.
    first: the element at which each thread of the first warp begins, in the first iteration of every loop.
    """

    buffer: str
    scope: str
    writes: bool
    lanes: int
    item_bytes: int
    times: int
    first: tuple[int, ...]

    @property
    def bytes_moved(self) -> int:
        return self.times * self.lanes * self.item_bytes

    @property
    def ways(self) -> int:
        """How many words the busiest bank must deliver: 1 is free of conflicts."""
        return max(self.bank_cycles, default=1)

    @property
    def bank_words(self) -> list[dict[int, set[int]]]:
        """Bank -> the words that it must deliver, for each group of threads that shared memory serves together.

        All threads with up to 4 bytes each are served together, half a warp with 8, a quarter with 16.
        """
        wide = self.lanes * self.item_bytes
        together = WARP // max(1, wide // BANK_BYTES)
        groups = []
        for start in range(0, len(self.first), together):
            words = defaultdict(set)
            for at in self.first[start : start + together]:
                begin = at * self.item_bytes
                for word in range(begin // BANK_BYTES, (begin + wide - 1) // BANK_BYTES + 1):
                    words[word % BANKS].add(word)
            groups.append(dict(words))
        return groups

    @property
    def bank_cycles(self) -> list[int]:
        """The cycles that shared memory takes for each group of threads that it serves together.

        The busiest bank decides: it delivers one word per cycle, to all threads of the group that ask for it.
        """
        return [max(map(len, words.values())) for words in self.bank_words]

    @property
    def sectors(self) -> int:
        """How many sectors the first warp touches."""
        touched: set[int] = set()
        for at in self.first:
            begin, end = at * self.item_bytes, (at + self.lanes) * self.item_bytes
            touched.update(range(begin // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1))
        return len(touched)

    @property
    def least_sectors(self) -> int:
        """How many sectors the same number of different bytes would take if they were contiguous."""
        return math.ceil(len(set(self.first)) * self.lanes * self.item_bytes / SECTOR_BYTES)


def accesses(func: tirx.PrimFunc, target: tvm.target.Target) -> list[Access]:
    """Every load and store of shared and global memory in the kernels of `func`, in order.

    Sizes must be constant. Accesses by pointer are included for PTX's `ldmatrix` and `cp.async`, not for wmma's
    fragments. Raises ValueError for an index with other operators than those of `_OPERATORS`.
    """
    found: list[Access] = []
    for kernel in lower_kernel(func, target):
        _AccessVisitor(kernel, found).visit(kernel.body, 1)
    return found


def conflicts(func: tirx.PrimFunc, target: tvm.target.Target) -> dict[str, int]:
    """The worst `ways` of each buffer in shared memory: {"read A_shared": 1, "write A_shared": 2, ...}."""
    worst: dict[str, int] = {}
    for access in accesses(func, target):
        if access.scope == "shared":
            key = f"{'write' if access.writes else 'read'} {access.buffer}"
            worst[key] = max(worst.get(key, 1), access.ways)
    return worst


def bytes_moved(func: tirx.PrimFunc, target: tvm.target.Target) -> dict[str, int]:
    """The bytes that all threads together load from or store to each buffer in global memory, ignoring caches."""
    moved: dict[str, int] = defaultdict(int)
    for access in accesses(func, target):
        if access.scope == "global":
            moved[access.buffer] += access.bytes_moved
    return dict(moved)


class _AccessVisitor:
    """Walks one kernel's statements. threads: axis -> (variable, extent). values: of loop and bound variables."""

    def __init__(self, kernel: tirx.PrimFunc, found: list[Access]):
        self.found = found
        self.threads: dict[str, tuple[tirx.Var, int]] = {}
        self.values: dict[tirx.Var, tvm.ir.Expr] = {}

    def visit(self, node, times: int) -> None:
        """Note the accesses of a statement that all threads together execute `times` times."""
        if isinstance(node, tirx.SeqStmt):
            for part in node:
                self.visit(part, times)
        elif isinstance(node, tirx.AttrStmt) and str(node.attr_key) == "thread_extent":
            self.threads[str(node.node.thread_tag)] = node.node.var, int(node.value)
            self.visit(node.body, times * int(node.value))
        elif isinstance(node, tirx.For):
            self.values[node.loop_var] = node.min
            self.visit(node.body, times * int(node.extent))
        elif isinstance(node, tirx.IfThenElse):
            for part in (node.then_case, node.else_case):
                if part is not None:
                    self.visit(part, times)
        else:
            if isinstance(node, tirx.Bind):
                self.values[node.var] = node.value
            if isinstance(node, tirx.BufferStore):
                self.record(node.buffer, node.indices, True, times)
            if isinstance(node, tirx.Evaluate) and _op_name(node.value).startswith("tirx.ptx."):
                self.visit_assembly(node.value, times)
            elif hasattr(node, "body"):
                self.visit(node.body, times)
            else:
                for load in nodes(node, tvm.ir.TensorLoad):
                    self.record(load.source, load.indices, False, times)

    def visit_assembly(self, call, times: int) -> None:
        """Note the accesses of a PTX instruction: 16 bytes at each address, or as many as a copy copies."""
        copies = _op_name(call).startswith("tirx.ptx.cp_async_c")
        wide = int(call.args[2]) if copies and len(call.args) > 3 else 16
        for position, argument in enumerate(call.args):
            for load in _find_addressed_loads(argument):
                lanes = wide // _item_bytes(load.source)
                self.record(load.source, load.indices, copies and position == 0, times, lanes)

    def record(self, buffer, indices, writes: bool, times: int, lanes: int | None = None) -> None:
        """Keep one access, if it is of shared or global memory. lanes: by default those of the index."""
        scope = (str(buffer.scope()) or "global").removesuffix(".dyn")
        if scope not in ("shared", "global") or len(indices) != 1:
            return
        (index,) = indices
        lanes = lanes or (int(index.lanes) if isinstance(index, tirx.Ramp) else 1)
        start = index.base if isinstance(index, tirx.Ramp) else index
        warp = self.index_first_warp()
        threads = max(map(len, warp.values()), default=1)
        first = tuple(np.broadcast_to(self.evaluate(start, warp), threads).tolist())
        name, item_bytes = str(buffer.name), _item_bytes(buffer)
        self.found.append(Access(name, scope, writes, lanes, item_bytes, times, first))

    def index_first_warp(self) -> dict[tirx.Var, np.ndarray]:
        """The indices of the first 32 threads of the first block, by axis; threadIdx.x runs fastest."""
        axes = [self.threads[axis] for axis in THREAD_AXES if axis in self.threads]
        rest, indices = np.arange(min(WARP, math.prod(extent for _, extent in axes))), {}
        for var, extent in axes:
            indices[var], rest = rest % extent, rest // extent
        return indices

    def evaluate(self, index, warp: dict[tirx.Var, np.ndarray]) -> int | np.ndarray:
        """The integer expression `index` for the threads of a warp of block 0; a number if all have the same."""
        if isinstance(index, tirx.IntImm):
            return int(index)
        if isinstance(index, tvm.ir.Var):
            if index in self.values:
                return self.evaluate(self.values[index], warp)
            return warp.get(index, 0)  # 0: the index of a block
        apply = _OPERATORS.get(type(index))
        if apply is None:
            raise ValueError(f"The index {index} is not made of the operators known here.")
        return apply(self.evaluate(index.a, warp), self.evaluate(index.b, warp))


def _item_bytes(buffer) -> int:
    return tvm.DataType(str(buffer.dtype)).itemsize


def _find_addressed_loads(expr) -> list:
    """The loads whose addresses `expr` takes."""
    calls = nodes(expr, tvm.ir.Call)
    return [call.args[0] for call in calls if _op_name(call) == "tirx.address_of"]


def _op_name(call) -> str:
    """The name of the operator that `call` calls; "" if it is not a call of one."""
    return str(getattr(getattr(call, "op", None), "name", ""))


_OPERATORS = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Div: operator.floordiv,  # indices are not negative
    tirx.Mod: operator.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.RShift: operator.rshift,
    tirx.LShift: operator.lshift,
    tirx.BitwiseAnd: operator.and_,
    tirx.BitwiseOr: operator.or_,
    tirx.BitwiseXor: operator.xor,
}
