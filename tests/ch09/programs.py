"""The small modules and kernels that chapter 9's checks give to an answer."""

from __future__ import annotations

from tvm import te, tirx
from tvm.script import tirx as T

from chapters.kit.cases.relax_text import relax_module

# One symbol in several places, functions without it, a kernel, a private function.
Sizes = relax_module("""
@T.prim_func
def kernel(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(4):
        y[i] = x[i]

def head(x: ("n", 8), w: ("vocab_size", 8)):
    R.func_attr({"num_input": 1})
    out = R.matmul(x, R.permute_dims(w))

@private
def score(x: ("n", "vocab_size")):
    out = R.nn.softmax(x)

def plain(x: ("n", 8)):
    out = R.nn.relu(x)
""")

# The symbol appears in no parameter.
Between = relax_module("""
@bare
def found(x: R.Tensor("float32", ndim=1)):
    vocab_size = T.int64()
    y = R.match_cast(x, R.Tensor((vocab_size,), "float32"))
    return R.nn.relu(y)
""")

# Entry points, and a call of a kernel that needs padding.
Serving = relax_module("""
def decode(x: ("batch_size", 8), w: ("vocab_size", 8)):
    padded = "cutlass.groupwise_scaled_gemm_e4m3fn_e4m3fn"
    y = R.call_dps_packed(padded, (x,), out_ty=R.Tensor((16, 8), "float32"))
    out = R.matmul(y, R.permute_dims(w))

def embed(x: ("batch_size", 8)):
    out = R.nn.relu(x)
""")


@T.prim_func(s_tir=True)
def halve(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(4):
        with T.sblock("halve"):
            vi = T.axis.spatial(4, i)
            y[vi] = x[vi] * T.float32(0.5)


@T.prim_func
def third(x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")):
    for i in range(4):
        y[i] = x[i] * T.float32(0.333)


def made(*tensors: te.Tensor, **attrs: object) -> tirx.PrimFunc:
    """A PrimFunc of `tensors`, with an op_pattern and `attrs`."""
    return te.create_prim_func(list(tensors)).with_attrs({"op_pattern": 4, **attrs})


def product(kind: str) -> tirx.PrimFunc:
    """x times w transposed, (4, 6) and (5, 6), followed by `kind`."""
    x, w = te.placeholder((4, 6), name="x"), te.placeholder((5, 6), name="w")
    bias, gate = te.placeholder((5,), name="bias"), te.placeholder((4, 5), name="gate")
    k = te.reduce_axis((0, 6), name="k")
    total = te.compute((4, 5), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name="total")
    if kind == "bias":
        out = te.compute((4, 5), lambda i, j: total[i, j] + bias[j], name="out")
        return made(x, w, bias, out)
    if kind == "clipped":
        out = te.compute((4, 5), lambda i, j: te.max(total[i, j], gate[i, j]), name="out")
        return made(x, w, gate, out)
    if kind == "gate and relu":  # three blocks
        mid = te.compute((4, 5), lambda i, j: total[i, j] * gate[i, j], name="mid")
        out = te.compute((4, 5), lambda i, j: tirx.max(mid[i, j], 0.0), name="out")
        return made(x, w, gate, out)
    if kind == "row sums":  # two reductions
        j = te.reduce_axis((0, 5), name="j")
        out = te.compute((4,), lambda i: te.sum(total[i, j], axis=j), name="out")
        return made(x, w, out)
    if kind == "shifted":  # reads another element: chapter 7 refuses
        out = te.compute((4, 4), lambda i, j: total[i, j + 1] + bias[j], name="out")
        return made(x, w, bias, out)
    assert kind == "alone"
    return made(x, w, total)


def relu_then_sum() -> tirx.PrimFunc:
    """An elementwise block, then a reduction: there is no epilogue."""
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis((0, 6), name="k")
    y = te.compute((4, 6), lambda i, j: tirx.max(x[i, j], 0.0), name="y")
    return made(x, te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="out"))
