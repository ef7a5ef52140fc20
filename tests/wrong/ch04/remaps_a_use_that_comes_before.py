"""4.7: the kernel stands at the norm, and every use of the sum is changed."""

from solutions.ch04_add_rms_norm import fuse_add_norm
from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.7"
WHAT = "a use of the sum that comes before the kernel is changed as well"
WHY = (
    "The kernel stands at the norm. A use before it now reads a variable that is not bound "
    "yet; where the sum is read earlier, the kernel must stand there."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Put it where the sum is first read”"


def find_sites(func):
    return [
        fuse_add_norm.Site(site.pair, site.pair.norm, True)
        for site in fuse_add_norm.find_sites(func)
    ]


@mutator
class Rewriter(fuse_add_norm.Rewriter._cls):
    def transform(self):
        for gvar, func in self.mod.functions_items():
            if isinstance(func, relax.Function):
                self.sites = [s for s in find_sites(func) if self.kernel_of(s.pair) is not None]
                self.results = {}
                if self.sites:
                    self.builder_.update_func(gvar, self.visit_expr(func))
        return self.builder_.get()


@tvm.transform.module_pass(opt_level=0, name="FuseAddRMSNorm")
class FuseAddRMSNorm:
    def __init__(self, target):
        self.target = Target(target)

    def transform_module(self, mod, _context):
        return Rewriter(mod, self.target).transform()
