"""1.4: removes the outer binding and redirects its users."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.4"
WHAT = "the binding is removed though the dataflow block outputs its variable"
WHY = (
    "Code after the block uses that variable. Redirected to a variable of the block, it refers "
    "to what is visible inside only; such a module is not well-formed, and no pass tells you."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"


@mutator
class Redirector(PyExprMutator):
    def visit_var_binding_(self, binding):
        call = binding.value
        if isinstance(call, relax.Call) and call.op == PERMUTE_DIMS:
            source = self.visit_expr(call.args[0])
            inner = source
            while isinstance(inner, relax.Var) and self.lookup_binding(inner) is not None:
                inner = self.lookup_binding(inner)
            is_pair = isinstance(inner, relax.Call) and inner.op == PERMUTE_DIMS
            if is_pair and axes_cancel(inner.attrs.axes, call.attrs.axes):
                self.set_var_remap(binding.var, inner.args[0])
                return
        super().visit_var_binding_(binding)


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        redirector, result = Redirector(mod), mod.clone()
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[name] = relax.analysis.remove_all_unused(redirector.visit_expr(func))
        return result
