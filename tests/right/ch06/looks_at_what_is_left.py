"""Takes the two blocks out and looks whether the rest still mentions what it must not."""

from tvm.tirx import Evaluate
from tvm_ffi import structural_map

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *


def _without(node, *blocks: SBlock):
    def drop(realize: SBlockRealize) -> Stmt:
        return Evaluate(0) if any(realize.block.same_as(b) for b in blocks) else realize

    return structural_map(node, (SBlockRealize, drop))


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, "its result is visible outside")
    rest = _without(site.scope.body, reduction, epilogue)
    require(not mentions(rest, fusion.temp), reduction, "its result has another user")
    between = [_without(stmt, epilogue) for stmt in site.span]
    require(not mentions(between, fusion.output), epilogue, "its output is used before it runs")
    for load in nodes(fusion.addend, TensorLoad):
        require(
            not may_write(between, load.source), epilogue, "its addend may change before it runs"
        )
    check_memory(fusion)


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "it does not store one value")
    uses = [load for load in nodes(store, TensorLoad) if load.source.same_as(temp)]
    require(len(uses) == 1 == count(store, temp), epilogue, "it does not use the sum once")
    value = store.value
    if structural_equal(value, uses[0]):
        return uses[0], const(0, str(temp.dtype))
    sides = (value.a, value.b) if isinstance(value, Add) else ()
    others = [side for side in sides if not mentions(side, temp)]
    direct = [side for side in sides if structural_equal(side, uses[0])]
    require(len(others) == len(direct) == 1, epilogue, "it is not the sum plus something")
    require(is_pure(others[0]), epilogue, "its addend has side effects")
    return uses[0], others[0]
