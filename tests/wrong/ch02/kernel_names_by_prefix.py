"""2.7: any CUTLASS groupwise kernel counts."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "kernels are recognised by the beginning of their name"
WHY = (
    "Only the two kernels named need padded tokens. Others that begin alike were perhaps written "
    "to do without; padding for them is work for nothing."
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
            if any(name.startswith("cutlass.group") for name in calls.names):
                self.metadata["seqlen_padding_factor"] = lcm(
                    self.metadata.get("seqlen_padding_factor", 1), 4
                )
        return mod
