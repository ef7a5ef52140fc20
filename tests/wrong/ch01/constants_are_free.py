"""1.2: keeps variables and forgets constants."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "constants are not counted as read"
WHY = (
    "A constant is a tensor in memory like any other. After weights are bound into a module, "
    "they are all constants."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


def tensors_read(call):
    pending, found = list(call.args), {}
    while pending:
        argument = pending.pop(0)
        if isinstance(argument, relax.Tuple):
            pending = [*argument.fields, *pending]
        elif isinstance(argument, relax.Var) and isinstance(
            argument.ty, (relax.TensorType, relax.TupleType)
        ):
            found[argument] = True
    return list(found)


@visitor
class Meter(PyExprVisitor):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.rows = []

    def visit_var_binding_(self, binding):
        self.note(binding.var, binding.value)
        super().visit_var_binding_(binding)

    def visit_match_cast_(self, binding):
        self.note(binding.var, binding.value)
        super().visit_match_cast_(binding)

    def note(self, var, value):
        if not isinstance(value, relax.Call):
            return
        read = written = 0
        if isinstance(value.op, Op) and value.op.name not in FREE:
            read = sum(type_bytes(tensor.ty, self.sizes) for tensor in tensors_read(value))
            written = type_bytes(var.ty, self.sizes)
        self.rows.append(Traffic(var.name, call_name(value), read, written))


def binding_bytes(func, sizes):
    meter = Meter(sizes)
    meter.visit_expr(func)
    return meter.rows
