"""The checks of chapter 4: the pair, its kernels, the key of a kernel, and the pass that puts it in place."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.target import Target

from chapters.ch04_add_rms_norm.as_upstream import FuseAsUpstream
from chapters.toolkit.gpu import cuda_on_cpu
from chapters.toolkit.gpu.launches import LaunchError, UnknownWordError
from chapters.toolkit.ir.row_index import row_dimensions
from solutions.ch01_walk_the_ir.walk_the_ir import binding_bytes
from solutions.ch04_add_rms_norm import fuse_add_norm as sound
from tests.checks.add_norm import (
    RELATIVE,
    add_function,
    draw,
    inputs,
    kernels,
    launch,
    module,
    numpy_dtype,
    operators,
    pair,
    plain,
    reference,
    run,
    run_each,
)
from tests.checks.gpu import CUDA, engines, parsed
from tests.harness import expect
from tests.harness.failure import CheckFailed, Skip
from tests.harness.loading import last_line

LESSON = "chapters/ch04_add_rms_norm/lesson.md"
WHY = f"{LESSON}, “Why this pass”"
MATCH = f"{LESSON}, “Match”"
KERNEL = f"{LESSON}, “Five steps of a kernel”"
WIDE = f"{LESSON}, “Sixteen bytes at a time”"
DISPATCH = f"{LESSON}, “Dispatch”"
PLACE = f"{LESSON}, “Put it where the sum is first read”"
NOT = f"{LESSON}, “When it must not fire”"
MEASURE = f"{LESSON}, “Measure it”"

LIMITS = {
    "test_4_3_right_numbers_as_gpu_code": 90,
    "test_4_3_rounds_the_sum_before_it_squares": 40,
    "test_4_3_sums_squares_in_float32": 40,
    "test_4_4_wide_kernel_gives_the_right_numbers": 90,
    "test_4_7_keeps_the_numbers": 60,
}
LLVM = Target("llvm")
QUICK = Target({"kind": "llvm", "opt-level": 0})  # for what is compiled to be run once


# --- 4.1 ------------------------------------------------------------------------------------------


def _total(mod: tvm.IRModule, sizes: dict[str, int] | None = None) -> int:
    return sum(row.read + row.written for row in binding_bytes(mod["main"], sizes or {}))


def test_4_1_prediction_holds(impl) -> None:
    """the predicted bytes are those chapter 1 counts"""
    yours = impl.predicted_bytes()
    expect.that(
        isinstance(yours, dict) and set(yours) == {"unfused", "fused"},
        "predicted_bytes does not return a dict of two numbers.",
        expected='{"unfused": …, "fused": …}',
        yours=repr(yours)[:200],
    )
    mod = plain((1, 512, 4096), "float16")
    counted = {"unfused": _total(mod), "fused": _total(sound.FuseAddRMSNorm(CUDA)(mod))}
    for state, number in counted.items():
        expect.predicted(
            yours[state],
            number,
            f"The {state} pair moves another number of bytes.",
            why="add reads two tensors and writes one; rms_norm reads that one and a weight, and writes one. The fused "
            "kernel never reads the sum back: it still has it in registers. The weight is one row.",
            read=WHY,
        )


def observe_4_1(impl):
    return [lambda: impl.predicted_bytes()["unfused"], lambda: impl.predicted_bytes()["fused"]]


# --- 4.2 ------------------------------------------------------------------------------------------


def _one(build: Callable, shapes: dict[str, tuple], dtype: str = "float16") -> tvm.IRModule:
    return module(lambda builder, *params: [build(builder, *params)], shapes, dtype)


def _bindings(mod: tvm.IRModule) -> list[relax.VarBinding]:
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def _asked(impl, mod: tvm.IRModule):
    """What match_add_norm says about the last rms_norm of main, and that binding."""
    bound, last = {}, None
    for binding in _bindings(mod):
        if sound.is_call(binding.value, "relax.nn.rms_norm"):
            last = binding, dict(bound)
        bound[binding.var] = binding.value
    norm, before = last
    return impl.match_add_norm(norm.var, norm.value, before), norm


THREE = {"x1": ("n", 1, 64), "x2": ("n", 1, 64), "weight": (64,)}


def test_4_2_finds_the_pair(impl) -> None:
    """rms_norm of add is found, with every part in its place"""
    found, norm = _asked(impl, plain(("n", 1, 64), epsilon=0.25))
    expect.that(
        found is not None,
        "match_add_norm says None for rms_norm(add(x1, x2), weight) on (n, 1, 64) in float16.",
        expected="an AddNorm",
        why="This is the pair of every decoder layer.",
        read=MATCH,
    )
    names = [getattr(getattr(found, part), "name", "?") for part in ("x1", "x2", "weight")]
    expect.equal(
        names,
        ["x1", "x2", "weight"],
        "The AddNorm holds other arguments than the add has.",
        read=MATCH,
    )
    expect.that(
        found.norm.same_as(norm.var) and found.total.same_as(norm.value.args[0]),
        "total and norm are not the variables of the two bindings.",
        expected=f"total {norm.value.args[0].name}, norm {norm.var.name}",
        yours=f"total {found.total.name}, norm {found.norm.name}",
        why="The pass rebinds these two variables to the kernel's results.",
        read=MATCH,
    )
    expect.equal(found.epsilon, 0.25, "The epsilon is not that of the norm.", read=MATCH)


def test_4_2_takes_every_shape_a_kernel_can_serve(impl) -> None:
    """any rank, any leading dimensions, three dtypes, the axis by either name"""
    shapes = [
        ("n", 1, 64),
        (1, "n", 4096),
        ("b", "s", 100),
        (4, 3, 7),
        ("n", 64),
        (33,),
        (2, "n", 1, "m", 96),
    ]
    cases = [
        (plain(shape, dtype), f"{shape} {dtype}")
        for shape in shapes
        for dtype in ("float16", "bfloat16", "float32")
    ]
    cases += [
        (_one(lambda b, x1, x2, w: pair(b, x1, x2, w, axes=[2])[1], THREE), "axes=[2] of three"),
        (_one(lambda b, x1, x2, w: pair(b, x1, x1, w)[1], THREE), "add(x1, x1)"),
    ]
    for mod, what in cases:
        expect.that(
            _asked(impl, mod)[0] is not None,
            f"match_add_norm says None for a pair on {what}.",
            expected="an AddNorm: a block of threads a row serves any number of rows, however they are arranged",
            why="A pair that is left alone costs a launch and a fifth of its traffic at every layer.",
            read=MATCH,
        )


@I.ir_module
class UnknownShape:
    """Of x1 only the rank is known, and so of the sum."""

    @R.function
    def main(
        x1: R.Tensor(dtype="float16", ndim=3),
        x2: R.Tensor(("n", 1, 64), "float16"),
        weight: R.Tensor((64,), "float16"),
    ):
        with R.dataflow():
            norm = R.nn.rms_norm(R.add(x1, x2), weight, axes=[-1], epsilon=1e-5)
            R.output(norm)
        return norm


def _not_a_pair() -> list[tuple[str, tvm.IRModule, str]]:
    """(what, module, what would break)."""
    norm = relax.op.nn.rms_norm

    def of(make):
        return lambda b, x1, x2, w: b.emit(norm(b.emit(make(x1, x2)), w, axes=[-1]))

    half = relax.const(0.5, "float16")
    return [
        (
            "the norm of a parameter",
            _one(lambda b, x1, x2, w: b.emit(norm(x1, w, axes=[-1])), THREE),
            "There is no add.",
        ),
        ("the norm of a product", _one(of(relax.op.multiply), THREE), "The kernel adds."),
        (
            "a norm over the first axis",
            _one(
                lambda b, x1, x2, w: pair(b, x1, x2, w, axes=[0])[1],
                {"x1": (64, 8), "x2": (64, 8), "w": (64,)},
            ),
            "The kernel sums along rows; this norm sums along columns.",
        ),
        (
            "a norm over the first of two axes of one size",
            _one(
                lambda b, x1, x2, w: pair(b, x1, x2, w, axes=[0])[1],
                {"x1": (64, 64), "x2": (64, 64), "w": (64,)},
            ),
            "The shapes fit, so nothing but the numbers would tell.",
        ),
        (
            "a norm over two axes",
            _one(
                lambda b, x1, x2, w: pair(b, x1, x2, w, axes=[1, 2])[1],
                {"x1": (2, 8, 8), "x2": (2, 8, 8), "w": (8, 8)},
            ),
            "Its mean is over 64 elements, a row has 8.",
        ),
        (
            "an add that broadcasts a row",
            _one(lambda b, x1, x2, w: pair(b, x1, x2, w)[1], {**THREE, "x2": (64,)}),
            "The kernel would read past the end of x2.",
        ),
        (
            "an add that broadcasts the first argument",
            _one(lambda b, x1, x2, w: pair(b, x1, x2, w)[1], {**THREE, "x1": (1, 1, 64)}),
            "The kernel would read past the end of x1.",
        ),
        (
            "an add of a number",
            _one(lambda b, x1, x2, w: pair(b, x1, half, w)[1], THREE),
            "There is no second tensor.",
        ),
        (
            "a symbolic hidden size",
            _one(
                lambda b, x1, x2, w: pair(b, x1, x2, w)[1],
                {"x1": (4, "h"), "x2": (4, "h"), "w": ("h",)},
            ),
            "The number of registers a thread needs would be known only when it runs.",
        ),
        (
            "an argument of unknown shape",
            UnknownShape,
            "Nobody knows that there is a row of 64.",
        ),
        (
            "a float64 pair",
            _one(lambda b, x1, x2, w: pair(b, x1, x2, w)[1], THREE, "float64"),
            "The kernel sums in float32.",
        ),
        (
            "a norm whose weight is the sum",
            _one(_own_weight, {"x1": (64,), "x2": (64,)}),
            "The kernel would have to be given its own result.",
        ),
        (
            "no rows at all",
            _one(
                lambda b, x1, x2, w: pair(b, x1, x2, w)[1],
                {"x1": (0, 64), "x2": (0, 64), "w": (64,)},
            ),
            "A grid of no blocks cannot be launched.",
        ),
    ]


def _own_weight(builder, x1, x2):
    total = builder.emit(relax.op.add(x1, x2))
    return builder.emit(relax.op.nn.rms_norm(total, total, axes=[-1]))


def test_4_2_leaves_alone_what_no_kernel_serves(impl) -> None:
    """another axis, broadcasting, unknown sizes and other dtypes are no pair"""
    for what, mod, breaks in _not_a_pair():
        try:
            found, _ = _asked(impl, mod)
        except NotImplementedError:
            raise
        except Exception as error:
            raise CheckFailed(
                f"match_add_norm raised {last_line(error)} for {what}.",
                expected="None",
                why="A pass meets every module there is; one that raises stops the whole compilation.",
                read=NOT,
            ) from None
        expect.that(
            found is None,
            f"match_add_norm takes {what} for a pair.",
            expected="None",
            yours=mod["main"].script(),
            why=breaks,
            read=NOT,
        )


def observe_4_2(impl):
    def seen(mod):
        found, _ = _asked(impl, mod)
        return found and (
            found.x1.name,
            found.x2.name,
            found.weight.name,
            found.epsilon,
            found.total.name,
            found.norm.name,
        )

    modules = [m for _, m, _ in _not_a_pair()] + [
        plain(("n", 1, 64)),
        plain(("b", "s", 100), "float32", 0.5),
        plain((33,), "bfloat16"),
        _one(lambda b, x1, x2, w: pair(b, x1, x2, w, axes=[2])[1], THREE),
    ]
    return [lambda mod=mod: seen(mod) for mod in modules]


# --- 4.3 ------------------------------------------------------------------------------------------

ROWS = tirx.Var("n", "int64")


def _dims(shape: tuple[int, ...]) -> list:
    """A kernel's leading dimensions for arguments of `shape`, symbolic where it is not 1."""
    return row_dimensions(
        [
            tirx.Var(f"n{i}", "int64") if n > 1 else tirx.IntImm("int64", 1)
            for i, n in enumerate(shape)
        ]
    )


def _built(impl, shape, dtype, threads, epsilon=1e-5) -> tirx.PrimFunc:
    dims = _dims(shape)
    return parsed(lambda: impl.row_kernel(dims, shape[-1], dtype, epsilon, threads), "4.3", KERNEL)


def _ran(func: tirx.PrimFunc, arrays, target: Target, backwards: bool, how: str):
    try:
        return launch(func, arrays, target, backwards)
    except UnknownWordError as error:
        raise CheckFailed(
            f"The kernel cannot be run {how}: {error}",
            expected="sums, products, casts and rsqrt, in the dtype of the tensors and in float32",
            why="It may be right all the same: what stands in for a GPU here lacks that word, and cannot say.",
            read=KERNEL,
        ) from None
    except LaunchError as error:
        raise CheckFailed(
            f"The kernel is at fault, run {how}. {error}",
            expected="every access inside its array, and a barrier between two threads that share an element",
            why="A GPU does not say this: it gives other numbers, now and then.",
            read=KERNEL,
        ) from None


def _right(norm, total, arrays, epsilon: float, what: str, read: str) -> None:
    exact, rounded = reference(*arrays, epsilon)
    dtype = str(arrays[0].dtype)
    expect.close(
        total.astype("float64"),
        rounded.astype("float64"),
        f"The second result is not x1 + x2 {what}.",
        rtol=0,
        atol=0,
        why="Outputs start as NaN; an element that no thread writes stays so.",
        read=read,
    )
    expect.close(
        norm.astype("float64"),
        exact,
        f"The first result is not the norm of x1 + x2 {what}.",
        rtol=RELATIVE[dtype],
        atol=RELATIVE[dtype] * 1e-2,
        why=f"Compared with NumPy in float64 on the rounded sum; the tolerance is two roundings of {dtype}.",
        read=read,
    )


def _cuda_source(func: tirx.PrimFunc) -> str:
    """The CUDA text that TVM writes for `func`; the check fails where a step stands behind the sum in one loop."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        return tvm.compile(mod, target=CUDA).mod.imports[0].inspect_source()
    except ValueError as error:
        if "isn't the last block under its first reduction-related loop" not in str(error):
            raise
    raise CheckFailed(
        "TVM makes no kernel of it: a step follows the sum over all threads in the same loop over the threads.",
        expected="the sum in a loop over the threads of its own, or as the last block of one; step 5 in another",
        why="The block whose reduction axis is the thread becomes an exchange, with barriers, where its loop ends. "
        "What needs the sum stands after that: in a new `for thread in T.thread_binding(…)`.",
        read=KERNEL,
    )


def test_4_3_is_one_kernel(impl) -> None:
    """the kernel compiles to one GPU function with one block a row"""
    func = _built(impl, (3, 1, 64), "float16", 64)
    expect.that(
        isinstance(func, tirx.PrimFunc),
        "row_kernel did not return a PrimFunc.",
        yours=type(func).__name__,
    )
    source = _cuda_source(func)
    expect.equal(
        source.count("__global__ void") // 2,  # a declaration and a definition each
        1,
        "The PrimFunc does not become exactly one GPU kernel.",
        why="Each group of loops bound to blockIdx is a launch of its own; all five steps belong in one.",
        read=KERNEL,
    )


def test_4_3_right_numbers_as_gpu_code(impl) -> None:
    """run as generated GPU code, in both orders of the threads, the kernel gives NumPy's numbers"""
    cases = [
        ((3, 1, 64), "float16", 64),
        ((1, 5, 1000), "float32", 256),  # a tail
        ((2, 3, 33), "float32", 64),  # fewer elements than threads
        ((7,), "float16", 32),
        ((1, 2, 2048), "bfloat16", 256),
    ]
    ran = 0
    for shape, dtype, threads in cases:
        func = _built(impl, shape, dtype, threads)
        try:
            found = engines(dtype)
        except Skip:
            if dtype == "bfloat16" and ran:
                continue
            raise
        for how, target, backwards in found:
            arrays = inputs(shape, dtype, ran)
            norm, total, _ = _ran(func, arrays, target, backwards, how)
            _right(
                norm,
                total,
                arrays,
                1e-5,
                f"on {shape} {dtype} with {threads} threads, run {how}",
                KERNEL,
            )
            ran += 1


def _rounding_case(dtype: str) -> list[np.ndarray]:
    """x1 + x2 is a little less than half a unit above 1 everywhere, and rounds to 1."""
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    shape = (2, 1, 64)
    x1, x2 = np.ones(shape), np.full(shape, 0.49 * unit)
    return [a.astype(numpy_dtype(dtype)) for a in (x1, x2, np.ones(64))]


def test_4_3_rounds_the_sum_before_it_squares(impl) -> None:
    """what is squared is the sum as the next layer will read it"""
    arrays = _rounding_case("float16")
    func = _built(impl, (2, 1, 64), "float16", 64)
    how, target, backwards = engines("float16")[0]
    norm, _, _ = _ran(func, arrays, target, backwards, how)
    exact, _ = reference(*arrays, 1e-5)
    expect.close(
        norm.astype("float64"),
        exact,
        "The kernel squares a sum that was not rounded to float16.",
        rtol=2.0**-12,
        atol=0,
        why="Unfused, the sum goes to memory as float16 before it is squared. A kernel that squares more digits gives "
        "other numbers than the model was checked with.",
        read=KERNEL,
    )


def _big_case(first: float = 260.0) -> list[np.ndarray]:
    """Squares of 9e4, sixteen a thread, and up to 3e5 for total times weight: more than float16 can hold.

    With `first` 60 a square is 1e4, which fits; sixteen of them do not.
    """
    shape = (2, 1, 1024)
    x1 = np.full(shape, first) + np.arange(2).reshape(2, 1, 1)
    return [a.astype("float16") for a in (x1, np.full(shape, 40.0), np.linspace(1000, 0.5, 1024))]


def test_4_3_sums_squares_in_float32(impl) -> None:
    """squares, and products with the weight, that do not fit into float16 are no matter"""
    arrays = _big_case()
    func = _built(impl, (2, 1, 1024), "float16", 64)
    how, target, backwards = engines("float16")[0]
    norm, total, _ = _ran(func, arrays, target, backwards, how)
    _right(
        norm,
        total,
        arrays,
        1e-5,
        "where the sum of squares, or total times weight, exceeds what float16 can hold",
        KERNEL,
    )


def test_4_3_adds_epsilon(impl) -> None:
    """epsilon is added to the mean, in float32"""
    shape = (2, 1, 64)
    func = _built(impl, shape, "float32", 64, epsilon=0.5)
    how, target, backwards = engines("float32")[0]
    arrays = [a * np.float32(0.1) if a.ndim == 3 else a for a in inputs(shape, "float32")]
    norm, total, _ = _ran(func, arrays, target, backwards, how)
    _right(norm, total, arrays, 0.5, "with epsilon 0.5 and small numbers", KERNEL)


def observe_4_3(impl):
    def seen(arrays, threads, epsilon=1e-5):
        dtype = str(arrays[0].dtype)
        _, target, backwards = engines(dtype)[0]
        func = _built(impl, arrays[0].shape, dtype, threads, epsilon)
        _cuda_source(func)
        norm, total, _ = launch(func, arrays, target, backwards)
        return [np.round(a.astype("float64"), 1).reshape(-1)[:12].tolist() for a in (norm, total)]

    small = [a * np.float32(0.3) if a.ndim == 3 else a for a in inputs((2, 1, 256), "float32")]
    return [
        lambda: seen(small, 64, 0.5),
        lambda: seen(inputs((1, 2, 100), "float32"), 32),
        lambda: seen(inputs((2, 3, 33), "float32"), 64),
        lambda: seen(_big_case(), 64),
        lambda: seen(_big_case(60.0), 64),
        lambda: _digits(impl, _rounding_case("float16")),
    ]


def _digits(impl, arrays) -> list[float]:
    _, target, backwards = engines("float16")[0]
    norm, _, _ = launch(_built(impl, arrays[0].shape, "float16", 64), arrays, target, backwards)
    return sorted({float(v) for v in norm.reshape(-1)})


# --- 4.4 ------------------------------------------------------------------------------------------

PLANS = [
    (hidden, dtype, limit)
    for hidden in (4096, 8192, 1000, 5120, 768, 100, 33, 8)
    for dtype in ("bfloat16", "float32")
    for limit in (1024, 256)
]
SMALL_BLOCKS = [(64, "bfloat16", 64), (4096, "float32", 64), (33, "float32", 32)]


def test_4_4_a_load_is_sixteen_bytes(impl) -> None:
    """vector is 16 bytes of elements where that divides a row, else 1"""
    for hidden, dtype, limit in PLANS:
        whole = 16 // sound.ITEM_BYTES[dtype]
        expect.equal(
            impl.plan_threads(hidden, dtype, limit).vector,
            whole if hidden % whole == 0 else 1,
            f"The vector is wrong for rows of {hidden} in {dtype}.",
            why="A thread loads 16 bytes at once from an address that is a multiple of 16. Where a row is no multiple "
            "of that, neither is the start of the next row.",
            read=WIDE,
        )


def test_4_4_threads_fit_the_row(impl) -> None:
    """whole warps, at most four vectors a thread where the limit allows, and few threads idle"""
    for hidden, dtype, limit in PLANS:
        plan = impl.plan_threads(hidden, dtype, limit)
        vectors = hidden // plan.vector
        each = math.ceil(vectors / plan.threads)
        what = f"for rows of {hidden} in {dtype}, at most {limit} threads a block"
        shown = f"{plan}: {vectors} vectors a row, {each} a thread"
        expect.that(
            plan.threads % 32 == 0 and 32 <= plan.threads <= limit,
            f"The number of threads is no whole number of warps {what}.",
            expected=f"a multiple of 32 from 32 to {limit}",
            yours=shown,
            why="A warp is 32 threads that execute together; a part of one costs as much as a whole.",
            read=WIDE,
        )
        expect.that(
            each <= 4 or plan.threads > limit // 2,
            f"A thread has too many vectors {what}.",
            expected="four or fewer, unless the block is at its limit",
            yours=shown,
            why="Each vector is four registers, twice: the sum and the weight.",
            read=WIDE,
        )
        expect.that(
            plan.threads * min(each, 4) < 2 * vectors + 32 * 4,
            f"Most threads have nothing to do {what}.",
            expected="threads for the vectors there are",
            yours=shown,
            why="Idle threads hold registers and take part in every barrier.",
            read=WIDE,
        )


def test_4_4_short_rows_share_a_block(impl) -> None:
    """rows that need few threads share a block of about 128, within the limit"""
    for hidden, dtype, limit in SMALL_BLOCKS:
        plan = impl.plan_threads(hidden, dtype, limit)
        expect.that(
            plan.rows >= 1 and plan.threads * plan.rows <= limit,
            f"A block has more threads than the target allows for rows of {hidden} in {dtype}: at most {limit}.",
            expected=f"threads * rows of {limit} or fewer",
            yours=f"{plan}, a block of {plan.threads * plan.rows} threads",
            why="A launch with too large a block fails, whatever the kernel does.",
            read=WIDE,
        )
    for hidden, dtype, limit in PLANS:
        plan = impl.plan_threads(hidden, dtype, limit)
        block = plan.threads * plan.rows
        expect.that(
            plan.rows >= 1
            and block <= limit
            and (plan.rows == 1 or 64 <= block <= 128)
            and (plan.threads > 64 or block > 64),
            f"The number of rows a block is wrong for rows of {hidden} in {dtype}, at most {limit} threads a block.",
            expected="as many rows as make a block of 128 threads, at least 1",
            yours=f"{plan}, a block of {block} threads",
            why="A block of one warp leaves most of a multiprocessor empty: it holds only so many blocks at a time.",
            read=WIDE,
        )


def test_4_4_wide_kernel_gives_the_right_numbers(impl) -> None:
    """the wide kernel with your plan gives NumPy's numbers"""
    if all(target is not CUDA for _, target, _ in engines("float32")):
        raise Skip(cuda_on_cpu.missing())
    for shape, dtype in (
        ((3, 1, 1000), "bfloat16"),
        ((1, 5, 64), "float16"),
        ((2, 2, 100), "float32"),
        ((1, 2, 4096), "float16"),
    ):
        plan = impl.plan_threads(shape[-1], dtype, 1024)
        func = sound.wide_kernel(_dims(shape), shape[-1], dtype, 1e-5, plan)
        arrays = inputs(shape, dtype)
        for backwards in (False, True):
            norm, total, _ = _ran(func, arrays, CUDA, backwards, f"with {plan}")
            _right(norm, total, arrays, 1e-5, f"on {shape} {dtype} with {plan}", WIDE)


def observe_4_4(impl):
    return [lambda case=case: str(impl.plan_threads(*case)) for case in PLANS]


# --- 4.5 and 4.8 ----------------------------------------------------------------------------------


def _arguments(mod: tvm.IRModule, seed: int = 0) -> list[np.ndarray]:
    """Random arguments for main: every symbolic dimension is 3."""
    arrays = []
    for number, param in enumerate(mod["main"].params):
        expect.that(
            isinstance(param.ty, relax.TensorType) and isinstance(param.ty.shape, relax.ShapeExpr),
            f"The parameter {param.name} of your main is no tensor of known shape.",
            yours=str(param.ty),
        )
        shape = [int(n) if isinstance(n, tirx.IntImm) else 3 for n in param.ty.shape.values]
        arrays.append(draw(shape, str(param.ty.dtype), seed + number))
    return arrays


def _submitted(mod: object, whose: str) -> list[np.ndarray]:
    """The results of `mod` as submitted; fails if it is no module that compiles and runs by itself."""
    expect.returns_module(mod, whose)
    expect.has_function(mod, "main", whose)
    expect.well_formed(mod, whose)
    try:
        return run(mod, _arguments(mod))
    except CheckFailed:
        raise
    except Exception as error:
        raise CheckFailed(
            f"The module of {whose} does not run even without any pass: {last_line(error)}",
            expected="a module that is right until the pass changes it",
            yours=mod.script(),
            read=f"{LESSON}, “Break it”",
        ) from None


def _upstream(mod: tvm.IRModule):
    """("numbers", results), or (where it failed, why) of the module after FuseAsUpstream."""
    try:
        fused = FuseAsUpstream()(mod)
    except Exception as error:
        return "the pass raised", last_line(error)
    try:
        relax.analysis.well_formed(fused)
    except Exception as error:
        return "ill-formed", last_line(error)
    if not kernels(fused):
        return "nothing fused", ""
    try:
        return "numbers", run(fused, _arguments(mod))
    except Exception as error:
        return "does not run", last_line(error)


def _differ(yours: list[np.ndarray], exact: list[np.ndarray]) -> bool:
    def far(a, b):
        scale = max(1.0, float(np.abs(b.astype("float64")).max(initial=0)))
        return (
            not np.abs(a.astype("float64") - b.astype("float64")).max(initial=0)
            <= 4 * RELATIVE[str(b.dtype)] * scale
        )

    return any(far(a, b) for a, b in zip(yours, exact, strict=True))


def test_4_5_shows_the_missing_key(impl) -> None:
    """upstream's pass takes your module and gives wrong numbers without a word"""
    mod = impl.two_norms()
    exact = _submitted(mod, "two_norms")
    state, result = _upstream(mod)
    expect.that(
        state == "numbers",
        "FuseAsUpstream does not get as far as wrong numbers with your module.",
        expected="a module after the pass that is well-formed, compiles and runs",
        yours=f"{state}: {result}" if result else state,
        why="That would be noticed; look for what differs and fits all the same.",
        read=DISPATCH,
    )
    expect.that(
        _differ(result, exact),
        "FuseAsUpstream gives your module its right numbers.",
        expected="two pairs that need different kernels although both are prefills or both decodes",
        yours=mod.script(),
        why="It keeps one kernel for prefill and one for decode. Ask what else is compiled into a kernel.",
        read=DISPATCH,
    )
    repaired = run(sound.FuseAddRMSNorm(LLVM)(mod), _arguments(mod))
    expect.that(
        not _differ(repaired, exact),
        "The pass with a full key gives other numbers than your module too, so the key is not what your module shows.",
        yours=mod.script(),
        why="Numbers near overflow, or a norm of almost nothing, differ from run to run of different kernels.",
        read=DISPATCH,
    )


def _shown_by(mod: tvm.IRModule) -> list[str]:
    """What comes of `mod` after FuseAsUpstream, and what its norms differ in."""
    expect.returns_module(mod, "it")
    norms = [b.value for b in _bindings(mod) if sound.is_call(b.value, "relax.nn.rms_norm")]
    state, result = _upstream(mod)
    if state != "numbers":
        sizes = {str(norm.args[1].ty.shape) for norm in norms}
        return [state, f"{len(sizes)} hidden sizes"]
    differ = "wrong" if _differ(result, run(mod, _arguments(mod))) else "right"
    epsilons = len({norm.attrs.epsilon for norm in norms})
    return [f"{differ} {state}", f"{len(norms)} norms, {epsilons} epsilons"]


def _verdict(mod: tvm.IRModule) -> list[str]:
    expect.returns_module(mod, "it")
    shapes = [str(p.ty) for p in mod["main"].params]
    state, _ = _upstream(mod)
    return [
        state,
        str(sorted(set(shapes))),
    ]


def observe_4_5(impl):
    return [
        lambda: _shown_by(impl.two_norms())[0],
        lambda: _shown_by(impl.two_norms())[1],
    ]


def test_4_8_breaks_the_dispatch(impl) -> None:
    """upstream's pass turns your module into one that cannot be compiled or run"""
    mod = impl.breaks_the_dispatch()
    _submitted(mod, "breaks_the_dispatch")
    ranks = {
        len(b.var.ty.shape) for b in _bindings(mod) if sound.is_call(b.value, "relax.nn.rms_norm")
    }
    expect.equal(
        ranks,
        {3},
        "Your module has no norm of rank 3, or one of another rank too.",
        why="At another rank it is not the choice between prefill and decode that fails.",
        read=DISPATCH,
    )
    state, result = _upstream(mod)
    expect.that(
        state not in ("numbers", "nothing fused"),
        "FuseAsUpstream serves your module."
        if state == "numbers"
        else "FuseAsUpstream finds no pair in your module.",
        expected="a module after the pass that is ill-formed, or does not compile or run",
        yours=mod.script(),
        why="It looks at the first dimension only: 1 is a prefill, (1, n, hidden); all else a decode, (n, 1, hidden).",
        read=DISPATCH,
    )
    broadcast = [b for b in _bindings(mod) if sound.is_call(b.value, "relax.add")]
    expect.that(
        any(sound.same_tensor_type(b.value.args[0].ty, b.value.args[1].ty) for b in broadcast),
        "What fails with your module is the broadcasting add, not the dispatch.",
        expected="an add of two tensors of one shape",
        yours=result,
        read=DISPATCH,
    )


def observe_4_8(impl):
    return [
        lambda: _verdict(impl.breaks_the_dispatch())[0],
        lambda: _verdict(impl.breaks_the_dispatch())[1],
    ]


# --- 4.6 ------------------------------------------------------------------------------------------


def _pair_of(shape=("n", 1, 64), dtype="float16", epsilon=1e-5):
    found, _ = _asked(sound, plain(shape, dtype, epsilon))
    return found


DIFFERENT = {
    "epsilon": {"epsilon": 0.5},
    "hidden size": {"shape": ("n", 1, 128)},
    "dtype": {"dtype": "bfloat16"},
    "place of the rows": {"shape": (1, "n", 64)},
    "rank": {"shape": ("n", 64)},
}
DIFFERENT_ROWS = [  # the kernels of each two have one name
    ((1, 1, "n", 64), (2, 3, "n", 64)),
    ((1, "n", 5, 64), ("n", 1, 5, 64)),
]
SAME = {
    "number of rows": {"shape": (7, 1, 64)},
    "name of the number of rows": {"shape": ("batch", 1, 64)},
}


def _same_key(one: tuple, other: tuple) -> bool:
    """Whether two keys are equal; the check fails where they cannot be compared or looked up."""
    try:
        return bool(one == other) and hash(one) == hash(other)
    except (TypeError, ValueError) as error:
        raise CheckFailed(
            f"Two of your keys cannot be compared, or one cannot be looked up: {last_line(error)}",
            expected="plain Python values: numbers, booleans, text, and tuples of them",
            yours=repr(one),
            why="`==` of two TIR expressions is a third expression, neither true nor false. Which dimensions are 1, "
            "`unit_dimensions` says in booleans.",
            read=DISPATCH,
        ) from None


def test_4_6_different_kernels_have_different_keys(impl) -> None:
    """pairs that differ in what is compiled into a kernel do not share one"""
    mine = impl.kernel_key(_pair_of())
    for what, facts in DIFFERENT.items():
        expect.that(
            not _same_key(impl.kernel_key(_pair_of(**facts)), mine),
            f"Two pairs that differ in {what} have one key.",
            expected="different keys",
            yours=repr(mine),
            why=f"The second pair would be given the first one's kernel, with another {what} compiled into it.",
            read=DISPATCH,
        )
    for one, other in DIFFERENT_ROWS:
        yours = impl.kernel_key(_pair_of(one))
        expect.that(
            not _same_key(impl.kernel_key(_pair_of(other)), yours),
            f"A pair of shape {one} and one of shape {other} have one key.",
            expected="different keys",
            yours=repr(yours),
            why="A leading dimension of 1 is compiled into a kernel, which then never touches a second row there.",
            read=DISPATCH,
        )


def test_4_6_one_kernel_where_one_will_do(impl) -> None:
    """pairs that need the same kernel share it"""
    mine = impl.kernel_key(_pair_of())
    for what, facts in SAME.items():
        other = impl.kernel_key(_pair_of(**facts))
        expect.that(
            _same_key(other, mine),
            f"Two pairs that differ only in {what} have different keys.",
            expected="equal keys",
            yours=f"{mine!r} and {other!r}",
            why="The kernel reads its number of rows when it is called. A key that is too fine makes a kernel a layer: "
            "longer compilation, a larger program.",
            read=DISPATCH,
        )
    one, other = (impl.kernel_key(_pair_of(shape)) for shape in ((1, 1, 64), (1, "n", 64)))
    expect.that(
        _same_key(one, other),
        "A pair of shape (1, 1, 64) and one of shape (1, 'n', 64) have different keys.",
        expected="equal keys",
        yours=f"{one!r} and {other!r}",
        why="Where all leading dimensions are 1, a kernel takes the last for variable all the same: `unit_dimensions` "
        "says so.",
        read=DISPATCH,
    )


def _two(epsilons=(1e-5, 0.5), hidden=(64, 64)) -> tvm.IRModule:
    """Two functions of one module, each with a pair."""
    builder = relax.BlockBuilder()
    for name, epsilon, size in zip(("main", "other"), epsilons, hidden, strict=True):
        shapes = {"x1": ("n", 1, size), "x2": ("n", 1, size), "weight": (size,)}
        add_function(
            builder,
            name,
            lambda b, x1, x2, w, e=epsilon: list(pair(b, x1, x2, w, e)),
            shapes,
            "float32",
        )
    return builder.get()


def _kernels_called(mod: tvm.IRModule) -> list[str]:
    found = []
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(
                func,
                lambda e: (
                    found.append(e.args[0].name_hint)
                    if sound.is_call(e, "relax.call_tir")
                    else None
                ),
            )
    return found


def _fused_with_key(impl, mod: tvm.IRModule) -> tvm.IRModule:
    """The reference's pass with the answer's key: whatever else the answer has, the key is what is judged."""
    kept = sound.kernel_key
    sound.kernel_key = impl.kernel_key
    try:
        return sound.FuseAddRMSNorm(LLVM)(mod)
    finally:
        sound.kernel_key = kept


def test_4_6_two_norms_two_kernels(impl) -> None:
    """in one module, each norm gets its own epsilon and size"""
    for what, mod in (("epsilon", _two()), ("hidden size", _two((1e-5, 1e-5), (64, 96)))):
        fused = _fused_with_key(impl, mod)
        expect.well_formed(fused, "The pass with your key")
        arrays = {name: _shaped(mod[name]) for name in ("main", "other")}
        yours, exact = run_each(fused, arrays, QUICK), run_each(mod, arrays, QUICK)
        for name in arrays:
            expect.that(
                not _differ(yours[name], exact[name]),
                f"With two functions that differ in {what}, `{name}` gives other numbers than before.",
                expected="each function calls a kernel made for it",
                yours=fused.script()[:1500],
                why="Kernels are kept for the whole module: the key must tell apart pairs of different functions too.",
                read=DISPATCH,
            )


def _shaped(func: relax.Function) -> list[np.ndarray]:
    sizes = [
        [int(n) if isinstance(n, tirx.IntImm) else 3 for n in p.ty.shape.values]
        for p in func.params
    ]
    return [
        draw(shape, str(p.ty.dtype), i)
        for i, (shape, p) in enumerate(zip(sizes, func.params, strict=True))
    ]


def observe_4_6(impl):
    mine = lambda: impl.kernel_key(_pair_of())  # noqa: E731
    return [
        lambda facts=facts: impl.kernel_key(_pair_of(**facts)) == mine()
        for facts in (*DIFFERENT.values(), *SAME.values())
    ] + [
        lambda one=one, other=other: (
            impl.kernel_key(_pair_of(one)) == impl.kernel_key(_pair_of(other))
        )
        for one, other in [*DIFFERENT_ROWS, ((1, 1, 64), (1, "n", 64))]
    ]


# --- 4.7 ------------------------------------------------------------------------------------------

WHOSE = "FuseAddRMSNorm"


def _pass(impl, target=LLVM) -> Callable[[tvm.IRModule], tvm.IRModule]:
    return lambda mod: impl.FuseAddRMSNorm(target)(mod)


def test_4_7_fuses_the_pair(impl) -> None:
    """an add and its norm become one call with two results"""
    mod = plain(("n", 1, 64), "float32")
    fused = expect.apply(_pass(impl), mod, WHOSE)
    expect.equal(
        operators(fused),
        ["kernel"],
        "main does not call one kernel and nothing else.",
        why="The add must not stay beside the kernel that adds, nor the norm beside the kernel that normalises.",
        read=PLACE,
    )
    call = next(b for b in _bindings(fused) if sound.is_call(b.value, "relax.call_tir"))
    given = [argument.name for argument in call.value.args[1].fields]
    expect.equal(
        given,
        ["x1", "x2", "weight"],
        "The kernel is not given x1, x2 and weight, in that order.",
        why="call_tir passes its arguments by position, and after them the results.",
        read=PLACE,
    )


SHAPES = [
    ((1, "n", 64), "fuse_add_norm_prefill"),
    (("n", 1, 64), "fuse_add_norm_decode"),
    ((1, 1, 64), "fuse_add_norm_prefill"),
    (("b", "s", 64), "fuse_add_norm_rows"),
    ((4, 3, 100), "fuse_add_norm_rows"),
    (("n", 7), "fuse_add_norm_rows"),
    ((33,), "fuse_add_norm_rows"),
]


def test_4_7_fuses_every_shape(impl) -> None:
    """prefill, decode, and every other arrangement of rows"""
    for shape, name in SHAPES:
        fused = expect.apply(_pass(impl), plain(shape, "float32"), WHOSE)
        expect.equal(
            operators(fused), ["kernel"], f"A pair on {shape} is not fused.", read=DISPATCH
        )
        expect.equal(
            list(kernels(fused)), [name], f"The kernel for {shape} has another name.", read=DISPATCH
        )


def test_4_7_leaves_the_rest_alone(impl) -> None:
    """where one kernel cannot serve, nothing changes"""
    for what, mod, breaks in _not_a_pair():
        fused = expect.apply(_pass(impl), mod, WHOSE)
        expect.same_ir(fused, mod, f"{WHOSE} changed {what}.", why=breaks, read=NOT)


def _neg(builder, value):
    return builder.emit(relax.op.negative(value))


def _read_before(builder, x1, x2, w):
    total = builder.emit(relax.op.add(x1, x2))
    early = builder.emit(relax.op.exp(total))
    norm = builder.emit(relax.op.nn.rms_norm(total, w, axes=[-1]))
    return [early, norm, _neg(builder, total)]


def _late_weight(builder, x1, x2, w):
    total = builder.emit(relax.op.add(x1, x2))
    late = _neg(builder, w)
    norm = builder.emit(relax.op.nn.rms_norm(total, late, axes=[-1]))
    return [norm, _neg(builder, total)]


def _weight_after_a_use(builder, x1, x2, w):
    total = builder.emit(relax.op.add(x1, x2))
    early = builder.emit(relax.op.exp(total))
    late = _neg(builder, w)
    return [early, builder.emit(relax.op.nn.rms_norm(total, late, axes=[-1])), total]


def _two_norms_of_one_sum(builder, x1, x2, w):
    total, norm = pair(builder, x1, x2, w)
    other = builder.emit(relax.op.nn.rms_norm(total, _neg(builder, w), axes=[-1], epsilon=0.5))
    return [norm, other, total]


def _chain(builder, x1, x2, w):
    first, norm = pair(builder, x1, x2, w, 1e-5)
    second, other = pair(builder, norm, first, w, 0.5)
    return [other, second, _neg(builder, first)]


def _norm_unused(builder, x1, x2, w):
    total, _ = pair(builder, x1, x2, w)
    return [total]


def _twice_x1(builder, x1, x2, w):
    total, norm = pair(builder, x1, x1, w)
    return [norm, total, x2]


USERS = {
    "the sum is read again after the norm": lambda b, x1, x2, w: [
        (t := pair(b, x1, x2, w))[1],
        _neg(b, t[0]),
    ],
    "the sum is read before the norm": _read_before,
    "the weight is made between the add and the norm": _late_weight,
    "the sum is read before its norm's weight is made": _weight_after_a_use,
    "two norms read one sum": _two_norms_of_one_sum,
    "a pair follows on a pair, with another epsilon": _chain,
    "nobody reads the norm": _norm_unused,
    "add(x1, x1)": _twice_x1,
}
SIZES = {"x1": ("n", 1, 64), "x2": ("n", 1, 64), "weight": (64,)}


@I.ir_module
class SumLeavesItsBlock:
    """The sum is an output of one dataflow block; its norm stands in another, and so does a second pair without any."""

    @R.function
    def main(
        x1: R.Tensor(("n", 1, 64), "float32"),
        x2: R.Tensor(("n", 1, 64), "float32"),
        weight: R.Tensor((64,), "float32"),
    ):
        with R.dataflow():
            total = R.add(x1, x2)
            early = R.exp(total)
            R.output(total, early)
        with R.dataflow():
            norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
            R.output(norm)
        again = R.add(norm, total)
        last = R.nn.rms_norm(again, weight, axes=[-1], epsilon=0.5)
        return (early, norm, again, last)


@I.ir_module
class NormOutsideTheBlock:
    """The sum is first read in a dataflow block; its norm stands after that block, in none."""

    @R.function
    def main(
        x1: R.Tensor(("n", 1, 64), "float32"),
        x2: R.Tensor(("n", 1, 64), "float32"),
        weight: R.Tensor((64,), "float32"),
    ):
        with R.dataflow():
            total = R.add(x1, x2)
            early = R.exp(total)
            R.output(total, early)
        norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
        return (early, norm, total)


@I.ir_module
class Branches:
    """The sum is normalised in one branch and read in the other and afterwards."""

    @R.function
    def main(
        x1: R.Tensor((3, 1, 64), "float32"),
        x2: R.Tensor((3, 1, 64), "float32"),
        weight: R.Tensor((64,), "float32"),
        choose: R.Tensor((), "bool"),
    ):
        total = R.add(x1, x2)
        if choose:
            inner = R.add(total, x2)
            chosen = R.nn.rms_norm(inner, weight, axes=[-1], epsilon=1e-5)
        else:
            chosen = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
        after = R.nn.rms_norm(total, weight, axes=[-1], epsilon=0.5)
        return (chosen, after, total)


def _numbers(impl, mod: tvm.IRModule, what: str | dict[str, str], choices=()) -> None:
    """Every function of `mod` gives after the pass what it gave before; `what` says where, of main or by function."""
    what = what if isinstance(what, dict) else {"main": what}
    fused = expect.apply(_pass(impl), mod, WHOSE)
    for more in choices or ((),):
        arrays = {name: [*_shaped(mod[name])[: 3 if more else None], *more] for name in what}
        yours, exact = run_each(fused, arrays, QUICK), run_each(mod, arrays, QUICK)
        for name, where in what.items():
            _same_numbers(yours[name], exact[name], where)


def _same_numbers(yours: list[np.ndarray], exact: list[np.ndarray], what: str) -> None:
    for number, (a, b) in enumerate(zip(yours, exact, strict=True)):
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        expect.close(
            a,
            b,
            f"Result {number} of main changes where {what}.",
            rtol=4 * RELATIVE["float32"],
            atol=4 * RELATIVE["float32"] * scale,
            why="Compared with the same module without the pass, compiled for the same CPU.",
            read=PLACE,
        )


def _users() -> tuple[tvm.IRModule, dict[str, str]]:
    """(a function for each of USERS, with and without a dataflow block, what each is about)."""
    builder, what = relax.BlockBuilder(), {}
    for dataflow in (True, False):
        for number, (about, build) in enumerate(USERS.items()):
            name = f"user_{number}" + ("" if dataflow else "_alone")
            add_function(builder, name, build, SIZES, "float32", dataflow=dataflow)
            what[name] = about + ("" if dataflow else ", without a dataflow block")
    return builder.get(), what


def test_4_7_keeps_the_numbers(impl) -> None:
    """whoever reads the sum, before or after the norm, inside or outside a block, reads the right one"""
    mod, what = _users()
    try:
        _numbers(impl, mod, what)
    except Exception:
        # one module is compiled quickly; where it fails, each function by itself says which one it is
        for name, about in what.items():
            _numbers(
                impl, tvm.IRModule({"main": mod[name].with_attr("global_symbol", "main")}), about
            )
        raise
    _numbers(impl, SumLeavesItsBlock, "the sum is an output of its dataflow block")
    _numbers(impl, NormOutsideTheBlock, "the norm stands outside the sum's dataflow block")
    _numbers(
        impl,
        Branches,
        "the norm stands in a branch",
        [(np.array(choose),) for choose in (True, False)],
    )


def test_4_7_fires_whoever_reads_the_sum(impl) -> None:
    """other readers of the sum do not keep the add alive"""
    mod, what = _users()
    fused = _pass(impl)(mod)
    for (name, about), build in zip(what.items(), [*USERS.values()] * 2, strict=True):
        if build is _weight_after_a_use:
            continue  # no place serves both: the sum is read before the weight is there
        called = operators(fused, name)
        expect.that(
            "kernel" in called and "add" not in called,
            f"The pair is not fused, or its add stays, where {about}.",
            expected="the kernel where the sum is first read, and no add",
            yours=", ".join(called),
            why="An add that stays beside the kernel is computed twice: more traffic than without the pass.",
            read=PLACE,
        )


def _with_company() -> tvm.IRModule:
    """A pair in a function with attributes, a private function with another, and a kernel that has the name already."""
    builder = relax.BlockBuilder()
    squatter = sound.cpu_kernel(_dims((2, 1)), 64, "float32", 1e-3)
    builder.add_func(squatter, "fuse_add_norm_decode")
    add_function(
        builder,
        "decode",
        lambda b, x1, x2, w: list(pair(b, x1, x2, w, 0.25)),
        SIZES,
        "float32",
        attrs={"num_input": 2},
    )
    add_function(builder, "other", lambda b, x1, x2, w: [_neg(b, x1), x2, w], SIZES, "float32")
    return builder.get().with_attr("model", "two functions")


def test_4_7_keeps_its_company(impl) -> None:
    """attributes, other functions, and a kernel that has the name already, all stay"""
    mod = _with_company()
    fused = expect.apply(_pass(impl), mod, WHOSE)
    expect.equal(
        dict(fused["decode"].attrs).get("num_input"),
        2,
        "The function has lost its attribute num_input.",
        why="Later passes read it: it says which parameters are weights.",
        read=PLACE,
    )
    expect.equal(
        str(fused.attrs["model"]), "two functions", "The module has lost its attribute.", read=PLACE
    )
    for name in ("other", "fuse_add_norm_decode"):
        expect.that(
            tvm_ffi.structural_equal(fused[name], mod[name]),
            f"{WHOSE} changed `{name}`, in which there is no pair.",
            why="A function that calls it would now compute something else.",
            read=PLACE,
        )
    arrays = _shaped(mod["decode"])
    expect.that(
        not _differ(run(fused, arrays, "decode"), run(mod, arrays, "decode")),
        "`decode` calls the kernel that was there before under the same name.",
        expected="a kernel of its own: builder_.add_func finds a free name and returns it",
        read=DISPATCH,
    )


def _written_between() -> tvm.IRModule:
    """x2 is overwritten after the add and before the norm."""
    from tvm.script import tirx as T

    @I.ir_module
    class Written:
        @T.prim_func(private=True, s_tir=True)
        def clear(a: T.Buffer((3, 1, 64), "float32")):
            for i, j, k in T.grid(3, 1, 64):
                with T.sblock("clear"):
                    vi, vj, vk = T.axis.remap("SSS", [i, j, k])
                    a[vi, vj, vk] = T.float32(0)

        @R.function
        def main(
            x1: R.Tensor((3, 1, 64), "float32"),
            x2: R.Tensor((3, 1, 64), "float32"),
            weight: R.Tensor((64,), "float32"),
        ):
            cls = Written
            total = R.add(x1, x2)
            cleared = R.call_tir_inplace(
                cls.clear, (x2,), inplace_indices=[0], out_ty=R.Tensor((3, 1, 64), "float32")
            )
            norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
            return (norm, cleared)

    return Written


def test_4_7_moves_nothing_across_a_write(impl) -> None:
    """an add whose argument is overwritten before the norm stays where it is"""
    mod = _written_between()
    _numbers(impl, mod, "x2 is overwritten between the add and the norm")


def test_4_7_runs_twice_the_same(impl) -> None:
    """a second run finds nothing left"""
    for build in (_chain, _two_norms_of_one_sum, _read_before):
        once = _pass(impl)(module(build, SIZES, "float32"))
        expect.runs_twice_the_same(_pass(impl), once, WHOSE)


def test_4_7_costs_less(impl) -> None:
    """one launch and four fifths of the bytes, on CUDA too"""
    for target in (LLVM, CUDA):
        mod = plain((1, 512, 4096), "float16")
        fused = expect.apply(_pass(impl, target), mod, WHOSE)
        before, after = _total(mod), _total(fused)
        expect.that(
            after < 0.81 * before and len(kernels(fused)) == 1,
            f"For {target.kind.name}, {len(kernels(fused))} kernels move {after:,} of {before:,} bytes.",
            expected="four fifths, and one kernel",
            why="The sum is written once and not read again.",
            read=MEASURE,
        )


def test_4_7_leaves_targets_without_kernels_alone(impl) -> None:
    """a target that has neither threads nor LLVM gets its module back"""
    mod = plain(("n", 1, 64), "float32")
    fused = expect.apply(_pass(impl, Target("c")), mod, WHOSE)
    expect.same_ir(
        fused,
        mod,
        f"{WHOSE} changed a module for a target it has no kernel for.",
        why="Unfused, the module compiles for it.",
        read=NOT,
    )


def _formed(mod: tvm.IRModule) -> str:
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        return last_line(error)[:60]
    return "well-formed"


def observe_4_7(impl):
    def seen(mod, digits):
        fused = _pass(impl)(mod)
        formed = _formed(fused)
        results = run(fused, _shaped(mod["main"])) if digits and formed == "well-formed" else []
        return formed, operators(fused), [np.round(r.reshape(-1)[:5], 1).tolist() for r in results]

    return [
        lambda: seen(plain((3, 1, 64), "float32"), True),
        lambda: seen(module(_read_before, SIZES, "float32"), False),
        lambda: seen(module(_two_norms_of_one_sum, SIZES, "float32"), False),
        lambda: seen(NormOutsideTheBlock, False),
    ]


# --- 4.9 ------------------------------------------------------------------------------------------


def test_4_9_counts_what_is_moved(impl) -> None:
    """bytes of main before and after the pass"""
    cases = [
        (plain(("n", 1, 4096), "float16"), {"n": 8}),
        (plain((1, 512, 4096), "bfloat16"), {}),
        (module(_two_norms_of_one_sum, SIZES, "float32"), {"n": 5}),
    ]
    for mod, sizes in cases:
        expected = _total(mod, sizes), _total(sound.FuseAddRMSNorm(CUDA)(mod), sizes)
        expect.equal(
            tuple(impl.bytes_moved(mod, CUDA, sizes)),
            expected,
            "bytes_moved does not give the bytes of main before and after the pass.",
            why="Each call reads each tensor it is given once and writes its result, as binding_bytes counts.",
            read=MEASURE,
        )
    mod = cases[0][0]
    unfused = _total(mod, {"n": 8})
    expect.equal(
        tuple(impl.bytes_moved(mod, Target("c"), {"n": 8})),
        (unfused, unfused),
        "bytes_moved counts a fused pair for a target that has no kernel for it.",
        why="The pass is given the target that bytes_moved is given; for this one it leaves the pair alone.",
        read=MEASURE,
    )


def observe_4_9(impl):
    return [
        lambda: tuple(impl.bytes_moved(plain(("n", 1, 4096), "float16"), CUDA, {"n": 8})),
        lambda: tuple(impl.bytes_moved(module(_chain, SIZES, "float32"), CUDA, {"n": 5})),
        lambda: tuple(impl.bytes_moved(plain((3, 64), "float16"), Target("c"), {})),
    ]
