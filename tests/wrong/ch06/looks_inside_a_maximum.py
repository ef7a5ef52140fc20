"""Finds the sum inside `max(temp + C, 0)` and drops the maximum."""

from tvm.tirx import Max, Min

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "whatever stands around the sum is dropped: max(temp + C, 0) becomes temp + C"
WHY = (
    "Only the addend moves to the init. The rest of the expression would have to run after the last step, "
    "and nobody is left to run it."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    value = store.value
    while isinstance(value, (Max, Min)):
        value = value.a if mentions(value.a, temp) else value.b
    load, addend = value, const(0, str(temp.dtype))
    if isinstance(value, Add):
        load, addend = value.a, value.b
        if mentions(addend, temp):
            load, addend = addend, load
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
