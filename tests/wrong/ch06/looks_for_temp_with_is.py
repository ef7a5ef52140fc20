"""Asks with `is` whether a load is of temp."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.1"
WHAT = "no load is taken for one of `temp`: asked with `is`, perhaps"
WHY = (
    "Each look into the IR makes another Python object of the same variable, so `is` says no. `same_as` asks "
    "about the variable."
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
        load, addend = value, const(0, str(temp.dtype))
    alone = isinstance(load, TensorLoad) and load.source is temp
    require(alone, epilogue, "it does not add something to the sum itself")
    require(count(store, temp) == 1, epilogue, "it uses the sum more than once")
    require(is_pure(addend), epilogue, "its addend has side effects")
    return load, addend
