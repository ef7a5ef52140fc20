"""2.4: the hints are attached in alphabetical order."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.4"
WHAT = "the variables are attached in another order than they were given in"
WHY = (
    "The pass copies a fact; sorting it, or making a set of it, changes what the caller said and "
    "what a comparison with an earlier build shows."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


KEY = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    def __init__(self, hints):
        self.hints = {name: sorted(variables) for name, variables in hints.items()}

    def transform_module(self, mod, _ctx):
        def attach(name, func):
            return func.with_attr(KEY, self.hints[name]) if name in self.hints else func

        return map_relax_functions(mod, attach)
