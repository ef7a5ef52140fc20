"""1.2: counts an argument as often as it is written."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "a tensor that is given twice is read twice"
WHY = (
    "add(x, x) is one kernel that loads each element of x once. The task counts distinct "
    "tensors; where it matters, chapter 3 looks at what the loops really load."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


def tensors_read(call):
    pending, found = list(call.args), []
    while pending:
        argument = pending.pop(0)
        if isinstance(argument, relax.Tuple):
            pending = [*argument.fields, *pending]
        elif isinstance(argument.ty, (relax.TensorType, relax.TupleType)):
            found.append(argument)
    return found


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
