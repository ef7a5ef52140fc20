"""Finds `temp` only on the left of the sum."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "`C + temp` refused, where temp + C is accepted"
WHY = (
    "Addition commutes, and programs are written both ways. Refusing is safe, and loses a fusion that is "
    "right."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    load, addend = store.value, const(0, str(temp.dtype))
    if isinstance(load, Add):
        load, addend = store.value.a, store.value.b
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
