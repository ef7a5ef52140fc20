"""2.6: a tensor used by two later stages is reported twice."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.6"
WHAT = "a tensor is reported once for each stage that uses it"
WHY = (
    "It is one tensor and one entry; `to_stages` holds all the stages. Bytes counted from a list "
    "with repeats are too many."
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
    once = dict.fromkeys(tensor for value in held.values() for tensor in tensors(value))
    pairs = [(t, s) for t in once for s in sorted(t.used_in) if s > t.stage]
    return [Crossing(t.name, t.ty, t.stage, (s,)) for t, s in pairs]
