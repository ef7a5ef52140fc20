"""Five layers for exercise 10.5. A model's author might write each so, and not all compile to fast code."""

from __future__ import annotations

import tvm
from tvm import relax, te

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.pipeline.warn_of_fallback import scheduled_by
from chapters.runner.earlier import earlier

LLVM = tvm.target.Target("llvm")


def _similarity() -> tvm.IRModule:
    """Return a layer with a kernel that its author wrote: s = x @ w.T, and the result is s + s.T."""

    def kernel(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, x.shape[1]), name="k")
        shape = (x.shape[0], w.shape[0])
        s = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="NT_matmul")
        return te.compute(shape, lambda i, j: s[i, j] + s[j, i], name="both")

    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((96, 64), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            call = builder.call_te(kernel, x, w, primfunc_name_hint="similarity")
            out = builder.emit_output(call)
        builder.emit_func_output(out)
    return builder.get()


LAYERS = {
    "projection": relax_module("""
def main(x: (48, 64), w: (64, 96)):
    out = R.matmul(x, w)
"""),
    "head": relax_module("""
def main(x: (1, 64), w: ("vocab_size", 64)):
    hidden = R.nn.relu(x)
    out = R.matmul(hidden, R.permute_dims(w))
"""),
    "similarity": _similarity(),
    "scores": relax_module("""
def main(q: (4, 1, 64), k: (4, 48, 64)):
    out = R.nn.softmax(R.matmul(q, R.permute_dims(k, [0, 2, 1])))
"""),
    "feed forward": relax_module("""
def main(x: (48, 64), w: (256, 64), b: (256,)):
    out = R.nn.gelu(R.add(R.matmul(x, R.permute_dims(w)), b))
"""),
}


def compiled(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, str]]:
    """Return (the kernels of `mod` before they get schedules, the name of the pass that schedules each), for a CPU."""
    phases = earlier(9).phases(LLVM)
    lowered, first = scheduled_by(mod, [*phases["attach"], *phases["graph and lower"]], LLVM)
    return lowered, scheduled_by(lowered, phases["schedule"], LLVM)[1] | first
