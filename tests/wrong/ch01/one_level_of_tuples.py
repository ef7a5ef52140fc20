"""1.2: opens the tuples in a call, and none within them."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.2"
WHAT = "a tuple is opened, and a tuple within it is not"
WHY = (
    "A field of a tuple may be a tuple in its turn. Go on until there is none left: with a list of what is still to "
    "be looked at, or by calling yourself."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What a call moves”"


def tensors_read(call):
    found = []
    for arg in call.args:
        fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        found += [f for f in fields if isinstance(f.ty, (relax.TensorType, relax.TupleType))]
    return list(dict.fromkeys(found))


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
