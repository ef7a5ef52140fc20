"""Does not ask whether the addend mentions `temp`."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "an addend that is made from the sum itself"
WHY = (
    "The addend becomes the init, which runs before the first step. What it needs of the sum does not "
    "exist yet."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: what is added”"


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    load, addend = store.value, const(0, str(temp.dtype))
    if isinstance(load, Add):
        load, addend = store.value.a, store.value.b
        if not (isinstance(load, TensorLoad) and load.source.same_as(temp)):
            load, addend = addend, load
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, "it does not add something to the sum itself")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
