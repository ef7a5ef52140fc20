"""9.10: negative logits become zero."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.10"
WHAT = "logits below zero are cut off"
WHY = (
    "Where all logits are negative, all become zero, and the first word wins. What keeps the largest must keep the "
    "order of any numbers: a shift does, and a positive factor."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Break it”"


def slips_through(mod):
    @mutator
    class CutOff(PyExprMutator):
        def visit_call_(self, call):
            call = super().visit_call_(call)
            if call.op != tvm.ir.Op.get("relax.matmul") or "vocab_size" not in str(call.ty):
                return call
            return relax.op.nn.relu(call)

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = CutOff(mod).visit_expr(func)
    return result
