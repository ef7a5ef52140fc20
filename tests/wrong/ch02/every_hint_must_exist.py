"""2.4: a hint for a function that is not there is an error."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.4"
WHAT = "a hint for a function the model does not have stops the compiler"
WHY = (
    "One set of hints is written for all models; a model without batch_decode is no mistake. Go "
    "through the module's functions and look each up in the hints, not the other way round."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


KEY = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    def __init__(self, hints):
        self.hints = {name: list(variables) for name, variables in hints.items()}

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, variables in self.hints.items():
            if isinstance(mod[name], relax.Function):
                result[name] = mod[name].with_attr(KEY, variables)
        return result
