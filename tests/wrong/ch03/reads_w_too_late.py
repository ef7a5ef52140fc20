"""3.4: what stands between the transpose and the matmul is not looked at."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import OwnTransposes as Reference

EXERCISE = "3.4"
WHAT = "w is read where the matmul stands, although it may have been written into since it was transposed"
WHY = (
    "An in-place kernel, or a call that nobody looks into, can change w between the two. The copy was "
    "made before; the fused kernel reads after. Such a pair stays as it is."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “When it must not fire”"


@mutator
class OwnTransposes(Reference._cls):
    def __init__(self, mod, func, fires):
        super().__init__(mod, func, fires)
        self.order.calls = [call for call in self.order.calls if not may_write(call)]


def own_transposes(mod, fires):
    changed = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_claimed(func):
            owner = OwnTransposes(mod, func, fires)
            rewritten = owner.visit_expr(func)
            if owner.given:
                changed[gvar] = relax.analysis.remove_all_unused(rewritten)
    if changed:
        mod = mod.clone()
        mod.update(changed)
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
