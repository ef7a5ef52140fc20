"""1.4: asks call.op for its name."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.4"
WHAT = "a call is taken to be an operator call without asking"
WHY = (
    "call.op may be an operator, a function of the module (a GlobalVar, which has name_hint "
    "and no name) or a variable. Compare it with Op.get(…) instead of asking for a name."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


@mutator
class ByName(PyExprMutator):
    def visit_call_(self, call):
        call = super().visit_call_(call)
        if call.op.name != "relax.permute_dims":
            return call
        inner = call.args[0]
        while isinstance(inner, relax.Var):
            bound = self.lookup_binding(inner)
            if bound is None or left_its_block(inner, bound):
                break
            inner = bound
        is_pair = isinstance(inner, relax.Call) and inner.op == PERMUTE_DIMS
        if is_pair and axes_cancel(inner.attrs.axes, call.attrs.axes):
            return inner.args[0]
        return call


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                new = ByName(mod).visit_expr(func)
                result[name] = relax.analysis.remove_all_unused(new)
        return result
