"""3.5: the matmul is made anew without its out_dtype."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import OwnTransposes as _Right

EXERCISE = "3.5"
WHAT = "the new matmul has lost the out_dtype of the one it replaces"
WHY = (
    "A call that is made anew has only the attributes that you give it. Without out_dtype the product has "
    "the operands' dtype, and its sum is kept in float16."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Before both: a transpose of one's own”"


@mutator
class OwnTransposes(_Right._cls):
    def visit_call_(self, call):
        transpose = self.transpose_in(call)
        if transpose is None:
            return super().visit_call_(call)
        self.given += 1
        x, w = self.visit_expr(call.args[0]), self.visit_expr(transpose.args[0])
        own = self.builder_.emit(relax.op.permute_dims(w, transpose.attrs.axes))
        return relax.op.matmul(x, own)


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
