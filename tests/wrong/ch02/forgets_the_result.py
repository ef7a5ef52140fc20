"""2.6: the function's result counts as used nowhere."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.6"
WHAT = "a result computed in an early stage is not sent to the last one"
WHY = (
    "The last stage returns what the function returns. A part of the result that an earlier stage "
    "computed has to get there."
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
    once = dict.fromkeys(tensor for value in held.values() for tensor in tensors(value))
    found = [(t, tuple(s for s in sorted(t.used_in) if s > t.stage)) for t in once]
    return [Crossing(t.name, t.ty, t.stage, later) for t, later in found if later]
