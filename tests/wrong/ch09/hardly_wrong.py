"""9.10: logits change by a thousandth."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.10"
WHAT = "the logits change by a thousandth"
WHY = "That is within what float16 does to them. A test with a tolerance lets it pass, and should."
READ = "chapters/ch09_the_compiler/lesson.md, “Break it”"


def slips_through(mod):
    @mutator
    class Changed(PyExprMutator):
        def visit_call_(self, call):
            call = super().visit_call_(call)
            if call.op != tvm.ir.Op.get("relax.matmul") or "vocab_size" not in str(call.ty):
                return call
            return relax.op.multiply(call, relax.const(1.001, "float32"))

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = Changed(mod).visit_expr(func)
    return result
