"""Rows of a tensor of any rank: the leading dimensions of a kernel's buffers, and a row's place in them."""

import tvm
from tvm import tirx


def unit_dimensions(shape: list[tvm.ir.Expr]) -> tuple[bool, ...]:
    """For each leading dimension of `shape`, all but the last, whether a kernel may treat it as 1.

    If all of them are 1, the last still counts as variable, so that a kernel for (1, n, length) serves (1, 1, length)
    too.
    """
    units = [is_one(extent) for extent in shape[:-1]]
    if all(units) and units:
        units[-1] = False
    return tuple(units)


def row_dimensions(shape: list[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
    """The leading dimensions of a kernel for arguments of `shape`: 1 for unit_dimensions, else a variable.

    A variable's value is read from the argument when the kernel is called, so one kernel serves every number of rows.
    int64, because rows times row length may exceed 2**31. The last dimension of `shape`, the row's length, is left out.
    """
    names = iter(("batch_size", "seq_len") if len(shape) == 3 else ())
    dims = []
    for number, unit in enumerate(unit_dimensions(shape)):
        name = next(names, f"rows_{number}")
        dims.append(tirx.IntImm("int64", 1) if unit else tirx.Var(name, "int64"))
    return dims


def row_index(row: tvm.ir.Expr, dims: list[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
    """The indices into `dims` of the row numbered `row`, counted with the last dimension fastest."""
    index: list[tvm.ir.Expr] = []
    outer = sum(not is_one(extent) for extent in dims)
    for extent in reversed(dims):
        if is_one(extent):
            index.insert(0, tirx.IntImm("int64", 0))
            continue
        outer -= 1
        index.insert(0, row % extent if outer else row)
        row = row // extent
    return index


def is_one(extent: tvm.ir.Expr) -> bool:
    """Whether `extent` is the constant 1; False for every symbolic dimension."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
