"""2.4: a PrimFunc of that name gets the hints."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.4"
WHAT = "a PrimFunc that has the name of a hinted function gets the hints"
WHY = "Names are shared by all kinds of functions; only a Relax function has bindings to capture."
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


KEY = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    def __init__(self, hints):
        self.hints = {name: list(variables) for name, variables in hints.items()}

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if gvar.name_hint in self.hints and not isinstance(func, relax.ExternFunc):
                result[gvar] = func.with_attr(KEY, self.hints[gvar.name_hint])
        return result
