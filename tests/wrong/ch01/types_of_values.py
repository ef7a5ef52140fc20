"""1.2: sizes the result by the type of the value, not of the variable."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "the result is sized by the type of the value, not by the type of the variable"
WHY = (
    "In `var = R.match_cast(value, type)` the value may have no known shape; the type is the variable's. "
    "So `var.ty` says what is written, for every binding."
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
        if not isinstance(value, relax.Call):
            return
        read = written = 0
        if isinstance(value.op, Op) and value.op.name not in FREE:
            read = sum(type_bytes(tensor.ty, self.sizes) for tensor in tensors_read(value))
            written = type_bytes(value.ty, self.sizes)
        self.rows.append(Traffic(var.name, call_name(value), read, written))


def binding_bytes(func, sizes):
    meter = Meter(sizes)
    meter.visit_expr(func)
    return meter.rows
