"""2.6: takes a match_cast for a computation."""

from solutions.ch02_attach_metadata.attach_support_info import *
from solutions.ch02_attach_metadata.attach_support_info import _sent

EXERCISE = "2.6"
WHAT = "a match_cast is taken to compute a tensor"
WHY = (
    "It checks the type of a tensor that is there and gives it a second name. What crosses is the tensor "
    "it was given, under the name the stage computed it under."
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
        if isinstance(binding, relax.VarBinding) and not isinstance(
            binding.value, relax.Call | relax.If
        ):
            held[binding.var] = value_of(binding.value)
            continue
        for var in relax.analysis.free_vars(binding.value):
            for tensor in tensors(held.get(var)):
                tensor.used_in.add(stage)
        held[binding.var] = computed(binding.var.name, binding.var.ty, stage)

    for tensor in tensors(value_of(func.body.body)):
        tensor.used_in.add(len(starts))
    return _sent(held.values())
