"""1.2: takes only arguments that are tensors themselves."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "tensors inside a tuple argument are not seen"
WHY = (
    "call_tir and concat take their tensors in one tuple. After LegalizeOps that is every "
    "kernel, so the whole module would seem to read nothing."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


def tensors_read(call):
    tensors = (arg for arg in call.args if isinstance(arg.ty, relax.TensorType))
    return list(dict.fromkeys(tensors))


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
