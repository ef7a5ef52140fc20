"""What TVM's memory planner makes of a module: each buffer it allocates, and how many bytes it has.

`planned(mod)` lowers a module as far as `StaticPlanBlockMemory` and reads the allocations. A size is
a number where the planner knew it before the program runs, and an expression such as
`512 * batch_size` where it did not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax, sym, tirx

from chapters.kit.draw.table import Table, grouped
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import variables_of


def lower(mod: tvm.IRModule, *then: tvm.transform.Pass) -> tvm.IRModule:
    """`mod` as the memory planner leaves it, then through the passes `then`.

    These are the passes of TVM's default pipeline that the planner needs, in its order.
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

    planned: the planner made it and may reuse it; else it is allocated for one tensor, at run time.
    """

    function: str
    size: int | tvm.ir.Expr
    planned: bool

    def bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """The size in bytes where each symbolic dimension has the value `sizes` gives its name.

        Raises ValueError, naming it, for a dimension that `sizes` lacks.
        """
        return evaluate(self.size, sizes or {})

    def __str__(self) -> str:
        return grouped(self.size) if isinstance(self.size, int) else expression(self.size)


@dataclass(frozen=True)
class StoragePlan:
    """The allocations of a module's Relax functions, in program order."""

    storages: tuple[Storage, ...]

    @property
    def constant(self) -> tuple[Storage, ...]:
        """What the planner allocates in a size known before the program runs."""
        return tuple(s for s in self.storages if s.planned and isinstance(s.size, int))

    @property
    def symbolic(self) -> tuple[Storage, ...]:
        """What the planner allocates in a size that depends on the call."""
        return tuple(s for s in self.storages if s.planned and not isinstance(s.size, int))

    @property
    def unplanned(self) -> tuple[Storage, ...]:
        """What is left to be allocated tensor by tensor at run time."""
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


def planned(mod: tvm.IRModule) -> StoragePlan:
    """Lower `mod` and read what its Relax functions allocate."""
    return read_plan(lower(mod))


def read_plan(lowered: tvm.IRModule) -> StoragePlan:
    """The allocations in a module that has been through the planner."""
    found: list[Storage] = []
    for gvar, func in lowered.functions_items():
        if isinstance(func, relax.Function):
            made = [_allocation(gvar.name_hint, call) for call in calls_in(func.body)]
            found += filter(None, made)
    return StoragePlan(tuple(found))


def _allocation(function: str, call: relax.Call) -> Storage | None:
    """What a call in `function` allocates, or None."""
    if call.op == tvm.ir.Op.get("relax.memory.alloc_storage"):
        size = call.args[0].values[0]
        return Storage(function, int(size) if isinstance(size, tirx.IntImm) else size, True)
    if call.op == tvm.ir.Op.get("relax.builtin.alloc_tensor"):
        return Storage(function, tensor_bytes(call.ty), False)
    return None


def tensor_bytes(ty: relax.TensorType) -> int | tvm.ir.Expr:
    """Bytes of a tensor of type `ty`: an int, or an expression where a dimension is symbolic.

    Raises ValueError if the type does not say the shape.
    """
    if ty.shape is None:
        raise ValueError(f"{ty} has no known shape, so its size in bytes is not known.")
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
    """The number `size` stands for where each symbolic dimension is `sizes[name]`.

    Raises ValueError, naming it, for a dimension that `sizes` lacks.
    """
    if isinstance(size, int):
        return size
    analyzer = sym.Analyzer()
    for dim in variables_of(size):
        if dim.name not in sizes:
            known = ", ".join(sizes) or "none"
            raise ValueError(
                f"The size {expression(size)} needs a value for {dim.name}; sizes gives {known}."
            )
        analyzer.bind(dim, tirx.const(sizes[dim.name], dim.ty.dtype))
    return int(analyzer.simplify(size))


def expression(size: tvm.ir.Expr) -> str:
    """`size` as TVMScript writes it in a shape: 512 * batch_size."""
    return str(relax.ShapeExpr([size])).removeprefix("R.shape([").removesuffix("])")
