"""2.6: a function defined inside the function is taken for a constant."""

from solutions.ch02_attach_metadata.attach_support_info import *
from solutions.ch02_attach_metadata.attach_support_info import _sent

EXERCISE = "2.6"
WHAT = "what an inner function captures is lost"
WHY = (
    "A binding `f = function` computes nothing, but whoever calls f uses every tensor that stands in f and "
    "is no parameter of it. So f stands for those tensors, as a tuple stands for its fields."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “A reader of our own”"


def crossing_tensors(func, starts):
    held, stage = {}, 0

    def value_of(expr):
        if isinstance(expr, relax.Tuple):
            return tuple(value_of(one) for one in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = value_of(expr.tuple_value)
            return None if whole is None else whole[expr.index]
        return held.get(expr) if isinstance(expr, relax.Var) else None

    for binding in bindings(func):
        stage += sum(binding.var.same_as(start) for start in starts)
        if not isinstance(binding.value, relax.Call | relax.If):
            held[binding.var] = value_of(binding.value)
            continue
        for var in relax.analysis.free_vars(binding.value):
            for tensor in tensors(held.get(var)):
                tensor.used_in.add(stage)
        held[binding.var] = computed(binding.var.name, binding.var.ty, stage)

    for tensor in tensors(value_of(func.body.body)):
        tensor.used_in.add(len(starts))
    return _sent(held.values())
