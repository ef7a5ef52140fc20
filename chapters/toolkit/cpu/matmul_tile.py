"""Which part of x times w transposed a schedule computes at a time: what fits a target's registers and caches.

The sums of one tile stay in vector registers while the reduction runs. How many rows and columns it has follows from
the kernel's shape and from the registers of the target; nothing here is a constant of one machine except the two sizes
of the part of w that is kept in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target
from tvm_ffi import structural_equal

from chapters.toolkit.cpu.vector_registers import vector_registers
from chapters.toolkit.ir.tensor_ir import nodes

MOST_COLUMNS = 8  # each reads along a row of w of its own: more of them are read ahead less well
BLOCK_N, BLOCK_K = 128, 1024  # a block of w: 512 KiB in float32, which a second-level cache holds
PADDING = 32  # three vectors by as many columns are worth one row in this many: a load serves more multiply-adds
NARROW = 32  # block_n where w has no blocks: its sums are copied out while a first-level cache holds them
SPARE = 2  # registers for elements of w: one is multiplied while the next is loaded
SIDE_BY_SIDE = (
    4  # rows of w that decode reads at a time, at most: sums that do not wait for one another
)


@dataclass(frozen=True)
class Tile:
    """How an NT_matmul (w, x, out) is cut.

    row_axis: the dimension of x that holds its rows. lanes: elements in a vector register. vectors * columns: the
    registers of sums, each for `lanes` rows of x and one row of w. block_n, block_k: the block of w that is used for
    all rows of x before the next is read; columns divides block_n, which divides n; block_k divides k.
    """

    row_axis: int
    lanes: int
    vectors: int
    columns: int
    block_n: int
    block_k: int

    @property
    def rows(self) -> int:
        """Rows of x in a tile."""
        return self.vectors * self.lanes


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`, which is at least 1."""
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def weight_shape(func: tirx.PrimFunc) -> tuple[int, int]:
    """(n, k) of the weight, the first parameter of an NT_matmul.

    Raises ValueError if it is not a matrix of known size: such a kernel has no schedule here.
    """
    shape = func.params[0].shape
    if len(shape) != 2 or not all(isinstance(extent, tirx.IntImm) for extent in shape):
        raise ValueError(
            f"The weight of this kernel has shape {list(shape)}; its schedules need a matrix of constant size. "
            "relax.transform.BindSymbolicVars gives a symbolic size its value."
        )
    return int(shape[0]), int(shape[1])


def is_nt_matmul(func: tirx.PrimFunc) -> bool:
    """Whether `func` is (w, x, out) with one block, NT_matmul, that sums x[…, k] * w[j, k] over k, from 0 on.

    The name alone promises nothing: anyone may call a block so, whose operands are others or in another order. Each
    axis has a loop of its own, in the order of the axes, over all of `out` and of k. w must have constant size, and no
    size may be 0; rows of x may be symbolic. The sums are of a type that vectors can hold.
    """
    found = [at for at in nodes(func.body, SBlockRealize) if at.block.name_hint != "root"]
    if [at.block.name_hint for at in found] != ["NT_matmul"] or len(func.params) != 3:
        return False
    block, (w, x, out) = found[0].block, func.params
    if not all(tirx.is_buffer_var(p) for p in func.params) or len(w.shape) != 2:
        return False
    if not all(isinstance(n, tirx.IntImm) for n in w.shape):
        return False
    if any(_is(n, 0) for n in [*w.shape, *out.shape]) or not isinstance(
        block.body, tirx.BufferStore
    ):
        return False
    axes = [axis.var for axis in block.iter_vars]
    summed = [axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars]
    if len(axes) != len(out.shape) + 1 or summed != [False] * len(out.shape) + [True]:
        return False
    *rows, j, k = axes
    n, length = (int(extent) for extent in w.shape)
    if not _is(out.shape[-1], n) or not _is(block.iter_vars[-1].dom.extent, length):
        return False
    loads = [load for load in nodes(block.body.value, TensorLoad) if not load.source.same_as(out)]
    from_x, from_w = ([load for load in loads if load.source.same_as(p)] for p in (x, w))
    return (
        len(from_x) == len(from_w) == 1
        and len(loads) == 2
        and _has_plain_loops(func, found[0])
        and _adds_products(block)
        and all(fills_vectors(p) for p in func.params)
        and [region.source.same_as(x) for region in block.reads] == [True, False]
        and _reads(from_x[0], [*rows, k])
        and _reads(from_w[0], [j, k])
    )


def _has_plain_loops(func: tirx.PrimFunc, at: SBlockRealize) -> bool:
    """Whether each axis of the block runs through a serial loop of its own, from 0 to the end of the dimension."""
    loops, axes, out = nodes(func.body, tirx.For)[::-1], at.block.iter_vars, func.params[-1]
    if len(loops) != len(axes) or not _is(at.predicate, 1):
        return False
    return all(
        loop.kind == tirx.ForKind.SERIAL
        and loop.loop_var.same_as(value)
        and _is(loop.min, 0)
        and _is(axis.dom.min, 0)
        and structural_equal(loop.extent, axis.dom.extent)
        for loop, value, axis in zip(loops, at.iter_values, axes, strict=True)
    ) and all(
        structural_equal(n, axis.dom.extent) for n, axis in zip(out.shape, axes, strict=False)
    )


def _adds_products(block: SBlock) -> bool:
    """Whether `block` starts at 0 and adds the product of two elements, each cast or not, to its result."""
    init, total = block.init, block.body.value
    if not isinstance(init, tirx.BufferStore) or not isinstance(total, tirx.Add):
        return False
    zero = isinstance(init.value, tirx.IntImm | tirx.FloatImm) and init.value.value == 0
    so_far, product = total.a, total.b
    if not zero or not isinstance(so_far, TensorLoad) or not isinstance(product, tirx.Mul):
        return False
    factors = [f.value if isinstance(f, tirx.Cast) else f for f in (product.a, product.b)]
    return (
        so_far.source.same_as(block.body.buffer)
        and structural_equal(so_far.indices, block.body.indices)
        and all(isinstance(factor, TensorLoad) for factor in factors)
    )


def fills_vectors(buffer: tirx.Buffer) -> bool:
    """Whether TVM compiles vectors of what `buffer` holds: not of bool, nor of floats of 8 bits or anything smaller."""
    name = str(buffer.dtype)
    return buffer.dtype.bits >= 8 and name.startswith(
        ("int", "uint", "bfloat16", "float16", "float32", "float64")
    )


def _is(extent: Expr, number: int) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == number


def _reads(load: TensorLoad, axes: Sequence[tirx.Var]) -> bool:
    """Whether `load` reads at `axes`; at 0 where that is all there is."""
    shape = load.source.shape
    return len(shape) == len(axes) and all(
        index.same_as(axis) or (_is(index, 0) and _is(extent, 1))
        for index, axis, extent in zip(load.indices, axes, shape, strict=True)
    )


def lanes_of(func: tirx.PrimFunc, target: Target) -> int:
    """How many of the kernel's sums one vector register of `target` holds."""
    return vector_registers(target).lanes(str(func.params[-1].dtype))


def row_extents(func: tirx.PrimFunc) -> list[int | None]:
    """The dimensions of the result without the last; None for a symbolic one."""
    return [int(d) if isinstance(d, tirx.IntImm) else None for d in func.params[-1].shape[:-1]]


def has_few_rows(func: tirx.PrimFunc, target: Target) -> bool:
    """Whether registers of `target` hold sums of all rows of x with several rows of w: then w streams through once."""
    extents = row_extents(func)
    return None not in extents and prod(extents) <= vector_registers(target).count // SIDE_BY_SIDE


def side_by_side(func: tirx.PrimFunc, target: Target) -> int:
    """How many rows of w are read at a time for all rows of x: a divisor of n, at most SIDE_BY_SIDE.

    Their sums, and a vector of each, fit the registers of `target`. Raises ValueError as `weight_shape` does, and
    where x has more than a few rows.
    """
    n, _ = weight_shape(func)
    if not has_few_rows(func, target):
        raise ValueError(
            f"x has rows {list(func.params[-1].shape[:-1])}, more than the {vector_registers(target).count} vector "
            "registers of this target can sum up at a time: use the prefill schedule."
        )
    each = prod(row_extents(func)) + 1  # registers for a row of w: its sums, and its own elements
    return largest_divisor(n, min(SIDE_BY_SIDE, vector_registers(target).count // each))


def matmul_tile(func: tirx.PrimFunc, target: Target) -> Tile:
    """The tile for the NT_matmul `func`, whose x has at least two dimensions.

    Where one tile has room for all rows, w is read once and needs no blocks. Raises ValueError as `weight_shape`
    does, and for an x of one dimension.
    """
    n, k = weight_shape(func)
    extents = row_extents(func)
    if not extents:
        raise ValueError(
            "x has one dimension, so there are no rows to tile: use the decode schedule."
        )
    row_axis = max((axis for axis, d in enumerate(extents) if d != 1), default=len(extents) - 1)
    rows, lanes = extents[row_axis], lanes_of(func, target)
    registers = vector_registers(target).count
    needed = None if rows is None else max(1, -(-rows // lanes))  # vectors for all rows
    all_rows = needed is not None and needed <= registers // 8
    vectors = needed if all_rows else _vectors(n, needed, registers)
    columns = _columns(n, vectors, registers)
    block_n, block_k = NARROW if all_rows else BLOCK_N, largest_divisor(k, BLOCK_K)
    return Tile(
        row_axis=row_axis,
        lanes=lanes,
        vectors=vectors,
        columns=columns,
        block_n=columns * largest_divisor(n // columns, block_n // columns),
        # a prime k has no blocks worth the name
        block_k=k if all_rows or block_k < lanes else block_k,
    )


def _columns(n: int, vectors: int, registers: int) -> int:
    """How many rows of w fit into the registers beside `vectors` vectors of x, as a divisor of n."""
    return largest_divisor(n, min(MOST_COLUMNS, (registers - vectors - SPARE) // vectors))


def _vectors(n: int, needed: int | None, registers: int) -> int:
    """Two vectors of rows for each tile of many rows, or three where that pays; `needed` is None for symbolic rows."""
    if needed is None or _columns(n, 3, registers) < _columns(n, 2, registers):
        return 2
    two, three = (-(-needed // vectors) * vectors for vectors in (2, 3))  # with padding
    return 3 if three <= two + two // PADDING else 2
