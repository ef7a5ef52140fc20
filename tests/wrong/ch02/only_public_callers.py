"""2.7: private functions are not visited."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "calls in private functions are not found"
WHY = (
    "Fusion and outlining make private functions, and that is just where such a call ends up. "
    "Visit every Relax function of the module."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod, _ctx):
        if self.target.kind.name == "cuda" and self.target.attrs.get("arch") == "sm_100a":
            calls = PackedCalls()
            for _, func in mod.functions_items():
                if isinstance(func, relax.Function) and "global_symbol" in func.attrs:
                    calls.visit_expr(func)
            if calls.names.intersection(PADDED_KERNELS):
                self.metadata["seqlen_padding_factor"] = lcm(
                    self.metadata.get("seqlen_padding_factor", 1), 4
                )
        return mod
