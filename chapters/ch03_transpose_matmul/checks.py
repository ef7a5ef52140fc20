"""The checks of chapter 3: FuseTransposeMatmul, step by step and as a whole."""

from __future__ import annotations

import functools
import re
from functools import partial

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.relax.dpl import DFPattern
from tvm.relax.global_info import VDevice
from tvm.s_tir import SBlock

from chapters.checking import expect
from chapters.checking.attributes import keeps_module_facts
from chapters.checking.expect import Section
from chapters.checking.judge import count_operators, judge_pass, observe_pass
from chapters.checking.programs import kernels_called, run_kernel
from chapters.kit.cases.relax_text import kernel, read_modules, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.ir.ir_diff import diff
from chapters.kit.ir.relax_effects import calls_in, relax_functions
from chapters.kit.ir.tensor_ir import nodes
from chapters.runner.explain import explain
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line, locate_error
from solutions.ch01_walk_the_ir import walk_the_ir
from solutions.ch03_transpose_matmul import fuse_transpose_matmul as reference

LESSON = "chapters/ch03_transpose_matmul/lesson.md"
PATTERN = Section(LESSON, "Step 1: find the pair")
KERNEL = Section(LESSON, "Step 2: make the kernel")
OWN = Section(LESSON, "Give every matmul its own transpose")
GOES_WRONG = Section(LESSON, "Two programs in which it goes wrong")
NOT_FIRE = Section(LESSON, "When it must not fire")
MEASURE = Section(LESSON, "Measure it")

SUMS = "float32 keeps 24 bits; a sum of a few dozen products in another order agrees to about 1e-5."


# --- modules ----------------------------------------------------------------------------------------


def _make_pair(x, w, axes=None, dtype: str = "float32", out_dtype=None) -> IRModule:
    """main(x, w) = matmul(x, permute_dims(w, axes)), with an attribute of its own.

    x, w: shapes of `dtype`, or types as text.
    """
    x, w = (ty if isinstance(ty, str) else (*ty, dtype) for ty in (x, w))
    return relax_module(f"""
def main(x: {x}, w: {w}):
    R.func_attr({{"num_input": 1}})
    wt = R.permute_dims(w, {axes})
    out = R.matmul(x, wt, {out_dtype!r})
""")


def _draw(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _swap_last_two(w: np.ndarray) -> np.ndarray:
    return np.swapaxes(w.astype("float64"), -1, -2)


def count_calls(mod: IRModule) -> dict[str, int]:
    """Calls of matmul, of permute_dims, and of kernels that hold a block called NT_matmul."""
    found = count_operators(mod)
    called = [mod[name] for func in relax_functions(mod) for name in kernels_called(mod, func)]
    fused = sum("NT_matmul" in _name_blocks(func) for func in called)
    return {**{name: found[name] for name in ("matmul", "permute_dims")}, "NT_matmul": fused}


def _name_blocks(func: tirx.PrimFunc) -> list[str]:
    return [block.name_hint for block in nodes(func.body, SBlock)]


# --- 3.1 the pattern --------------------------------------------------------------------------------

NAMES = ("product", "transpose", "w", "x")
PAIRS = {
    "matmul(x, permute_dims(w))": _make_pair([4, 6], [5, 6]),
    "matmul(x, permute_dims(w)) of float16 tensors": _make_pair([4, 6], [5, 6], None, "float16"),
    'matmul(x, permute_dims(w, axes=[1, 0]), out_dtype="float16")': _make_pair(
        [4, 6], [5, 6], [1, 0], out_dtype="float16"
    ),
    "matmul(x, permute_dims(w)) where w and x are constants": relax.transform.BindParams(
        "main", {name: tvm.runtime.tensor(np.ones((5, 6), "float32")) for name in "xw"}
    )(_make_pair([5, 6], [5, 6])),
    "matmul(permute_dims(x), permute_dims(w))": relax_module(
        "def main(x: (6, 4), w: (5, 6)):\n    out = R.matmul(R.permute_dims(x), R.permute_dims(w))"
    ),
}


@functools.cache
def make_other_graphs() -> dict[str, IRModule]:
    """What is not matmul(x, permute_dims(w)), by titles."""
    return {
        title: relax_module(f"def main(x: (5, 6), w: (5, 7)):\n    out = {text}")
        for title, text in (
            ("matmul(permute_dims(x), w)", "R.matmul(R.permute_dims(x), w)"),
            ("permute_dims(w) alone", "R.permute_dims(w)"),
            (
                "permute_dims(matmul(…))",
                "R.permute_dims(R.matmul(R.negative(R.reshape(x, (6, 5))), w))",
            ),
        )
    }


def _find_matches(impl, mod: IRModule) -> list[dict[str, str]]:
    """What the pattern finds in `mod`: for each match, each name with a text for what it stands for."""
    matches = []

    def check(context) -> bool:
        matches.append({name: _describe(e) for name, e in sorted(context.annotated_expr.items())})
        return False

    result = impl.transpose_matmul_pattern()
    right = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    pattern, names = result if right else (None, {})
    right = all(isinstance(one, DFPattern) for one in (pattern, *names.values()))
    what = "Your transpose_matmul_pattern does not return a pattern and a dict of its parts."
    wanted = "(pattern, names), where each name stands for a part of the pattern"
    kinds = [type(one).__name__ for one in (result if isinstance(result, tuple) else (result,))]
    keys = (name if isinstance(name, str) else type(name).__name__ for name in names)
    kinds += [f"{key}: {type(one).__name__}" for key, one in zip(keys, names.values(), strict=True)]
    PATTERN.that(right, what, expected=wanted, yours=", ".join(kinds))
    fusion = ("probe", pattern, {name: names[name] for name in NAMES if name in names}, check)
    relax.transform.FuseOpsByPattern([fusion], bind_constants=False)(mod)
    return matches


def _describe(expr) -> str:
    if isinstance(expr, relax.Call):
        return "call of " + expr.op.name.removeprefix("relax.")
    return getattr(expr, "name", type(expr).__name__)


def test_3_1_matches_the_pair(impl) -> None:
    """the pattern matches matmul(x, permute_dims(w)) and names its parts"""
    calls = {"product": "call of matmul", "transpose": "call of permute_dims"}
    wanted = "a matmul of any x, whose second argument is a permute_dims of any w"
    why = "The pass leaves a pair that its pattern does not match as it is, and says nothing."
    matches = {title: _find_matches(impl, mod) for title, mod in PAIRS.items()}
    for title, found in matches.items():
        what = f"Your pattern matches {len(found)} times in {title}. It must match once."
        PATTERN.that(len(found) == 1, what, expected=wanted, why=why)
    why = (
        "`group` asks for the matched calls by these names. A name that is missing here stands for a part that is not "
        "in the pattern you return: each wildcard() and each is_op(…)(…) makes a new part."
    )
    titles = list(matches)
    for title, x in ((titles[0], "x"), (titles[-1], "call of permute_dims")):
        what = f"Your names do not stand for the right parts of {title}."
        PATTERN.equal(matches[title][0], {**calls, "w": "w", "x": x}, what, why=why)


def test_3_1_matches_nothing_else(impl) -> None:
    """the pattern does not match any other graph"""
    for name, mod in make_other_graphs().items():
        found = _find_matches(impl, mod)
        what = f"Your pattern also matches {name}."
        why = "The pass would replace that by x times w transposed, which is another computation."
        PATTERN.that(not found, what, expected="no match", yours=str(found), why=why)


def observe_3_1(impl):
    graphs = [*PAIRS.values(), *make_other_graphs().values(), Gram]
    return [lambda mod=mod: _find_matches(impl, mod) for mod in graphs]


# --- 3.2 the check ----------------------------------------------------------------------------------


def _make_permuted(shape: list[int], axes) -> IRModule:
    """A pair with this shape and these axes of w, and an x of two dimensions that fits."""
    rank = len(shape)
    order = list(range(rank))[::-1] if axes is None else [axis % rank for axis in axes]
    return _make_pair([7, shape[order[-2]]], shape, axes)


@functools.cache
def make_swaps() -> dict[str, IRModule]:
    """Pairs that the kernel can replace, by how they are written."""
    return {
        f"axes={axes} on a w of {len(shape)} dimensions, with an x of two": _make_permuted(
            shape, axes
        )
        for shape, axes in (
            *(([5, 6], axes) for axes in (None, [1, 0], [-1, -2], [1, -2])),
            *(([3, 5, 6], axes) for axes in ([0, 2, 1], [0, -1, 1], [-3, -1, -2])),
            ([2, 3, 5, 6], [0, 1, -1, -2]),
        )
    }


MORE_PAIRS = {  # which the kernel can replace too
    "an x of one dimension with a w of three": _make_pair([6], [3, 5, 6], [0, 2, 1]),
    "an x of more dimensions than w": _make_pair([2, 7, 6], [5, 6]),
    "an x of 3 batches with a w of 1": _make_pair([3, 7, 6], [1, 5, 6], [0, 2, 1]),
    "an x and a w of n rows and m columns, symbolic sizes": _make_pair(["n", "m"], ["n", "m"]),
    "int32 tensors": _make_pair([7, 6], [5, 6], [1, 0], "int32"),
    "x @ x.T of an x that has no columns": relax_module(
        "def main(x: (4, 0)):\n    out = R.matmul(x, R.permute_dims(x))"
    ),
    **PAIRS,
}


@functools.cache
def make_no_swaps() -> dict[str, IRModule]:
    """Pairs that it cannot, by what their axes do."""
    return {
        f"{what}: axes={axes} on a w of {len(shape)} dimensions": _make_permuted(shape, axes)
        for shape, axes, what in (
            ([5, 6], [0, 1], "the identity"),
            ([5, 6], [-2, -1], "the identity, counted from the end"),
            ([4, 4, 4], None, "a full reversal of three dimensions"),
            ([4, 4, 4], [2, 1, 0], "a full reversal of three dimensions"),
            ([4, 4, 4], [1, 0, 2], "a permuted batch"),
            ([4, 4, 4], [2, 0, 1], "a rotation of three dimensions"),
            ([3, 3, 5, 6], [1, 0, 3, 2], "a swap of the last two together with a permuted batch"),
        )
    }


UNTYPED = {  # which it cannot, nor VECTORS
    "w of unknown rank": _make_pair([7, 6], "R.Tensor(dtype='float32')"),
    "w of rank 2 and unknown shape": _make_pair(
        [7, 6], "R.Tensor(dtype='float32', ndim=2)", [1, 0]
    ),
    "w of unknown dtype": _make_pair("R.Tensor((7, 6))", "R.Tensor((5, 6))"),
    "x of rank 2 and unknown shape": _make_pair("R.Tensor(dtype='float32', ndim=2)", [5, 6]),
    "x of unknown rank": _make_pair("R.Tensor(dtype='float32')", [5, 6], [1, 0]),
    "w of unknown dtype, where out_dtype types the product": _make_pair(
        [7, 6], "R.Tensor((5, 6))", [1, 0], out_dtype="float32"
    ),
    "x of unknown dtype, where out_dtype types the product": _make_pair(
        "R.Tensor((7, 6))", [5, 6], [1, 0], out_dtype="float32"
    ),
    "a product of unknown shape, since the batches n and m may differ": _make_pair(
        ["n", 7, 6], ["m", 5, 6], [0, 2, 1]
    ),
}
VECTORS = {
    f"axes={axes} on a w of one dimension": _make_pair([7, 6], [6], axes) for axes in (None, [0])
}


def _ask(impl, mod: IRModule) -> bool:
    """What may_fuse answers for the pair in `mod`."""
    transpose, product = (b.value for b in mod["main"].body.blocks[0].bindings[-2:])
    return bool(impl.may_fuse(transpose, product))


def _check_answers(impl, pairs: dict[str, IRModule], fires: bool, expected: str, why: str) -> None:
    """may_fuse says of each of `pairs` whether it `fires`."""
    section, wrongly = (PATTERN, "refuses") if fires else (NOT_FIRE, "accepts")
    for title, mod in pairs.items():
        what = f"Your may_fuse {wrongly} {title}."
        section.that(_ask(impl, mod) == fires, what, expected=expected, why=why)


def test_3_2_fires_on_every_spelling(impl) -> None:
    """accepts every way to write an exchange of the last two dimensions"""
    wanted = (
        "True: these axes exchange the last two dimensions (-1 is the last one) and keep the others"
    )
    why = "Models write the same transpose in all these ways. One that you miss is computed at every step."
    _check_answers(impl, make_swaps(), True, wanted, why)


def test_3_2_fires_on_other_operands(impl) -> None:
    """accepts every x, dtype and size that the kernel can serve"""
    wanted = "True: the types are known, and the axes exchange the last two dimensions of w"
    why = "The pass leaves a pair that may_fuse refuses as it is. Its transpose is then computed at every step."
    _check_answers(impl, MORE_PAIRS, True, wanted, why)


def test_3_2_refuses_other_permutations(impl) -> None:
    """refuses every permutation that does more than exchange the last two dimensions"""
    why = "The kernel reads w[…, j, k], with the batch indices unchanged. For any other permutation this is the wrong "
    why += "element. If the sizes agree, no error says so."
    _check_answers(impl, make_no_swaps(), False, "False", why)


def test_3_2_refuses_what_has_no_type(impl) -> None:
    """refuses operands whose shape or dtype is not known"""
    why = "A PrimFunc needs buffers of a known shape and dtype. Without them step 2 raises an error and stops the "
    why += "compilation of a module that was right as it was."
    _check_answers(impl, UNTYPED, False, "False: `is_typed` says whether a type is known", why)


def test_3_2_refuses_vectors(impl) -> None:
    """refuses a w of one dimension, which has no last two"""
    why = "permute_dims of a vector is legal and does nothing. The kernel would read w[j, k], and w has one index."
    _check_answers(impl, VECTORS, False, "False: there are no two dimensions to exchange", why)


def observe_3_2(impl):
    asked = [
        partial(_ask, impl, mod) for mod in (*make_swaps().values(), *make_no_swaps().values())
    ]
    modules = *UNTYPED.values(), *MORE_PAIRS.values()
    return [*asked, lambda: [_ask(impl, mod) for mod in modules]]


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


def _make_kernel(impl, w_shape, x_shape, dtype="float32", out_dtype="float32") -> tirx.PrimFunc:
    w = te.placeholder(w_shape, dtype, name="w")
    x = te.placeholder(x_shape, dtype, name="x")
    return te.create_prim_func([w, x, impl.nt_matmul(w, x, out_dtype)], "int64")


def _run_kernel(func, w, x, shape, out_dtype="float32") -> np.ndarray:
    """The result of a PrimFunc (w, x, out), out poisoned before."""
    try:
        return run_kernel(func, w, x, np.full(shape, np.nan, out_dtype))
    except tvm.error.InternalError as error:
        unbound = re.search(r"variables (\(.*?\)) are used", last_line(error))
        if not unbound:
            raise
        raise KERNEL.failed(
            f"TVM cannot compile your kernel: it uses the variables {unbound[1]}, and no loop defines them.",
            expected="te.sum(…, axis=k) around everything that uses the reduce axis k",
            yours=func.script(),
            why="te.compute makes a loop for each index of the result. For a reduce axis, only te.sum makes one.",
        ) from None


def test_3_3_multiplies_two_matrices(impl) -> None:
    """for two matrices, shape and numbers are those of matmul"""
    _check_shape(impl, *COMPUTES[0])
    _check_numbers(impl, *COMPUTES[0])


def test_3_3_has_the_shape_of_the_product(impl) -> None:
    """the result has the shape that matmul gives, for one row and for batches"""
    for w_shape, x_shape in COMPUTES[1:]:
        _check_shape(impl, w_shape, x_shape)


def _check_shape(impl, w_shape, x_shape) -> None:
    expected = np.matmul(np.zeros(x_shape), np.swapaxes(np.zeros(w_shape), -1, -2)).shape
    w, x = te.placeholder(w_shape, name="w"), te.placeholder(x_shape, name="x")
    try:
        result = impl.nt_matmul(w, x, "float32")
        KERNEL.returns(result, te.Tensor, "Your nt_matmul", "a te.Tensor")
        shape = tuple(int(d) for d in result.shape)
    except (NotImplementedError, CheckFailed):
        raise
    except Exception as error:
        why, read = explain(error)
        so_far = "" if (w_shape, x_shape) == COMPUTES[0] else "is right for two matrices, and "
        raise CheckFailed(
            f"Your nt_matmul {so_far}raises {last_line(error)} for w {tuple(w_shape)} and x {tuple(x_shape)}.",
            expected=f"a result of shape {expected}",
            yours=locate_error(error, impl._path),
            why=why
            or "x may be a vector, which has no index for rows. Each operand may lack batch dimensions that the other "
            "has: `batch_index` says where to read in each.",
            read=read or KERNEL,
        ) from None
    what = f"Your nt_matmul gives the wrong shape for w {tuple(w_shape)} and x {tuple(x_shape)}."
    why = "call_te takes the type of the new call from this shape, and all later bindings rely on that type."
    KERNEL.equal(shape, expected, what, why=why)


def test_3_3_computes_the_product(impl) -> None:
    """the numbers are those of matmul, for one row, for batches and for a repeated batch"""
    for w_shape, x_shape in COMPUTES[1:]:
        _check_numbers(impl, w_shape, x_shape)


def _check_numbers(impl, w_shape, x_shape) -> None:
    w, x = _draw(1, *w_shape), _draw(2, *x_shape)
    expected = np.matmul(x.astype("float64"), _swap_last_two(w))
    KERNEL.close(
        _run_kernel(_make_kernel(impl, w_shape, x_shape), w, x, expected.shape),
        expected,
        f"Your nt_matmul gives other numbers than matmul for w {tuple(w_shape)} and x {tuple(x_shape)}.",
        why="The sum runs along the last index of w and of x, and `batch_index` says which batch of each to read. "
        + SUMS,
    )


def test_3_3_takes_symbolic_sizes(impl) -> None:
    """one kernel serves any number of rows and any batch"""
    found, expected = _run_symbolic(impl)
    what = "Your nt_matmul gives wrong numbers for w (n, k) and x (b, m, k), called with n = 7, k = 5, b = 2 and m = 3."
    KERNEL.close(found, expected, what)


def _run_symbolic(impl) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel all of whose sizes are symbolic gives, and the product."""
    n, k, b, m = (tirx.Var(name, "int64") for name in "nkbm")
    try:
        func = _make_kernel(impl, [n, k], [b, m, k])
    except TypeError as error:
        raise KERNEL.failed(
            f"Your nt_matmul raises {last_line(error)} for w (n, k) and x (b, m, k), whose sizes are symbolic.",
            expected="a kernel for any size",
            yours=locate_error(error, impl._path),
            why="A dimension may be a variable, such as n. A shape and a reduce axis take it as it is.",
        ) from None
    w, x = _draw(3, 7, 5), _draw(4, 2, 3, 5)
    return _run_kernel(func, w, x, (2, 3, 7)), np.matmul(x.astype("float64"), _swap_last_two(w))


def test_3_3_is_called_by_its_name(impl) -> None:
    """the kernel is one block, which is called NT_matmul"""
    names = [name for name in _name_blocks(_make_kernel(impl, [7, 5], [4, 5])) if name != "root"]
    what = "No block of your kernel is called NT_matmul."
    wanted = 'te.compute(…, name="NT_matmul")'
    why = "A schedule finds its block by name. Those of chapter 5 ask for NT_matmul."
    KERNEL.that("NT_matmul" in names, what, expected=wanted, yours=", ".join(names), why=why)
    what = f"Your kernel consists of {len(names)} blocks."
    wanted = "one te.compute, which reads w and x themselves"
    why = "Every other te.compute writes a tensor in memory, each time the kernel runs. So does the transpose that the "
    why += "pass removes."
    KERNEL.that(len(names) == 1, what, expected=wanted, yours=", ".join(names), why=why)


def test_3_3_casts_before_it_multiplies(impl) -> None:
    """operands are cast to out_dtype before the product, and the sum is kept in it"""
    for dtype, out_dtype in (("float16", "float32"), ("float32", "float16")):
        KERNEL.equal(
            _compute_dtype(impl, dtype, out_dtype),
            out_dtype,
            f"Your nt_matmul gives the wrong dtype for {dtype} operands with out_dtype {out_dtype}.",
            why="The result has the dtype that product and sum have. Cast both operands, and both to out_dtype.",
        )
    for dtype, out_dtype, value, right, why in (
        ("float16", "float32", 300, 90000, "300 * 300 is 90000, and the largest float16 is 65504."),
        ("float32", "int32", 1.5, 1, "As an int32, 1.5 is 1. 1.5 * 1.5 is 2.25, which becomes 2."),
    ):
        what = (
            f"Your nt_matmul gives a wrong product of {dtype} operands with out_dtype {out_dtype}."
        )
        found = _multiply_constants(impl, dtype, out_dtype, value)
        why += " So cast before you multiply."
        KERNEL.close(found, np.full((4, 7), 5.0 * right), what, why=why)


def _compute_dtype(impl, dtype: str, out_dtype: str) -> str:
    """The dtype of the result that nt_matmul gives."""
    w, x = te.placeholder([7, 5], dtype, name="w"), te.placeholder([4, 5], dtype, name="x")
    return str(impl.nt_matmul(w, x, out_dtype).dtype)


def observe_3_3(impl):
    def numbers(w_shape, x_shape, dtype="float32", out="float32"):
        func = _make_kernel(impl, w_shape, x_shape, dtype, out)
        shape = [int(d) for d in func.params[-1].shape]
        w, x = _draw(1, *w_shape, dtype=dtype), _draw(2, *x_shape, dtype=dtype)
        return np.round(_run_kernel(func, 100 * w, 100 * x, shape, out) / 1e4, 2).tolist()

    return [
        lambda: numbers([7, 5], [4, 5]),
        lambda: numbers([7, 5], [5]),
        lambda: numbers([3, 7, 5], [1, 4, 5]),
        lambda: numbers([1, 7, 5], [3, 4, 5]),
        lambda: numbers([7, 5], [4, 5], "float16", "float32"),
        lambda: _multiply_constants(impl, "float16", "float32", 300).tolist(),
        lambda: _multiply_constants(impl, "float32", "int32", 1.5).tolist(),
        lambda: _compute_dtype(impl, "float64", "float16"),
        lambda: _run_symbolic(impl)[0].shape,
        lambda: _name_blocks(_make_kernel(impl, [7, 5], [4, 5])),
    ]


def _multiply_constants(impl, dtype: str, out_dtype: str, value: float) -> np.ndarray:
    """What the kernel gives for operands all of whose elements are `value`."""
    w, x = np.full((7, 5), value, dtype), np.full((4, 5), value, dtype)
    func = _make_kernel(impl, [7, 5], [4, 5], dtype, out_dtype)
    return _run_kernel(func, w, x, (4, 7), out_dtype)


# --- 3.4 the rewrite --------------------------------------------------------------------------------

Gram = relax_module("""
def main(x: (4, 6)):
    wt = R.permute_dims(x)
    out = R.matmul(x, wt)
""")


def _bind_weight(mod: IRModule) -> IRModule:
    """`mod` with a constant for w, (7, 6)."""
    w = tvm.runtime.tensor(_draw(5, 7, 6))
    return relax.transform.BindParams("main", {"w": w})(mod)


# `a` is declared with n * 3 rows, and its value has n * 2 + n. So a mutator that changes the value makes a new variable
_REWRITTEN = """
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
"""
Rewritten = relax_module(_REWRITTEN)
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
# two private functions that nothing calls: one is a composite of an earlier pass, one has a name like a composite's
Bystanders = relax_module("""
@private
def norm(x: (4, 6)):
    R.func_attr({"Composite": "transpose_matmul_fuse", "Primitive": 1})
    out = R.negative(x)

@private
def fused_relax_permute_dims_relax_matmul(x: (4, 6)):
    out = R.exp(x)

def main(x: (4, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    out = R.matmul(x, wt)
""").with_attr("library", "mine")
Bystanders.update_global_info("vdevice", [VDevice("llvm")])
# between the transpose of w and the matmul that uses it, a kernel writes into w in place; later a function does
Overwritten = relax_module(
    kernel("double(a)", (7, 6), "a[at] = a[at] + a[at]")
    + """
@private
def double_it(a: (7, 6)):
    out = R.call_tir_inplace(cls.double, (a,), inplace_indices=[0], out_ty=R.Tensor((7, 6), "float32"))

def main(x: (4, 6), start: (7, 6)):
    w = R.negative(start)
    wt = R.permute_dims(w)
    doubled = R.call_tir_inplace(cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((7, 6), "float32"))
    early = R.matmul(x, wt)
    wt_late = R.permute_dims(doubled)
    again = cls.double_it(doubled)
    late = R.matmul(x, wt_late)
    return early, late, again
"""
)


ONE = {"matmul": 0, "permute_dims": 0, "NT_matmul": 1}
WASTE = "A transpose that stays reads and writes the whole weight at every step."


def _judge(impl, mod: IRModule, title: str, **looks) -> IRModule:
    """The module after FuseTransposeMatmul."""

    def check_composites(result: IRModule) -> None:
        """Fail if a function that `group` has made is left."""
        owned = reference.own_transposes(mod, reference.may_fuse)
        grouped = reference.group(owned, reference.may_fuse)
        old, new, kept = (
            {gv.name_hint for gv in one.get_global_vars()} for one in (mod, grouped, result)
        )
        left = sorted(kept & (new - old))
        what = f"Your pass leaves composites that `group` made for {title} in the module."
        why = "Each call of a composite must become a call of its kernel, and then the composite must go: a function "
        why += "that nothing calls is compiled too, and every later pass visits it."
        KERNEL.that(not left, what, expected="none of them", yours=", ".join(left), why=why)

    usual = {"count": count_calls, "read": KERNEL, "fires": check_composites, "settles": False}
    looks = {**usual, **looks}
    return judge_pass(impl.FuseTransposeMatmul(), mod, "FuseTransposeMatmul", title, **looks)


def test_3_4_makes_one_kernel(impl) -> None:
    """the pair becomes one call_tir of an NT_matmul, w first, then x"""
    mod, title = _make_pair([4, 6], [7, 6]), "matmul(x, permute_dims(w))"
    result = _judge(impl, mod, title, calls=ONE, runs=False, why=WASTE)
    call_tir = tvm.ir.Op.get("relax.call_tir")
    (call,) = (call for call in calls_in(result["main"]) if call.op == call_tir)
    what = "Your kernel's PrimFunc is not called NT_matmul."
    why = (
        "call_te names a PrimFunc after the Python function, unless you give `primfunc_name_hint`."
    )
    KERNEL.equal(call.args[0].name_hint, "NT_matmul", what, why=why)
    what = "Your kernel is not called with w first, then x."
    why = "The composite and nt_matmul take w first, and chapter 5's schedules expect it of the kernel."
    KERNEL.equal([arg.name for arg in call.args[1]], ["w", "x"], what, why=why)


def test_3_4_takes_operands_from_their_parameters(impl) -> None:
    """it fuses a product of one tensor with itself, and one whose weight is a constant"""
    constant = _bind_weight(_make_pair([4, 6], [7, 6]))
    for title, mod in {"x @ x.T": Gram, "a constant w": constant}.items():
        try:
            _judge(impl, mod, title, calls=ONE, settles=True, why=WASTE)
        except (IndexError, ValueError) as error:
            raise KERNEL.failed(
                f"Your pass raises {last_line(error)} on {title}.",
                expected="w and x from `operands(composite, call)`, which looks them up",
                why="FuseOpsByPattern gives a composite one parameter per distinct tensor, in order of first use. "
                "For x @ x.T that is one parameter.",
            ) from None


def test_3_4_keeps_the_numbers(impl) -> None:
    """same numbers as unfused, for batches, one row, a symbolic size and another out_dtype"""
    for x, w, *kinds in (
        ([6], [7, 6], None, "float32", None),
        (["n", 6], [7, 6], [-1, 0], "float32", None),
        ([2, 4, 6], [2, 7, 6], [0, 2, 1], "float32", None),
        ([4, 6], [7, 6], [1, 0], "float16", "float32"),
        ([4, 6], [7, 6], None, "float16", None),
    ):
        axes, dtype, out_dtype = kinds
        shape = ", ".join(map(str, x))
        title = f"x [{shape}], w {w}, axes {axes}, {dtype} to {out_dtype or dtype}"
        _judge(impl, _make_pair(x, w, *kinds), title, calls=ONE, settles=True, why=WASTE)


def test_3_4_uses_the_variables_of_the_new_function(impl) -> None:
    """an operand that the mutator has replaced by a new variable is used under its new name"""
    name = "FuseTransposeMatmul"
    transform = partial(expect.apply, impl.FuseTransposeMatmul(), whose=name, why=NEW)
    judge_pass(transform, Rewritten, name, "two products in a row", settles=False, read=KERNEL)


NEW = (
    "The mutator may have replaced a variable of the old function by a new one. `self.visit_expr` gives the one to use "
    "now, for each operand."
)


def test_3_4_touches_nothing_else(impl) -> None:
    """private functions are fused too; functions claimed by a library, attributes and all others stay"""
    why = "The pair in the private function becomes a kernel. A function with the attribute Codegen stays: the code "
    why += "generator of a library will look for the two operators."
    title = "a module with a private function and one that a library has claimed"
    calls = {"matmul": 1, "permute_dims": 1, "NT_matmul": 1}
    result = _judge(impl, Several, title, calls=calls, runs=False, why=why, read=NOT_FIRE)
    what = "Your pass changed the attributes of a function."
    yours = str(diff(Several["forward"], result["forward"]))
    expect.that(dict(result["forward"].attrs) == dict(Several["forward"].attrs), what, yours=yours)
    result = _judge(impl, Bystanders, "a module with functions that main does not call")
    kept = {gv.name_hint for gv in result.get_global_vars()}
    lost = sorted({gv.name_hint for gv in Bystanders.get_global_vars()} - kept)
    what = "Your pass deletes functions that are not its composites."
    why = "Only the functions in `composites` may go. A name or an attribute may be another pass's too."
    wanted = "every function of the given module"
    NOT_FIRE.that(not lost, what, expected=wanted, yours=f"without {lost}", why=why)
    why = (
        "An IRModule also has `attrs` and `global_infos`. `del mod[name]` leaves both as they are."
    )
    keeps_module_facts(result, Bystanders, "Your pass", why)


def test_3_4_minds_what_is_overwritten(impl) -> None:
    """w is not read after a kernel may have written into it"""
    why = "The transpose reads w before it is doubled. A kernel in the place of the matmul reads it afterwards."
    _judge(impl, Overwritten, WRITTEN_INTO, why_numbers=why, read=NOT_FIRE)


WRITTEN_INTO = (
    "a program in which a kernel writes into w between its transpose and the matmul that uses it"
)


def test_3_4_leaves_all_else(impl) -> None:
    """a module without a pair stays as it is"""
    why = "permute_dims with axes [0, 1] leaves w as it is, so it is not a transpose."
    mod = _make_pair([4, 4], [4, 4], [0, 1])
    _judge(impl, mod, "a module that has no pair", stays=True, why=why, read=NOT_FIRE)


def test_3_4_fuses_the_decoder(impl) -> None:
    """no transpose is left in the decoder, and each linear layer has one launch fewer"""
    mod, _ = decoder("tiny", functions=["decode"])
    launches, transposes = lambda m: walk_the_ir.launches(m)["decode"], count_calls(mod)
    fewer = "launches", launches, transposes["permute_dims"]
    calls = {"permute_dims": 0}
    _judge(impl, mod, "the decoder", calls=calls, runs=False, fewer=fewer, why=WASTE, read=MEASURE)


def observe_3_4(impl):
    shapes = [4, 6], [7, 6]
    half = (_make_pair(*shapes, None, "float16", out_dtype) for out_dtype in (None, "float32"))
    modules = _make_pair(*shapes), Gram, *half, Overwritten, Rewritten, Bystanders
    return observe_pass(impl.FuseTransposeMatmul, *modules)


# --- 3.5 the shared transpose -----------------------------------------------------------------------

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
SHARED = read_modules(f"""
## one transpose for two matmuls
def main(x: (4, 6), y: (3, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    a = R.matmul(x, wt)
    b = R.matmul(y, wt)
    return a, b

## a transpose with an elementwise user
def main(x: (2, 4, 6, "float16"), w: (2, 7, 6, "float16")):
    wt = R.permute_dims(w, axes=[0, 2, 1])
    a = R.matmul(x, wt, out_dtype="float32")
    b = R.negative(wt)
    return a, b

## a transpose that is also returned
def main(x: (4, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    alias = wt
    a = R.matmul(x, alias)
    return a, wt

## a transpose in an earlier dataflow block
@impure
def main(x: (4, 6), w: (7, 6)):{LATER_BLOCK.format(w="")}

## a transpose that is both operands
def main(w: (6, 6)):
    wt = R.permute_dims(w)
    a = R.matmul(wt, wt)

## one transpose for two matmuls, of a w that was written before
{kernel("double(a)", (7, 6), "a[at] = a[at] + a[at]")}
def main(x: (4, 6), start: (7, 6)):
    w = R.negative(start)
    doubled = R.call_tir_inplace(cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((7, 6), "float32"))
    wt = R.permute_dims(doubled)
    a = R.matmul(x, wt)
    b = R.matmul(R.exp(x), wt)
    return a, b
""")
# a constant is no variable of the function
constant = _bind_weight(SHARED["one transpose for two matmuls"])
SHARED["one transpose of a constant for two matmuls"] = constant
TRANSPOSE_STAYS = {
    "a transpose with an elementwise user",
    "a transpose that is also returned",
    "a transpose that is both operands",
}
# w is computed in the earlier block and is not an output of it
OutOfSight = relax_module(
    "@impure\ndef main(x: (4, 6), start: (7, 6)):" + LATER_BLOCK.format(w="w = R.negative(start)")
)
# as Rewritten; the transpose of `a`, which becomes a new variable, has two users
SharedRewritten = relax_module(
    _REWRITTEN.replace(
        "R.output(out)", "more = R.matmul(w, at)\n        R.output(out, more)"
    ).replace("return out", "return out, more")
)
# two products with one rotated weight, for a check that accepts every pair
Rotated = relax_module("""
def main(x: (3, 4, 3), y: (2, 3), w: (3, 3, 3)):
    wt = R.permute_dims(w, axes=[2, 0, 1])
    a = R.matmul(x, wt)
    b = R.matmul(y, wt)
    return a, b
""")


def _judge_own(impl, mod: IRModule, title: str, *, if_ill_formed: str = "", **looks) -> None:
    """Judge the pass of the answer's own_transposes and of the reference's two steps: needs no other exercise."""

    def transform(given: IRModule) -> IRModule:
        own = partial(impl.own_transposes, fires=reference.may_fuse)
        owned = expect.apply(own, given, "Your own_transposes", if_ill_formed)
        try:
            grouped = reference.group(owned, reference.may_fuse)
            old = {gv.name_hint for gv in given.get_global_vars()}
            functions = {gv.name_hint: func for gv, func in grouped.functions_items()}
            composites = {name: func for name, func in functions.items() if name not in old}
            return reference.generate(grouped, composites)
        except Exception as error:
            raise OWN.failed(
                f"With your own_transposes, the pass stops on {title}: {last_line(error)}",
                expected="a permute_dims of its own for each matmul, so that no transpose of a pair has a second user",
                yours=given["main"].script(),
                why="FuseOpsByPattern moves the transpose into the composite of one matmul, and lets this composite "
                "return it as a second result, for its other user. The next step asks the result for its dtype, and "
                "a tuple has none.",
            ) from None

    looks = {"count": count_calls, "read": OWN, "settles": False, **looks}
    judge_pass(transform, mod, "The pass with your own_transposes", title, **looks)


def test_3_5_fuses_every_matmul(impl) -> None:
    """each matmul is fused, the results stay the same, and a transpose stays only where something still uses it"""
    why = "Every matmul can read w as it is stored, also where the old transpose stays for another user. A transpose "
    why += "that nothing uses must go: it would still read w and write a copy."
    for title, mod in SHARED.items():
        products = count_calls(mod)["matmul"]
        calls = {"matmul": 0, "permute_dims": int(title in TRANSPOSE_STAYS), "NT_matmul": products}
        _judge_own(impl, mod, title, calls=calls, why=why)


def test_3_5_uses_the_variables_of_the_new_function(impl) -> None:
    """an operand that the mutator has replaced by a new variable is used under its new name"""
    _judge_own(impl, Rewritten, "two products in a row", if_ill_formed=NEW)
    title = "two products in a row, and a third with the transpose of the second"
    _judge_own(impl, SharedRewritten, title, if_ill_formed=NEW)


def test_3_5_copies_every_attribute(impl) -> None:
    """the copy permutes as the transpose does, whatever pairs are accepted"""
    own = partial(impl.own_transposes, fires=lambda transpose, product: True)
    why = "own_transposes copies each permute_dims that `fires` accepts, and the copy must permute the same dimensions."
    title = "two products with one w that is permuted with axes=[2, 0, 1]"
    judge_pass(own, Rotated, "Your own_transposes", title, settles=False, why_numbers=why, read=OWN)


def test_3_5_minds_what_is_overwritten(impl) -> None:
    """no transpose is copied to a place after a kernel may have written into w"""
    why = "The transpose reads w before it is doubled. A copy of it, right before the matmul, reads w afterwards."
    _judge_own(impl, Overwritten, WRITTEN_INTO, why_numbers=why, read=GOES_WRONG)


def test_3_5_leaves_other_modules_alone(impl) -> None:
    """a transpose is copied only for a matmul that may be fused, and to a place where its w is in scope"""
    own, name = partial(impl.own_transposes, fires=reference.may_fuse), "Your own_transposes"
    why = (
        "A variable that a dataflow block binds and does not output can be used in that block only."
    )
    title = "a transpose whose w is out of scope at the matmul"
    judge_pass(own, OutOfSight, name, title, stays=True, why=why, read=GOES_WRONG)
    mod, title = _make_pair([4, 4], [4, 4], [0, 1]), "a module in which no matmul may be fused"
    why = "A copy that is not fused is a kernel more, not a kernel less."
    judge_pass(own, mod, name, title, stays=True, why=why, read=OWN)


def observe_3_5(impl):
    own = partial(impl.own_transposes, fires=reference.may_fuse)
    modules = *SHARED.values(), Overwritten, OutOfSight, Rewritten, SharedRewritten
    return observe_pass(lambda: own, *modules)


# --- 3.6 break the careless check -------------------------------------------------------------------


NOWHERE = "main has no dataflow block, and the pass looks for pairs only inside one"
NO_PAIR = "no matmul in a dataflow block has a permute_dims as its second operand"
NOT_NEEDED = "careless accepts a pair, and no result of main needs its product"
DIFFERENT = 1e-3  # of the largest number


def _try_careless(impl) -> tuple[str, str]:
    """What the careless pass makes of the answer's module: (one word, details)."""
    mod, arrays = _read_example(impl)
    try:
        right = expect.call(expect.machine(mod), "main", arrays)
    except Exception as error:
        why, read = explain(error)
        raise CheckFailed(
            f"Your module does not run with your arguments: {last_line(error)}",
            expected="one array for each parameter of main, of its shape and dtype",
            yours=", ".join(f"{a.dtype} {a.shape}" for a in arrays),
            why=why,
            read=read or f"{LESSON}, “Break it”",
        ) from None
    answers = []

    def careless(transpose, product) -> bool:
        answers.append(reference.careless(transpose, product))
        return answers[-1]

    state, found = expect.outcome(partial(reference.fuse, fires=careless), mod, arrays)
    if state != "numbers":
        return "loud", f"{state}: {found}"
    if not count_calls(reference.fuse(mod, reference.careless))["NT_matmul"]:
        inside = any(isinstance(block, relax.DataflowBlock) for block in mod["main"].body.blocks)
        refused = NOT_NEEDED if any(answers) else "careless refuses it"
        return "left alone", (refused if answers else NO_PAIR) if inside else NOWHERE
    kinds = [[f"{a.dtype} {a.shape}" for a in results] for results in (found, right)]
    if kinds[0] != kinds[1]:
        return "loud", f"main returns {', '.join(kinds[0])} instead of {', '.join(kinds[1])}"
    if not all(np.isfinite(a).all() for a in (*right, *found)):
        return (
            "not finite",
            f"before the pass {right[0].ravel()[:4]}, after it {found[0].ravel()[:4]}",
        )
    off = max(_measure_difference(*both) for both in zip(found, right, strict=True))
    if off <= DIFFERENT:
        return "right", f"its numbers differ from those of the module by {off:.1e} of the largest"
    return "wrong numbers", ""


def _read_example(impl) -> tuple[IRModule, list[np.ndarray]]:
    """The answer's module and arguments."""
    whose, result = "Your deceives_careless", impl.deceives_careless()
    wanted, read = "(module, arrays)", f"{LESSON}, “Break it”"
    expect.returns(result, tuple, whose, "a pair", expected=wanted, read=read)
    arrays = result[1] if len(result) == 2 else None
    right = isinstance(arrays, list | tuple) and all(isinstance(a, np.ndarray) for a in arrays)
    what = f"{whose} does not return a module and a list of NumPy arrays."
    expect.that(right, what, expected=wanted, yours=repr(result)[:200], read=read)
    expect.is_program(result[0], "deceives_careless", "main")
    return result[0], list(arrays)


def _measure_difference(yours: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, as a part of the largest number."""
    yours, right = yours.astype("float64"), right.astype("float64")
    largest = np.abs(right).max(initial=0.0)
    return float(np.abs(yours - right).max(initial=0.0) / (largest or 1.0))


def test_3_6_deceives(impl) -> None:
    """the careless pass raises nothing and gives other numbers"""
    outcome, details = _try_careless(impl)
    expect.that(
        outcome == "wrong numbers",
        {
            "left alone": "The careless pass leaves your module alone.",
            "loud": "The careless pass fails on your module in a way that a user notices.",
            "not finite": "Your module gives results that are not finite, so they cannot be compared.",
            "right": "The careless pass gives nearly the same numbers as your module.",
        }.get(outcome, ""),
        expected=f"no error, the same types, all numbers finite, one off by more than {DIFFERENT} of the largest",
        yours=details,
        why="careless looks only at which dimension comes last. Move the other dimensions too. Choose equal sizes for "
        "those that change places, and random numbers for w.",
        read=f"{LESSON}, “Break it”",
    )


def observe_3_6(impl):
    def outcome() -> str:
        state, details = _try_careless(impl)
        return f"{state} {len(details) > 0}"

    def arguments() -> str:
        largest = max(_read_example(impl)[1], key=lambda a: a.ndim)
        constant = np.all(largest == largest.flat[0])
        return f"{largest.ndim} dimensions, {'constant' if constant else 'varied'}"

    return [outcome, arguments]


# --- 3.7 bytes saved --------------------------------------------------------------------------------


def test_3_7_prediction_is_what_is_counted(impl) -> None:
    """the predicted saving is what chapter 1's scoreboard counts"""
    cases = ("tiny", "float32", 4, 500), ("llama3-8b", "float16", 2, 128256)
    for config, dtype, itemsize, vocab_size in cases:
        sizes = {"context_window": 64, "vocab_size": vocab_size}
        mod, weights = decoder(config, dtype, functions=["decode"])
        before, after = (
            walk_the_ir.scoreboard(one, sizes).row("decode")
            for one in (mod, reference.FuseTransposeMatmul()(mod))
        )
        linear = [shape for name, shape, _ in weights if len(shape) == 2 and "embed" not in name]
        MEASURE.predicted(
            impl.bytes_saved(linear, itemsize),
            before.read + before.written - after.read - after.written,
            f"Your bytes_saved is not what the scoreboard counts for a decode step of {config} in {dtype}.",
            why="Compare kernel by kernel. What does the transpose read, and what does it write? What does the "
            "matmul read before the pass, and after it? Each weight of the list counts, equal ones too.",
        )


def observe_3_7(impl):
    cases = ([(3, 5)], 4), ([(3, 5), (7, 2)], 2), ([], 4)
    return [lambda case=case: impl.bytes_saved(*case) for case in cases]
