"""2.7: the architecture is not looked at."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "the factor is set for every CUDA target"
WHY = (
    "On sm_90a the same kernel takes any number of tokens. `target.attrs` holds the arch, and the "
    "kind says only that it is a CUDA GPU."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod, _ctx):
        if self.target.kind.name == "cuda":
            calls = PackedCalls()
            for _, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    calls.visit_expr(func)
            if calls.names.intersection(PADDED_KERNELS):
                self.metadata["seqlen_padding_factor"] = lcm(
                    self.metadata.get("seqlen_padding_factor", 1), 4
                )
        return mod
