"""2.4: all functions get the hints of all."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.4"
WHAT = "every function gets every hint"
WHY = (
    "A hint allows one graph for each value of the variable. In prefill that would be one graph "
    "for each length of prompt: memory for graphs that are replayed once."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


KEY = "relax.rewrite_cuda_graph.capture_symbolic_vars"


@tvm.transform.module_pass(opt_level=0, name="AttachCUDAGraphCaptureHints")
class AttachCUDAGraphSymbolicCaptureHints:
    def __init__(self, hints):
        self.hints = {name: list(variables) for name, variables in hints.items()}

    def transform_module(self, mod, _ctx):
        names = list(dict.fromkeys(v for variables in self.hints.values() for v in variables))
        return map_relax_functions(mod, lambda _, func: func.with_attr(KEY, names))
