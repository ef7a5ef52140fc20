"""Refuses a copy of the sum."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "a copy refused, `D = temp`"
WHY = (
    "A copy is the sum plus 0. cache_write leaves such copies in every schedule, and the fusion removes "
    "the pass that makes them."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    require(isinstance(store.value, Add), epilogue, "the value it stores is not a sum")
    load, addend = store.value.a, store.value.b
    if mentions(addend, temp):
        load, addend = addend, load
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
