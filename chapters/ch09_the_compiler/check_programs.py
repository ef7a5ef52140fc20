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


# What follows a product: the blocks, with the element (i, j) of each. y is the product, b a vector, and r a matrix of
# the shape of the result; blocks called `out…` are results.
EPILOGUES = {
    "bias": "out = y[i, j] + b[j]",
    "residual": "out = r[i, j] + y[i, j]",
    "read twice": "out = y[i, j] * (y[i, j] + r[i, j])",
}
FOREIGN = {  # epilogues that read another sum than the one of their own index
    "transposed": "out = y[j, i] + 1",
    "its own and the transposed": "out = y[i, j] + y[j, i]",
    "reversed": "out = y[i, 23 - j] * 2",
    "the next row": "out = y[(i + 1) % 24, j] + 1",
    "a transpose between": "turned = y[j, i]; out = turned[i, j] + b[j]",
    "a bias and then a transpose": "biased = y[i, j] + b[j]; out = biased[j, i]",
    # each block reads only its own element of the block before it
    "a bias and then its own and the transposed": (
        "biased = y[i, j] + b[j]; out = biased[i, j] + y[j, i]"
    ),
}
BLOCKS = {
    **EPILOGUES,
    **FOREIGN,
    **dict.fromkeys(("alone", "row sums", "a cast before"), ""),
    "clipped": "out = max(y[i, j], r[i, j])",
    "gate and relu": "gated = y[i, j] * r[i, j]; out = max(gated[i, j], 0.0)",
    "five blocks": (  # of which the fourth reads no sum
        "biased = y[i, j] + b[j]; relu = max(biased[i, j], 0.0); squared = relu[i, j] * biased[i, j]; "
        "gate = max(r[i, j], 0.0); out = squared[i, j] * gate[i, j]"
    ),
    "shifted": "out = y[i, j + 1] + b[j]",  # reads another element: chapter 7 refuses
    "two results": "out = y[i, j] + 1; out1 = -y[i, j]",
    # the bias can be inlined, and the first result cannot
    "a bias and then two results": (
        "biased = y[i, j] + b[j]; out = biased[i, j] + 1; out1 = -biased[i, j]"
    ),
}


def linear(kind: str, rows: int = 24) -> tirx.PrimFunc:
    """x (rows, 33) times w (24, 33) transposed, as FuseTransposeMatmul writes it, followed by `kind`."""
    return _make_product(kind, (rows, 24, 33))


def _compute(shape: tuple[int, int], name: str, element: str, tensors: dict) -> te.Tensor:
    """A tensor whose element (i, j) is the expression `element` of `tensors`."""

    def evaluate(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return eval(element, {"max": tirx.max, "i": i, "j": j, **tensors})

    return te.compute(shape, evaluate, name=name)


def _make_product(kind: str, sizes: tuple[int, int, int], name: str = "") -> tirx.PrimFunc:
    """name: of the block of the product; without one, the product is chapter 3's."""
    m, n, length = sizes
    w, x = te.placeholder((n, length), name="w"), te.placeholder((m, length), name="x")
    b, r = te.placeholder((n,), name="b"), te.placeholder((m, n), name="r")
    k, column = te.reduce_axis((0, length), name="k"), te.reduce_axis((0, n), name="j")
    if name:
        y = te.compute((m, n), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k), name=name)
    elif kind == "a cast before":  # chapter 5 has no schedule for the two
        y = nt_matmul(w, te.compute(x.shape, lambda i, j: x[i, j] * 2, name="wide"), "float32")
    else:
        y = nt_matmul(w, x, "float32")
    if kind == "row sums":
        y = te.compute((m,), lambda i: te.sum(y[i, column], axis=column), name="out")
    tensors = {"b": b, "r": r, "y": y}
    for block in filter(None, BLOCKS[kind].split("; ")):
        name, element = block.split(" = ")
        tensors[name] = _compute((m, n - (kind == "shifted")), name, element, tensors)
    results = [tensor for name, tensor in tensors.items() if name.startswith("out")]
    return make(w, x, b, r, *(results or [y]))
