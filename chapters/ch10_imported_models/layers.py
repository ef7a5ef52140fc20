"""Five layers, each as a model's author might have written it. The compiler serves them unequally: exercise 10.5."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.pipeline.left_to_fallback import (
    EPILOGUE,
    kernel_bytes,
    left,
    scheduled_by,
)
from chapters.kit.pipeline.tile_products import INDEX
from chapters.runner.earlier import earlier

LLVM = tvm.target.Target("llvm")
BY_PRODUCTS = {"ScheduleMatmuls": "scheduled", "TileProducts": "tiled"}
WORDS = {INDEX: "index", EPILOGUE: "epilogue"}


def similarity(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """s + s.T, where s = x @ w.T."""
    k = te.reduce_axis((0, x.shape[1]), name="k")
    shape = (x.shape[0], w.shape[0])
    s = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="NT_matmul")
    return te.compute(shape, lambda i, j: s[i, j] + s[j, i], name="both")


def grouped_scores(queries: te.Tensor, keys: te.Tensor) -> te.Tensor:
    """Queries times keys, for each head. Two heads of queries share one head of keys."""
    k = te.reduce_axis((0, queries.shape[2]), name="k")
    return te.compute(
        (*queries.shape[:2], keys.shape[1]),
        lambda head, i, j: te.sum(queries[head, i, k] * keys[head // 2, j, k], axis=k),
        name="scores",
    )


def _with_kernel(
    kernel: Callable[[te.Tensor, te.Tensor], te.Tensor], *shapes: tuple[int, ...]
) -> tvm.IRModule:
    """A layer whose author wrote the kernel; a softmax follows."""
    builder = relax.BlockBuilder()
    types = (relax.TensorType(shape, "float32") for shape in shapes)
    params = [relax.Var(name, ty) for name, ty in zip("xw", types, strict=True)]
    with builder.function("main", params):
        with builder.dataflow():
            found = builder.emit_te(kernel, *params, primfunc_name_hint=kernel.__name__)
            out = builder.emit_output(relax.op.nn.softmax(found))
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
    "similarity": _with_kernel(similarity, (96, 64), (96, 64)),
    "scores": _with_kernel(grouped_scores, (4, 48, 64), (2, 48, 64)),
    "feed forward": relax_module("""
def main(x: (48, 64), w: (256, 64), b: (256,)):
    out = R.nn.gelu(R.add(R.matmul(x, R.permute_dims(w)), b))
"""),
}


def compiled(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, str]]:
    """(the kernels of `mod` without schedules, for each the pass that then schedules it), for a CPU."""
    phases = earlier(9).phases(LLVM)
    lowered, first = scheduled_by(mod, [*phases["attach"], *phases["graph and lower"]], LLVM)
    return lowered, scheduled_by(lowered, phases["schedule"], LLVM)[1] | first


def slow(mod: tvm.IRModule) -> tuple[str, str]:
    """(the kernel of `mod` that moves most bytes, the word of exercise 10.5 for it), as the compiler says."""
    lowered, by = compiled(mod)
    _, moved = kernel_bytes(lowered["main"])
    ((kernel, _),) = moved.most_common(1)
    if by[kernel] in BY_PRODUCTS:
        return kernel, BY_PRODUCTS[by[kernel]]
    why = next(one.why for one in left(lowered) if one.kernel == kernel)
    return kernel, WORDS.get(why, "size" if "size is not known" in why else why)
