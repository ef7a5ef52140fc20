"""2.6: every binding counts as a new tensor."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.6"
WHAT = "a second name for a tensor is taken for a second tensor"
WHY = (
    "`d = c` and `a = pair[1]` compute nothing. Reported as tensors of their own, they are sent "
    "twice, or under a name the sending stage does not have."
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
        return held.get(expr)

    for binding in bindings(func):
        stage += sum(binding.var.same_as(start) for start in starts)
        # names, tuples and fields are bound like calls
        for var in relax.analysis.free_vars(binding.value):
            for tensor in tensors(held.get(var)):
                tensor.used_in.add(stage)
        held[binding.var] = computed(binding.var.name, binding.var.ty, stage)
    for tensor in tensors(value_of(func.body.body)):
        tensor.used_in.add(len(starts))
    once = dict.fromkeys(tensor for value in held.values() for tensor in tensors(value))
    found = [(t, tuple(s for s in sorted(t.used_in) if s > t.stage)) for t in once]
    return [Crossing(t.name, t.ty, t.stage, later) for t, later in found if later]
