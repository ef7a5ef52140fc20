"""2.7: only the bindings of the outermost block are looked at."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.7"
WHAT = "calls inside a branch are not found"
WHY = (
    "An `if` holds blocks of its own. A loop over func.body.blocks does not enter them; a visitor "
    "does."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target = target
        self.metadata = metadata

    def transform_module(self, mod, _ctx):
        if self.target.kind.name == "cuda" and self.target.attrs.get("arch") == "sm_100a":
            packed = tvm.ir.Op.get("relax.call_dps_packed")
            values = [
                binding.value
                for _, func in mod.functions_items()
                if isinstance(func, relax.Function)
                for binding in bindings(func)
            ]
            names = {
                str(value.args[0].global_symbol)
                for value in values
                if isinstance(value, relax.Call) and value.op == packed
            }
            if names.intersection(PADDED_KERNELS):
                self.metadata["seqlen_padding_factor"] = lcm(
                    self.metadata.get("seqlen_padding_factor", 1), 4
                )
        return mod
