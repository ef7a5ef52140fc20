"""The checks of chapter 3: FuseTransposeMatmul, and the schedules of the kernel that it makes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.target import Target

from chapters.toolkit.cpu.vector_registers import vector_registers
from chapters.toolkit.decoder.llama import decoder
from chapters.toolkit.ir.ir_diff import diff
from chapters.toolkit.ir.tensor_ir import count, loads, nodes, substitute
from chapters.toolkit.machine import llvm_host
from solutions.ch01_walk_the_ir import walk_the_ir
from solutions.ch03_transpose_matmul import fuse_transpose_matmul as reference
from tests.harness import expect
from tests.harness.explain import explain
from tests.harness.failure import CheckFailed
from tests.harness.loading import last_line, where

LESSON = "chapters/ch03_transpose_matmul/lesson.md"
PATTERN = f"{LESSON}, “Step 1: find the pair”"
KERNEL = f"{LESSON}, “Step 2: make the kernel”"
OWN = f"{LESSON}, “Before both: a transpose of one's own”"
NOT_FIRE = f"{LESSON}, “When it must not fire”"
FAST = f"{LESSON}, “Now make it fast”"
MEASURE = f"{LESSON}, “Measure it”"
LIMITS = {"test_3_8_is_faster": 60, "test_3_9_is_faster": 60, "test_3_9_any_number_of_rows": 60}

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
            turned = builder.emit(relax.op.permute_dims(w, axes))
            out = builder.emit_output(relax.op.matmul(x, turned, out_dtype))
        builder.emit_func_output(out)
    return builder.get()


def _array(seed: int, *shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _swapped(w: np.ndarray) -> np.ndarray:
    return np.swapaxes(w.astype("float64"), -1, -2)


def _operators(mod: IRModule) -> dict[str, int]:
    """Calls of matmul, of permute_dims, and of kernels that hold a block called NT_matmul."""
    found = {"matmul": 0, "permute_dims": 0, "NT_matmul": 0}

    def visit(expr) -> None:
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            return
        name = expr.op.name.removeprefix("relax.")
        if name in found:
            found[name] += 1
        elif name == "call_tir" and "NT_matmul" in _blocks(mod[expr.args[0]]):
            found["NT_matmul"] += 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _blocks(func: tirx.PrimFunc) -> list[str]:
    names: list[str] = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: names.append(block.name_hint)))
    return names


def _kernel_calls(mod: IRModule, name: str = "main") -> list[relax.Call]:
    found = []

    def visit(expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            found.append(expr)

    relax.analysis.post_order_visit(mod[name], visit)
    return found


# --- 3.1 the pattern --------------------------------------------------------------------------------


def _other_graphs() -> dict[str, IRModule]:
    """Graphs that are not matmul(x, permute_dims(w))."""
    x, w = _tensor("x", [5, 6]), _tensor("w", [5, 7])
    graphs = {}
    for name, build in {
        "matmul(permute_dims(x), w)": lambda b: b.emit_output(
            relax.op.matmul(b.emit(relax.op.permute_dims(x)), w)
        ),
        "permute_dims(w) alone": lambda b: b.emit_output(relax.op.permute_dims(w)),
        "permute_dims(matmul(…))": lambda b: b.emit_output(
            relax.op.permute_dims(
                b.emit(relax.op.matmul(b.emit(relax.op.negative(_turned(b, x))), w))
            )
        ),
    }.items():
        builder = relax.BlockBuilder()
        with builder.function("main", [x, w]):
            with builder.dataflow():
                out = build(builder)
            builder.emit_func_output(out)
        graphs[name] = builder.get()
    return graphs


def _turned(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
    """x transposed by something that is no permute_dims."""
    return builder.emit(relax.op.reshape(x, (6, 5)))


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
    expect.that(
        len(found) == 1,
        f"The pattern matches {len(found)} times in main(x, w) = matmul(x, permute_dims(w)), not once.",
        expected="is_op of the matmul, with any x, and is_op of the permute_dims as its second argument",
        why="A pattern that does not match makes a pass that silently does nothing.",
        read=PATTERN,
    )
    expect.equal(
        found[0],
        expected,
        "The names do not stand for the parts that they say.",
        why="The check function gets the parts by these names; swapped names make it look at the wrong tensor.",
        read=PATTERN,
    )


def test_3_1_matches_nothing_else(impl) -> None:
    """the pattern leaves alone what is no such pair"""
    for name, mod in _other_graphs().items():
        found = _found(impl, mod)
        expect.that(
            not found,
            f"The pattern matches {name}.",
            expected="no match",
            yours=str(found),
            why="x transposed is another kernel: there the reduction would run down the columns of x.",
            read=PATTERN,
        )


def observe_3_1(impl):
    graphs = [_pair([4, 6], [5, 6]), *_other_graphs().values(), Gram]
    return [lambda mod=mod: _found(impl, mod) for mod in graphs]


# --- 3.2 the check ----------------------------------------------------------------------------------

# (shape of w, axes, whether it is a swap of the last two)
SPELLINGS = [
    ([5, 6], None, True),
    ([5, 6], [1, 0], True),
    ([5, 6], [-1, -2], True),
    ([5, 6], [1, -2], True),
    ([3, 5, 6], [0, 2, 1], True),
    ([3, 5, 6], [0, -1, 1], True),
    ([3, 5, 6], [-3, -1, -2], True),
    ([2, 3, 5, 6], [0, 1, -1, -2], True),
]
NO_SWAPS = [
    ([5, 6], [0, 1], "the identity"),
    ([5, 6], [-2, -1], "the identity, counted from the end"),
    ([4, 4, 4], None, "a full reversal of three dimensions"),
    ([4, 4, 4], [2, 1, 0], "a full reversal of three dimensions"),
    ([4, 4, 4], [1, 0, 2], "a permuted batch"),
    ([4, 4, 4], [2, 0, 1], "a rotation that brings the second to last dimension to the end"),
    ([3, 3, 5, 6], [1, 0, 3, 2], "a swap of the last two together with a permuted batch"),
]


def _calls(w: relax.Var, x: relax.Var, axes, out_dtype=None) -> tuple[relax.Call, relax.Call]:
    """(permute_dims, matmul) with their types, as a pass meets them."""
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w, axes))
            out = builder.emit_output(relax.op.matmul(x, turned, out_dtype))
        builder.emit_func_output(out)
    transpose, product, *_ = (
        binding.value for binding in builder.get()["main"].body.blocks[0].bindings
    )
    return transpose, product


def _asked(impl, w_shape, axes, **types) -> bool:
    rank = w_shape if isinstance(w_shape, int) else len(w_shape or [0, 0])
    order = list(range(rank))[::-1] if axes is None else [axis % rank for axis in axes]
    known = isinstance(w_shape, list)
    k = w_shape[order[-2]] if known and rank > 1 else 6
    x = _tensor("x", types.get("x", [7, k]), types.get("dtype", "float32"))
    w = _tensor("w", w_shape, types.get("dtype", "float32"))
    return impl.may_fuse(*_calls(w, x, axes, types.get("out_dtype")))


def test_3_2_fires_on_every_spelling(impl) -> None:
    """accepts every way to write a swap of the last two dimensions"""
    for shape, axes, _ in SPELLINGS:
        expect.that(
            bool(_asked(impl, shape, axes)),
            f"may_fuse refuses axes={axes} on a w of {len(shape)} dimensions.",
            expected="True: element i of axes says which dimension of w becomes dimension i, and -1 is the last",
            why="Models write the same transpose in all these ways; one that is missed is materialised at every step.",
            read=PATTERN,
        )


def test_3_2_refuses_other_permutations(impl) -> None:
    """refuses every permutation that is not a swap of the last two dimensions"""
    for shape, axes, what in NO_SWAPS:
        expect.that(
            not _asked(impl, shape, axes),
            f"may_fuse accepts {what}: axes={axes} on a w of {len(shape)} dimensions.",
            expected="False",
            why="The kernel reads w[…, j, k] with batch indices as they are; for any other permutation that is "
            "another element, and where the sizes agree nothing notices.",
            read=NOT_FIRE,
        )


def _untyped(impl) -> Iterable[tuple[str, bool]]:
    yield "w of unknown rank", _asked(impl, None, None)
    yield "w of rank 2 and unknown shape", _asked(impl, 2, [1, 0])
    yield "w of unknown dtype", _asked(impl, [5, 6], None, dtype=None)
    yield "x of rank 2 and unknown shape", _asked(impl, [5, 6], None, x=2)
    yield "x of unknown rank", _asked(impl, [5, 6], [1, 0], x=None)


def test_3_2_refuses_what_has_no_type(impl) -> None:
    """refuses operands whose shape or dtype is not known"""
    for what, yours in _untyped(impl):
        expect.that(
            not yours,
            f"may_fuse accepts a {what}.",
            expected="False: is_typed says whether a type is known",
            why="A PrimFunc has buffers of a shape and a dtype. Without them step 2 would raise, and stop the whole "
            "compilation for a matmul that was right as it stood.",
            read=NOT_FIRE,
        )


def observe_3_2(impl):
    cases = [(shape, axes) for shape, axes, _ in [*SPELLINGS, *NO_SWAPS]]
    asked = [
        lambda shape=shape, axes=axes: bool(_asked(impl, shape, axes)) for shape, axes in cases
    ]
    return [*asked, lambda: [bool(yours) for _, yours in _untyped(impl)]]


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


def _run_kernel(func, w, x, shape, out_dtype="float32", target="llvm") -> np.ndarray:
    """The result of a PrimFunc (w, x, out), out poisoned before."""
    poison = np.full(shape, np.nan if "float" in out_dtype else -77, out_dtype)
    out = tvm.runtime.tensor(poison)
    tvm.compile(func, target=target)["main"](tvm.runtime.tensor(w), tvm.runtime.tensor(x), out)
    return out.numpy()


def test_3_3_has_the_shape_of_the_product(impl) -> None:
    """the result has the shape that matmul gives"""
    for w_shape, x_shape in COMPUTES:
        shape = np.matmul(np.zeros(x_shape), np.swapaxes(np.zeros(w_shape), -1, -2)).shape
        expect.equal(
            _shape_of(impl, w_shape, x_shape, shape),
            shape,
            f"The shape is wrong for w {tuple(w_shape)} and x {tuple(x_shape)}.",
            why="call_te takes the type of the new call from this shape; everything after it relies on it.",
            read=KERNEL,
        )


def _shape_of(impl, w_shape, x_shape, expected) -> tuple[int, ...]:
    """The shape nt_matmul gives; where it raises, a CheckFailed that says for which operands."""
    w, x = te.placeholder(w_shape, name="w"), te.placeholder(x_shape, name="x")
    try:
        return tuple(int(d) for d in impl.nt_matmul(w, x, "float32").shape)
    except (NotImplementedError, CheckFailed):
        raise
    except Exception as error:
        why, read = explain(error)
        raise CheckFailed(
            f"nt_matmul raises {last_line(error)} for w {tuple(w_shape)} and x {tuple(x_shape)}.",
            expected=f"a result of shape {expected}",
            yours=where(error, impl._path),
            why=why
            or "x may be a vector, and either operand may have batch dimensions that the other lacks or "
            "repeats: `batch_index` says where an element of the result's batch lies in each.",
            read=read or KERNEL,
        ) from None


def test_3_3_computes_the_product(impl) -> None:
    """the numbers are those of matmul, for one row, for batches and where a batch is repeated"""
    for w_shape, x_shape in COMPUTES:
        w, x = _array(1, *w_shape), _array(2, *x_shape)
        expected = np.matmul(x.astype("float64"), _swapped(w))
        expect.close(
            _run_kernel(_kernel(impl, w_shape, x_shape), w, x, expected.shape),
            expected,
            f"nt_matmul is wrong for w {tuple(w_shape)} and x {tuple(x_shape)}.",
            why="The reduction runs along the last index of w, where its elements lie one after another; "
            + SUMS,
            read=KERNEL,
        )


def test_3_3_takes_symbolic_sizes(impl) -> None:
    """one kernel serves any number of rows and any batch"""
    b, m = tirx.Var("b", "int64"), tirx.Var("m", "int64")
    func = _kernel(impl, [7, 5], [b, m, 5])
    w, x = _array(3, 7, 5), _array(4, 2, 3, 5)
    expect.close(
        _run_kernel(func, w, x, (2, 3, 7)),
        np.matmul(x.astype("float64"), _swapped(w)),
        "nt_matmul is wrong for an x of shape (b, m, 5), called with b = 2 and m = 3.",
        read=KERNEL,
    )


def test_3_3_is_called_by_its_name(impl) -> None:
    """the block of the sum is called NT_matmul"""
    names = [name for name in _blocks(_kernel(impl, [7, 5], [4, 5])) if name != "root"]
    expect.that(
        "NT_matmul" in names,
        "No block of the kernel is called NT_matmul.",
        expected='te.compute(…, name="NT_matmul")',
        yours=", ".join(names),
        why="A schedule finds the block that it changes by its name: those of 3.8 and 3.9 ask for NT_matmul.",
        read=KERNEL,
    )


def test_3_3_casts_before_it_multiplies(impl) -> None:
    """operands are cast to out_dtype before the product, and the sum is kept in it"""
    expect.close(
        _large_product(impl),
        np.full((4, 7), 5 * 300.0 * 300.0),
        "The product of float16 operands with out_dtype float32 is wrong.",
        why="300 * 300 is 90000 and the largest float16 is 65504. Cast after the product, it is infinite.",
        read=KERNEL,
    )


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
    """What the kernel gives for float16 operands whose product is no float16."""
    w, x = (np.full(shape, 300, "float16") for shape in ((7, 5), (4, 5)))
    func = _kernel(impl, [7, 5], [4, 5], "float16", "float32")
    return _run_kernel(func, w, x, (4, 7), "float32")


# --- 3.4 the rewrite --------------------------------------------------------------------------------


@I.ir_module
class Gram:
    """x @ x.T: one tensor on both sides."""

    @R.function
    def main(x: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            turned = R.permute_dims(x)
            out = R.matmul(x, turned)
            R.output(out)
        return out


def _constant_weight() -> IRModule:
    x = _tensor("x", [4, 6])
    w = relax.const(_array(5, 7, 6))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    return builder.get()


@I.ir_module
class Several:
    """Two functions, one private, one already claimed by a library; and no `main`."""

    @R.function
    def forward(x: R.Tensor((4, 6), "float32"), w: R.Tensor((7, 6), "float32")) -> R.Tensor(
        (4, 7), "float32"
    ):
        R.func_attr({"num_input": 1})
        cls = Several
        with R.dataflow():
            a = cls.layer(x, w)
            b = cls.library(x, w)
            out = R.add(a, b)
            R.output(out)
        return out

    @R.function(private=True)
    def layer(x: R.Tensor((4, 6), "float32"), w: R.Tensor((7, 6), "float32")) -> R.Tensor(
        (4, 7), "float32"
    ):
        with R.dataflow():
            turned = R.permute_dims(w)
            out = R.matmul(x, turned)
            R.output(out)
        return out

    @R.function(private=True)
    def library(x: R.Tensor((4, 6), "float32"), w: R.Tensor((7, 6), "float32")) -> R.Tensor(
        (4, 7), "float32"
    ):
        R.func_attr({"Codegen": "cublas"})
        with R.dataflow():
            turned = R.permute_dims(w)
            out = R.matmul(x, turned)
            R.output(out)
        return out


@I.ir_module
class Overwritten:
    """A kernel writes into w, in place, between the transpose of w and the matmul that uses it."""

    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((7, 6), "float32")):
        for i, j in T.grid(7, 6):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                a[vi, vj] = a[vi, vj] + a[vi, vj]

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), start: R.Tensor((7, 6), "float32")) -> R.Tensor(
        (4, 7), "float32"
    ):
        cls = Overwritten
        with R.dataflow():
            w = R.negative(start)
            turned = R.permute_dims(w)
            doubled = R.call_tir_inplace(
                cls.double, (w,), inplace_indices=[0], out_ty=R.Tensor((7, 6), "float32")
            )
            early = R.matmul(x, turned)
            turned_late = R.permute_dims(doubled)
            late = R.matmul(x, turned_late)
            out = R.add(early, late)
            R.output(out)
        return out


def _pass_on(impl, mod: IRModule) -> IRModule:
    """FuseTransposeMatmul, and the questions every pass is asked."""
    return expect.apply(impl.FuseTransposeMatmul(), mod, "FuseTransposeMatmul")


def test_3_4_makes_one_kernel(impl) -> None:
    """the pair becomes one call_tir of an NT_matmul, w first, then x"""
    mod = _pair([4, 6], [7, 6])
    result = _pass_on(impl, mod)
    expect.equal(
        _operators(result),
        {"matmul": 0, "permute_dims": 0, "NT_matmul": 1},
        "main(x, w) = matmul(x, permute_dims(w)) did not become one call of a kernel called NT_matmul.",
        why="A transpose that stays is read and written as a whole at every step.",
        read=KERNEL,
    )
    (call,) = _kernel_calls(result)
    expect.equal(
        call.args[0].name_hint,
        "NT_matmul",
        "The function that holds the kernel has another name.",
        why="call_te names it after the Python function that it is given, unless `primfunc_name_hint` says otherwise.",
        read=KERNEL,
    )
    expect.equal(
        [arg.name for arg in call.args[1]],
        ["w", "x"],
        "The kernel is not called with w first, then x.",
        why="nt_matmul takes w first. The other way round it multiplies w by x transposed.",
        read=KERNEL,
    )


def test_3_4_leaves_no_composite(impl) -> None:
    """the functions that FuseOpsByPattern made are gone, and nothing else is"""
    mod = _pair([4, 6], [7, 6])
    left = sorted(gv.name_hint for gv in _pass_on(impl, mod).get_global_vars())
    expect.equal(
        left,
        ["NT_matmul", "main"],
        "After the pass the module holds other functions than main and its kernel.",
        why="A composite that nobody calls is still compiled, and shown to every later pass.",
        read=KERNEL,
    )


def test_3_4_takes_operands_from_their_parameters(impl) -> None:
    """one tensor on both sides, and a weight that is a constant"""
    x = _array(6, 4, 6)
    cases = {
        "x @ x.T": (Gram, x @ x.T),
        "a constant w": (_constant_weight(), x @ _array(5, 7, 6).T),
    }
    for what, (mod, expected) in cases.items():
        try:
            result = _pass_on(impl, mod)
        except IndexError as error:
            raise CheckFailed(
                f"The pass raises {last_line(error)} on {what}.",
                expected="(w, x) from `operands`, which looks at what the composite's two calls take",
                why="FuseOpsByPattern gives a composite one parameter for each different tensor, in order of first "
                "use: x @ x.T has one.",
                read=KERNEL,
            ) from None
        expect.equal(_operators(result)["NT_matmul"], 1, f"The pass does not fuse {what}.")
        expect.close(
            expect.run(result, "main", [x]), expected, f"The pass is wrong on {what}.", read=KERNEL
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
        expect.equal(
            str(yours.dtype), out_dtype or dtype, f"The result's dtype is wrong for {what}."
        )
        expect.close(
            yours,
            np.matmul(x.astype("float64"), _swapped(w)),
            f"The fused module is wrong for {what}.",
            **({"rtol": 1e-2, "atol": 1e-2} if what.endswith("to float16") else {}),  # 11 bits
            why="Fusing changes the order in which w is read, and nothing else. " + SUMS,
            read=KERNEL,
        )


def test_3_4_touches_nothing_else(impl) -> None:
    """private functions are fused too; claimed functions, attributes and other functions stay"""
    result = _pass_on(impl, Several)
    expect.equal(
        _operators(result),
        {"matmul": 1, "permute_dims": 1, "NT_matmul": 1},
        "In a module with a private function and one that is set aside for a library, the counts are off.",
        why="The private function's pair becomes a kernel; a function with the attribute Codegen belongs to the "
        "library's code generator, which looks for the two operators.",
        read=NOT_FIRE,
    )
    expect.that(
        dict(result["forward"].attrs) == dict(Several["forward"].attrs),
        "The attributes of a function changed.",
        yours=str(diff(Several["forward"], result["forward"])),
    )


def test_3_4_minds_what_is_overwritten(impl) -> None:
    """w is not read later than it was, where a kernel may have written into it meanwhile"""
    x, w = _array(1, 4, 6), _array(2, 7, 6)
    expect.close(
        expect.run(_pass_on(impl, Overwritten), "main", [x, w]),
        -3 * (x.astype("float64") @ w.T),
        "The pass is wrong where a kernel writes into w between its transpose and the matmul.",
        why="The transpose read w before it was doubled; a kernel in the place of the matmul reads it after.",
        read=NOT_FIRE,
    )


def test_3_4_twice_changes_nothing_more(impl) -> None:
    """a second run changes nothing more, and a module without a pair stays as it is"""
    fuse = impl.FuseTransposeMatmul()
    expect.runs_twice_the_same(fuse, _pass_on(impl, Gram), "FuseTransposeMatmul")
    nothing = _pair([4, 4], [4, 4], [0, 1])
    expect.same_ir(
        _pass_on(impl, nothing),
        nothing,
        "FuseTransposeMatmul changed a module in which there is nothing to fuse.",
        why="permute_dims with axes [0, 1] changes nothing, so it is no transpose.",
        read=NOT_FIRE,
    )


def test_3_4_fuses_the_decoder(impl) -> None:
    """no transpose is left in the decoder, and its launches fall by one a linear layer"""
    mod, _ = decoder("tiny", functions=["decode"])
    result = _pass_on(impl, mod)
    expect.equal(_operators(result)["permute_dims"], 0, "Transposes are left in the decoder.")
    before, after = (walk_the_ir.launches(m)["decode"] for m in (mod, result))
    expect.equal(
        before - after,
        _operators(mod)["permute_dims"],
        "The launches of a decode step did not fall by the number of its transposes.",
        read=MEASURE,
    )


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
    ]


# --- 3.5 the shared transpose -----------------------------------------------------------------------


@I.ir_module
class TwoMatmuls:
    """Two products with one transposed weight."""

    @R.function
    def main(
        x: R.Tensor((4, 6), "float32"),
        y: R.Tensor((3, 6), "float32"),
        w: R.Tensor((7, 6), "float32"),
    ) -> R.Tuple(R.Tensor((4, 7), "float32"), R.Tensor((3, 7), "float32")):
        with R.dataflow():
            turned = R.permute_dims(w)
            a = R.matmul(x, turned)
            b = R.matmul(y, turned)
            R.output(a, b)
        return (a, b)


@I.ir_module
class AlsoElsewhere:
    """The transpose is also an operand of an elementwise operator, and w has three dimensions."""

    @R.function
    def main(x: R.Tensor((2, 4, 6), "float16"), w: R.Tensor((2, 7, 6), "float16")) -> R.Tuple(
        R.Tensor((2, 4, 7), "float32"), R.Tensor((2, 6, 7), "float16")
    ):
        with R.dataflow():
            turned = R.permute_dims(w, axes=[0, 2, 1])
            a = R.matmul(x, turned, out_dtype="float32")
            b = R.negative(turned)
            R.output(a, b)
        return (a, b)


@I.ir_module
class AlsoReturned:
    """The transpose is itself a result, and reaches the matmul under another name."""

    @R.function
    def main(x: R.Tensor((4, 6), "float32"), w: R.Tensor((7, 6), "float32")) -> R.Tuple(
        R.Tensor((4, 7), "float32"), R.Tensor((6, 7), "float32")
    ):
        with R.dataflow():
            turned = R.permute_dims(w)
            alias = turned
            a = R.matmul(x, alias)
            R.output(turned, a)
        return (a, turned)


@I.ir_module
class LaterBlock:
    """The transpose stands in one dataflow block and the matmul in a later one."""

    @R.function(pure=False)
    def main(x: R.Tensor((4, 6), "float32"), w: R.Tensor((7, 6), "float32")) -> R.Tensor(
        (4, 7), "float32"
    ):
        with R.dataflow():
            turned = R.permute_dims(w)
            R.output(turned)
        R.assert_op(R.const(True, "bool"), format="")
        with R.dataflow():
            a = R.matmul(x, turned)
            R.output(a)
        return a


@I.ir_module
class BothSides:
    """The transpose is both operands of the matmul."""

    @R.function
    def main(w: R.Tensor((6, 6), "float32")) -> R.Tensor((6, 6), "float32"):
        with R.dataflow():
            turned = R.permute_dims(w)
            a = R.matmul(turned, turned)
            R.output(a)
        return a


def _shared() -> dict[str, tuple[IRModule, list[np.ndarray], list[np.ndarray], int]]:
    """name -> (module, arguments, results, transposes that must stay)."""
    x, y, w = _array(1, 4, 6), _array(2, 3, 6), _array(3, 7, 6)
    xb, wb = _array(4, 2, 4, 6, dtype="float16"), _array(5, 2, 7, 6, dtype="float16")
    s = _array(6, 6, 6)
    return {
        "one transpose for two matmuls": (TwoMatmuls, [x, y, w], [x @ w.T, y @ w.T], 0),
        "a transpose with an elementwise user": (
            AlsoElsewhere,
            [xb, wb],
            [np.matmul(xb.astype("float64"), _swapped(wb)), -np.swapaxes(wb, 1, 2)],
            1,
        ),
        "a transpose that is also returned": (AlsoReturned, [x, w], [x @ w.T, w.T], 1),
        "a transpose in an earlier dataflow block": (LaterBlock, [x, w], [x @ w.T], 0),
        "a transpose that is both operands": (BothSides, [s], [s.T @ s.T], 1),
    }


def _through_the_reference(impl, mod: IRModule) -> IRModule:
    """The answer's own_transposes, then the reference's two steps: needs no other exercise."""
    owned = expect.apply(
        lambda m: impl.own_transposes(m, reference.may_fuse), mod, "own_transposes"
    )
    grouped = reference.group(owned, reference.may_fuse)
    old = {gv.name_hint for gv in mod.get_global_vars()}
    composites = {gv.name_hint: f for gv, f in grouped.functions_items() if gv.name_hint not in old}
    return reference.generate(grouped, composites)


def _results(mod: IRModule, arrays) -> list[np.ndarray]:
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return [r.numpy() for r in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def test_3_5_returns(impl) -> None:
    """the pass returns on a transpose that something else uses too"""
    for what, (mod, *_rest) in _shared().items():
        try:
            result = _through_the_reference(impl, mod)
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"With your own_transposes the pass stops on {what}: {last_line(error)}",
                expected="a permute_dims of its own for each matmul, so that a pair has no second user",
                yours=mod["main"].script(),
                why="FuseOpsByPattern moves the transpose into the composite and returns it from there beside the "
                "product; the next step expects one product and finds a tuple.",
                read=OWN,
            ) from None
        expect.well_formed(result, "The pass with your own_transposes")


def test_3_5_fuses_every_matmul(impl) -> None:
    """each matmul is fused, and a transpose stays only where something still uses it"""
    for what, (mod, _arrays, expected, kept) in _shared().items():
        found = _operators(_through_the_reference(impl, mod))
        products = len(expected) if mod is TwoMatmuls else 1
        expect.equal(
            found,
            {"matmul": 0, "permute_dims": kept, "NT_matmul": products},
            f"The counts are off for {what}.",
            why="A matmul that reads w as it is stored costs no more than one that reads the transpose; a transpose "
            "that nobody reads any more costs two passes over w.",
            read=OWN,
        )


def test_3_5_keeps_the_numbers(impl) -> None:
    """all results are those of the module as it was"""
    for what, (mod, arrays, expected, _kept) in _shared().items():
        result = _through_the_reference(impl, mod)
        if (
            mod is not LaterBlock
        ):  # assert_op runs in the VM, the impure call is only there to part the blocks
            for yours, right in zip(_results(result, arrays), expected, strict=True):
                expect.close(yours, right, f"A result is wrong for {what}.", read=OWN)


def test_3_5_leaves_other_modules_alone(impl) -> None:
    """a module in which nothing may be fused comes back as it was"""
    mod = _pair([4, 4], [4, 4], [0, 1])
    expect.same_ir(
        impl.own_transposes(mod, reference.may_fuse),
        mod,
        "own_transposes changed a module in which no matmul may be fused.",
        why="A copied transpose that no kernel swallows is work added, not removed.",
        read=OWN,
    )


def observe_3_5(impl):
    def told(mod):
        result = impl.own_transposes(mod, reference.may_fuse)
        return str(_operators(result)), result["main"].script()

    return [lambda mod=mod: told(mod) for mod in (TwoMatmuls, AlsoElsewhere, AlsoReturned)]


# --- 3.6 break the careless check -------------------------------------------------------------------


def _deceived(impl) -> tuple[str, str]:
    """What the careless pass makes of the answer's module: (one word, details)."""
    mod, arrays = impl.deceives_careless()
    expect.well_formed(mod, "deceives_careless")
    expect.has_function(mod, "main", "deceives_careless")
    right = expect.run(mod, "main", arrays)
    if "NT_matmul" not in [
        gv.name_hint for gv in reference.fuse(mod, reference.careless).get_global_vars()
    ]:
        return "left alone", "careless refuses it"
    try:
        wrong = reference.fuse(mod, reference.careless)
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
    """the careless pass goes through and gives other numbers"""
    outcome, details = _deceived(impl)
    expect.that(
        outcome == "wrong numbers",
        {
            "left alone": "The careless pass leaves your module alone.",
            "loud": "The careless pass fails on your module so that everybody notices.",
            "right": "The careless pass is right on your module.",
        }.get(outcome, ""),
        expected="the same shapes and no error, and other numbers",
        yours=details,
        why="careless asks only which dimension comes last. Move the others, give those that change places the same "
        "size, and fill w with numbers that show it.",
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
    """(bytes that a decode step no longer moves, shapes of its transposed weights), counted by chapter 1."""
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
        expect.predicted(
            impl.bytes_saved(shapes, itemsize),
            counted,
            f"The prediction is not what is counted for a decode step of {config} in {dtype}.",
            why="A materialised transpose reads every element of w once and writes it once. The matmul then reads "
            "as many bytes from the copy as it reads from w.",
            read=MEASURE,
        )


def observe_3_7(impl):
    return [
        lambda: impl.bytes_saved([(3, 5)], 4),
        lambda: impl.bytes_saved([(3, 5), (7, 2)], 2),
        lambda: impl.bytes_saved([], 4),
    ]


# --- 3.8 and 3.9 the schedules ----------------------------------------------------------------------

COPIES = ("_pad", "_global", "_local", "_init")
PREFILL = "schedule_prefill"
SLOWER = 2.5  # than the reference: other schedules that keep sums in registers stay well below on any machine
WIDE = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})
NARROW = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})


def _unscheduled(rows, n: int, k: int, dtype="float32", out="float32") -> tirx.PrimFunc:
    return _kernel(reference, [n, k], [*rows, k], dtype, out)


def _apply(schedule, func: tirx.PrimFunc, target: Target, whose: str) -> tirx.PrimFunc:
    """schedule(func, target), which must be a PrimFunc."""
    result = schedule(func, target)
    expect.that(
        isinstance(result, tirx.PrimFunc),
        f"{whose} returned {type(result).__name__}, not a PrimFunc.",
        expected='sch.mod["main"]',
    )
    return result


@dataclass(frozen=True)
class LoopOfSums:
    """A loop around a block that adds up the product. steps: whether it runs along k, so that its turns add."""

    loop: tirx.For
    steps: bool

    @property
    def vectorized(self) -> bool:
        return self.loop.kind == tirx.ForKind.VECTORIZED

    def __str__(self) -> str:
        kind = (
            ""
            if self.loop.kind == tirx.ForKind.SERIAL
            else f" {tirx.ForKind(self.loop.kind).name.lower()}"
        )
        return f"{self.loop.loop_var.name}{' (along k)' if self.steps else ''}{kind} {int(self.loop.extent)}"


def _sums(func: tirx.PrimFunc) -> list[tuple[SBlockRealize, list[LoopOfSums]]]:
    """Each block that adds up the product, with the loops around it, outermost first; copies are not looked at."""
    loops = list(reversed(nodes(func.body, tirx.For)))
    found = []
    for realize in nodes(func.body, SBlockRealize):
        block = realize.block
        if not block.name_hint.startswith("NT_matmul") or block.name_hint.endswith(COPIES):
            continue
        along_k = [
            value
            for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
            if axis.iter_type == axis.CommReduce
        ]
        around = [
            LoopOfSums(one, any(count(value, one.loop_var) for value in along_k))
            for one in loops
            if any(inner.same_as(realize) for inner in nodes(one.body, SBlockRealize))
        ]
        found.append((realize, around))
    return found


def _loops_of_sums(func: tirx.PrimFunc) -> list[list[LoopOfSums]]:
    return [loops for _, loops in _sums(func)]


def _vectors_along_w(func: tirx.PrimFunc) -> list[bool]:
    """For each read of w in a vectorised loop: whether the loop's turns read elements that lie side by side."""
    found = []
    for realize, loops in _sums(func):
        axes = {
            axis.var: value
            for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        }
        for load in loads(realize.block.body, func.params[0]):
            *lead, last = (substitute(index, axes) for index in load.indices)
            for var in (one.loop.loop_var for one in loops if one.vectorized):
                found.append(count(last, var) > 0 and not any(count(i, var) for i in lead))
    return found


def _widest(func: tirx.PrimFunc) -> int:
    """The extent of the longest vectorised loop around the sums; 1 if there is none."""
    every = (one for loops in _loops_of_sums(func) for one in loops)
    return max([1, *(int(one.loop.extent) for one in every if one.vectorized)])


def _parallel(func: tirx.PrimFunc) -> bool:
    """Whether the sums stand in a parallel loop; copies of x and of the result do not count."""
    kinds = {one.loop.kind for loops in _loops_of_sums(func) for one in loops}
    return tirx.ForKind.PARALLEL in kinds


def _inside_a_step(loops: list[LoopOfSums], written_out: bool = False) -> list[LoopOfSums]:
    """The loops inside the innermost one along k: what one step adds to, and so what must be kept.

    written_out: unrolled steps count as one.
    """
    steps = (
        n
        for n, one in enumerate(loops)
        if one.steps and not (written_out and one.loop.kind == tirx.ForKind.UNROLLED)
    )
    return loops[max(steps, default=-1) + 1 :]


def _sums_of_a_step(func: tirx.PrimFunc, written_out: bool = False) -> list[tuple[int, int]]:
    """For each block that adds up the product: (sums that one step of k adds to, those of them in one vector)."""
    inside = [_inside_a_step(loops, written_out) for loops in _loops_of_sums(func)]
    return [
        (
            math.prod(int(one.loop.extent) for one in loops),
            math.prod(int(one.loop.extent) for one in loops if one.vectorized),
        )
        for loops in inside
    ]


def _check_threads(schedule, rows, whose: str) -> None:
    func = _apply(schedule, _unscheduled(rows, 256, 256), WIDE, whose)
    expect.that(
        _parallel(func),
        f"{whose} leaves the product to one thread.",
        expected="a parallel loop around the sums",
        why="Outputs are independent of one another, and one core has neither all the arithmetic nor all the memory "
        "bandwidth of a machine.",
        read=FAST,
    )


def _check_numbers(schedule, cases, whose: str) -> None:
    target = llvm_host()["target"]
    for said, rows, n, k in cases:
        w, x = _array(n, n, k), _array(k, *rows, k)
        func = _apply(schedule, _unscheduled(said, n, k), target, whose)
        expect.close(
            _run_kernel(func, w, x, (*rows, n), target=target),
            x.astype("float64") @ w.astype("float64").T,
            f"{whose} changes the numbers for x {(*rows, k)} and w {(n, k)}.",
            rtol=1e-4,
            atol=1e-4,
            why="A schedule changes the order of the work and never its result, also where a size fits no tile.",
            read=FAST,
        )


def _check_width(schedule, rows, whose: str) -> None:
    widths = {
        name: _widest(_apply(schedule, _unscheduled(rows, 256, 256), target, whose))
        for name, target in (("AVX2", NARROW), ("AVX-512", WIDE))
    }
    expect.that(
        min(widths.values()) > 1,
        f"{whose} vectorises no loop.",
        expected="a vectorised loop over the lanes of a register",
        why="Without it each instruction multiplies one pair of numbers instead of eight or sixteen.",
        read=FAST,
    )
    expect.that(
        widths["AVX-512"] == 2 * widths["AVX2"],
        f"{whose} vectorises {widths['AVX2']} lanes for AVX2 and {widths['AVX-512']} for AVX-512.",
        expected="twice as many for registers twice as wide: the number comes from `target`",
        why="A width written into the code wastes half of one machine or spills the registers of another.",
        read=FAST,
    )


def _times(schedules, rows, n: int, k: int) -> list[float]:
    """Seconds of a call of the kernel by each of `schedules`, None for unscheduled: medians of interleaved runs."""
    target = llvm_host()["target"]
    plain = _unscheduled(rows, n, k)
    funcs = [plain if schedule is None else schedule(plain, target) for schedule in schedules]
    kernels = [tvm.compile(func, target=target)["main"] for func in funcs]
    arrays = _array(1, n, k), _array(2, *rows, k), np.zeros((*rows, n), "float32")
    w, x, out = (tvm.runtime.tensor(a) for a in arrays)
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(7):
        for kernel, spent in zip(kernels, times, strict=True):
            start = time.perf_counter()
            kernel(w, x, out)
            spent.append(time.perf_counter() - start)
    return [statistics.median(spent) for spent in times]


def _check_speed(impl, whose: str, rows, n: int, k: int, least: float) -> None:
    """At least `least` times as fast as unscheduled, and at most SLOWER times as slow as the reference."""
    gains, shares = [], []
    schedules = (None, getattr(impl, whose), getattr(reference, whose))
    for _ in range(3):  # a machine that is busy with something else gets two more chances
        plain, yours, best = _times(schedules, rows, n, k)
        gains.append(plain / yours)
        shares.append(yours / best)
        if gains[-1] >= least and shares[-1] <= SLOWER:
            return
    sizes = f"for x {(*rows, k)} and w {(n, k)}"
    if max(gains) < least:
        raise CheckFailed(
            f"{whose} is {max(gains):.1f} times as fast as no schedule, {sizes}.",
            expected=f"at least {least:g} times; the reference has several times that",
            why="An unscheduled sum is one chain of additions, each waiting for the one before.",
            read=FAST,
        )
    raise CheckFailed(
        f"{whose} takes {min(shares):.1f} times as long as the reference's, {sizes}.",
        expected=f"at most {SLOWER:g} times",
        why="Vectors and threads are there. So look at what is stored: partial sums should be added up soon after they "
        "are made, and a step along k needs several registers of sums that do not wait for one another.",
        read=FAST,
    )


def test_3_8_any_shape(impl) -> None:
    """right numbers for one row, a few rows and sizes that fit no register"""
    cases = [
        (rows, rows, n, k)
        for rows, n, k in (
            ((1,), 96, 128),
            ((1, 1), 30, 64),
            ((), 12, 32),
            ((3,), 20, 48),
            ((2, 2), 6, 40),
            ((1,), 7, 33),
        )
    ]
    _check_numbers(impl.schedule_decode, cases, "schedule_decode")


def test_3_8_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_decode, (1,), "schedule_decode")


def test_3_8_vectors_lie_along_w(impl) -> None:
    """a vector is read from one row of w, where its elements lie side by side"""
    func = _apply(impl.schedule_decode, _unscheduled((1,), 256, 256), NARROW, "schedule_decode")
    expect.that(
        any(_vectors_along_w(func)),
        "schedule_decode vectorises across the rows of w.",
        expected="a vectorised loop along k, over the partial sums of one output",
        why="The elements of a vector are then far apart in memory, and each is loaded by itself. w is what decode "
        "reads, and its rows are contiguous along k.",
        read=FAST,
    )


def test_3_8_reads_w_once(impl) -> None:
    """a vector of w is multiplied with all rows of x, not read again for each"""
    func = _apply(impl.schedule_decode, _unscheduled((5,), 256, 256), WIDE, "schedule_decode")
    for sums, lanes in _sums_of_a_step(func, written_out=True):
        if lanes > 1:
            expect.that(
                sums % (5 * lanes) == 0,
                "schedule_decode reads w again for each row of x.",
                expected="the loops over the rows inside the loop along k",
                yours=f"for five rows, a step along k adds to {sums // lanes} registers of sums",
                why="A vector of w that is in a register serves all rows: w is most of what decode reads.",
                read=FAST,
            )


def test_3_8_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_decode, (1,), "schedule_decode")


def test_3_8_is_faster(impl) -> None:
    """one row of x and four are multiplied several times faster than unscheduled"""
    for rows in (1, 4):
        _check_speed(impl, "schedule_decode", (rows,), 1024, 1024, 2.5)


def observe_3_8(impl):
    return _observe_schedule(impl.schedule_decode, (3,))


def _observe_schedule(schedule, rows):
    def told(target):
        func = schedule(_unscheduled(rows, 64, 64), target)
        vectors = [
            int(one.loop.extent)
            for loops in _loops_of_sums(func)
            for one in loops
            if one.vectorized
        ]
        return (
            vectors,
            _vectors_along_w(func),
            _parallel(func),
            _sums_of_a_step(func),
            sorted(set(_blocks(func))),
        )

    def numbers():
        target = llvm_host()["target"]
        func = schedule(_unscheduled(rows, 24, 32), target)
        out = _run_kernel(func, _array(1, 24, 32), _array(2, *rows, 32), (*rows, 24), target=target)
        return np.round(out, 2).tolist()

    return [lambda: told(NARROW), lambda: told(WIDE), numbers]


def test_3_9_any_number_of_rows(impl) -> None:
    """right numbers for rows that fill a tile, that do not, and that are not known"""
    n, b = tirx.Var("n", "int64"), tirx.Var("b", "int64")
    cases = [
        ((64,), (64,), 96, 128),
        ((17,), (17,), 24, 40),
        ((130,), (130,), 7, 33),
        ((1, n), (1, 70), 32, 64),
        ((b, 1), (5, 1), 16, 32),
        ((2, 3), (2, 3), 8, 16),
    ]
    _check_numbers(impl.schedule_prefill, cases, "schedule_prefill")


def test_3_9_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_prefill, (64,), "schedule_prefill")


def test_3_9_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_prefill, (64,), "schedule_prefill")


def test_3_9_sums_stay_in_registers(impl) -> None:
    """one step of k adds to as many sums as the vector registers hold"""
    for target in (NARROW, WIDE):
        func = _apply(impl.schedule_prefill, _unscheduled((64,), 256, 256), target, PREFILL)
        registers = vector_registers(target).count
        for loops, (sums, lanes) in zip(_loops_of_sums(func), _sums_of_a_step(func), strict=True):
            order = "from outside to inside: " + ", ".join(map(str, loops))
            expect.that(
                lanes > 1,
                f"{PREFILL} runs along k inside the vectorised loop, so no register of sums stays while k runs.",
                expected="the vectorised loop inside all loops along k",
                yours=order,
                why="A step of k adds to one register of sums; the loop over the steps must stand outside of it, or "
                "the sums go to memory and back.",
                read=FAST,
            )
            expect.that(
                sums <= lanes * registers,
                f"{PREFILL} adds to {sums} sums in each step of k, {sums // lanes} registers of {lanes}; "
                f"the target has {registers}.",
                expected="inside the innermost loop along k a tile alone: its columns, vectors and lanes",
                yours=order,
                why="What does not fit the registers goes to memory and back in every step.",
                read=FAST,
            )


def test_3_9_is_faster(impl) -> None:
    """64 rows of x are multiplied many times faster than unscheduled"""
    _check_speed(impl, "schedule_prefill", (64,), 1024, 1024, 6)


def observe_3_9(impl):
    return _observe_schedule(impl.schedule_prefill, (40,))
