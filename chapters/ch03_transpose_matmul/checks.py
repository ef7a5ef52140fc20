"""The checks of chapter 3: FuseTransposeMatmul, step by step and as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlock

from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cases.guarded import QUICK
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.ir.ir_diff import diff
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.ir.tensor_ir import nodes
from chapters.runner.explain import explain
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line, where
from solutions.ch01_walk_the_ir import walk_the_ir
from solutions.ch03_transpose_matmul import fuse_transpose_matmul as reference

LESSON = "chapters/ch03_transpose_matmul/lesson.md"
PATTERN = Section(LESSON, "Step 1: find the pair")
KERNEL = Section(LESSON, "Step 2: make the kernel")
OWN = Section(LESSON, "Give every matmul its own transpose")
NOT_FIRE = Section(LESSON, "When it must not fire")
MEASURE = Section(LESSON, "Measure it")

SUMS = "float32 keeps 24 bits; a sum of a few dozen products in another order agrees to about 1e-5."


# --- modules ----------------------------------------------------------------------------------------


def _tensor(name: str, shape, dtype: str | None = "float32") -> relax.Var:
    """A parameter; `shape` may be a list of dimensions, a rank, or None for an unknown rank."""
    if isinstance(shape, (list, tuple)):
        return relax.Var(name, relax.TensorType(list(shape), dtype))
    return relax.Var(name, relax.TensorType(dtype=dtype, ndim=-1 if shape is None else shape))


def _pair(x_shape, w_shape, axes=None, dtype="float32", out_dtype=None) -> IRModule:
    """main(x, w) = matmul(x, permute_dims(w, axes)), with an attribute of its own."""
    x, w = _tensor("x", x_shape, dtype), _tensor("w", w_shape, dtype)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w, axes))
            out = builder.emit_output(relax.op.matmul(x, wt, out_dtype))
        builder.emit_func_output(out)
    return builder.get()


def _array(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _swapped(w: np.ndarray) -> np.ndarray:
    return np.swapaxes(w.astype("float64"), -1, -2)


def _operator_calls(func: relax.Function) -> list[relax.Call]:
    return [call for call in calls_in(func) if isinstance(call.op, tvm.ir.Op)]


def operators(mod: IRModule) -> dict[str, int]:
    """Calls of matmul, of permute_dims, and of kernels that hold a block called NT_matmul."""
    found = {"matmul": 0, "permute_dims": 0, "NT_matmul": 0}
    for func in mod.functions.values():
        for call in _operator_calls(func) if isinstance(func, relax.Function) else []:
            name = call.op.name.removeprefix("relax.")
            if name in found:
                found[name] += 1
            elif name == "call_tir" and "NT_matmul" in _blocks(mod[call.args[0]]):
                found["NT_matmul"] += 1
    return found


def _blocks(func: tirx.PrimFunc) -> list[str]:
    return [block.name_hint for block in nodes(func.body, SBlock)]


def _kernel_calls(mod: IRModule) -> list[relax.Call]:
    return [call for call in _operator_calls(mod["main"]) if call.op.name == "relax.call_tir"]


# --- 3.1 the pattern --------------------------------------------------------------------------------

OTHER_GRAPHS = {  # which are not matmul(x, permute_dims(w))
    "matmul(permute_dims(x), w)": "R.matmul(R.permute_dims(x), w)",
    "permute_dims(w) alone": "R.permute_dims(w)",
    "permute_dims(matmul(…))": "R.permute_dims(R.matmul(R.negative(R.reshape(x, (6, 5))), w))",
}


def _other_graph(name: str) -> IRModule:
    return relax_module(f"def main(x: (5, 6), w: (5, 7)):\n    out = {OTHER_GRAPHS[name]}")


def _found(impl, mod: IRModule) -> list[dict[str, str]]:
    """What the pattern finds in `mod`: for each match, each name with a text for what it stands for."""
    matches = []

    def check(context) -> bool:
        matches.append({name: _text(e) for name, e in sorted(context.annotated_expr.items())})
        return False

    pattern = ("probe", *impl.transpose_matmul_pattern(), check)
    relax.transform.FuseOpsByPattern([pattern], bind_constants=False)(mod)
    return matches


def _text(expr) -> str:
    if isinstance(expr, relax.Call):
        return "call of " + expr.op.name.removeprefix("relax.")
    return getattr(expr, "name", type(expr).__name__)


def test_3_1_matches_the_pair(impl) -> None:
    """the pattern matches matmul(x, permute_dims(w)) and names its parts"""
    found = _found(impl, _pair([4, 6], [5, 6]))
    expected = {
        "product": "call of matmul",
        "transpose": "call of permute_dims",
        "w": "w",
        "x": "x",
    }
    what = f"Your pattern matches {len(found)} times in matmul(x, permute_dims(w)). It must match once."
    wanted = "a matmul of any x, whose second argument is a permute_dims of any w"
    why = "With a pattern that never matches, the pass does nothing, and says nothing."
    PATTERN.that(len(found) == 1, what, expected=wanted, why=why)
    what = "Your names do not stand for the right parts of the pattern."
    why = (
        "`group` asks for the matched calls by these names. A name that is missing here stands for a part that is not "
        "in the pattern you return: each wildcard() and each is_op(…)(…) makes a new part."
    )
    PATTERN.equal(found[0], expected, what, why=why)


def test_3_1_matches_nothing_else(impl) -> None:
    """the pattern does not match any other graph"""
    for name in OTHER_GRAPHS:
        found = _found(impl, _other_graph(name))
        what = f"Your pattern also matches {name}."
        why = "The pass would replace that by x times w transposed, which is another computation."
        PATTERN.that(not found, what, expected="no match", yours=str(found), why=why)


def observe_3_1(impl):
    graphs = [_pair([4, 6], [5, 6]), *map(_other_graph, OTHER_GRAPHS), Gram]
    return [lambda mod=mod: _found(impl, mod) for mod in graphs]


# --- 3.2 the check ----------------------------------------------------------------------------------

SPELLINGS = [  # shape of w, axes that swap its last two dimensions
    ([5, 6], None),
    ([5, 6], [1, 0]),
    ([5, 6], [-1, -2]),
    ([5, 6], [1, -2]),
    ([3, 5, 6], [0, 2, 1]),
    ([3, 5, 6], [0, -1, 1]),
    ([3, 5, 6], [-3, -1, -2]),
    ([2, 3, 5, 6], [0, 1, -1, -2]),
]
NO_SWAPS = [  # shape of w, other axes, what they are
    ([5, 6], [0, 1], "the identity"),
    ([5, 6], [-2, -1], "the identity, counted from the end"),
    ([4, 4, 4], None, "a full reversal of three dimensions"),
    ([4, 4, 4], [2, 1, 0], "a full reversal of three dimensions"),
    ([4, 4, 4], [1, 0, 2], "a permuted batch"),
    ([4, 4, 4], [2, 0, 1], "a rotation of three dimensions"),
    ([3, 3, 5, 6], [1, 0, 3, 2], "a swap of the last two together with a permuted batch"),
]


def _asked(impl, w_shape, axes, **types) -> bool:
    rank = w_shape if isinstance(w_shape, int) else len(w_shape or [0, 0])
    order = list(range(rank))[::-1] if axes is None else [axis % rank for axis in axes]
    known = isinstance(w_shape, list)
    k = w_shape[order[-2]] if known and rank > 1 else 6
    mod = _pair(types.get("x", [7, k]), w_shape, axes, types.get("dtype", "float32"))
    return _asked_of(impl, mod)


def _asked_of(impl, mod: IRModule) -> bool:
    """What may_fuse answers for the pair in `mod`."""
    transpose, product = (binding.value for binding in mod["main"].body.blocks[0].bindings)
    return bool(impl.may_fuse(transpose, product))


def _only(unknown: str) -> IRModule:
    """A pair of which only `unknown` has no type, out of x, w and product."""
    sizes = {name: tirx.Var(name, "int64") for name in ("n", "m")}
    batched = unknown == "product"  # whether n, m or 1 of them is repeated, nobody can know
    x = _tensor(
        "x", [sizes["n"], 7, 6] if batched else [7, 6], None if unknown == "x" else "float32"
    )
    w = _tensor(
        "w", [sizes["m"], 5, 6] if batched else [5, 6], None if unknown == "w" else "float32"
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w, [0, 2, 1] if batched else [1, 0]))
            out = builder.emit_output(relax.op.matmul(x, wt, "float32"))
        builder.emit_func_output(out)
    return builder.get()


def test_3_2_fires_on_every_spelling(impl) -> None:
    """accepts every way to write an exchange of the last two dimensions"""
    for shape, axes in SPELLINGS:
        what = f"Your may_fuse refuses axes={axes} on a w of {len(shape)} dimensions."
        wanted = "True: these axes exchange the last two dimensions (-1 is the last one) and keep the others"
        why = "Models write the same transpose in all these ways. One that you miss is computed at every step."
        PATTERN.that(_asked(impl, shape, axes), what, expected=wanted, why=why)


def test_3_2_refuses_other_permutations(impl) -> None:
    """refuses every permutation that does more than exchange the last two dimensions"""
    for shape, axes, what in NO_SWAPS:
        NOT_FIRE.that(
            not _asked(impl, shape, axes),
            f"Your may_fuse accepts {what}: axes={axes} on a w of {len(shape)} dimensions.",
            expected="False",
            why="The kernel reads w[…, j, k], with the batch indices unchanged. For any other permutation this is "
            "the wrong element. If the sizes agree, no error says so.",
        )


def _untyped(impl) -> Iterable[tuple[str, bool]]:
    yield "w of unknown rank", _asked(impl, None, None)
    yield "w of rank 2 and unknown shape", _asked(impl, 2, [1, 0])
    yield "w of unknown dtype", _asked(impl, [5, 6], None, dtype=None)
    yield "x of rank 2 and unknown shape", _asked(impl, [5, 6], None, x=2)
    yield "x of unknown rank", _asked(impl, [5, 6], [1, 0], x=None)
    yield "w of unknown dtype, where out_dtype types the product", _asked_of(impl, _only("w"))
    yield "x of unknown dtype, where out_dtype types the product", _asked_of(impl, _only("x"))
    batches = "a product of unknown shape, since the batches n and m may differ"
    yield batches, _asked_of(impl, _only("product"))


def test_3_2_refuses_what_has_no_type(impl) -> None:
    """refuses operands whose shape or dtype is not known"""
    for what, yours in _untyped(impl):
        NOT_FIRE.that(
            not yours,
            f"Your may_fuse accepts {what}.",
            expected="False: `is_typed` says whether a type is known",
            why="A PrimFunc needs buffers of a known shape and dtype. Without them step 2 raises an error and stops "
            "the compilation of a module that was right as it was.",
        )


def test_3_2_refuses_vectors(impl) -> None:
    """refuses a w of one dimension, which has no last two"""
    for axes in (None, [0]):
        NOT_FIRE.that(
            not _asked_of(impl, _pair([7, 6], [6], axes)),
            f"Your may_fuse accepts axes={axes} on a w of one dimension.",
            expected="False: there are no two dimensions to exchange",
            why="permute_dims of a vector is legal and does nothing. The kernel would read w[j, k], and w has one "
            "index.",
        )


def observe_3_2(impl):
    cases = [*SPELLINGS, *((shape, axes) for shape, axes, _ in NO_SWAPS)]
    asked = [partial(_asked, impl, shape, axes) for shape, axes in cases]
    return [*asked, lambda: [yours for _, yours in _untyped(impl)]]


# --- 3.3 the compute --------------------------------------------------------------------------------

# (shape of w, shape of x); n >= k, so that an index taken for the other stays inside the buffer
COMPUTES = [
    ([7, 5], [4, 5]),
    ([7, 5], [5]),
    ([7, 5], [2, 4, 5]),
    ([3, 7, 5], [3, 4, 5]),
    ([3, 7, 5], [4, 5]),
    ([3, 7, 5], [5]),
    ([1, 7, 5], [3, 4, 5]),
    ([3, 7, 5], [1, 4, 5]),
    ([2, 3, 7, 5], [3, 1, 5]),
    ([6, 6], [6, 6]),
]


def _kernel(impl, w_shape, x_shape, dtype="float32", out_dtype="float32") -> tirx.PrimFunc:
    w = te.placeholder(w_shape, dtype, name="w")
    x = te.placeholder(x_shape, dtype, name="x")
    return te.create_prim_func([w, x, impl.nt_matmul(w, x, out_dtype)], "int64")


def _run_kernel(func, w, x, shape, out_dtype="float32") -> np.ndarray:
    """The result of a PrimFunc (w, x, out), out poisoned before."""
    poison = np.full(shape, np.nan if "float" in out_dtype else -77, out_dtype)
    out = tvm.runtime.tensor(poison)
    tvm.compile(func, target=QUICK)["main"](tvm.runtime.tensor(w), tvm.runtime.tensor(x), out)
    return out.numpy()


def test_3_3_multiplies_two_matrices(impl) -> None:
    """for two matrices, shape and numbers are those of matmul"""
    _has_the_shape(impl, *COMPUTES[0])
    _has_the_numbers(impl, *COMPUTES[0])


def test_3_3_has_the_shape_of_the_product(impl) -> None:
    """the result has the shape that matmul gives, for one row and for batches"""
    for w_shape, x_shape in COMPUTES[1:]:
        _has_the_shape(impl, w_shape, x_shape)


def _has_the_shape(impl, w_shape, x_shape) -> None:
    shape = np.matmul(np.zeros(x_shape), np.swapaxes(np.zeros(w_shape), -1, -2)).shape
    what = f"Your nt_matmul gives the wrong shape for w {tuple(w_shape)} and x {tuple(x_shape)}."
    why = "call_te takes the type of the new call from this shape, and all later bindings rely on that type."
    KERNEL.equal(_shape_of(impl, w_shape, x_shape, shape), shape, what, why=why)


def _shape_of(impl, w_shape, x_shape, expected) -> tuple[int, ...]:
    """The shape nt_matmul gives; where it raises, a CheckFailed that says for which operands."""
    w, x = te.placeholder(w_shape, name="w"), te.placeholder(x_shape, name="x")
    try:
        return tuple(int(d) for d in impl.nt_matmul(w, x, "float32").shape)
    except (NotImplementedError, CheckFailed):
        raise
    except Exception as error:
        why, read = explain(error)
        so_far = "" if (w_shape, x_shape) == COMPUTES[0] else "is right for two matrices, and "
        raise CheckFailed(
            f"Your nt_matmul {so_far}raises {last_line(error)} for w {tuple(w_shape)} and x {tuple(x_shape)}.",
            expected=f"a result of shape {expected}",
            yours=where(error, impl._path),
            why=why
            or "x may be a vector, which has no index for rows. Each operand may lack batch dimensions that the other "
            "has: `batch_index` says where to read in each.",
            read=read or KERNEL,
        ) from None


def test_3_3_computes_the_product(impl) -> None:
    """the numbers are those of matmul, for one row, for batches and for a repeated batch"""
    for w_shape, x_shape in COMPUTES[1:]:
        _has_the_numbers(impl, w_shape, x_shape)


def _has_the_numbers(impl, w_shape, x_shape) -> None:
    w, x = _array(1, *w_shape), _array(2, *x_shape)
    expected = np.matmul(x.astype("float64"), _swapped(w))
    KERNEL.close(
        _run_kernel(_kernel(impl, w_shape, x_shape), w, x, expected.shape),
        expected,
        f"Your nt_matmul gives other numbers than matmul for w {tuple(w_shape)} and x {tuple(x_shape)}.",
        why="The reduction runs along the last index of w and of x. " + SUMS,
    )


def test_3_3_takes_symbolic_sizes(impl) -> None:
    """one kernel serves any number of rows and any batch"""
    b, m = tirx.Var("b", "int64"), tirx.Var("m", "int64")
    func = _kernel(impl, [7, 5], [b, m, 5])
    w, x = _array(3, 7, 5), _array(4, 2, 3, 5)
    found = _run_kernel(func, w, x, (2, 3, 7))
    what = "Your nt_matmul gives wrong numbers for an x of shape (b, m, 5), called with b = 2 and m = 3."
    KERNEL.close(found, np.matmul(x.astype("float64"), _swapped(w)), what)


def test_3_3_is_called_by_its_name(impl) -> None:
    """the block of the sum is called NT_matmul"""
    names = [name for name in _blocks(_kernel(impl, [7, 5], [4, 5])) if name != "root"]
    what = "No block of your kernel is called NT_matmul."
    wanted = 'te.compute(…, name="NT_matmul")'
    why = "A schedule finds its block by name. Those of chapter 5 ask for NT_matmul."
    KERNEL.that("NT_matmul" in names, what, expected=wanted, yours=", ".join(names), why=why)


def test_3_3_casts_before_it_multiplies(impl) -> None:
    """operands are cast to out_dtype before the product, and the sum is kept in it"""
    what = "Your nt_matmul gives a wrong product of float16 operands with out_dtype float32."
    why = "300 * 300 is 90000, and the largest float16 is 65504. So cast before you multiply."
    KERNEL.close(_large_product(impl), np.full((4, 7), 5 * 300.0 * 300.0), what, why=why)


def observe_3_3(impl):
    def numbers(w_shape, x_shape, dtype="float32", out="float32"):
        func = _kernel(impl, w_shape, x_shape, dtype, out)
        shape = [int(d) for d in func.params[-1].shape]
        w, x = _array(1, *w_shape, dtype=dtype), _array(2, *x_shape, dtype=dtype)
        return np.round(_run_kernel(func, 100 * w, 100 * x, shape, out) / 1e4, 2).tolist()

    return [
        lambda: numbers([7, 5], [4, 5]),
        lambda: numbers([7, 5], [5]),
        lambda: numbers([3, 7, 5], [1, 4, 5]),
        lambda: numbers([1, 7, 5], [3, 4, 5]),
        lambda: numbers([7, 5], [4, 5], "float16", "float32"),
        lambda: _large_product(impl).tolist(),
        lambda: _blocks(_kernel(impl, [7, 5], [4, 5])),
    ]


def _large_product(impl) -> np.ndarray:
    """What the kernel gives for float16 operands whose product is too large for float16."""
    w, x = np.full((7, 5), 300, "float16"), np.full((4, 5), 300, "float16")
    func = _kernel(impl, [7, 5], [4, 5], "float16", "float32")
    return _run_kernel(func, w, x, (4, 7), "float32")


# --- 3.4 the rewrite --------------------------------------------------------------------------------

Gram = relax_module("""
def main(x: (4, 6)):
    wt = R.permute_dims(x)
    out = R.matmul(x, wt)
""")


def _constant_weight() -> IRModule:
    w = tvm.runtime.tensor(_array(5, 7, 6))
    return relax.transform.BindParams("main", {"w": w})(_pair([4, 6], [7, 6]))


# `a` is declared with n * 3 rows, and its value has n * 2 + n. So a mutator that changes the value makes a new variable
Rewritten = relax_module("""
@bare
def main(x: R.Tensor(("n * 2 + n", 6), "float32"), w: R.Tensor((6, 6), "float32"), y: R.Tensor(("n",), "float32")):
    n = T.int64()
    with R.dataflow():
        wt = R.permute_dims(w)
        a: R.Tensor((n * 3, 6), "float32") = R.matmul(x, wt)
        at = R.permute_dims(a)
        out = R.matmul(a, at)
        R.output(out)
    return out
""")
# two private functions, one of them claimed by a library, and a caller that is not called `main`
Several = relax_module("""
@private
def layer(x: (4, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    out = R.matmul(x, wt)

@private
def library(x: (4, 6), w: (7, 6)):
    R.func_attr({"Codegen": "cublas"})
    wt = R.permute_dims(w)
    out = R.matmul(x, wt)

def forward(x: (4, 6), w: (7, 6)):
    R.func_attr({"num_input": 1})
    a = cls.layer(x, w)
    b = cls.library(x, w)
    out = R.add(a, b)
""")
# a kernel writes into w, in place, between the transpose of w and the matmul that uses it
Overwritten = relax_module(
    kernel("double(a)", (7, 6), "a[at] = a[at] + a[at]")
    + """
def main(x: (4, 6), start: (7, 6)):
    w = R.negative(start)
    wt = R.permute_dims(w)
    doubled = R.call_tir_inplace(cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((7, 6), "float32"))
    early = R.matmul(x, wt)
    wt_late = R.permute_dims(doubled)
    late = R.matmul(x, wt_late)
    out = R.add(early, late)
"""
)


def _pass_on(impl, mod: IRModule) -> IRModule:
    """FuseTransposeMatmul, and the questions every pass is asked."""
    return expect.apply(impl.FuseTransposeMatmul(), mod, "FuseTransposeMatmul")


def test_3_4_makes_one_kernel(impl) -> None:
    """the pair becomes one call_tir of an NT_matmul, w first, then x"""
    result = _pass_on(impl, _pair([4, 6], [7, 6]))
    found = operators(result)
    what = "Your pass did not turn matmul(x, permute_dims(w)) into one call of a kernel called NT_matmul."
    why = "A transpose that stays reads and writes the whole weight at every step."
    KERNEL.equal(found, {"matmul": 0, "permute_dims": 0, "NT_matmul": 1}, what, why=why)
    (call,) = _kernel_calls(result)
    what = "Your kernel's PrimFunc is not called NT_matmul."
    why = (
        "call_te names a PrimFunc after the Python function, unless you give `primfunc_name_hint`."
    )
    KERNEL.equal(call.args[0].name_hint, "NT_matmul", what, why=why)
    what = "Your kernel is not called with w first, then x."
    why = "nt_matmul takes w first. The other way round, it multiplies w by x transposed."
    KERNEL.equal([arg.name for arg in call.args[1]], ["w", "x"], what, why=why)


def test_3_4_leaves_no_composite(impl) -> None:
    """the functions that FuseOpsByPattern made are gone, and all others stay"""
    mod = _pair([4, 6], [7, 6])
    left = sorted(gv.name_hint for gv in _pass_on(impl, mod).get_global_vars())
    what = "After your pass, the module does not hold just main and its kernel."
    why = "A composite that nothing calls is still compiled, and every later pass still visits it."
    KERNEL.equal(left, ["NT_matmul", "main"], what, why=why)


def test_3_4_takes_operands_from_their_parameters(impl) -> None:
    """it fuses a product of one tensor with itself, and one whose weight is a constant"""
    x = _array(6, 4, 6)
    cases = {
        "x @ x.T": (Gram, x @ x.T),
        "a constant w": (_constant_weight(), x @ _array(5, 7, 6).T),
    }
    for what, (mod, expected) in cases.items():
        try:
            result = _pass_on(impl, mod)
        except (IndexError, ValueError) as error:
            raise CheckFailed(
                f"Your pass raises {last_line(error)} on {what}.",
                expected="w and x from `operands(composite, call)`, which looks them up",
                why="FuseOpsByPattern gives a composite one parameter per distinct tensor, in order of first use. "
                "For x @ x.T that is one parameter.",
                read=KERNEL,
            ) from None
        expect.equal(operators(result)["NT_matmul"], 1, f"Your pass does not fuse {what}.")
        KERNEL.close(
            expect.run(result, "main", [x]), expected, f"Your pass gives wrong numbers on {what}."
        )


def test_3_4_keeps_the_numbers(impl) -> None:
    """same numbers as unfused, for batches, one row, a symbolic size and another out_dtype"""
    n = tirx.Var("n", "int64")
    cases = [
        ([4, 6], [7, 6], None, "float32", None, [4, 6]),
        ([6], [7, 6], None, "float32", None, [6]),
        ([n, 6], [7, 6], [-1, 0], "float32", None, [3, 6]),
        ([2, 4, 6], [2, 7, 6], [0, 2, 1], "float32", None, [2, 4, 6]),
        ([4, 6], [7, 6], [1, 0], "float16", "float32", [4, 6]),
        ([4, 6], [7, 6], None, "float16", None, [4, 6]),
    ]
    for x_shape, w_shape, axes, dtype, out_dtype, called in cases:
        mod = _pair(x_shape, w_shape, axes, dtype, out_dtype)
        x, w = _array(7, *called, dtype=dtype), _array(8, *w_shape, dtype=dtype)
        result = _pass_on(impl, mod)
        yours = expect.run(result, "main", [x, w])
        what = f"x {x_shape}, w {w_shape}, axes {axes}, {dtype} to {out_dtype or dtype}"
        wanted = out_dtype or dtype
        expect.equal(
            str(yours.dtype), wanted, f"Your pass changes the dtype of the result for {what}."
        )
        KERNEL.close(
            yours,
            np.matmul(x.astype("float64"), _swapped(w)),
            f"Your pass changes the numbers for {what}.",
            **({"rtol": 1e-2, "atol": 1e-2} if what.endswith("to float16") else {}),  # 11 bits
            why="Fusing changes only the order in which w is read. " + SUMS,
        )


def test_3_4_uses_the_variables_of_the_new_function(impl) -> None:
    """an operand that the mutator has replaced by a new variable is used under its new name"""
    _rewritten_is_right(_pass_on(impl, Rewritten), "Your pass")


def _rewritten_is_right(result: IRModule, whose: str) -> None:
    x, w = _array(1, 6, 6), _array(2, 6, 6)
    a = x.astype("float64") @ w.T
    found = expect.run(result, "main", [x, w, np.zeros(2, "float32")])
    KERNEL.close(
        found, a @ a.T, f"{whose} changes the numbers of two products in a row.", rtol=1e-4
    )


def test_3_4_touches_nothing_else(impl) -> None:
    """private functions are fused too; functions claimed by a library, attributes and all others stay"""
    result = _pass_on(impl, Several)
    NOT_FIRE.equal(
        operators(result),
        {"matmul": 1, "permute_dims": 1, "NT_matmul": 1},
        "Your pass fused the wrong pairs in a module with a private function and one that a library has claimed.",
        why="The pair in the private function becomes a kernel. A function with the attribute Codegen stays: the "
        "code generator of a library will look for the two operators.",
    )
    what = "Your pass changed the attributes of a function."
    yours = str(diff(Several["forward"], result["forward"]))
    expect.that(dict(result["forward"].attrs) == dict(Several["forward"].attrs), what, yours=yours)


def test_3_4_minds_what_is_overwritten(impl) -> None:
    """w is not read after a kernel may have written into it"""
    x, w = _array(1, 4, 6), _array(2, 7, 6)
    found = expect.run(_pass_on(impl, Overwritten), "main", [x, w])
    what = "Your pass gives wrong numbers where a kernel writes into w between its transpose and the matmul."
    why = "The transpose reads w before it is doubled. A kernel in the place of the matmul reads it afterwards."
    NOT_FIRE.close(found, -3 * (x.astype("float64") @ w.T), what, why=why)


def test_3_4_twice_changes_nothing_more(impl) -> None:
    """a second run changes nothing more, and a module without a pair stays as it is"""
    expect.settles(impl.FuseTransposeMatmul(), Gram, "FuseTransposeMatmul")
    nothing = _pair([4, 4], [4, 4], [0, 1])
    what = "Your FuseTransposeMatmul changed a module that has no pair."
    why = "permute_dims with axes [0, 1] leaves w as it is, so it is not a transpose."
    NOT_FIRE.same_ir(_pass_on(impl, nothing), nothing, what, why=why)


def test_3_4_fuses_the_decoder(impl) -> None:
    """no transpose is left in the decoder, and each linear layer has one launch fewer"""
    mod, _ = decoder("tiny", functions=["decode"])
    result = _pass_on(impl, mod)
    expect.equal(
        operators(result)["permute_dims"], 0, "Your pass leaves transposes in the decoder."
    )
    before, after = (walk_the_ir.launches(m)["decode"] for m in (mod, result))
    what = "After your pass, a decode step does not have one launch fewer per transpose."
    MEASURE.equal(before - after, operators(mod)["permute_dims"], what)


def observe_3_4(impl):
    def told(mod):
        result = impl.FuseTransposeMatmul()(mod)
        names = [gv.name_hint for gv in result.get_global_vars()]
        calls = [[getattr(a, "name", "constant") for a in c.args[1]] for c in _kernel_calls(result)]
        types = [str(c.ty_args) for c in _kernel_calls(result)]
        return sorted(names), calls, types

    def numbers(mod, *arrays):
        result = impl.FuseTransposeMatmul()(mod)
        return np.round(expect.run(result, "main", arrays).astype("float64"), 2).tolist()

    square = _array(1, 5, 5), _array(2, 5, 5)
    return [
        lambda: told(_pair([4, 6], [7, 6])),
        lambda: told(Gram),
        lambda: told(_pair([4, 6], [7, 6], None, "float16", "float32")),
        lambda: told(_pair([4, 6], [7, 6], None, "float16")),
        lambda: numbers(_pair([5, 5], [5, 5]), *square),
        lambda: numbers(Overwritten, _array(1, 4, 6), _array(2, 7, 6)),
        lambda: relax.analysis.check_well_formed(impl.FuseTransposeMatmul()(Rewritten)),
    ]


# --- 3.5 the shared transpose -----------------------------------------------------------------------

# two products with one transposed weight
TwoMatmuls = relax_module("""
def main(x: (4, 6), y: (3, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    a = R.matmul(x, wt)
    b = R.matmul(y, wt)
    return a, b
""")
# the transpose is also an operand of an elementwise operator, and w has three dimensions
AlsoElsewhere = relax_module("""
def main(x: (2, 4, 6, "float16"), w: (2, 7, 6, "float16")):
    wt = R.permute_dims(w, axes=[0, 2, 1])
    a = R.matmul(x, wt, out_dtype="float32")
    b = R.negative(wt)
    return a, b
""")
# the transpose is itself a result, and reaches the matmul under another name
AlsoReturned = relax_module("""
def main(x: (4, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    alias = wt
    a = R.matmul(x, alias)
    return a, wt
""")
# the transpose is in one dataflow block and the matmul in a later one
LATER_BLOCK = """
    with R.dataflow():
        {w}
        wt = R.permute_dims(w)
        R.output(wt)
    R.assert_op(R.const(True, "bool"), format="")
    with R.dataflow():
        a = R.matmul(x, wt)
        R.output(a)
    return a
"""
LaterBlock = relax_module("@impure\ndef main(x: (4, 6), w: (7, 6)):" + LATER_BLOCK.format(w=""))
# as LaterBlock, but w is computed in the earlier block and is not an output of it
OutOfSight = relax_module(
    "@impure\ndef main(x: (4, 6), start: (7, 6)):" + LATER_BLOCK.format(w="w = R.negative(start)")
)
# the transpose is both operands of the matmul
BothSides = relax_module("""
def main(w: (6, 6)):
    wt = R.permute_dims(w)
    a = R.matmul(wt, wt)
""")


def _shared() -> dict[str, tuple[IRModule, list[np.ndarray], list[np.ndarray], int]]:
    """name -> (module, arguments, results, transposes that must stay)."""
    x, y, w = _array(1, 4, 6), _array(2, 3, 6), _array(3, 7, 6)
    xb, wb = _array(4, 2, 4, 6, dtype="float16"), _array(5, 2, 7, 6, dtype="float16")
    product, wt = np.matmul(xb.astype("float64"), _swapped(wb)), np.swapaxes(wb, 1, 2)
    s = _array(6, 6, 6)
    return {
        "one transpose for two matmuls": (TwoMatmuls, [x, y, w], [x @ w.T, y @ w.T], 0),
        "a transpose with an elementwise user": (AlsoElsewhere, [xb, wb], [product, -wt], 1),
        "a transpose that is also returned": (AlsoReturned, [x, w], [x @ w.T, w.T], 1),
        "a transpose in an earlier dataflow block": (LaterBlock, [x, w], [x @ w.T], 0),
        "a transpose that is both operands": (BothSides, [s], [s.T @ s.T], 1),
    }


def _through_the_reference(impl, mod: IRModule) -> IRModule:
    """The answer's own_transposes, then the reference's two steps: needs no other exercise."""
    return _finished(_owned(impl, mod), mod)


def _owned(impl, mod: IRModule) -> IRModule:
    own = partial(impl.own_transposes, fires=reference.may_fuse)
    return expect.apply(own, mod, "Your own_transposes")


def _finished(owned: IRModule, mod: IRModule) -> IRModule:
    """`owned`, which own_transposes made of `mod`, after the reference's two steps."""
    grouped = reference.group(owned, reference.may_fuse)
    old = {gv.name_hint for gv in mod.get_global_vars()}
    composites = {gv.name_hint: f for gv, f in grouped.functions_items() if gv.name_hint not in old}
    return reference.generate(grouped, composites)


def test_3_5_returns(impl) -> None:
    """the pass does not stop on a transpose that something else uses too"""
    for what, (mod, *_rest) in _shared().items():
        owned = _owned(impl, mod)
        try:
            result = _finished(owned, mod)
        except Exception as error:
            raise CheckFailed(
                f"With your own_transposes, the pass stops on {what}: {last_line(error)}",
                expected="a permute_dims of its own for each matmul, so that no transpose of a pair has a second user",
                yours=mod["main"].script(),
                why="FuseOpsByPattern moves the transpose into the composite of one matmul, and lets this composite "
                "return it as a second result, for its other user. The next step asks the result for its dtype, and "
                "a tuple has none.",
                read=OWN,
            ) from None
        expect.well_formed(result, "The pass with your own_transposes")


def test_3_5_fuses_every_matmul(impl) -> None:
    """each matmul is fused, and a transpose stays only where something still uses it"""
    for what, (mod, _arrays, expected, kept) in _shared().items():
        found = operators(_through_the_reference(impl, mod))
        products = len(expected) if mod is TwoMatmuls else 1
        OWN.equal(
            found,
            {"matmul": 0, "permute_dims": kept, "NT_matmul": products},
            f"With your own_transposes, the pass leaves the wrong operators in {what}.",
            why="Every matmul can read w as it is stored, also where the old transpose stays for another user. A "
            "transpose that nothing uses must go: it would still read w and write a copy.",
        )


def test_3_5_keeps_the_numbers(impl) -> None:
    """all results are those of the module as it was"""
    for what, (mod, arrays, expected, _kept) in _shared().items():
        result = _through_the_reference(impl, mod)
        for yours, right in zip(
            expect.call(expect.machine(result), "main", arrays), expected, strict=True
        ):
            OWN.close(yours, right, f"With your own_transposes, a result is wrong for {what}.")


def test_3_5_uses_the_variables_of_the_new_function(impl) -> None:
    """an operand that the mutator has replaced by a new variable is used under its new name"""
    _rewritten_is_right(
        _through_the_reference(impl, Rewritten), "The pass with your own_transposes"
    )


def test_3_5_minds_what_is_overwritten(impl) -> None:
    """no transpose is copied to a place after a kernel may have written into w"""
    x, w = _array(1, 4, 6), _array(2, 7, 6)
    NOT_FIRE.close(
        expect.run(_through_the_reference(impl, Overwritten), "main", [x, w]),
        -3 * (x.astype("float64") @ w.T),
        "With your own_transposes, the numbers are wrong where a kernel writes into w between its transpose and the "
        "matmul.",
        why="The transpose reads w before it is doubled. A copy of it, right before the matmul, reads w afterwards.",
    )


def test_3_5_uses_what_is_in_sight(impl) -> None:
    """no transpose is copied to a place where its w is out of scope"""
    NOT_FIRE.same_ir(
        impl.own_transposes(OutOfSight, reference.may_fuse),
        OutOfSight,
        "Your own_transposes copied a transpose to a place where its w is out of scope.",
        why="A variable that a dataflow block binds and does not output can be used in that block only. Your module "
        "is not well-formed.",
    )


def test_3_5_leaves_other_modules_alone(impl) -> None:
    """a module in which nothing may be fused comes back as it was"""
    mod = _pair([4, 4], [4, 4], [0, 1])
    what = "Your own_transposes changed a module in which no matmul may be fused."
    why = "A copy that is not fused is a kernel more, not a kernel less."
    OWN.same_ir(impl.own_transposes(mod, reference.may_fuse), mod, what, why=why)


def observe_3_5(impl):
    def told(mod):
        result = impl.own_transposes(mod, reference.may_fuse)
        return str(operators(result)), result["main"].script()

    modules = TwoMatmuls, AlsoElsewhere, AlsoReturned, Overwritten, OutOfSight, Rewritten
    return [lambda mod=mod: told(mod) for mod in modules]


# --- 3.6 break the careless check -------------------------------------------------------------------


NOWHERE = "main has no dataflow block, and the pass looks for pairs only inside one"


def _deceived(impl) -> tuple[str, str]:
    """What the careless pass makes of the answer's module: (one word, details)."""
    mod, arrays = impl.deceives_careless()
    expect.well_formed(mod, "deceives_careless")
    expect.has_function(mod, "main", "deceives_careless")
    right = expect.run(mod, "main", arrays)
    wrong = reference.fuse(mod, reference.careless)
    if "NT_matmul" not in [gv.name_hint for gv in wrong.get_global_vars()]:
        blocks = mod["main"].body.blocks
        inside = any(isinstance(block, relax.DataflowBlock) for block in blocks)
        return "left alone", "careless refuses it" if inside else NOWHERE
    try:
        relax.analysis.well_formed(wrong)
        yours = expect.run(wrong, "main", arrays)
    except Exception as error:
        return "loud", last_line(error)
    if yours.shape != right.shape:
        return "loud", f"its result has shape {yours.shape} instead of {right.shape}"
    if np.allclose(yours, right, rtol=1e-3, atol=1e-3):
        return "right", "its numbers are those of the module"
    return "wrong numbers", ""


def test_3_6_deceives(impl) -> None:
    """the careless pass raises nothing and gives other numbers"""
    outcome, details = _deceived(impl)
    expect.that(
        outcome == "wrong numbers",
        {
            "left alone": "The careless pass leaves your module alone.",
            "loud": "The careless pass fails on your module in a way that a user notices.",
            "right": "The careless pass is right on your module.",
        }.get(outcome, ""),
        expected="no error, the same shapes, other numbers",
        yours=details,
        why="careless looks only at which dimension comes last. Move the other dimensions too. Choose equal sizes for "
        "those that change places, and random numbers for w.",
        read=f"{LESSON}, “Break it”",
    )


def observe_3_6(impl):
    return [lambda: _deceived(impl)[0], lambda: len(_deceived(impl)[1]) > 0, lambda: _kind(impl)]


def _kind(impl) -> str:
    _, arrays = impl.deceives_careless()
    constant = any(np.all(a == a.flat[0]) for a in arrays)
    return f"{max(a.ndim for a in arrays)} dimensions, {'constant' if constant else 'varied'}"


# --- 3.7 bytes saved --------------------------------------------------------------------------------


def _counted(config: str, dtype: str) -> tuple[int, list[tuple[int, int]]]:
    """(bytes that fusing saves per decode step, counted by chapter 1; shapes of the transposed weights)."""
    sizes = {"tiny": 500, "llama3-8b": 128256}
    bound = {"context_window": 64, "vocab_size": sizes[config]}
    mod, weights = decoder(config, dtype, functions=["decode"])
    before, after = (
        walk_the_ir.scoreboard(m, bound).row("decode")
        for m in (mod, reference.FuseTransposeMatmul()(mod))
    )
    moved = before.read + before.written - after.read - after.written
    linear = [shape for name, shape, _ in weights if len(shape) == 2 and "embed" not in name]
    return moved, linear


def test_3_7_prediction_is_what_is_counted(impl) -> None:
    """the predicted saving is what chapter 1's scoreboard counts"""
    for config, dtype, itemsize in (("tiny", "float32", 4), ("llama3-8b", "float16", 2)):
        counted, shapes = _counted(config, dtype)
        MEASURE.predicted(
            impl.bytes_saved(shapes, itemsize),
            counted,
            f"Your bytes_saved is not what the scoreboard counts for a decode step of {config} in {dtype}.",
            why="Compare kernel by kernel. What does the transpose read, and what does it write? What does the "
            "matmul read before the pass, and after it?",
        )


def observe_3_7(impl):
    cases = ([(3, 5)], 4), ([(3, 5), (7, 2)], 2), ([], 4)
    return [lambda case=case: impl.bytes_saved(*case) for case in cases]
