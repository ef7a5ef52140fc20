"""The small modules and kernels that chapter 9's checks give to an answer."""

from __future__ import annotations

from tvm import te, tirx
from tvm.script import tirx as T

from chapters.kit.cases.relax_text import kernel, relax_module
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul

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

# Operators that LegalizeOps has no kernel for, and a function that nobody calls.
Sampler = relax_module("""
def sample(x: (4, 8), p: (4, 8), u: (4, 1), row: (4, 1, "int64")):
    sums = R.cumsum(p, axis=1)
    best = R.sort(x, axis=1)
    tokens = R.multinomial_from_uniform(p, u, row, dtype="int64")
    out = (sums, best, tokens)

@private
def unused(x: (4, 8)):
    out = R.nn.relu(x)
""")

# A constant that is computed from constants; and one that a kernel updates in place in each run.
Constants = relax_module("""
def main(x: (4,)):
    ones = R.full(R.shape([4]), R.const(1.0, "float32"), dtype="float32")
    twos = R.add(ones, ones)
    out = R.add(x, twos)
""")
Counter = relax_module(f"""{kernel("count(a)", (4,), "a[at] = a[at] + T.float32(1)")}
@bare
def main(x: (4,)) -> R.Tensor((4,), "float32"):
    zeros = R.full(R.shape([4]), R.const(0.0, "float32"), dtype="float32")
    written = R.call_tir_inplace(cls.count, (zeros,), [0], out_ty=R.Tensor((4,), "float32"))
    return R.add(written, x)
""")

# Tensors before, in and behind an `if`.
Branches = relax_module("""
def main(choose: ("bool",), x: (64, 8)) -> R.Tensor((64, 8), "float32"):
    R.func_attr({"num_input": 2})
    if choose:
        a = R.nn.softmax(x)
        b = R.nn.softmax(a, axis=0)
        inside = R.nn.softmax(b)
    else:
        inside = R.nn.softmax(x)
    first = R.nn.softmax(inside, axis=0)
    second = R.nn.softmax(first)
    return R.nn.softmax(second, axis=0)
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


@T.prim_func(s_tir=True)
def columns(
    x: T.Buffer((T.int64(64), T.int64(24)), "float32"),
    b: T.Buffer((T.int64(24),), "float32"),
    y: T.Buffer((T.int64(24),), "float32"),
):
    """Sums of columns and a bias. dlight's rules for sums decline it: the sum's loop is the outer one."""
    total = T.sblock_alloc_buffer((T.int64(24),), "float32")
    for k, i in T.grid(64, 24):
        with T.sblock("total"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                total[vi] = T.float32(0)
            total[vi] = total[vi] + x[vk, vi]
    for i in range(24):
        with T.sblock("out"):
            vi = T.axis.spatial(24, i)
            y[vi] = total[vi] + b[vi]


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


def relu_then_sum(bias: bool = False) -> tirx.PrimFunc:
    """An elementwise block, then a reduction: there is no epilogue, unless a `bias` is added."""
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis((0, 6), name="k")
    y = te.compute((4, 6), lambda i, j: tirx.max(x[i, j], 0.0), name="y")
    total = te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="total" if bias else "out")
    if not bias:
        return made(x, total)
    b = te.placeholder((4,), name="b")
    return made(x, b, te.compute((4,), lambda i: total[i] + b[i], name="out"))


# What follows the sums y of a product x @ w.T, element by element; b is a vector, r a matrix of the result's shape.
EPILOGUES = {
    "bias": lambda y, b, r: lambda i, j: y[i, j] + b[j],
    "residual": lambda y, b, r: lambda i, j: r[i, j] + y[i, j],
    "read twice": lambda y, b, r: lambda i, j: y[i, j] * (y[i, j] + r[i, j]),
}
FOREIGN = {  # epilogues that read another sum than the one of their own index
    "transposed": lambda y: lambda i, j: y[j, i] + 1,
    "its own and the transposed": lambda y: lambda i, j: y[i, j] + y[j, i],
    "reversed": lambda y: lambda i, j: y[i, 23 - j] * 2,
    "the next row": lambda y: lambda i, j: y[(i + 1) % 24, j] + 1,
}


def linear(kind: str, rows: int = 24, name: str = "") -> tirx.PrimFunc:
    """x (rows, 33) times w (24, 33) transposed, as FuseTransposeMatmul writes it, followed by `kind`.

    name: another name for the block of the product.
    """
    w, x = te.placeholder((24, 33), name="w"), te.placeholder((rows, 33), name="x")
    b, r = te.placeholder((24,), name="b"), te.placeholder((rows, 24), name="r")
    shape = (rows, 24)
    y = nt_matmul(w, x, "float32")
    if name:
        k = te.reduce_axis((0, 33), name="k")
        y = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name=name)
    if kind == "alone":
        return made(w, x, y)
    if kind in EPILOGUES:
        return made(w, x, b, r, te.compute(shape, EPILOGUES[kind](y, b, r), name="out"))
    if kind in FOREIGN:
        return made(w, x, te.compute(shape, FOREIGN[kind](y), name="out"))
    if kind == "bias, relu, gate":  # three blocks behind the product
        biased = te.compute(shape, lambda i, j: y[i, j] + b[j], name="biased")
        relu = te.compute(shape, lambda i, j: tirx.max(biased[i, j], 0.0), name="relu")
        gated = te.compute(shape, lambda i, j: relu[i, j] * r[i, j], name="gated")
        return made(w, x, b, r, gated)
    if kind == "a transpose between":
        turned = te.compute(shape, lambda i, j: y[j, i], name="turned")
        return made(w, x, b, te.compute(shape, lambda i, j: turned[i, j] + b[j], name="out"))
    if kind == "two results":
        results = [
            te.compute(shape, lambda i, j: y[i, j] + 1),
            te.compute(shape, lambda i, j: -y[i, j]),
        ]
        return made(w, x, *results)
    if kind == "row sums":
        j = te.reduce_axis((0, 24), name="j")
        return made(w, x, te.compute((rows,), lambda i: te.sum(y[i, j], axis=j), name="out"))
    if (
        kind == "a cast before"
    ):  # the product is the second block, and chapter 5 has no schedule for the pair
        wide = te.compute(x.shape, lambda i, j: x[i, j] * 2, name="wide")
        return made(w, x, nt_matmul(w, wide, "float32"))
    raise KeyError(kind)
