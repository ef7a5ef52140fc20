"""2.7: a factor that was there is replaced by 4."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "a factor that stood there is lost"
WHY = (
    "It came from another kernel's need, say of 6. 4 is no multiple of that; 12, the least common "
    "multiple, serves both."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod, _ctx):
        if self.target.kind.name == "cuda" and self.target.attrs.get("arch") == "sm_100a":
            calls = PackedCalls()
            for _, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    calls.visit_expr(func)
            if calls.names.intersection(PADDED_KERNELS):
                self.metadata["seqlen_padding_factor"] = 4
        return mod
