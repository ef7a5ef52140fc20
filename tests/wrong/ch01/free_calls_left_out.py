"""1.2: calls that move nothing have no entry."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "calls that move nothing are left out of the list"
WHY = (
    "The list has one entry for each binding whose value is a call; a view, or a call of another function, is one "
    "with no bytes. Then the rows of two modules can be laid side by side."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


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
        if not isinstance(value, relax.Call) or not isinstance(value.op, Op):
            return
        if value.op.name in FREE:
            return
        read = sum(type_bytes(tensor.ty, self.sizes) for tensor in tensors_read(value))
        written = type_bytes(var.ty, self.sizes)
        self.rows.append(Traffic(var.name, call_name(value), read, written))


def binding_bytes(func, sizes):
    meter = Meter(sizes)
    meter.visit_expr(func)
    return meter.rows
