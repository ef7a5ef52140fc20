"""The small modules and kernels that chapter 9's checks give to an answer."""

from __future__ import annotations

from tvm import te, tirx
from tvm.script import tirx as T

from chapters.kit.cases.relax_text import kernel, relax_module
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul

# One symbol in several places, functions without it, a kernel, a private function; a function with two sizes, and a
# symbol whose name begins like another one; an attribute of the module.
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

def pair(x: ("vocab_size", "hidden"), y: ("vocab_size_padded", "hidden")):
    out = R.matmul(y, R.permute_dims(x))
""").with_attr("mine", 7)

# The symbol appears in no parameter.
Between = relax_module("""
@bare
def found(x: R.Tensor("float32", ndim=1)):
    vocab_size = T.int64()
    y = R.match_cast(x, R.Tensor((vocab_size,), "float32"))
    return R.nn.relu(y)
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


def make(*tensors: te.Tensor, **attrs: object) -> tirx.PrimFunc:
    """A PrimFunc of `tensors`, with an op_pattern and `attrs`."""
    return te.create_prim_func(list(tensors)).with_attrs({"op_pattern": 4, **attrs})


def product(kind: str) -> tirx.PrimFunc:
    """x times w transposed, (4, 6) and (5, 6), in a block called total, followed by `kind`."""
    return _make_product(kind, (4, 5, 6), "total")


def relu_then_sum(bias: bool = False) -> tirx.PrimFunc:
    """An elementwise block, then a reduction: there is no epilogue, unless a `bias` is added."""
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis((0, 6), name="k")
    y = te.compute((4, 6), lambda i, j: tirx.max(x[i, j], 0.0), name="y")
    total = te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="total" if bias else "out")
    if not bias:
        return make(x, total)
    b = te.placeholder((4,), name="b")
    return make(x, b, te.compute((4,), lambda i: total[i] + b[i], name="out"))


def named_like_a_product(symbolic: bool) -> tirx.PrimFunc:
    """A block called NT_matmul that chapter 5 cannot schedule: a weight of symbolic size, or a sum of differences."""
    n = tirx.Var("n", "int64") if symbolic else 24
    w, x = te.placeholder((n, 33), name="w"), te.placeholder((24, 33), name="x")
    k = te.reduce_axis((0, 33), name="k")

    def element(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return te.sum(x[i, k] * w[j, k] if symbolic else x[i, k] - w[j, k], axis=k)

    return make(w, x, te.compute((24, n), element, name="NT_matmul"))


# What follows a product: for each block its element at (i, j), from y, which is the sums or the block before, a vector
# b, and a matrix r of the shape of the result.
EPILOGUES = {
    "bias": [lambda y, b, r: lambda i, j: y[i, j] + b[j]],
    "residual": [lambda y, b, r: lambda i, j: r[i, j] + y[i, j]],
    "read twice": [lambda y, b, r: lambda i, j: y[i, j] * (y[i, j] + r[i, j])],
}
FOREIGN = {  # epilogues that read another sum than the one of their own index
    "transposed": [lambda y, b, r: lambda i, j: y[j, i] + 1],
    "its own and the transposed": [lambda y, b, r: lambda i, j: y[i, j] + y[j, i]],
    "reversed": [lambda y, b, r: lambda i, j: y[i, 23 - j] * 2],
    "the next row": [lambda y, b, r: lambda i, j: y[(i + 1) % 24, j] + 1],
    "a transpose between": [
        lambda y, b, r: lambda i, j: y[j, i],
        lambda y, b, r: lambda i, j: y[i, j] + b[j],
    ],
    "a bias and then a transpose": [
        lambda y, b, r: lambda i, j: y[i, j] + b[j],
        lambda y, b, r: lambda i, j: y[j, i],
    ],
}
BLOCKS = {
    **EPILOGUES,
    **FOREIGN,
    "alone": [],
    "clipped": [lambda y, b, r: lambda i, j: te.max(y[i, j], r[i, j])],
    "gate and relu": [
        lambda y, b, r: lambda i, j: y[i, j] * r[i, j],
        lambda y, b, r: lambda i, j: tirx.max(y[i, j], 0.0),
    ],
}


def linear(kind: str, rows: int = 24) -> tirx.PrimFunc:
    """x (rows, 33) times w (24, 33) transposed, as FuseTransposeMatmul writes it, followed by `kind`."""
    return _make_product(kind, (rows, 24, 33))


def _make_product(kind: str, sizes: tuple[int, int, int], name: str = "") -> tirx.PrimFunc:
    """name: of the block of the product; without one, the product is chapter 3's."""
    m, n, length = sizes
    shape = m, n
    w, x = te.placeholder((n, length), name="w"), te.placeholder((m, length), name="x")
    b, r = te.placeholder((n,), name="b"), te.placeholder(shape, name="r")
    if not name:
        y = nt_matmul(w, x, "float32")
    else:
        k = te.reduce_axis((0, length), name="k")
        y = te.compute(shape, lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name=name)
    if kind in BLOCKS:
        for block in BLOCKS[kind]:
            y = te.compute(shape, block(y, b, r), name="out")
        return make(w, x, b, r, y)
    if kind in ("five blocks", "a bias and then its own and the transposed"):
        biased = te.compute(shape, lambda i, j: y[i, j] + b[j], name="biased")
        if kind != "five blocks":  # each block reads only its own element of the block before it
            return make(w, x, b, te.compute(shape, lambda i, j: biased[i, j] + y[j, i], name="out"))
        relu = te.compute(shape, lambda i, j: tirx.max(biased[i, j], 0.0), name="relu")
        squared = te.compute(shape, lambda i, j: relu[i, j] * biased[i, j], name="squared")
        gate = te.compute(shape, lambda i, j: tirx.max(r[i, j], 0.0), name="gate")  # reads no sum
        gated = te.compute(shape, lambda i, j: squared[i, j] * gate[i, j], name="gated")
        return make(w, x, b, r, gated)
    if kind == "shifted":  # reads another element: chapter 7 refuses
        return make(w, x, b, te.compute((m, n - 1), lambda i, j: y[i, j + 1] + b[j], name="out"))
    if kind in ("two results", "a bias and then two results"):
        if kind != "two results":  # the bias can be inlined, and the first result cannot
            added = y
            y = te.compute(shape, lambda i, j: added[i, j] + b[j], name="biased")
        results = (
            te.compute(shape, lambda i, j: y[i, j] + 1),
            te.compute(shape, lambda i, j: -y[i, j]),
        )
        return make(w, x, *[b] * (kind != "two results"), *results)
    if kind == "row sums":
        j = te.reduce_axis((0, n), name="j")
        return make(w, x, te.compute((m,), lambda i: te.sum(y[i, j], axis=j), name="out"))
    assert kind == "a cast before"  # chapter 5 has no schedule for the two
    wide = te.compute(x.shape, lambda i, j: x[i, j] * 2, name="wide")
    return make(w, x, nt_matmul(w, wide, "float32"))
