"""What TVM's memory planner allocates for a module: each buffer and its size in bytes.

`planned(mod)` lowers a module as far as `StaticPlanBlockMemory` and reads the allocations. A size is a number if the
planner knows it before the program runs, else an expression such as `512 * batch_size`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, sym, tirx

from chapters.kit.draw.table import Table
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import variables_of

ALLOC_STORAGE, ALLOC_IN_STORAGE, ALLOC_ALONE = (
    tvm.ir.Op.get(f"relax.{name}")
    for name in ("memory.alloc_storage", "memory.alloc_tensor", "builtin.alloc_tensor")
)


def lower(mod: tvm.IRModule, *then: tvm.transform.Pass) -> tvm.IRModule:
    """`mod` after the memory planner and then the passes `then`.

    First come the passes of TVM's default pipeline that the planner needs, in the same order.
    """
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
    ]
    return tvm.transform.Sequential([*passes, *then])(mod)


@dataclass(frozen=True)
class Storage:
    """One allocation. `size` in bytes: an int, or a TVM expression over symbolic dimensions.

    planned: whether the planner made it and may reuse it; if not, it is allocated for one tensor, at run time.
    """

    function: str
    size: int | tvm.ir.Expr
    planned: bool

    def bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """The size in bytes, with each symbolic dimension replaced by `sizes[name]`.

        Raises ValueError for a dimension that is not in `sizes`.
        """
        return evaluate(self.size, sizes or {})

    def __str__(self) -> str:
        return f"{self.size:,}" if isinstance(self.size, int) else format_size(self.size)


@dataclass(frozen=True)
class StoragePlan:
    """The allocations of a module's Relax functions, in program order."""

    storages: tuple[Storage, ...]

    @property
    def constant(self) -> tuple[Storage, ...]:
        """The planned storages whose size is known before the program runs."""
        return tuple(s for s in self.storages if s.planned and isinstance(s.size, int))

    @property
    def symbolic(self) -> tuple[Storage, ...]:
        """The planned storages whose size depends on the call."""
        return tuple(s for s in self.storages if s.planned and not isinstance(s.size, int))

    @property
    def unplanned(self) -> tuple[Storage, ...]:
        """The tensors that are allocated one by one at run time."""
        return tuple(s for s in self.storages if not s.planned)

    def bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """All allocations together, in bytes; see Storage.bytes."""
        return sum(storage.bytes(sizes) for storage in self.storages)

    def table(self) -> Table:
        kinds = ("tensor, at run time", "planned storage")
        rows = [(s.function, str(s), kinds[s.planned]) for s in self.storages]
        return Table(("function", "bytes", "allocated as"), rows)

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def plan_storage(mod: tvm.IRModule) -> StoragePlan:
    """Lower `mod` and read what its Relax functions allocate."""
    return read_plan(lower(mod))


def read_plan(lowered: tvm.IRModule) -> StoragePlan:
    """The allocations in a module that has been through the planner."""
    found: list[Storage] = []
    for gvar, func in lowered.functions_items():
        if isinstance(func, relax.Function):
            storages = [_read_allocation(gvar.name_hint, call) for call in calls_in(func.body)]
            found += filter(None, storages)
    return StoragePlan(tuple(found))


def _read_allocation(function: str, call: relax.Call) -> Storage | None:
    """The allocation that a call in `function` makes, or None."""
    if call.op == ALLOC_STORAGE:
        return Storage(function, storage_bytes(call), True)
    if call.op == ALLOC_ALONE:
        return Storage(function, tensor_bytes(call.ty), False)
    return None


def storage_bytes(call: relax.Call) -> int | tvm.ir.Expr:
    """Bytes of the storage that a call of `memory.alloc_storage` allocates: an int, or an expression."""
    size = call.args[0].values[0]
    return int(size) if isinstance(size, tirx.IntImm) else size


def tensor_bytes(ty: relax.TensorType) -> int | tvm.ir.Expr:
    """Bytes of a tensor of type `ty`: an int, or an expression where a dimension is symbolic.

    Raises ValueError if the type does not give the shape, dimension by dimension, and the dtype.
    """
    if not isinstance(ty.shape, relax.ShapeExpr) or ty.dtype is None:
        raise ValueError(f"{ty} has no known shape or no dtype, so its size in bytes is not known.")
    dtype = tvm.DataType(ty.dtype.dtype)
    bits = dtype.bits * dtype.lanes
    numbers = math.prod(int(d) for d in ty.shape if isinstance(d, tirx.IntImm))
    symbolic = [d for d in ty.shape if not isinstance(d, tirx.IntImm)]
    if bits % 8 == 0:
        return math.prod(symbolic, start=numbers * bits // 8)
    # elements of less than a byte are packed, and the last byte is filled up
    total = math.prod(symbolic, start=numbers * bits) + 7
    return total // 8 if isinstance(total, int) else tirx.floordiv(total, 8)


def evaluate(size: int | tvm.ir.Expr, sizes: Mapping[str, int]) -> int:
    """The value of `size`, with each symbolic dimension replaced by `sizes[name]`.

    Raises ValueError for a dimension that is not in `sizes`.
    """
    if isinstance(size, int):
        return size
    analyzer = sym.Analyzer()
    for dim in variables_of(size):
        if dim.name not in sizes:
            known = ", ".join(sizes) or "none"
            raise ValueError(
                f"The size {format_size(size)} needs a value for {dim.name}; sizes gives {known}."
            )
        analyzer.bind(dim, tirx.const(sizes[dim.name], dim.ty.dtype))
    return int(analyzer.simplify(size))


def format_size(size: tvm.ir.Expr) -> str:
    """`size` as TVMScript writes it in a shape: 512 * batch_size."""
    return str(relax.ShapeExpr([size])).removeprefix("R.shape([").removesuffix("])")
