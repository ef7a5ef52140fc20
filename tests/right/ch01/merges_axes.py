"""Two transposes that do not cancel become one with the axes of both, and redirected variables leave no
alias. The module is built anew, from functions, attributes and global information."""

from solutions.ch01_walk_the_ir.walk_the_ir import *


@mutator
class Merger(PyExprMutator):
    """Every pair becomes nothing, or one transpose."""

    def visit_var_binding_(self, binding):
        new = self.merged(binding.value)
        if new is None:
            super().visit_var_binding_(binding)
        elif isinstance(new, relax.Var) and isinstance(binding.var, relax.DataflowVar):
            self.set_var_remap(binding.var, new)
        else:
            emit = self.builder_.emit_output if self.leaves(binding.var) else self.builder_.emit
            self.set_var_remap(binding.var, emit(new, binding.var.name))

    def leaves(self, var):
        return self.builder_.current_block_is_dataflow() and not isinstance(var, relax.DataflowVar)

    def merged(self, value):
        if not (isinstance(value, relax.Call) and value.op == PERMUTE_DIMS):
            return None
        inner = self.visit_expr(value.args[0])
        while isinstance(inner, relax.Var):
            bound = self.lookup_binding(inner)
            if bound is None or left_its_block(inner, bound):
                break
            inner = bound
        if not (isinstance(inner, relax.Call) and inner.op == PERMUTE_DIMS):
            return None
        first, second = inner.attrs.axes, value.attrs.axes
        if axes_cancel(first, second):
            return inner.args[0]
        rank = len(second if first is None else first)
        first, second = (
            list(range(rank))[::-1] if axes is None else [int(a) % rank for a in axes]
            for axes in (first, second)
        )
        return relax.op.permute_dims(inner.args[0], [first[axis] for axis in second])


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        functions = dict(mod.functions_items())
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function) and not may_overwrite(func):
                new = Merger(mod).visit_expr(func)
                functions[name] = relax.analysis.remove_all_unused(new)
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@tvm.transform.module_pass(opt_level=0, name="AttachOrigin")
class AttachOrigin:
    def __init__(self, origin):
        self.origin = origin

    def transform_module(self, mod, _ctx):
        builder = relax.BlockBuilder(mod)
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                builder.update_func(name, func.with_attr("course.origin", self.origin))
        return builder.finalize()


def counterexample():
    """Swapped, then reversed, a cube of symbolic size, outside of dataflow."""
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, n, n), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        turned = builder.emit(relax.op.permute_dims(x, [0, 2, 1]))
        out = builder.emit(relax.op.permute_dims(turned))
        builder.emit_func_output(out)
    return builder.get(), [np.random.default_rng(0).standard_normal((4, 4, 4)).astype("float32")]
