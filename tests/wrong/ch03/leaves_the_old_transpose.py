"""3.5: a transpose that lost its last user stays."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import OwnTransposes as _Right

EXERCISE = "3.5"
WHAT = "a transpose that nobody uses any more is left in the function"
WHY = (
    "It is still computed: LegalizeOps makes a kernel of it, and the bytes that fusing was to save are "
    "moved as before. remove_all_unused drops bindings that nothing reads."
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
        return relax.op.matmul(x, own, call.attrs.out_dtype)


def own_transposes(mod, fires):
    changed = {}
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function) and not is_claimed(func):
            owner = OwnTransposes(mod, func, fires)
            rewritten = owner.visit_expr(func)
            if owner.given:
                changed[gvar] = rewritten
    if changed:
        mod = mod.clone()
        mod.update(changed)
    return mod
