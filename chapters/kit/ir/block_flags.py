"""Replaces a scope in a schedule and has TVM derive the flags of its blocks anew.

A ScheduleState keeps flags for each block (is its binding affine, are the regions it reads covered), and primitives
trust them. `ScheduleState.replace` carries them over from the old block, or clears them. No function in Python
recomputes them, but `blockize` does, for the whole scope. So the new scope first gets a tiny loop whose result is never
read. `blockize` makes that loop a block, and then the loop is removed again. If anything fails on the way, the old
scope is put back.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize, Schedule, StmtSRef

from chapters.kit.ir.tensor_ir import nodes, with_fields


def replace_and_refresh_flags(sch: Schedule, sref: StmtSRef, scope: SBlock) -> None:
    """Replace the block of `sref` by `scope`; blocks that stay the same objects keep their handles.

    Works on any function of the module; `sch.trace` records nothing.
    """
    home, old = _function(sch, sref), sref.stmt
    recorded = len(sch.trace.insts) if sch.trace is not None else 0
    name = _unused_name(sch.mod[home])
    loop, buffer = _tiny_loop(name)
    body = tirx.stmt_seq(loop, *tirx.stmt_list(scope.body))
    draft = with_fields(scope, body=body, alloc_buffers=[*scope.alloc_buffers, buffer])
    sch.state.replace(sref, draft, {old: draft})
    try:
        sch.blockize(sch.get_loops(sch.get_sblock(name, func_name=home))[0])
        sch.state.replace(sref, scope, {sref.stmt: scope})
    except BaseException:
        sch.state.replace(sref, old, {sref.stmt: old})
        raise
    finally:
        while sch.trace is not None and len(sch.trace.insts) > recorded:
            sch.trace.pop()


def _unused_name(func: tirx.PrimFunc) -> str:
    """A name that no block of `func` has."""
    taken, name = {block.name_hint for block in nodes(func.body, SBlock)}, "nobody_reads_this"
    while name in taken:
        name += "_"
    return name


def _tiny_loop(name: str) -> tuple[tirx.For, tirx.Var]:
    """A loop that fills a buffer of two elements, and the buffer."""
    buffer, zero = tirx.decl_buffer((2,), "int32", name), tirx.const(0, "int32")
    loop_var = tirx.Var("r", "int32")
    axis = tirx.IterVar(Range(0, 2), tirx.Var("vr", "int32"), tirx.IterVar.DataPar)
    writes = [tirx.BufferRegion(buffer, [Range.from_min_extent(axis.var, 1)])]
    block = SBlock([axis], [], writes, name, tirx.BufferStore(buffer, zero, [axis.var]))
    realize = SBlockRealize([loop_var], tirx.const(True, "bool"), block)
    return tirx.For(loop_var, zero, tirx.const(2, "int32"), tirx.ForKind.SERIAL, realize), buffer


def _function(sch: Schedule, sref: StmtSRef) -> str:
    """The name of the function that contains `sref`."""
    while sref.parent is not None:
        sref = sref.parent
    for var, func in sch.mod.functions_items():
        body = getattr(func, "body", None)
        if isinstance(body, SBlockRealize) and body.block.same_as(sref.stmt):
            return var.name_hint
    raise ValueError("The block is not in the schedule's module.")
