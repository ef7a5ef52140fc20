"""Adds an int32 0 to whatever is copied."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "a copy adds an int32 0, whatever its dtype"
WHY = (
    "The 0 becomes the init, and is stored into a buffer of the sum's dtype: in float32 it is no int32. "
    "The load knows its dtype."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    value = store.value
    if isinstance(value, Add):
        load, addend = value.a, value.b
        if mentions(addend, temp):
            load, addend = addend, load
    else:
        load, addend = value, const(0, "int32")
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
