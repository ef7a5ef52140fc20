"""2.7: every call of an external function counts, by whatever convention."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "calls by another convention than call_dps_packed are counted"
WHY = (
    "In call_dps_packed the caller allocates the output, so it must know to pad it. "
    "R.call_pure_packed names an external function too, and lets it return a tensor of its own."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@visitor
class AnyPackedCalls(PyExprVisitor):
    def __init__(self):
        super().__init__()
        self.names = set()

    def visit_call_(self, call):
        super().visit_call_(call)
        if call.args and isinstance(call.args[0], relax.ExternFunc):
            self.names.add(str(call.args[0].global_symbol))


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod, _ctx):
        if self.target.kind.name == "cuda" and self.target.attrs.get("arch") == "sm_100a":
            calls = AnyPackedCalls()
            for _, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    calls.visit_expr(func)
            if calls.names.intersection(PADDED_KERNELS):
                self.metadata["seqlen_padding_factor"] = lcm(
                    self.metadata.get("seqlen_padding_factor", 1), 4
                )
        return mod
