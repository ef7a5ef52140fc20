"""2.6 in two passes over the function: which stage makes what, then who uses it, on strings of (name, path)."""

from solutions.ch02_attach_metadata.attach_support_info import *


def crossing_tensors(func, starts):
    names, types, made, used, captured = {}, {}, {}, {}, {}

    def flat(var, ty, path=()):
        if isinstance(ty, relax.TupleType):
            for i, field_type in enumerate(ty.fields):
                yield from flat(var, field_type, (*path, i))
        elif isinstance(ty, relax.TensorType):
            yield (var, path), ty

    def origin(expr, path=()):
        """Where the tensor at `path` inside `expr` was made: (variable, path)."""
        if isinstance(expr, relax.TupleGetItem):
            return origin(expr.tuple_value, (expr.index, *path))
        if isinstance(expr, relax.Tuple):
            return origin(expr.fields[path[0]], path[1:])
        if expr in names:
            return origin(names[expr], path)
        return expr, path

    def use(var, stage):
        if var in captured:
            for one in captured[var]:
                use(one, stage)
        if var in names and isinstance(var.ty, relax.FuncType):
            use(names[var], stage)
        for (_, path), _ty in flat(var, var.ty):
            used.setdefault(origin(var, path), set()).add(stage)

    stage, pending = 0, list(starts)
    for block in func.body.blocks:
        for binding in block.bindings:
            while pending and binding.var.same_as(pending[0]):
                stage += 1
                pending.pop(0)
            value = binding.value
            if isinstance(value, tvm.ir.Var | relax.Tuple | relax.TupleGetItem):
                names[binding.var] = value
                continue
            if isinstance(value, relax.Function):
                captured[binding.var] = relax.analysis.free_vars(value)
            if not isinstance(value, relax.Call | relax.If):
                continue
            for var in relax.analysis.free_vars(value):
                use(var, stage)
            for key, ty in flat(binding.var, binding.var.ty):
                made[key], types[key] = stage, ty
    for var in relax.analysis.free_vars(func.body.body):
        use(var, len(starts))

    crossings = []
    for (var, path), stage in made.items():
        later = tuple(sorted(s for s in used.get((var, path), ()) if s > stage))
        if later:
            name = var.name + "".join(f"[{i}]" for i in path)
            crossings.append(Crossing(name, types[var, path], stage, later))
    return crossings


def is_captured(dims, hints, bounds, use_cuda_graph):
    return bool(use_cuda_graph) and all(dim in hints and dim in bounds for dim in dims)
