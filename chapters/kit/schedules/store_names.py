"""Keeps values that `T.Let`s of a scheduled kernel name in buffers of the size of a register, where TVM needs it.

TVM's analyses look up what a variable stands for each time they meet it, so lowering nested `T.Let`s takes time
exponential in their depth. They do not look up what a buffer holds. LLVM and the GPU compilers keep most such buffers
in registers. TVM cannot lower a buffer inside a vectorized loop, so such a loop is divided into one for each value:

    for lane in T.vectorized(16):                      for lane in T.vectorized(16):
        D[lane] = T.Let(t * t, where={t: A[lane]})         t[lane] = A[lane]
                                                       for lane in T.vectorized(16):
                                                           D[lane] = t[lane] * t[lane]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, Range, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_equal, structural_map

from chapters.kit.ir.tensor_ir import nodes, substitute, with_fields, with_loop_body
from chapters.kit.schedules.merge_elementwise import DEEP, DEEPEST, IF_THEN_ELSE

# operators of which TVM's simplifier makes a constant if both operands are the same
SAME_OPERANDS = (tirx.Sub, tirx.EQ, tirx.NE)


@tirx.transform.prim_func_pass(opt_level=0, name="StoreNames")
class StoreNames:
    """Replaces the `T.Let`s that a block of a PrimFunc always evaluates by stores and loads, if they `need_buffers`."""

    def transform_function(self, func: tirx.PrimFunc, *_context) -> tirx.PrimFunc:
        is_root = isinstance(func.body, SBlockRealize)
        return func.with_body(store_names(func.body)) if is_root else func


def store_names(root: SBlockRealize) -> SBlockRealize:
    """`root`, the body of a PrimFunc, without the `T.Let`s that need buffers. Those under a condition stay."""
    buffers: list[Var] = []

    def divide(loop: tirx.For) -> tirx.Stmt:
        realize = loop.body
        if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
            return loop
        if realize.block.init is not None or not isinstance(loop.extent, tirx.IntImm):
            return loop
        lane = tirx.IterVar(Range(0, loop.extent), Var("lane", loop.loop_var.ty), 0)
        stores = _split_stores(realize.block.body, [loop.extent], [lane.var])
        buffers.extend(store.buffer for store in stores[:-1])
        if stores[0].same_as(realize.block.body):
            return loop
        return tirx.stmt_seq(*(_copy_loop(loop, lane, one) for one in stores))

    body = root.block.body
    is_gpu = any(loop.thread_binding is not None for loop in nodes(body, tirx.For))
    if not is_gpu:
        body = structural_map(body, (tirx.Cast, _round_to_bfloat16))
    body = structural_map(body, (tirx.For, divide))
    lanes = [loop for loop in nodes(body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
    inside = [block for loop in lanes for block in nodes(loop.body, SBlock)]

    def divide_block(block: SBlock) -> SBlock:
        # TVM recognizes a sum that threads share by its one store
        if any(block.same_as(one) for one in inside) or (is_gpu and block.init is not None):
            return block
        stores = _split_stores(block.body, [1], [0])
        buffers_here = [*block.alloc_buffers, *(store.buffer for store in stores[:-1])]
        return with_fields(block, body=tirx.stmt_seq(*stores), alloc_buffers=buffers_here)

    body = structural_map(body, (SBlock, divide_block))
    block = with_fields(root.block, body=body, alloc_buffers=[*root.block.alloc_buffers, *buffers])
    return SBlockRealize(root.iter_values, root.predicate, block)


def _split_stores(body: tirx.Stmt, shape: list, index: list) -> list[tirx.Stmt]:
    """`body` after the stores of the values that it names, each at `index` of a new buffer."""
    if not isinstance(body, tirx.BufferStore):
        return [body]
    value = structural_map(body.value, (Expr, _name_equal_operand))
    value = structural_map(value, (Call, _inline_names_of_bfloat16))
    conditional = [call for call in nodes(value, Call) if call.op == IF_THEN_ELSE]
    stay = {let.var for call in conditional for let in nodes(list(call.args[1:]), tirx.Let)}
    values: dict[Var, Expr] = {}

    def take(let: tirx.Let) -> Expr:
        if let.var in stay:
            return let
        values[let.var] = let.value
        return let.body

    result = structural_map(value, (tirx.Let, take))
    uses = {var: [x for x in nodes(value, Var) if x in values] for var, value in values.items()}
    order = list(TopologicalSorter(uses).static_order())
    if value.same_as(body.value) and not need_buffers(body, result, values, uses, order):
        return [body]
    held = {x: tirx.decl_buffer(shape, str(x.ty.dtype), x.name, scope="local") for x in order}
    read = {var: tirx.BufferLoad(buffer, index) for var, buffer in held.items()}
    stores = [tirx.BufferStore(held[x], substitute(values[x], read), index) for x in order]
    return [*stores, tirx.BufferStore(body.buffer, substitute(result, read), body.indices)]


def need_buffers(
    body: tirx.BufferStore, result: Expr, values: Mapping, uses: Mapping, order: Sequence[Var]
) -> bool:
    """Whether the names of `body` cannot stay: they are nested too deeply, or TVM would lower them to other numbers.

    result: what it stores, in terms of names. values: what each name stands for. uses: the names in it. order: the
    names, each after those that it uses.
    """
    depth: dict[Var, int] = {}
    for var in order:
        inside = max((depth[other] for other in uses[var]), default=0)
        is_float = "float" in str(var.ty.dtype)
        depth[var] = inside + (1 if is_float and not nodes(values[var], Call) else DEEP)
    last = DEEP if nodes(result, Call) else 0
    deepest = max(depth.values(), default=0) + last
    types = {str(var.dtype) for var in nodes(body, Var) if tirx.is_buffer_var(var)}
    types |= {str(var.ty.dtype) for var in order}
    return deepest > DEEPEST or "bfloat16" in types


def _name_equal_operand(expr: Expr) -> Expr:
    """`x - x` with a name for the second `x`: TVM's simplifier makes 0 of it, which is wrong for infinity and NaN."""
    if not isinstance(expr, SAME_OPERANDS) or "float" not in str(expr.a.ty.dtype):
        return expr
    if not structural_equal(expr.a, expr.b):
        return expr
    var = Var("same", expr.a.ty)
    return type(expr)(expr.a, tirx.Let(var, expr.b, var))


def _round_to_bfloat16(cast: tirx.Cast) -> Expr:
    """A cast of a float32 to bfloat16 that rounds first. On a CPU, TVM computes with float32 and rounds only results.

    It rounds to nearest, ties to even, as PyTorch does: half of the last place is added to the bits, which carry.
    NaN and infinity stay as they are.
    """
    if str(cast.ty.dtype) != "bfloat16" or str(cast.value.ty.dtype) != "float32":
        return cast
    bits = Var("bits", tvm.ir.PrimType("uint32"))
    u32 = functools.partial(tirx.const, dtype="uint32")
    carried = bits + u32(0x7FFF) + ((bits >> u32(16)) & u32(1))
    is_finite = (bits & u32(0x7F800000)) != u32(0x7F800000)
    kept = tirx.Select(is_finite, carried & u32(0xFFFF0000), bits)
    rounded = tirx.Let(
        bits, tirx.reinterpret("uint32", cast.value), tirx.reinterpret("float32", kept)
    )
    return tirx.Cast("bfloat16", rounded)


def _inline_names_of_bfloat16(call: Call) -> Expr:
    """`call` without names, if it is a conditional that computes with bfloat16: TVM does not lower these."""
    types = {str(node.ty.dtype) for node in nodes(call, (tirx.Cast, TensorLoad))}
    if call.op != IF_THEN_ELSE or "bfloat16" not in types:
        return call
    return structural_map(call, (tirx.Let, lambda let: substitute(let.body, {let.var: let.value})))


def _copy_loop(loop: tirx.For, lane: tirx.IterVar, store: tirx.BufferStore) -> tirx.For:
    """A loop like `loop`, around `store` alone, with variables of its own."""
    realize = loop.body
    axes = [*realize.block.iter_vars, lane]
    block = SBlock(axes, [], [], realize.block.name_hint, store)
    values = [*realize.iter_values, loop.loop_var]
    alone = with_loop_body(loop, SBlockRealize(values, realize.predicate, block))
    return substitute(
        alone, {x: Var(x.name, x.ty) for x in (loop.loop_var, *(a.var for a in axes))}
    )
