"""Builds the wrong answers to exercise 1.4: the reference's pass with one of its parts exchanged."""

from solutions.ch01_walk_the_ir.walk_the_ir import *


def dropping_pass(
    cancel=axes_cancel,
    aliases=True,
    visible=True,
    clean=True,
    fresh=True,
    careful=True,
    inside=True,
):
    """DropDoubleTranspose with another test of the axes, or without one of its cares: following
    aliases, asking what is visible, removing what became dead, leaving the given module alone,
    leaving alone what may overwrite its arguments, going into the arguments of a call."""

    @mutator
    class Dropper(PyExprMutator):
        def visit_call_(self, call):
            if inside:
                call = super().visit_call_(call)
            if call.op != PERMUTE_DIMS:
                return call
            inner = call.args[0]
            while isinstance(inner, relax.Var):
                bound = self.lookup_binding(inner)
                if bound is None or (not aliases and isinstance(bound, relax.Var)):
                    break
                if visible and left_its_block(inner, bound):
                    break
                inner = bound
            is_pair = isinstance(inner, relax.Call) and inner.op == PERMUTE_DIMS
            if is_pair and cancel(inner.attrs.axes, call.attrs.axes):
                return inner.args[0]
            return call

    @tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
    class DropDoubleTranspose:
        def transform_module(self, mod, _ctx):
            dropper = Dropper(mod)
            result = mod.clone() if fresh else mod
            for name, func in mod.functions_items():
                if isinstance(func, relax.Function) and not (careful and may_overwrite(func)):
                    new = dropper.visit_expr(func)
                    result[name] = relax.analysis.remove_all_unused(new) if clean else new
            return result

    return DropDoubleTranspose
