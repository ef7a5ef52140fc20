"""9.10: logits change their sign."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.10"
WHAT = "the order of the logits changes"
WHY = (
    "Whatever keeps the largest the largest keeps the greedy token: a factor above zero, or a "
    "constant added to all of them."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Break it”"


def slips_through(mod):
    @mutator
    class Changed(PyExprMutator):
        def visit_call_(self, call):
            call = super().visit_call_(call)
            if call.op != tvm.ir.Op.get("relax.matmul") or "vocab_size" not in str(call.ty):
                return call
            return relax.op.negative(call)

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = Changed(mod).visit_expr(func)
    return result
