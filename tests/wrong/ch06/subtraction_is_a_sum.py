"""Takes `temp - C` for a sum."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "a subtraction treated as an addition"
WHY = (
    "Starting from C and then adding gives sum + C. To subtract, the sum would have to start from -C; and "
    "in C - temp the sum itself changes its sign."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    load, addend = store.value, const(0, str(temp.dtype))
    if isinstance(load, (Add, Sub)):
        load, addend = store.value.a, store.value.b
        if mentions(addend, temp):
            load, addend = addend, load
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
