"""The checks of chapter 4: the pair, its kernels, the key of a kernel, and the pass that puts it in place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from unittest import mock

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm.target import Target

from chapters.ch04_add_rms_norm import as_upstream
from chapters.ch04_add_rms_norm.as_upstream import FuseAsUpstream
from chapters.ch04_add_rms_norm.check_cases import (
    PAIR,
    RELATIVE,
    ROWS,
    draw_inputs,
    launch,
    reference,
    run,
    write_function,
)
from chapters.ch04_add_rms_norm.given import AddNorm
from chapters.checking import expect
from chapters.checking.attributes import keeps_module_facts
from chapters.checking.expect import Section
from chapters.checking.gpu_kernels import engines, parsed
from chapters.checking.judge import judge_pass, observe_pass
from chapters.checking.programs import arguments, kernels, operators
from chapters.kit.cases.example_programs import unfused_add_norm
from chapters.kit.cases.guard_zones import compile_once
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.gpu.targets import CUDA
from chapters.kit.ir.row_index import is_one, row_dimensions
from chapters.kit.ir.tensor_ir import innermost_blocks, substitute, thread_axis
from chapters.runner.failure import Skip
from chapters.runner.loading import last_line
from solutions.ch01_walk_the_ir.walk_the_ir import binding_bytes
from solutions.ch04_add_rms_norm import fuse_add_norm as sound

LESSON = "chapters/ch04_add_rms_norm/lesson.md"
MATCH = Section(LESSON, "Match")
PRIMER = Section(LESSON, "A GPU in one page")
PRACTICE = Section(LESSON, "A practice kernel")
SEVERAL = Section(LESSON, "More elements than threads")
KERNEL = Section(LESSON, "The dtypes decide")
DISPATCH = Section(LESSON, "Dispatch")
PLACE = Section(LESSON, "Put it where the sum is first read")
NOT_FIRE = Section(LESSON, "When it must not fire")
BREAK = Section(LESSON, "Break it")
MEASURE = Section(LESSON, "Measure it")

LIMITS = {
    "test_4_2_right_numbers_as_gpu_code": 90,
    "test_4_2_rounds_the_sum_before_it_squares": 40,
    "test_4_2_sums_squares_in_float32": 40,
    "test_4_5_fires_whoever_reads_the_sum": 60,
    "test_4_5_keeps_the_numbers": 60,
}
NORM = "relax.nn.rms_norm"
LLVM = Target("llvm")


def _count_bytes(mod: tvm.IRModule, sizes: dict[str, int] | None = None) -> int:
    return sum(row.read + row.written for row in binding_bytes(mod["main"], sizes or {}))


# --- 4.1 ------------------------------------------------------------------------------------------


def _make_pair(x1=ROWS, x2=ROWS, weight=(64,), dtype="float16", body: str = PAIR) -> tvm.IRModule:
    """main(x1, x2, weight) on tensors of these shapes or types, which gives the last value of `body`."""
    return relax_module(write_function(body, x1, x2, weight, dtype))


def _norm_over(*axes: int) -> str:
    """A pair whose norm is over these axes."""
    return PAIR.replace("[-1]", str(list(axes)))


def _bindings(mod: tvm.IRModule, op: str = "") -> list[relax.VarBinding]:
    """The bindings of main; of those, if `op` is given, the ones of a call of that operator."""
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [b for b in bindings if not op or sound.is_call(b.value, op)]


def _ask(impl, mod: tvm.IRModule):
    """What match_add_norm says about the last rms_norm of main, or the last call if there is none; and that binding."""
    calls = [b for b in _bindings(mod) if isinstance(b.value, relax.Call)]
    norm, bound = (_bindings(mod, NORM) or calls)[-1], {}
    for binding in _bindings(mod):
        if binding.var.same_as(norm.var):
            break
        bound[binding.var] = binding.value
    return impl.match_add_norm(norm.var, norm.value, bound), norm


def test_4_1_finds_the_pair(impl) -> None:
    """rms_norm of add is found, with every part in its place"""
    found, norm = _ask(impl, unfused_add_norm(("n", 1, 64), epsilon=0.25))
    wanted = "an AddNorm for rms_norm(add(x1, x2), weight) on (n, 1, 64) in float16"
    why = "This is the pair that every decoder layer has, and the one that the pass exists for."
    MATCH.returns(found, AddNorm, "match_add_norm", "an AddNorm", expected=wanted, why=why)
    names = [getattr(getattr(found, part), "name", "?") for part in ("x1", "x2", "weight")]
    what = "x1, x2 and weight of your AddNorm are not the arguments of the two calls."
    why = "The kernel is called with these three, in this order."
    MATCH.equal(names, ["x1", "x2", "weight"], what, why=why)
    MATCH.that(
        found.norm.same_as(norm.var) and found.total.same_as(norm.value.args[0]),
        "total and norm of your AddNorm are not the variables of the two bindings.",
        expected=f"total {norm.value.args[0].name}, norm {norm.var.name}",
        yours=f"total {found.total.name}, norm {found.norm.name}",
        why="The pass binds these two variables to the kernel's results.",
    )
    what = "epsilon of your AddNorm is not the epsilon of the norm."
    why = "It becomes a constant in the kernel. The call has it as value.attrs.epsilon."
    MATCH.equal(found.epsilon, 0.25, what, why=why)


def test_4_1_takes_every_shape_a_kernel_can_serve(impl) -> None:
    """a pair may have any rank, three dtypes, and its axis written as -1 or as the last"""
    shapes = [
        ("n", 1, 64),
        (1, "n", 4096),
        ("b", "s", 100),
        (4, 3, 7),
        ("n", 64),
        (33,),
        (5, 1),
        (2, "n", 1, "m", 96),
    ]
    why = "The kernel has one block per row, so it serves any rank, leading dimensions and hidden size."
    cases = [(unfused_add_norm(shape), f"a pair on {shape} float16", why) for shape in shapes]
    why = "In float16, your function finds it. A kernel can be made for each dtype that is a key of ITEM_BYTES."
    cases += [
        (unfused_add_norm(shape, dtype), f"a pair on {shape} {dtype}", why)
        for shape in shapes
        for dtype in ("bfloat16", "float32")
    ]
    why = "At rank 4, the axis 3 is the last one, as -1 is. Models write both."
    cases.append((LAST_OF_FOUR, "a pair of rank 4 whose norm has axes=[3]", why))
    why = "The kernel reads its two tensors, and they may be the same one."
    twice = _make_pair(body=PAIR.replace("x2", "x1"))
    cases.append((twice, "a pair whose add is add(x1, x1)", why))
    why = "None of this keeps a kernel from serving the pair."
    text = write_function(PAIR.replace("x1", "ones").replace("weight", "ones"), (64,), (64,))
    constant = relax_module(text, ones=relax.const(np.ones(64, "float16")))
    cases.append((constant, "a pair in which one constant is both x1 and the weight", why))
    what = (
        "a pair outside of a dataflow block, on (n + 1, 1, 64), with a computed weight and epsilon 0, and with a sum "
        "that has the name of an earlier variable"
    )
    cases.append((relax_module(OUTSIDE), what, why))
    for mod, case, why in cases:
        what = f"match_add_norm returned None for {case}."
        why += " An unfused pair costs a second launch, and a detour of the sum through memory."
        MATCH.that(_ask(impl, mod)[0] is not None, what, expected="an AddNorm", why=why)


LAST_OF_FOUR = _make_pair((2, "n", 3, 64), (2, "n", 3, 64), body=_norm_over(3))
OUTSIDE = """
@bare
def main(x: ("n", 1, 64, "float16"), x1: ("n + 1", 1, 64, "float16"), w: (64, "float16")):
    total = R.negative(x1)
    total = R.add(x1, total)
    norm = R.nn.rms_norm(total, R.exp(w), axes=[-1], epsilon=0.0)
    return norm
"""
UNKNOWN = "R.Tensor(dtype='float16', ndim={})"


def _norm_of(total: str) -> str:
    return PAIR.replace("R.add(x1, x2)", total)


# what it is -> the module, what would break
NOT_A_PAIR = {
    "the norm of a parameter": (
        _make_pair(body="norm = R.nn.rms_norm(x1, weight, axes=[-1], epsilon=1e-5)"),
        "There is no add.",
    ),
    "the norm of another name of a parameter": (
        _make_pair(body=_norm_of("x1")),
        "There is no add.",
    ),
    "the norm of a product": (
        _make_pair(body=_norm_of("R.multiply(x1, x2)")),
        "The kernel adds its two tensors; it does not multiply them.",
    ),
    "a norm over the first axis": (
        _make_pair((64, 8), (64, 8), body=_norm_over(0)),
        "The kernel sums along rows; this norm sums along columns.",
    ),
    "a norm over the first of two axes of equal size": (
        _make_pair((64, 64), (64, 64), body=_norm_over(0)),
        "All shapes fit, so only the numbers would be wrong.",
    ),
    "a norm over two axes": (
        _make_pair((2, 8, 8), (2, 8, 8), (8, 8), body=_norm_over(1, 2)),
        "Its mean is over 64 elements, but a row has 8.",
    ),
    "an add that broadcasts a row": (
        _make_pair(x2=(64,)),
        "The kernel would read past the end of x2.",
    ),
    "an add that broadcasts the first argument": (
        _make_pair(x1=(1, 1, 64)),
        "The kernel would read past the end of x1.",
    ),
    "an add of a number": (
        _make_pair(body=_norm_of('R.add(x1, R.const(0.5, "float16"))')),
        "The kernel reads two tensors, and here the second argument is a scalar.",
    ),
    "a symbolic hidden size": (
        _make_pair((4, "h"), (4, "h"), ("h",)),
        "The number of registers per thread must be known when the kernel is compiled.",
    ),
    "an argument of unknown shape": (
        _make_pair(UNKNOWN.format(3)),
        "The compiler does not know that a row has 64 elements.",
    ),
    "a float64 pair": (
        _make_pair(dtype="float64"),
        "The kernel adds up the squares in float32, which loses half of the digits of float64.",
    ),
    "a norm whose weight is the sum": (
        _make_pair((64,), (64,), body=PAIR.replace("weight", "total")),
        "The kernel would need its own result as an argument.",
    ),
    "a pair without rows": (
        _make_pair((4, 0, 2, 64), (4, 0, 2, 64)),
        "One block per row makes an empty grid, which cannot be launched.",
    ),
    "a pair whose rows are empty": (
        _make_pair((4, 0), (4, 0), (0,)),
        "The kernel divides by the hidden size, and here that is 0.",
    ),
    "a norm of scalars over no axis": (
        _make_pair((), (), (), body=_norm_over()),
        "A scalar has no last axis, so there is no row.",
    ),
    "a norm of a matrix over no axis": (
        _make_pair((4, 64), (4, 64), (), body=_norm_over()),
        "It divides each element by itself, and the kernel sums along rows.",
    ),
    "a sum of unknown shape": (
        _make_pair(body=PAIR.replace("total =", f"total: {UNKNOWN.format(3)} =")),
        "call_tir allocates both results, and needs the shape in their type.",
    ),
    "a weight of unknown shape": (
        _make_pair(weight=UNKNOWN.format(1)),
        "The kernel reads 64 elements of the weight, and the type does not promise that many.",
    ),
    # the second argument of the last call is the weight, as a norm's is
    "a product with the weight": (
        _make_pair(body="no_norm = R.multiply(R.add(x1, x2), weight)"),
        "A multiply is not a norm.",
    ),
    "an add of the weight": (
        _make_pair(body="no_norm = R.add(R.add(x1, x2), weight)"),
        "No norm follows the add.",
    ),
    "an add alone": (_make_pair(body="no_norm = R.add(x1, x2)"), "No norm follows the add."),
}


def test_4_1_leaves_alone_what_no_kernel_serves(impl) -> None:
    """other axes, broadcasting, unknown sizes and other dtypes are not a pair"""
    for what, (mod, breaks) in NOT_A_PAIR.items():
        try:
            found, _ = _ask(impl, mod)
        except NotImplementedError:
            raise
        except Exception as error:
            said = f"match_add_norm raised {last_line(error)} when it was given {what}."
            why = "The pass calls match_add_norm for the bindings of every model. If it raises, the compilation stops."
            raise NOT_FIRE.failed(said, expected="None", why=why) from None
        found_one = "an AddNorm" if isinstance(found, AddNorm) else repr(found)
        what = f"match_add_norm returned {found_one} for {what}."
        yours = f"{found_one}, for this function:\n{mod['main'].script()}"
        NOT_FIRE.that(found is None, what, expected="None", yours=yours, why=breaks)


def observe_4_1(impl):
    def describe(mod):
        found, _ = _ask(impl, mod)
        parts = found and (found.x1, found.x2, found.weight, found.total, found.norm)
        return parts and ([part.name for part in parts], found.epsilon)

    modules = [mod for mod, _ in NOT_A_PAIR.values()] + [
        unfused_add_norm(("n", 1, 64)),
        unfused_add_norm(("b", "s", 100), "float32", 0.5),
        unfused_add_norm((33,)),
        unfused_add_norm(("n", 64), "bfloat16"),
        _make_pair(body=_norm_over(2)),
        LAST_OF_FOUR,
    ]
    return [lambda mod=mod: describe(mod) for mod in modules]


# --- 4.2 ------------------------------------------------------------------------------------------


def _make_row_dims(shape: tuple[int, ...]) -> list:
    """A kernel's leading dimensions for arguments of `shape`, symbolic where it is not 1."""
    sizes = [
        tirx.Var(f"n{i}", "int64") if n > 1 else tirx.IntImm("int64", 1)
        for i, n in enumerate(shape)
    ]
    return row_dimensions(sizes)


def _build(impl, shape, dtype, threads, epsilon=1e-5) -> tirx.PrimFunc:
    dims = _make_row_dims(shape)
    return parsed(
        lambda: impl.row_kernel(dims, shape[-1], dtype, epsilon, threads), "4.2", PRACTICE
    )


def _check_numbers(norm, total, arrays, epsilon: float, where: str, section: Section) -> None:
    exact, rounded = reference(*arrays, epsilon)
    dtype = str(arrays[0].dtype)
    what = f"The kernel's output `total` is not x1 + x2 {where}."
    why = "Later layers read this sum. Both outputs start as NaN, so an element that no thread writes stays NaN."
    section.close(total.astype("float64"), rounded.astype("float64"), what, rtol=0, atol=0, why=why)
    found = norm.astype("float64")
    what = f"The kernel's output `norm` is not the norm of x1 + x2 {where}."
    why = (
        f"Expected is total / sqrt(mean(total ** 2) + epsilon) * weight, computed by NumPy in float64 from the rounded "
        f"sum. The tolerance is two roundings of {dtype}."
    )
    section.close(found, exact, what, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] * 1e-2, why=why)


def _write_cuda(func: tirx.PrimFunc) -> str:
    """Return the CUDA text that TVM writes for `func`. The check fails if a step follows the sum in the same loop."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    try:
        return compile_once(mod, CUDA).mod.imports[0].inspect_source()
    except ValueError as error:
        if "isn't the last block under its first reduction-related loop" not in str(error):
            raise
    raise PRACTICE.failed(
        "In your kernel, a step follows the sum over all threads in the same loop over the threads.",
        expected="the sum as the last sblock of its loop over the threads, and what needs it in a new loop",
        why="TVM turns the sum into an exchange between the threads at the place where its loop ends. Code that needs "
        "the sum must come after that place, in a new `for thread in T.thread_binding(…)`.",
    )


HELD = ((64, 64), (1000, 256), (33, 64), (1, 32), (2049, 256))  # hidden size, threads


def test_4_2_every_element_has_a_thread(impl) -> None:
    """elements_per_thread leaves no element of a row without a thread"""
    for size, threads in HELD:
        yours = impl.elements_per_thread(size, threads)
        SEVERAL.equal(
            yours,
            -(-size // threads),
            f"elements_per_thread({size}, {threads}) does not return how many elements a thread holds at most.",
            why=f"A row has {size} elements for {threads} threads. If each holds too few, no thread computes the end "
            "of the row. If each holds too many, registers are wasted.",
        )


def test_4_2_is_one_kernel(impl) -> None:
    """the kernel compiles to one GPU function"""
    func = _build(impl, (3, 1, 64), "float16", 64)
    expect.returns(func, tirx.PrimFunc, "row_kernel", "a PrimFunc")
    source = _write_cuda(func)
    PRACTICE.equal(
        source.count("__global__ void") // 2,  # a declaration and a definition each
        1,
        "TVM does not make exactly one GPU kernel of your PrimFunc.",
        why="Every loop nest that begins with a loop over blockIdx.x becomes a launch of its own. Put everything into "
        "one loop over blockIdx.x.",
    )


def test_4_2_right_numbers_as_gpu_code(impl) -> None:
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
        func = _build(impl, shape, dtype, threads)
        try:
            ways = engines(dtype)
        except Skip:
            if dtype == "bfloat16" and ran:
                continue
            raise
        for how, target, backwards in ways:
            arrays = draw_inputs(shape, dtype, ran)
            what = f"on {shape} {dtype} with {threads} threads, run {how}"
            read = SEVERAL if shape[-1] % threads else PRACTICE
            norm, total, launches = launch(func, arrays, target, backwards, read)
            _check_numbers(norm, total, arrays, 1e-5, what, read)
            PRIMER.equal(
                [(one.grid, math.prod(one.block)) for one in launches],
                [((math.prod(shape[:-1]), 1, 1), threads)],
                f"The kernel does not have one block of {threads} threads per row, along blockIdx.x, {what}.",
                why="The pass chooses the threads. A grid may have 2**31 - 1 blocks along x, but only 65,535 along y.",
            )
            ran += 1


def _run_once(impl, arrays: list[np.ndarray], epsilon: float = 1e-5):
    """(norm, total) of row_kernel with 64 threads on `arrays`, run in one way."""
    dtype = str(arrays[0].dtype)
    func = _build(impl, arrays[0].shape, dtype, 64, epsilon)
    _, target, backwards = engines(dtype)[0]
    return launch(func, arrays, target, backwards, KERNEL)[:2]


def _rounding_case() -> list[np.ndarray]:
    """x1 + x2 is 1 at the start of a row, elsewhere a little less than half a unit above 1; all of it rounds to 1."""
    shape, unit = (2, 1, 64), 2.0**-10
    x1, x2 = np.ones(shape), np.full(shape, 0.49 * unit)
    x2[..., 0] = 0
    return [a.astype("float16") for a in (x1, x2, np.ones(64))]


def test_4_2_rounds_the_sum_before_it_squares(impl) -> None:
    """the norm is that of the rounded sum"""
    arrays = _rounding_case()
    norm, _ = _run_once(impl, arrays)
    exact, _ = reference(*arrays, 1e-5)
    what = "Where x1 + x2 is 1.0005, which float16 rounds to 1, your kernel's `norm` is not that of the rounded sum."
    why = (
        "Unfused, the sum goes through memory as float16, and the norm reads it from there. A kernel that squares or "
        "scales more digits gives numbers that differ from the model's."
    )
    KERNEL.close(norm.astype("float64"), exact, what, rtol=2.0**-12, atol=0, why=why)


def _big_case(first: float = 260.0) -> list[np.ndarray]:
    """Squares of 9e4, sixteen per thread, and up to 3e5 for total times weight: more than float16 can hold.

    With `first` = 60 a square is 1e4, which fits; sixteen of them do not.
    """
    shape = (2, 1, 1024)
    x1 = np.full(shape, first) + np.arange(2).reshape(2, 1, 1)
    return [a.astype("float16") for a in (x1, np.full(shape, 40.0), np.linspace(1000, 0.5, 1024))]


def test_4_2_sums_squares_in_float32(impl) -> None:
    """squares, and products with the weight, may exceed what float16 can hold"""
    arrays = _big_case()
    what = (
        "where the sum of squares, or total times weight, is larger than 65504, the largest float16"
    )
    _check_numbers(*_run_once(impl, arrays), arrays, 1e-5, what, KERNEL)


def _measure_units(norm: np.ndarray, exact: np.ndarray) -> float:
    """The largest error of a float16 array, in units of its last place."""
    units = np.spacing(np.abs(exact).astype("float16")).astype("float64")
    return float(np.nanmax(np.abs(norm.astype("float64") - exact) / units))


def test_4_2_rounds_once(impl) -> None:
    """the norm is rounded once, after the weight"""
    arrays = draw_inputs((2, 1, 1024), "float16", 3)
    norm, _ = _run_once(impl, arrays)
    exact, _ = reference(*arrays, 1e-5)
    off = _measure_units(norm, exact)
    KERNEL.that(
        off < 0.55,
        "An element of the kernel's output `norm` is not the float16 nearest to the norm of the rounded sum.",
        expected="an error of at most half a unit in the last place, which is what one rounding leaves",
        yours=f"an error of {off:.2f} units",
        why="Round the sum, then compute all of total / sqrt(…) * weight in float32 from it, and cast to the tensor's "
        "dtype once, at the end.",
    )


def _draw_small(shape: tuple[int, ...], scale: float) -> list[np.ndarray]:
    """Arguments of `shape` in float32, so small that epsilon weighs much."""
    x1, x2, weight = draw_inputs(shape, "float32")
    return [x1 * np.float32(scale), x2 * np.float32(scale), weight]


def test_4_2_adds_epsilon(impl) -> None:
    """epsilon is added to the mean, in float32"""
    small = np.full((2, 1, 64), 2.0**-12, "float16")
    arrays = [small, small, np.ones(64, "float16")]
    what = "with epsilon 1e-6, which float16 rounds to 1.013e-6, and with sums of 0.0005"
    _check_numbers(*_run_once(impl, arrays, 1e-6), arrays, 1e-6, what, KERNEL)


def _steps_between_threads(func: tirx.PrimFunc) -> dict[str, list[int]]:
    """For each tensor: how far, in its row, an access of one thread is from that of the thread before it."""
    found: dict[str, list[int]] = {name: [] for name in ("x1", "x2", "norm", "total")}
    for loops, realize in innermost_blocks(func.body.block.body):
        block = realize.block
        values = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))
        for region in (*block.reads, *block.writes):
            h = substitute(region.region[-1].min, values)
            for loop in loops:
                if thread_axis(loop) == "threadIdx.x" and region.source.name in found:
                    step = substitute(h, {loop.loop_var: loop.loop_var + 1}) - h
                    found[region.source.name].append(Analyzer().simplify(step))
    return {
        name: [int(s) for s in steps if isinstance(s, tirx.IntImm)] for name, steps in found.items()
    }


def test_4_2_takes_neighbouring_elements(impl) -> None:
    """neighbouring threads take neighbouring elements of a row"""
    found = _steps_between_threads(_build(impl, (1, 1, 256), "float16", 64))
    for name, steps in found.items():
        far = next((step for step in steps if abs(step) != 1), 1)
        PRIMER.that(
            abs(far) == 1,
            f"In your kernel, neighbouring threads do not take neighbouring elements of {name}.",
            expected="thread t takes elements t, t + threads, t + 2 * threads, …",
            yours=f"the next thread takes an element that is {far} further on",
            why="A warp loads neighbouring elements in a few pieces of 32 bytes. Elements that are far apart take a "
            "piece each. Threads that take the same element load it several times.",
        )


def observe_4_2(impl):
    def run_kernel(arrays, threads, epsilon=1e-5):
        dtype = str(arrays[0].dtype)
        _, target, backwards = engines(dtype)[0]
        func = _build(impl, arrays[0].shape, dtype, threads, epsilon)
        _write_cuda(func)
        return [a.astype("float64") for a in launch(func, arrays, target, backwards)[:2]]

    def describe(*case):
        return [np.round(a, 1).reshape(-1)[:12].tolist() for a in run_kernel(*case)]

    def rounding_error() -> float:
        """The largest error in units, to a tenth; 0 if it is that of one rounding."""
        arrays = draw_inputs((2, 1, 1024), "float16", 3)
        off = _measure_units(run_kernel(arrays, 64)[0], reference(*arrays, 1e-5)[0])
        return round(off, 1) if off >= 0.55 else 0.0

    return [
        lambda: describe(_draw_small((2, 1, 256), 0.3), 64, 0.5),
        lambda: describe(draw_inputs((1, 2, 100), "float32"), 32),
        lambda: describe(draw_inputs((2, 3, 33), "float32"), 64),
        lambda: describe(_big_case(), 64),
        lambda: describe(_big_case(60.0), 64),
        lambda: np.unique(run_kernel(_rounding_case(), 64)[0]).tolist(),
        lambda: [impl.elements_per_thread(*held) for held in HELD],
        rounding_error,
        lambda: _steps_between_threads(_build(impl, (1, 1, 256), "float16", 64)),
        lambda: describe(_draw_small((2, 1, 64), 0.0), 64, 0.5),  # without epsilon, 0 / 0
    ]


# --- 4.3 and 4.6 ----------------------------------------------------------------------------------


# with arguments of the second scale, weights too, a difference in epsilon weighs much
SCALES = 1.0, 0.01


_arguments = partial(arguments, sizes=(3,))  # a submitted module may add what has n and m rows


def _run_submitted(mod: object, whose: str) -> list[np.ndarray]:
    """The results of `mod` as submitted. The check fails unless it is a module that compiles and runs by itself."""
    expect.is_program(mod, whose, "main")
    for param in mod["main"].params:
        expect.that(
            isinstance(param.ty, relax.TensorType) and isinstance(param.ty.shape, relax.ShapeExpr),
            f"The parameter {param.name} of your main is not a tensor of known shape.",
            expected="a tensor whose type has all dimensions, as numbers or as names",
            yours=str(param.ty),
            why="The check draws random arguments for your module, and needs their shapes.",
        )
    try:
        return run(mod, _arguments(mod["main"]))
    except Exception as error:
        what = (
            f"The module that {whose} returns does not run even before the pass: {last_line(error)}"
        )
        wanted = "a module that compiles and runs until the pass changes it"
        why = "Otherwise the failure says nothing about the pass."
        raise BREAK.failed(what, expected=wanted, yours=mod.script(), why=why) from None


def _try_upstream(mod: tvm.IRModule, scale: float = 1.0):
    """("numbers", results), or (where it failed, why) of the module after FuseAsUpstream."""
    found = expect.outcome(FuseAsUpstream(), mod, _arguments(mod["main"], scale))
    nothing = found[0] == "numbers" and not kernels(FuseAsUpstream()(mod))
    return ("nothing fused", "") if nothing else found


SUM_STAYS_INSIDE = (
    "FuseAsUpstream makes a new variable for the sum, and it is visible only inside the dataflow block. So a block "
    "that outputs the sum becomes ill-formed, whatever its shapes. Output and return only norms."
)


def _differ(yours: list[np.ndarray], exact: list[np.ndarray], least: float = 1.0) -> bool:
    """Whether a result is off by more than eight roundings of its largest element, or of `least` if that is more."""

    def close(a, b):
        a, b, rounding = a.astype("float64"), b.astype("float64"), 4 * RELATIVE[str(b.dtype)]
        return np.abs(a - b).max(initial=0) <= rounding * max(least, np.abs(b).max(initial=0))

    return not all(close(a, b) for a, b in zip(yours, exact, strict=True))


def test_4_3_shows_the_missing_key(impl) -> None:
    """upstream's pass takes your module and silently gives wrong numbers"""
    mod = impl.two_norms()
    exact = _run_submitted(mod, "two_norms")
    state, result = _try_upstream(mod)
    what = "After FuseAsUpstream your module is not fused, or does not compile or run, so the fault is not silent."
    wanted = "a module that is fused, and after that still well-formed, and compiles and runs"
    yours = f"{state}: {result}" if result else state
    why = "Look for a difference between two norms that does not change any type."
    if "outside DataflowBlock" in yours:
        why = SUM_STAYS_INSIDE
    DISPATCH.that(state == "numbers", what, expected=wanted, yours=yours, why=why)
    what = "After FuseAsUpstream your module still gives the right numbers."
    wanted = "two pairs that need different kernels, although both are prefills or both are decodes"
    why = "The pass keeps one kernel for prefill and one for decode. What else is compiled into a kernel?"
    norms, left = _find_used_norms(mod), len(_find_used_norms(FuseAsUpstream()(mod)))
    epsilons = sorted({norm.attrs.epsilon for norm in norms})
    if left:
        why = (
            f"FuseAsUpstream left {left} of your {len(norms)} norms as it was. It fuses each sum with the first norm "
            "that reads it. Give every norm an add of its own."
        )
    elif len(epsilons) > 1 and len({_name_kernel(norm) for norm in norms}) == 1:
        why = (
            f"Your norms have the epsilons {' and '.join(f'{e:g}' for e in epsilons)}, and the numbers differ by less "
            "than this check can see: it uses arguments of about 1 and of about 0.01, and looks for a change of more "
            "than eight roundings. Make the epsilons differ more."
        )
    scale = 1.0
    if not _differ(result, exact):
        scale = _find_wrong_scale(mod, SCALES[1:])
        DISPATCH.that(scale is not None, what, expected=wanted, yours=mod.script(), why=why)
        exact = run(mod, _arguments(mod["main"], scale))
    repaired = run(sound.FuseAddRMSNorm(LLVM)(mod), arguments(mod["main"], scale))
    DISPATCH.that(
        not _differ(repaired, exact, scale),
        "The pass with a complete key changes the numbers of your module too, so the missing key is not the cause.",
        expected="a module that only FuseAsUpstream computes wrongly",
        yours=mod.script(),
        why="Avoid numbers near overflow, and norms of numbers near zero: there, two correct kernels may differ.",
    )


def _find_wrong_scale(mod: tvm.IRModule, scales: tuple[float, ...] = SCALES) -> float | None:
    """The first of `scales` at which FuseAsUpstream gives other numbers; None if there is none."""
    for scale in scales:
        state, yours = _try_upstream(mod, scale)
        if state == "numbers" and _differ(yours, run(mod, _arguments(mod["main"], scale)), scale):
            return scale
    return None


def _find_used_norms(mod: tvm.IRModule) -> list[relax.Call]:
    """The norms of main whose results something uses."""
    used = relax.analysis.remove_all_unused(mod["main"])
    return [binding.value for binding in _bindings({"main": used}, NORM)]


def _name_kernel(norm: relax.Call) -> str:
    """Which kernel FuseAsUpstream uses for a norm, and whether it serves the shape."""
    first, *others = norm.args[0].ty.shape
    served = is_one(first) or (len(others) == 2 and is_one(others[0]))
    return ("prefill" if is_one(first) else "decode") + ("" if served else " for another shape")


def _describe_two_norms(mod: tvm.IRModule) -> list[str]:
    """What becomes of `mod` after FuseAsUpstream, and what its norms differ in."""
    expect.returns_module(mod, "two_norms")
    norms = _find_used_norms(mod)
    state, _ = _try_upstream(mod)
    types = [norm.args[1].ty for norm in norms]
    kinds = {_name_kernel(norm) for norm in norms}
    if state != "numbers":
        sizes, dtypes = {str(ty.shape) for ty in types}, {str(ty.dtype) for ty in types}
        served = not any("another" in kind for kind in kinds)
        return [state, f"{len(sizes)} hidden sizes, {len(dtypes)} dtypes, served: {served}"]
    differ = "right" if _find_wrong_scale(mod) is None else "wrong"
    epsilons, left = {norm.attrs.epsilon for norm in norms}, _find_used_norms(FuseAsUpstream()(mod))
    facts = f"{len(norms)} norms, {len(epsilons)} epsilons, {len(kinds)} kinds, {len(left)} left"
    return [f"{differ} {state}", facts]


def observe_4_3(impl):
    shown = cache(lambda: _describe_two_norms(impl.two_norms()))
    return [lambda: shown()[0], lambda: shown()[1]]


def test_4_6_breaks_the_dispatch(impl) -> None:
    """upstream's pass turns your module into one that cannot be compiled or run"""
    mod = impl.breaks_the_dispatch()
    _run_submitted(mod, "breaks_the_dispatch")
    found = {len(binding.var.ty.shape) for binding in _bindings(mod, NORM)}
    what = "The ranks of the tensors that your module normalizes are not all 3."
    why = "At another rank the pass fails earlier, before it chooses between prefill and decode."
    DISPATCH.equal(found, {3}, what, why=why)
    state, result = _try_upstream(mod)
    what = "FuseAsUpstream finds no pair in your module."
    why = "It looks for an rms_norm whose first argument is the result of an add."
    wanted = "a module that the pass fuses"
    DISPATCH.that(state != "nothing fused", what, expected=wanted, yours=mod.script(), why=why)
    DISPATCH.that(
        state != "numbers",
        "After FuseAsUpstream your module still compiles and runs.",
        expected="a module that is ill-formed after the pass, or does not compile, or does not run",
        yours=mod.script(),
        why="The pass looks at the first dimension only. If it is 1, it calls the kernel for (1, n, hidden), else the "
        "kernel for (n, 1, hidden). Which shape is neither?",
    )

    def serves_all(dims, *facts):
        """A kernel for each tensor of rank 3, so that FuseAsUpstream cannot choose a wrong one."""
        return sound.cpu_kernel([tirx.Var("rows", "int64"), tirx.Var("more", "int64")], *facts)

    with mock.patch.object(as_upstream, "cpu_kernel", serves_all):
        state, result = _try_upstream(mod)
    why = "The exercise is about the choice between the two kernels, so it must be the only fault."
    if "outside DataflowBlock" in str(result):
        why = SUM_STAYS_INSIDE
    elif not all(
        sound.same_tensor_type(x1.ty, x2.ty)
        for x1, x2 in (binding.value.args for binding in _bindings(mod, "relax.add"))
    ):
        why += " An add in your module broadcasts, or adds tensors of unknown shape."
    DISPATCH.that(
        state == "numbers",
        "Your module fails for another reason than the choice of the kernel: with a kernel that serves every tensor of "
        "rank 3, it fails too.",
        expected="tensors whose first two dimensions make them neither a prefill nor a decode, and no other fault",
        yours=f"{state}: {result}",
        why=why,
    )


def observe_4_6(impl):
    def outcome() -> str:
        state, result = _try_upstream(impl.breaks_the_dispatch())
        return f"{state}, sum outside: {'outside DataflowBlock' in str(result)}"

    def types() -> list[str]:
        return sorted({str(param.ty) for param in impl.breaks_the_dispatch()["main"].params})

    return [outcome, types]


# --- 4.4 ------------------------------------------------------------------------------------------


RENAMED = """
def main(a: ("n", 1, 64, "float16"), scale: (64, "float16")):
    both = R.add(a, a)
    scaled = R.nn.rms_norm(both, scale, axes=[-1], epsilon=1e-5)
"""


def _match_pair(shape=("n", 1, 64), dtype="float16", epsilon=1e-5, renamed=False):
    return _ask(
        sound, relax_module(RENAMED) if renamed else unfused_add_norm(shape, dtype, epsilon)
    )[0]


def _list_different() -> Iterator[tuple[str, dict, dict, str]]:
    """(what the two pairs are, the facts of each, why they need two kernels)."""
    for what, facts in (
        ("epsilon", {"epsilon": 0.5}),
        ("epsilon, 1e-05 and 1.0001e-05,", {"epsilon": 1.0001e-5}),
        ("hidden size", {"shape": ("n", 1, 128)}),
        ("dtype, float16 and bfloat16,", {"dtype": "bfloat16"}),
        ("dtype, float16 and float32,", {"dtype": "float32"}),
    ):
        fact = what.partition(",")[0]
        why = f"The second pair would get the kernel of the first, into which that pair's {fact} is compiled."
        yield f"Two pairs that differ in {what}", {}, facts, why
    yield *_name_shapes(("n", 64), ("n", "m", 64)), "A kernel has one rank, and call_tir checks it."
    why = "A leading dimension of 1 is a constant in the kernel. With a larger size there, it would leave out rows."
    yield *_name_shapes((1, "n", 64), ("n", "m", 64)), why
    # the kernels of both have the same name
    yield *_name_shapes((2, "n", 1, 3, 64), (2, "n", 5, 3, 64)), why
    yield *_name_shapes((1, "n", 5, 64), ("n", 1, 5, 64)), why


def _list_alike() -> Iterator[tuple[str, dict, dict, str]]:
    """(what the two pairs are, the facts of each, why they share a kernel)."""
    why = "The variables are what the kernel is called with. They are not compiled into it."
    what = "Two pairs that differ only in their variables, where the second adds `a` to itself,"
    yield what, {}, {"renamed": True}, why
    why = (
        "The kernel reads its number of rows when it is called. A key that is too fine compiles the same kernel "
        "several times, which costs time and space."
    )
    yield "Two pairs that differ only in the number of rows", {}, {"shape": (7, 1, 64)}, why
    renamed = {"shape": ("batch", 1, 64)}
    yield "Two pairs that differ only in the name of the symbolic dimension", {}, renamed, why
    why = (
        "If all leading dimensions are 1, the kernel still keeps the last of them variable. `unit_dimensions` says "
        "so."
    )
    yield *_name_shapes((1, 1, 64), (1, "n", 64)), why


def _name_shapes(one: tuple, other: tuple) -> tuple[str, dict, dict]:
    return f"A pair of shape {one} and one of shape {other}", {"shape": one}, {"shape": other}


def _equal_keys(one: tuple, other: tuple) -> bool:
    """Whether two keys are equal; the check fails where they cannot be compared or looked up."""
    try:
        return bool(one == other) and hash(one) == hash(other)
    except (TypeError, ValueError) as error:
        why = "The pass looks the key up in a dict, so Python must be able to hash it: a tuple, and not a list."
        if "unhashable" not in str(error):
            why = (
                "`==` of two TIR expressions gives a third expression, neither true nor false. `unit_dimensions` says "
                "in booleans which dimensions are 1."
            )
        raise DISPATCH.failed(
            f"Your keys cannot be compared or hashed: {last_line(error)}",
            expected="plain Python values: numbers, booleans, text, and tuples of them",
            yours=repr(one),
            why=why,
        ) from None


def _check_keys(impl, cases: Iterator[tuple[str, dict, dict, str]], wanted: str) -> None:
    """The two pairs of each of `cases` get `wanted` keys, "equal" or "different"."""
    for pairs, *both, why in cases:
        one, other = (impl.kernel_key(_match_pair(**facts)) for facts in both)
        found = "equal" if _equal_keys(other, one) else "different"
        what = f"{pairs} get {found} keys from your kernel_key."
        yours = repr(one) if found == "equal" else f"{one!r} and {other!r}"
        DISPATCH.that(found == wanted, what, expected=f"{wanted} keys", yours=yours, why=why)


def test_4_4_different_kernels_have_different_keys(impl) -> None:
    """pairs that need different kernels get different keys"""
    _check_keys(impl, _list_different(), "different")


def test_4_4_one_kernel_where_one_will_do(impl) -> None:
    """pairs that need the same kernel get equal keys"""
    _check_keys(impl, _list_alike(), "equal")


def _make_two(epsilons=(1e-5, 0.5), hidden=(64, 64)) -> tvm.IRModule:
    """Two functions of one module, each with a pair."""
    text = ""
    for name, epsilon, size in zip(("main", "other"), epsilons, hidden, strict=True):
        body = PAIR.replace("1e-5", str(epsilon)) + "return total, norm"
        shapes = ("n", 1, size), ("n", 1, size), (size,)
        text += write_function(body, *shapes, "float32", name=name)
    return relax_module(text)


def test_4_4_two_norms_two_kernels(impl) -> None:
    """in one module, each norm gets its own epsilon and size"""
    for fact, mod in (("epsilon", _make_two()), ("hidden size", _make_two((1e-5, 1e-5), (64, 96)))):
        # the reference's pass with the answer's key, so that the key alone is judged
        with mock.patch.object(sound, "kernel_key", impl.kernel_key):
            fused = sound.FuseAddRMSNorm(LLVM)(mod)
        expect.well_formed(fused, "The pass with your key")
        arrays = {name: arguments(mod[name]) for name in ("main", "other")}
        for name, given in arrays.items():
            DISPATCH.that(
                not _differ(run(fused, given, name), run(mod, given, name)),
                f"Fused with your key, a module of two functions that differ in {fact} gives wrong numbers in "
                f"`{name}`.",
                expected="a kernel of its own for each function",
                yours=fused.script()[:1500],
                why="The pass keeps its kernels for the whole module, so the key must also distinguish pairs in "
                "different functions.",
            )


def observe_4_4(impl):
    def same(one, other):
        return impl.kernel_key(_match_pair(**one)) == impl.kernel_key(_match_pair(**other))

    return [lambda both=both: same(*both) for _, *both, _ in (*_list_different(), *_list_alike())]


# --- 4.5 ------------------------------------------------------------------------------------------

WHOSE = "FuseAddRMSNorm"


ONE = {"call_tir": 1, "add": 0, "nn.rms_norm": 0}


def _judge_fuse(impl, mod: tvm.IRModule, title: str, target=LLVM, **looks) -> tvm.IRModule:
    """The module after FuseAddRMSNorm."""

    def anew(given: tvm.IRModule) -> tvm.IRModule:
        return impl.FuseAddRMSNorm(target)(given)

    return judge_pass(anew, mod, WHOSE, title, **{"read": PLACE, "settles": False, **looks})


def test_4_5_fuses_the_pair(impl) -> None:
    """an add and its norm become one call with two results"""
    why = "The kernel computes the sum and the norm. An add or a norm that stays computes the same a second time."
    mod, title = unfused_add_norm(("n", 1, 64), "float32"), "an add and its norm"
    fused = _judge_fuse(impl, mod, title, calls=ONE, runs=False, why=why)
    (call,) = _bindings(fused, "relax.call_tir")
    PLACE.that(
        isinstance(call.var, relax.DataflowVar),
        "You emitted the kernel call with `emit_output`, although the norm is in the same dataflow block.",
        expected="`emit` if the norm is in the same block; `emit_output` only if it is in another block",
        yours=fused["main"].script(),
        why="Later passes must keep an output of a block as it is. They may fuse or drop only what stays inside.",
    )
    found = [argument.name for argument in call.value.args[1].fields]
    what = "Your call_tir does not pass x1, x2 and weight in this order."
    why = "call_tir passes arguments by position, and after them the results. Names play no role."
    PLACE.equal(found, ["x1", "x2", "weight"], what, why=why)


SHAPES = [
    ((1, "n", 64), "fuse_add_norm_prefill"),
    (("n", 1, 64), "fuse_add_norm_decode"),
    ((1, 1, 64), "fuse_add_norm_prefill"),
    (("b", "s", 64), "fuse_add_norm_rows"),
    ((4, 3, 100), "fuse_add_norm_rows"),
    (("n", 7), "fuse_add_norm_rows"),
    ((33,), "fuse_add_norm_rows"),
]


def test_4_5_fuses_every_shape(impl) -> None:
    """prefill, decode, and every other arrangement of rows"""
    looks = {"calls": ONE, "runs": False, "read": DISPATCH}
    looks["why"] = "With one block per row, a kernel serves any rank and any leading dimensions."
    for shape, name in SHAPES:
        fused = _judge_fuse(impl, unfused_add_norm(shape, "float32"), f"a pair on {shape}", **looks)
        why = "`kernel_of` names the kernel by its shape, with kernel_name."
        what = f"The module has other kernels than the one for {shape}."
        DISPATCH.equal(list(kernels(fused)), [name], what, why=why)


def test_4_5_leaves_the_rest_alone(impl) -> None:
    """a pair that no kernel can serve stays as it is"""
    for what, (mod, breaks) in NOT_A_PAIR.items():
        _judge_fuse(impl, mod, f"a module with {what}", stays=True, why=breaks, read=NOT_FIRE)


READ_BEFORE = """
total = R.add(x1, x2)
early = R.exp(total)
norm = R.nn.rms_norm(total, weight, axes=[-1])
late = R.negative(total)
return early, norm, late
"""
WEIGHT_AFTER_A_USE = """
total = R.add(x1, x2)
early = R.exp(total)
norm = R.nn.rms_norm(total, R.negative(weight), axes=[-1])
return early, norm, total
"""
TWO_NORMS_OF_ONE_SUM = f"""
{PAIR}
other = R.nn.rms_norm(total, R.negative(weight), axes=[-1], epsilon=0.5)
return norm, other, total
"""
ONE_READER_OF_TWO_SUMS = """
total = R.add(x1, x1)
other = R.add(x1, x2)
both = R.multiply(total, other)
norm = R.nn.rms_norm(total, weight, axes=[-1])
last = R.nn.rms_norm(other, weight, axes=[-1], epsilon=0.5)
return both, norm, last
"""
CHAIN = f"""
{PAIR}
second = R.add(norm, total)
other = R.nn.rms_norm(second, weight, axes=[-1], epsilon=0.5)
late = R.negative(total)
return other, second, late
"""
NORM_UNUSED = f"{PAIR}return total"
USERS = {
    "something reads the sum after the norm": f"{PAIR}late = R.negative(total)\nreturn norm, late",
    "something reads the sum before the norm": READ_BEFORE,
    "the weight is computed between the add and the norm": """
total = R.add(x1, x2)
norm = R.nn.rms_norm(total, R.negative(weight), axes=[-1])
late = R.negative(total)
return norm, late
""",
    "something reads the sum before the weight is computed": WEIGHT_AFTER_A_USE,
    "two norms read the same sum": TWO_NORMS_OF_ONE_SUM,
    "one binding is the first reader of two sums": ONE_READER_OF_TWO_SUMS,
    "a pair follows a pair that has another epsilon": CHAIN,
    "nothing uses the norm": NORM_UNUSED,
    "x1 is added to itself": f"{PAIR.replace('x2', 'x1')}return norm, total",
}


def _make_function(body: str) -> tvm.IRModule:
    """The function main with this body, in float32."""
    return _make_pair(dtype="float32", body=body)


def _make_typed_anew() -> tvm.IRModule:
    """A pair in a branch, then one that adds what the branch gives, for which the pass makes a new variable.

    The rows of `chosen` are declared as n * 2 - n, and both branches have n.
    """
    add, norm, n = relax.op.add, relax.op.nn.rms_norm, tirx.Var("n", "int64")
    rows, row = (relax.TensorType(shape, "float32") for shape in ((n, 1, 64), (64,)))
    x1, x2, total, normed = (relax.Var(name, rows) for name in ("x1", "x2", "total", "norm"))
    weight, builder = relax.Var("weight", row), relax.BlockBuilder()
    values = {total: add(x1, x2), normed: norm(total, weight, axes=[-1])}
    inner = relax.BindingBlock([relax.VarBinding(*both) for both in values.items()])
    choice = relax.If(relax.const(True), relax.SeqExpr([inner], normed), relax.SeqExpr([], x2))
    chosen = relax.Var("chosen", relax.TensorType([n * 2 - n, 1, 64], "float32"))
    with builder.function("main", [x1, x2, weight]):
        builder.emit_normalized(relax.VarBinding(chosen, builder.normalize(choice)))
        total = builder.emit(add(chosen, chosen))
        normed = builder.emit(norm(total, weight, axes=[-1], epsilon=0.5))
        builder.emit_func_output(relax.Tuple([total, normed]))
    return builder.get()


def _make_users() -> tuple[tvm.IRModule, dict[str, str]]:
    """(functions for each of USERS, with and without a dataflow block; by function, what it is about)."""
    text, what = "", {}
    for dataflow in (True, False):
        for number, (about, body) in enumerate(USERS.items()):
            name = f"user_{number}" + ("" if dataflow else "_alone")
            text += write_function(body, dtype="float32", name=name, dataflow=dataflow)
            what[name] = f"a function in which {about}"
            what[name] += "" if dataflow else ", without a dataflow block"
    return relax_module(text), what


OTHERS = {
    "a function whose sum is an output of its dataflow block": _make_function("""
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
"""),
    # the sum is first read in that block
    "a function whose norm is outside the sum's dataflow block": _make_function("""
with R.dataflow():
    total = R.add(x1, x2)
    early = R.exp(total)
    R.output(total, early)
norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
return (early, norm, total)
"""),
    "a function that reads the sum before the dataflow block of its norm": _make_function("""
total = R.add(x1, x2)
early = R.exp(total)
with R.dataflow():
    norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
    later = R.negative(norm)
    R.output(norm, later)
return (early, norm, later)
"""),
    # the sum is also read in the other branch and afterwards
    "a function whose norm is in a branch": relax_module("""
def main(x1: (3, 1, 64), x2: (3, 1, 64), weight: (64,), choose: R.Tensor((), "bool")):
    total = R.add(x1, x2)
    if choose:
        inner = R.add(total, x2)
        chosen = R.nn.rms_norm(inner, weight, axes=[-1], epsilon=1e-5)
    else:
        chosen = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
    after = R.nn.rms_norm(total, weight, axes=[-1], epsilon=0.5)
    return (chosen, after, total)
"""),
    "a function in which two variables are called norm": _make_function("""
norm = R.negative(x1)
other = R.exp(norm)
total = R.add(x1, x2)
norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
return (norm, total, other)
"""),
    "a function in which x2 is overwritten between the add and the norm": relax_module(
        kernel("clear(a)", (3, 1, 64), "a[at] = T.float32(0)")
        + """
@bare
def main(x1: (3, 1, 64), x2: (3, 1, 64), weight: (64,)):
    total = R.add(x1, x2)
    cleared = R.call_tir_inplace(cls.clear, (x2,), [0], R.Tensor((3, 1, 64), "float32"))
    norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
    return (norm, cleared)
"""
    ),
    "a function in which the pass makes a new variable for x1 and x2 of a pair": _make_typed_anew(),
}


def test_4_5_fires_whoever_reads_the_sum(impl) -> None:
    """other readers of the sum do not keep the add alive, and get the right one, before or after the norm"""
    mod, what = _make_users()

    def check_no_add_is_left(fused: tvm.IRModule) -> None:
        for (name, about), body in zip(what.items(), [*USERS.values()] * 2, strict=True):
            if body is WEIGHT_AFTER_A_USE:
                continue  # no place is right for the kernel: the sum is read before the weight exists
            called = operators(fused, name)
            PLACE.that(
                "kernel" in called and "add" not in called,
                f"Your pass leaves the pair alone, or leaves its add, in {about}.",
                expected="one kernel call, placed where the sum is first read, and no add",
                yours=", ".join(called),
                why="If the add stays, the sum is computed twice, and the function moves more bytes than without the "
                "pass.",
            )

    _judge_fuse(impl, mod, "a function", fires=check_no_add_is_left, functions=what, settles=True)


def test_4_5_keeps_the_numbers(impl) -> None:
    """a sum that other dataflow blocks and branches read stays right, and so does one whose argument is overwritten"""
    for title, mod in OTHERS.items():
        _judge_fuse(impl, mod, title)


def test_4_5_keeps_its_company(impl) -> None:
    """attributes, other functions, and a kernel that already has the name, all stay"""
    body = f'R.func_attr({{"num_input": 2}})\n{PAIR.replace("1e-5", "0.25")}return total, norm'
    text = write_function(body, dtype="float32", name="decode")
    text += write_function("other = R.negative(x1)", dtype="float32", name="other")
    mod = relax_module(text).with_attr("model", "two functions")
    mod["fuse_add_norm_decode"] = sound.cpu_kernel(_make_row_dims((2, 1)), 64, "float32", 1e-3)
    fused = _judge_fuse(impl, mod, "a module with attributes and other functions", runs=False)
    what = "After your pass, the function has lost its attribute num_input."
    why = "Later passes read it: it says which parameters are weights."
    PLACE.equal(dict(fused["decode"].attrs).get("num_input"), 2, what, why=why)
    keeps_module_facts(fused, mod, "Your pass")
    for name in ("other", "fuse_add_norm_decode"):
        what = f"{WHOSE} changed the function `{name}`, which has no pair."
        why = "Functions that call it would now compute something else."
        PLACE.that(tvm_ffi.structural_equal(fused[name], mod[name]), what, why=why)
    arrays = arguments(mod["decode"])
    DISPATCH.that(
        not _differ(run(fused, arrays, "decode"), run(mod, arrays, "decode")),
        "`decode` calls a kernel that was in the module before your pass, because it has the same name.",
        expected="a call of the GlobalVar that kernel_of returns",
        why="If a name is taken, builder_.add_func finds a free one and returns its GlobalVar.",
    )


def test_4_5_costs_less(impl) -> None:
    """one launch and four fifths of the bytes, on CUDA too"""
    for target in (LLVM, CUDA):
        mod = unfused_add_norm((1, 512, 4096), "float16")
        fused = _judge_fuse(impl, mod, "a pair", target, runs=False)
        before, after = _count_bytes(mod), _count_bytes(fused)
        MEASURE.that(
            after < 0.81 * before and len(kernels(fused)) == 1,
            f"For {target.kind.name}, the module after your pass has {len(kernels(fused))} kernels and moves {after:,} "
            f"of {before:,} bytes.",
            expected="one kernel, and four fifths of the bytes",
            why="The fused kernel writes the sum once and does not read it back.",
        )


def test_4_5_leaves_targets_without_kernels_alone(impl) -> None:
    """a target that has neither threads nor LLVM gets its module back"""
    mod = unfused_add_norm(("n", 1, 64), "float32")
    title = 'a pair for the target "c", which has no kernel,'
    why = "Unfused, the module compiles for this target."
    _judge_fuse(impl, mod, title, Target("c"), stays=True, why=why, read=NOT_FIRE)


def observe_4_5(impl):
    def sums() -> list[list[float]]:
        mod = unfused_add_norm((3, 1, 64), "float32")
        fused = impl.FuseAddRMSNorm(LLVM)(mod)
        results = run(fused, arguments(mod["main"]))
        return [np.round(one.reshape(-1)[:5], 1).tolist() for one in results]

    bodies = READ_BEFORE, TWO_NORMS_OF_ONE_SUM, ONE_READER_OF_TWO_SUMS
    modules = *map(_make_function, bodies), *OTHERS.values()
    passes = observe_pass(lambda: impl.FuseAddRMSNorm(LLVM), *modules, runs=False)
    return [sums, *passes]


# --- 4.7 ------------------------------------------------------------------------------------------


def _make_neighbours() -> tvm.IRModule:
    """A module whose main is neither its only function nor the first, and holds more than a pair."""
    bodies = {"first": CHAIN, "main": READ_BEFORE, "second": NORM_UNUSED}
    texts = (write_function(body, dtype="float32", name=name) for name, body in bodies.items())
    return relax_module("".join(texts))


def _ask_bytes_moved(impl, mod: tvm.IRModule, target: Target, sizes: dict[str, int]) -> tuple:
    """What bytes_moved returns. The check fails if that is not a pair of numbers."""
    found = impl.bytes_moved(mod, target, sizes)
    MEASURE.that(
        isinstance(found, (tuple, list)) and len(found) == 2,
        "bytes_moved does not return two numbers.",
        expected="(bytes before the pass, bytes after it)",
        yours=repr(found),
        why="The two are compared, so both are needed, in this order.",
    )
    return tuple(found)


def test_4_7_counts_what_is_moved(impl) -> None:
    """bytes of main before and after the pass"""
    cases = [
        (unfused_add_norm(("n", 1, 4096), "float16"), {"n": 8}),
        (unfused_add_norm((1, 512, 4096), "bfloat16"), {}),
        (_make_function(TWO_NORMS_OF_ONE_SUM), {"n": 5}),
        (_make_neighbours(), {"n": 3}),
    ]
    for mod, sizes in cases:
        expected = _count_bytes(mod, sizes), _count_bytes(sound.FuseAddRMSNorm(CUDA)(mod), sizes)
        what = "bytes_moved does not return the bytes of main before and after the pass."
        why = "Add up `read` and `written` of all rows that binding_bytes returns for `main` of each module."
        MEASURE.equal(_ask_bytes_moved(impl, mod, CUDA, sizes), expected, what, why=why)
    mod = cases[0][0]
    unchanged = _count_bytes(mod, {"n": 8})
    found = _ask_bytes_moved(impl, mod, Target("c"), {"n": 8})
    what = 'bytes_moved(mod, "c", …) counts a fused pair, although the target "c" has no kernel.'
    why = "Give the pass the target that bytes_moved was given. For this target the pass leaves the pair alone."
    MEASURE.equal(found, (unchanged, unchanged), what, why=why)


def observe_4_7(impl):
    return [
        lambda: tuple(
            impl.bytes_moved(unfused_add_norm(("n", 1, 4096), "float16"), CUDA, {"n": 8})
        ),
        lambda: tuple(impl.bytes_moved(_make_function(CHAIN), CUDA, {"n": 5})),
        lambda: tuple(impl.bytes_moved(unfused_add_norm((3, 64), "float16"), Target("c"), {})),
        lambda: tuple(impl.bytes_moved(_make_neighbours(), CUDA, {"n": 3})),
    ]
