"""2.4: the dict and its lists are the caller's own."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.4"
WHAT = "the pass holds on to its caller's dict and lists"
WHY = (
    "`dict(hints)` alone would copy the dict and still share its lists. Whatever the caller "
    "appends later would change a pass that was made before."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


KEY = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    def __init__(self, hints):
        self.hints = dict(hints)

    def transform_module(self, mod, _ctx):
        def attach(name, func):
            return func.with_attr(KEY, self.hints[name]) if name in self.hints else func

        return map_relax_functions(mod, attach)
