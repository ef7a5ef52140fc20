"""Recognizes a linear layer of float16 or bfloat16 with what follows it, and says what its sums may start from.

`SumInFloat32` made every product of such a model round its float32 sum, and each operator after it rounds again. In

    float16(float16(total) + bias)

the bias cannot start the sum: it is added to a rounded sum. Kept in float32 until the last operator, the layer rounds
once, and the result is nearer to the exact one:

    float16(total + float32(bias))          so the sum may start from float32(bias)

`round_once` does this only where no operator of the program looks at a float32 number, so that only the compiler, and
what lowers one operator, has made the casts. A program that computes in float32 itself, for example to compare a number
with its rounded value, keeps each of its roundings.
"""

from __future__ import annotations

import functools

from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, Var
from tvm.s_tir import SBlockRealize, Schedule
from tvm_ffi import structural_equal, structural_map

from chapters.kit.cpu.nt_matmul import NAME, has_product, product_of
from chapters.kit.gpu.layer_with_epilogue import LinearLayer, is_compact
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import (
    count,
    innermost_blocks,
    is_pure,
    loads,
    mentions,
    nodes,
    substitute,
)
from chapters.kit.schedules.merge_elementwise import inline_epilogue

NARROW = ("float16", "bfloat16")
WIDE = "float32"
BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)


def merge_epilogue(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """`func`, an NT_matmul alone or with blocks after it, with these inlined into the last; None if it is not one.

    The product is the first block, and one that is_nt_matmul; the last block is elementwise and reads of the sums only
    the one with the index that it writes.
    """
    sch = Schedule(func)
    product, *others = sch.get_child_blocks(sch.get_sblock("root"))
    if not has_product(func) or sch.get(product).name_hint != NAME:
        return None
    result = sch.get(product).writes[0].source
    return sch.mod["main"] if inline_epilogue(sch, result, others) else None


def match_layer(func: tirx.PrimFunc) -> LinearLayer | None:
    """The layer that `func` computes; None if it is not one of float16 or bfloat16 summed in float32.

    func: an NT_matmul, alone or with one elementwise block that reads of the sums only the one with its own index.
    """
    w, x, sums = product_of(func).params
    if str(x.dtype) not in NARROW or str(w.dtype) != str(x.dtype) or str(sums.dtype) != WIDE:
        return None
    (loops, realize), *rest = innermost_blocks(func.body)
    if rest:
        ((loops, realize),) = rest
        if not _is_whole(loops, realize, sums):
            return None
    *_, store = nodes(realize.block.body, tirx.BufferStore)
    axes, out = tuple(store.indices), store.buffer
    total = tirx.Var("total", WIDE)
    value = total if not rest else _read_stored_value(store, sums, total)
    plain = str(out.dtype) in (WIDE, str(x.dtype)) and is_compact(out)
    if not plain or not is_pure(value) or loads(value, out):
        return None
    if str(out.dtype) != WIDE:
        value = round_once(value, total, str(out.dtype))
    start, value = split_start(value, total, axes)
    return LinearLayer(x, w, out, axes, total, start, value)


def _is_whole(loops: tuple[tirx.For, ...], realize: SBlockRealize, sums: Var) -> bool:
    """Whether a block runs once for each element of `sums`, and stores one result at the same index."""
    (store,), axes = nodes(realize.block.body, tirx.BufferStore), realize.block.iter_vars
    extents = [loop.extent for loop in loops]
    return (
        is_one(realize.predicate)
        and structural_equal(list(realize.iter_values), [loop.loop_var for loop in loops])
        and structural_equal(list(store.indices), [axis.var for axis in axes])
        and structural_equal(extents, [axis.dom.extent for axis in axes])
        and structural_equal(extents, list(sums.shape))
        and structural_equal(extents, list(store.buffer.shape))
        and not any(int(loop.kind) != tirx.ForKind.SERIAL for loop in loops)
        and all(isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0 for loop in loops)
    )


def _read_stored_value(store: tirx.BufferStore, sums: Var, total: Var) -> Expr:
    """What is stored, of `total` in place of the sum, with 0 for each axis that has no other value."""
    use_total = (TensorLoad, lambda load: total if load.source.same_as(sums) else load)
    single = {
        axis: tirx.const(0, axis.ty.dtype)
        for axis, extent in zip(store.indices, store.buffer.shape, strict=True)
        if is_one(extent)
    }
    return substitute(structural_map(store.value, use_total), single)


# --- one rounding ---------------------------------------------------------------------------------


def round_once(value: Expr, total: Var, narrow: str) -> Expr:
    """`value`, of the dtype `narrow`, computed in float32 and rounded once; itself if the program uses float32 too.

    Everything must be of the dtype `narrow`: loads, numbers, + - * / max min and functions. float32 may occur in
    two places, which no operator sees: `total` under a cast, and a function between two casts, such as
    narrow(erf(float32(…))), by which TVM computes a narrow function.
    """
    try:
        return tirx.Cast(narrow, _widen(_inline_single_uses(value), {total}, narrow))
    except _UsesOtherTypesError:
        return value


class _UsesOtherTypesError(Exception):
    """An expression is not made of narrow operators alone."""


def _inline_single_uses(value: Expr) -> Expr:
    """`value` with each named value that is used once, or is no operation, in the place of its name."""

    def simple(let: tirx.Let) -> Expr:
        once = count(let.body, let.var) == 1 or isinstance(let.value, Var)
        return substitute(let.body, {let.var: let.value}) if once else let

    return structural_map(value, (tirx.Let, simple))


def _widen(value: Expr, known: set[Var], narrow: str) -> Expr:
    """The narrow expression `value`, computed in float32. known: float32 variables that no operator sees."""
    if str(value.ty.dtype) != narrow:
        raise _UsesOtherTypesError
    if isinstance(value, tirx.Let):
        var = Var(value.var.name, WIDE)
        body = substitute(value.body, {value.var: tirx.Cast(narrow, var)})
        return tirx.Let(
            var, _widen(value.value, known, narrow), _widen(body, {*known, var}, narrow)
        )
    if isinstance(value, tirx.Cast):
        return _widen_under_cast(value.value, known, narrow)
    if isinstance(value, TensorLoad):
        return tirx.Cast(WIDE, value)
    if isinstance(value, tirx.FloatImm):
        return tirx.FloatImm(WIDE, value.value)
    if isinstance(value, BINARY):
        return type(value)(_widen(value.a, known, narrow), _widen(value.b, known, narrow))
    if isinstance(value, Call):
        return _call_in_float32(value, [_widen(one, known, narrow) for one in value.args])
    raise _UsesOtherTypesError


def _widen_under_cast(value: Expr, known: set[Var], narrow: str) -> Expr:
    """The float32 expression `value` under a cast to `narrow`, its narrow arguments computed in float32."""
    if isinstance(value, Var) and value in known:
        return value
    is_function = isinstance(value, Call) and str(value.ty.dtype) == WIDE
    if not is_function or not all(isinstance(one, tirx.Cast) for one in value.args):
        raise _UsesOtherTypesError
    return _call_in_float32(value, [_widen(one.value, known, narrow) for one in value.args])


def _call_in_float32(call: Call, arguments: list[Expr]) -> Expr:
    """The call of a function of real numbers, in float32."""
    return tirx.call_intrin(WIDE, call.op.name, *arguments)


# --- what a sum starts from -----------------------------------------------------------------------


def split_start(value: Expr, total: Var, axes: tuple[Var, ...]) -> tuple[Expr | None, Expr]:
    """(start, rest): `value` is `rest` with `start + total` for `total`; start is None if there is nothing to add.

    start: float32, the same for all rows, so that a sum can start from it: all terms that `value` adds to `total` and
    that depend on no axis but the last. If `value` uses `total` several times, the same terms must be added each time.
    """
    starts: list[Expr | None] = []

    def split(expr: Expr) -> Expr:
        if expr.same_as(total):
            starts.append(None)
            return expr
        terms = _list_terms(expr)
        if isinstance(expr, tirx.Add) and sum(term.same_as(total) for term in terms) == 1:
            of_rows = (total, *axes[:-1])
            added = [t for t in terms if not any(mentions(t, var) for var in of_rows)]
            others = [t for t in terms if not t.same_as(total) and not any(t is a for a in added)]
            starts.append(functools.reduce(tirx.Add, added) if added else None)
            return functools.reduce(tirx.Add, map(split, others), total)
        if isinstance(expr, BINARY):
            return type(expr)(split(expr.a), split(expr.b))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(expr.ty.dtype, split(expr.value))
        if isinstance(expr, tirx.Let):
            return tirx.Let(expr.var, split(expr.value), split(expr.body))
        if isinstance(expr, Call):
            return tirx.call_intrin(str(expr.ty.dtype), expr.op.name, *map(split, expr.args))
        if mentions(expr, total):
            starts.append(None)
        return expr

    rest = split(value)
    first = starts[0] if starts else None
    if first is None or not all(one is not None and structural_equal(one, first) for one in starts):
        return None, value
    return first, rest


def _list_terms(value: Expr) -> list[Expr]:
    """The terms of a float32 sum, in order."""
    if isinstance(value, tirx.Add) and str(value.ty.dtype) == WIDE:
        return [*_list_terms(value.a), *_list_terms(value.b)]
    return [value]
