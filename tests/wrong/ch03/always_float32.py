"""3.4: the kernel is made with float32, whatever the product is."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.4"
WHAT = "the kernel is made with float32 and not with the dtype of the product"
WHY = (
    "A product of float16 tensors is float16 if out_dtype does not say otherwise. The composite's return type says "
    "which it is: everything after the call was typed with it."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"


@mutator
class GenerateKernels(PyExprMutator):
    def __init__(self, mod, composites):
        super().__init__(mod)
        self.composites = composites

    def visit_call_(self, call):
        if not isinstance(call.op, GlobalVar) or call.op.name_hint not in self.composites:
            return super().visit_call_(call)
        composite = self.composites[call.op.name_hint]
        w, x = (self.visit_expr(operand) for operand in operands(composite, call))
        dtype = "float32"
        return self.builder_.call_te(nt_matmul, w, x, dtype, primfunc_name_hint="NT_matmul")


def generate(mod, composites):
    generator = GenerateKernels(mod, composites)
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and calls_any(func, composites):
            generator.builder_.update_func(gvar, generator.visit_expr(func))
    mod = generator.builder_.get()
    for name in composites:
        del mod[name]
    return mod


def fuse(mod, fires):
    grouped = group(own_transposes(mod, fires), fires)
    old = {gvar.name_hint for gvar in mod.get_global_vars()}
    functions = {gvar.name_hint: func for gvar, func in grouped.functions_items()}
    composites = {name: func for name, func in functions.items() if name not in old}
    return generate(grouped, composites) if composites else mod


@tvm.transform.module_pass(opt_level=0, name="FuseTransposeMatmul")
class FuseTransposeMatmul:
    def transform_module(self, mod, _ctx):
        return fuse(mod, may_fuse)
