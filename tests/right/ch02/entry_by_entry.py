"""2.10 with two functions of equal body, a longer array; 2.5 by name; 2.7 by a visitor that keeps the factor."""

from solutions.ch02_attach_metadata.attach_support_info import *


@visitor
class Factor(PyExprVisitor):
    def __init__(self):
        super().__init__()
        self.factor = 1

    def visit_call_(self, call):
        super().visit_call_(call)
        if call.op != tvm.ir.Op.get("relax.call_dps_packed"):
            return
        if call.args[0].global_symbol in PADDED_KERNELS:
            self.factor = lcm(self.factor, 4)


@tvm.transform.module_pass(opt_level=0, name="AttachSequenceLengthPaddingFactor")
class AttachSequenceLengthPaddingFactor:
    def __init__(self, target, metadata):
        self.target, self.metadata = target, metadata

    def transform_module(self, mod, _ctx):
        if str(self.target.kind.name) != "cuda" or self.target.attrs.get("arch") != "sm_100a":
            return mod
        found = Factor()
        for gvar in mod.get_global_vars():
            if isinstance(mod[gvar], relax.Function):
                found.visit_expr(mod[gvar])
        if found.factor > 1:
            before = self.metadata.setdefault("seqlen_padding_factor", 1)
            self.metadata["seqlen_padding_factor"] = lcm(before, found.factor)
        return mod.clone()


@tvm.transform.module_pass(opt_level=0, name="AttachPipelineParallelStages")
class AttachPipelineParallelStages:
    def __init__(self, pipeline_parallel_shards):
        self.stages = pipeline_parallel_shards

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name in ENTRY_POINTS:
            if name in mod and isinstance(mod[name], relax.Function):
                result[name] = mod[name].with_attr("pipeline_parallel_stages", self.stages)
        return result


def lying_bound():
    builder = relax.BlockBuilder()
    for name in ("prefill", "score"):
        rows = tirx.Var("seq_len", "int64")
        x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
        with builder.function(name, [x]):
            y = x
            for _ in range(4):
                y = builder.emit(relax.op.tanh(y))
            out = builder.emit(relax.op.reshape(relax.op.exp(y), (rows * 16,)))
            builder.emit_func_output(out)
    return builder.get(), np.zeros((1000, 16), "float32")
