"""The checks of chapter 5: schedules that keep the result, attempts that TVM refuses, and schedules that are fast."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product as product_of_ranges
from math import prod
from traceback import extract_tb

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import ForKind

from chapters.ch05_schedules_and_their_limits import check_products as products
from chapters.ch05_schedules_and_their_limits.given import ATTEMPTS, forced
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.interpret import OutOfBounds, interpret
from chapters.checking.programs import listing
from chapters.kit.cases.example_programs import matmul_bias, row_sums
from chapters.kit.cases.guard_zones import QUICK_HERE, WroteOutside, run_compiled
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.ir.tensor_ir import nodes, substitute
from chapters.kit.machine import llvm_host
from solutions.ch05_schedules_and_their_limits import schedules as reference

FILE = "schedules.py"
LESSON = "chapters/ch05_schedules_and_their_limits/lesson.md"
BREAK = Section(LESSON, "Break it")
LOOPS = Section(LESSON, "Loops around a block")
KINDS = Section(LESSON, "What a loop may become")
PLACE = Section(LESSON, "Where a block runs")
INIT = Section(LESSON, "The init, taken apart")
HANDLES = Section(LESSON, "What a schedule keeps")
REFUSED = Section(LESSON, "Three attempts")
FORCED = Section(LESSON, "The forced one")
ROWWISE = Section(LESSON, "The sums of rows")
FAST = Section(LESSON, "Now make it fast")
LIMITS = {
    "test_5_7_reaches_the_goal": 90,
    "test_5_8_reaches_the_goal": 90,
    "test_5_8_any_number_of_rows": 60,
}
SIZES = ((8, 16, 6), (5, 21, 3))  # the second are not multiples of a (4, 8) tile
EXACT = "The sums are integers, so a schedule must not change a single digit."


def arrays(m: int, n: int, k: int, seed: int = 0) -> list[np.ndarray]:
    """A (m, k) and B (n, k) of int8, C (m, n) of int32, and a D (m, n) of int32 that holds poison."""
    random = np.random.default_rng(seed)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (n, k)))
    c = random.integers(-99, 99, (m, n), dtype=np.int32)
    return [a, b, c, np.full((m, n), -12345, np.int32)]


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A @ B.T + C, exactly."""
    return a.astype("int64") @ b.astype("int64").T + c


def check_product(scheduled: Callable, impl, whose: str, read: Section) -> None:
    """What `scheduled(impl, sizes)` makes gives A @ B.T + C for all SIZES, interpreted and compiled."""
    hint = "sch.split, which adds a predicate that skips the iterations beyond the end of a loop"
    for sizes in SIZES:
        sch, given, size = scheduled(impl, sizes), arrays(*sizes), f"sizes {sizes}"
        _check_result(sch, given, product(*given[:3]), whose, size, hint, read)


def _check_result(
    sch: s_tir.Schedule, given: list, expected: np.ndarray, whose: str, size: str, hint: str, read
) -> None:
    """The last of `given` is `expected` after `sch` ran on it, interpreted and compiled; hint: if it goes outside."""
    try:
        interpreted = [array.copy() for array in given]
        interpret(sch.mod["main"], interpreted)
        results = [interpreted[-1], run_compiled(sch.mod, given)[-1]]
    except (OutOfBounds, WroteOutside) as error:
        what = f"After {whose}, the program accesses memory outside its buffers for {size}."
        raise read.failed(
            what, expected=hint, yours=f"{error}\n{listing(sch.mod['main'])}"
        ) from None
    for result in results:
        what = f"After {whose}, the program computes other numbers for {size}."
        read.close(result, expected, what, rtol=0, atol=0, why=EXACT)


def loops_of(sch: s_tir.Schedule, name: str = "matmul") -> list[tirx.For]:
    names, what = _name_blocks(sch), f"The program does not have one block called {name}."
    why = f"What comes next takes the loops around {name}."
    INIT.that(names.count(name) == 1, what, expected=name, yours=", ".join(names), why=why)
    return [sch.get(loop) for loop in sch.get_loops(name)]


def _name_handle(sch: s_tir.Schedule, handle: object, kind: str) -> str:
    """The name of the loop or block that a returned `handle` finds, or that it is not one. kind: which of the two."""
    try:
        found = sch.get(handle)
        return found.loop_var.name if kind == "loop" else found.name_hint
    except Exception:
        return f"{type(handle).__name__}, which is not a {kind} of the schedule"


def _check_changed(sch: s_tir.Schedule, func: tirx.PrimFunc, whose: str, read: Section) -> None:
    """`sch`, a schedule of `func` that an answer was given, holds another program now."""
    read.that(
        not tvm_ffi.structural_equal(sch.mod["main"], func),
        f"{whose} leaves the program of `sch` as it was.",
        expected="a changed program: primitives of `sch` itself",
        yours=str(loop_nest(sch)),
        why="A function that takes a schedule changes it in place: the caller goes on with `sch`.",
    )


def extents(loops: list[tirx.For]) -> list[int]:
    return [int(loop.extent) for loop in loops]


def find_axes(sch: s_tir.Schedule) -> list[str]:
    """For each loop around matmul, the axes that it drives and its step in each: `i*4`, or `i*4 j*8`."""
    found = []
    for loop in loops_of(sch):
        steps = [(axis, _step(at, loop.loop_var)) for axis, at in _bindings(sch, "matmul").items()]
        found.append(" ".join(f"{axis.name}*{width}" for axis, width in steps if width))
    return found


def _bindings(sch: s_tir.Schedule, name: str) -> dict:
    """The value of each axis of a block, in the variables of the loops around it."""
    block = sch.get(sch.get_sblock(name))
    realizes = nodes(sch.mod["main"].body, s_tir.SBlockRealize)
    realize = next(one for one in realizes if one.block.same_as(block))
    return dict(zip([axis.var for axis in block.iter_vars], realize.iter_values, strict=True))


def _step(value, var) -> int:
    """By how much `value` grows when `var` goes from 0 to 1 and every other variable is 0."""
    zero = {v: tirx.IntImm("int32", 0) for v in nodes(value, tvm.ir.Var)}
    simplify = tvm.sym.Analyzer().simplify
    at = [int(simplify(substitute(value, {**zero, var: tirx.IntImm("int32", x)}))) for x in (0, 1)]
    return at[1] - at[0]


# --- 5.1 ------------------------------------------------------------------------------------------


TILED = ((SIZES[0], 4, 8), (SIZES[1], 4, 8), ((2, 3, 6), 3, 5))  # the last is smaller than its tile


def _tile(impl, sizes, rows=4, columns=8) -> s_tir.Schedule:
    sch, func = s_tir.Schedule(matmul_bias(*sizes)), matmul_bias(*sizes)
    impl.tile(sch, rows, columns)
    _check_changed(sch, func, f"For sizes {sizes}, tile(sch, {rows}, {columns})", HANDLES)
    return sch


def test_5_1_makes_five_loops(impl) -> None:
    """row tiles, column tiles, steps, rows, columns, in this order"""
    for sizes, rows, columns in TILED:
        m, n, k = sizes
        sch = _tile(impl, sizes, rows, columns)
        wanted = [-(-m // rows), -(-n // columns), k, rows, columns]
        tile = f"a ({rows}, {columns}) tile of sizes {sizes}"
        what = f"After tile(sch, {rows}, {columns}), the loops of matmul do not have the extents of {tile}."
        why = "From outside to inside: row tiles, column tiles, steps, the `rows` of a tile, its `columns`."
        LOOPS.equal(extents(loops_of(sch)), wanted, what, why=why)
        steps = [f"vi*{rows}", f"vj*{columns}", "vk*1", "vi*1", "vj*1"]
        what = f"After tile(sch, {rows}, {columns}), the loops of matmul have the right extents but drive other axes."
        why = (
            "Each entry is a loop of several iterations, from outside to inside: the axis that it drives, and by how "
            "much. The inner loop of a split moves its axis by one, the outer loop by as much as a tile is wide."
        )
        several = [n for n in range(5) if wanted[n] > 1]  # a single iteration moves no axis
        mine, steps = ([entries[n] for n in several] for entries in (find_axes(sch), steps))
        LOOPS.equal(mine, steps, what, why=why)


def test_5_1_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    check_product(_tile, impl, "tile", LOOPS)


def test_5_1_returns_the_loops(impl) -> None:
    """the five loops come back in their order"""
    sch = s_tir.Schedule(matmul_bias(8, 16, 6))
    loops = impl.tile(sch, 4, 8)
    five = isinstance(loops, (list, tuple)) and len(loops) == 5
    wanted = "[row_tile, column_tile, step, row, column]"
    LOOPS.that(
        five,
        "tile does not return a list of five loops.",
        expected=wanted,
        yours=repr(loops)[:200],
        why="The caller needs the loops, for example to make one of them parallel.",
    )
    mine = [_name_handle(sch, loop, "loop") for loop in loops]
    HANDLES.that(
        all("not a loop" not in name for name in mine),
        "tile returns something that is not the handle of a loop of the schedule.",
        expected="five handles, as split and get_loops return them",
        yours=repr(mine),
        why="The caller gives what comes back to other primitives. They take handles, and a handle dies with its loop: "
        "after a split, only those that split returned find one.",
    )
    theirs = [loop.loop_var.name for loop in loops_of(sch)]
    what = "tile returns the five loops in another order than that of the program."
    why = "The caller takes them apart in the order of the program, from outside to inside."
    LOOPS.equal(mine, theirs, what, why=why)


def observe_5_1(impl):
    def describe(sizes, rows, columns):
        sch = _tile(impl, sizes, rows, columns)
        return extents(loops_of(sch)), find_axes(sch)

    def returned():
        return len(impl.tile(s_tir.Schedule(matmul_bias(*SIZES[0])), 4, 8))

    return [*(partial(describe, *case) for case in TILED), returned]


# --- 5.2 ------------------------------------------------------------------------------------------


def _shared(sch: s_tir.Schedule, one: str = "matmul", other: str = "bias") -> list[tirx.For]:
    """The loops around both blocks."""
    mine, theirs = loops_of(sch, one), loops_of(sch, other)
    return [a for a, b in zip(mine, theirs, strict=False) if a.same_as(b)]


def _name_blocks(sch: s_tir.Schedule) -> list[str]:
    return [block.name_hint for block in nodes(sch.mod["main"].body, s_tir.SBlock)]


def _inits(sch: s_tir.Schedule) -> list[s_tir.SBlock]:
    return [block for block in nodes(sch.mod["main"].body, s_tir.SBlock) if block.init is not None]


def test_5_2_schedules(impl) -> None:
    """scheduled returns a schedule of the given function, and TVM refuses none of its primitives"""
    for sizes in SIZES:
        sch = _schedule(impl, sizes)
        why = "The caller compiles `sch.mod`."
        INIT.returns(sch, s_tir.Schedule, "scheduled", "a Schedule", expected="return sch", why=why)
        mine, given = (
            [tuple(int(n) for n in buffer.shape) for buffer in func.params]
            for func in (sch.mod["main"], matmul_bias(*sizes))
        )
        what = f"For a func of sizes {sizes}, scheduled returns a schedule of a function with other buffers."
        INIT.equal(mine, given, what, why="`func` is any program that `matmul_bias` makes.")


def _schedule(impl, sizes, rows=4, columns=8) -> s_tir.Schedule:
    try:
        return impl.scheduled(matmul_bias(*sizes), rows, columns)
    except s_tir.ScheduleError as error:
        useful = str(error).partition("Error message: ")[2] or str(error)
        calls = [at for at in extract_tb(error.__traceback__) if at.filename.endswith(FILE)]
        why = ""
        if "local reduction block" in useful:
            why = (
                "TVM says that a block is neither complete nor a reduction. After decompose_reduction, that holds for "
                "`matmul_update`: it adds to what `matmul_init` has set."
            )
        elif "higher than all the loops" in useful:
            why = (
                "decompose_reduction puts the init right before the loop that it is given. Inside the loop over steps, "
                "the init would set a sum to 0 at each step."
            )
        raise INIT.failed(
            f"In scheduled, TVM refuses `{calls[-1].line}`."
            if calls
            else "TVM refuses a primitive.",
            expected="the same primitives in an order in which TVM accepts each of them",
            yours=f"TVM's message:\n{useful}",
            why=why,
        ) from None


def test_5_2_takes_the_init_out_of_the_steps(impl) -> None:
    """no step asks whether it is the first, and the init of a tile stays with the tile"""
    for sizes in SIZES:
        sch = _schedule(impl, sizes)
        what = "In scheduled, the init is still inside the block matmul."
        expected = "two blocks, one that sets the sums to 0 and one that adds"
        why = "While the init is inside, every step asks whether it is the first of its sum."
        INIT.that(not _inits(sch), what, expected=expected, yours=listing(sch.mod["main"]), why=why)
        inits = sum(name.endswith("_init") for name in _name_blocks(sch))
        what = "The program that scheduled makes does not have exactly one block whose name ends in _init."
        INIT.equal(inits, 1, what, why="decompose_reduction makes one; call it once.")
        shared = _shared(sch, "matmul_update", "matmul_init")
        INIT.that(
            len(shared) == 1,
            f"In scheduled, the block that sets the sums to 0 shares {len(shared)} loops with the one that adds.",
            expected="one shared loop, the one over tiles: the init right before the loop over steps",
            yours=listing(sch.mod["main"]),
            why="Further out, the init writes zeros to all of temp first: one more pass over memory."
            if not shared
            else "There is one loop over all tiles, so that all cores have work even if there is one row tile.",
        )


def test_5_2_keeps_the_machine_busy(impl) -> None:
    """the update is parallel over tiles and vectorized over columns, and the bias runs in a tile"""
    m, n, k = SIZES[0]
    for rows, columns in ((4, 8), (2, 4)):
        sch = _schedule(impl, SIZES[0], rows, columns)
        loops = loops_of(sch, "matmul_update")
        found = [f"{ForKind(loop.kind).name.lower()} {int(loop.extent)}" for loop in loops]
        tiles = (m // rows) * (n // columns)
        KINDS.equal(
            found,
            [f"parallel {tiles}", f"serial {k}", f"unrolled {rows}", f"vectorized {columns}"],
            f"For sizes {SIZES[0]}, scheduled(func, {rows}, {columns}) makes other loops around matmul_update.",
            why="From outside to inside: all tiles, steps, the `rows` of a tile, its `columns`. `scheduled` does all "
            "that the three functions before it do.",
        )
        shared = _shared(sch, "matmul_update", "bias")
        what = "In scheduled, bias does not share exactly one loop with matmul_update, the loop over tiles."
        why = "Inside the loop over steps, bias runs at each step, and only its last run counts."
        if not shared:
            why = "Outside of the loop over tiles, bias makes a second pass over memory."
        PLACE.equal(len(shared), 1, what, why=why)


def test_5_2_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    check_product(_schedule, impl, "scheduled", INIT)


def observe_5_2(impl):
    def describe(sizes, rows, columns):
        sch = impl.scheduled(matmul_bias(*sizes), rows, columns)
        loops = nodes(sch.mod["main"].body, tirx.For)
        shapes = [(loop.kind, int(loop.extent)) for loop in loops]
        return _name_blocks(sch), shapes, len(_inits(sch))

    return [partial(describe, *case) for case in TILED]


# --- 5.3 ------------------------------------------------------------------------------------------


def _find_reason(name: str) -> str:
    """Why TVM refuses an attempt, from its error and from the producers of the bias."""
    sch = s_tir.Schedule(matmul_bias(4, 4, 4))
    try:
        ATTEMPTS[name](sch)
    except s_tir.ScheduleError as error:
        message = str(error)
    else:
        raise AssertionError(f"this release accepts {name}")
    if "has init statement" in message:
        return reference.REASONS[1]
    assert "single producer block" in message
    producers = sch.get_producers("bias")
    return reference.REASONS[0 if len(producers) > 1 else 3]


def test_5_3_names_each_reason(impl) -> None:
    """each attempt is refused for the reason you give"""
    given = impl.reasons()
    REFUSED.returns(given, dict, "reasons", "a dict with a reason for each attempt")
    expect.has_keys(given, ATTEMPTS, "The keys of what reasons returns are not those of ATTEMPTS.")
    for name in ATTEMPTS:
        what = f"Your reason for “{name}” is not one of REASONS."
        wanted = "one of the sentences in REASONS, such as REASONS[3]"
        yours = repr(given[name])[:200]
        expect.that(given[name] in reference.REASONS, what, expected=wanted, yours=yours)
        REFUSED.that(
            given[name] == _find_reason(name),
            f"TVM refuses “{name}” for another reason than the one that you give.",
            expected="the condition in the last line of TVM's error that fails here",
            yours=given[name],
            why="The last line of TVM's error says what the block has that a block to be inlined must not have."
            if name == "inline the product"
            else "Two attempts end in the same sentence, which lists several conditions. What `sch.get_producers` "
            "returns for the block `bias` tells you which of them fails.",
        )


def observe_5_3(impl):
    return [lambda name=name: impl.reasons()[name] for name in ATTEMPTS]


# --- 5.4 ------------------------------------------------------------------------------------------


def _run_forced(sizes: tuple[int, int, int], given: list[np.ndarray]) -> np.ndarray:
    return run_compiled(tvm.IRModule({"main": forced(*sizes)}), given)[3]


def test_5_4_says_how_wrong_it_is(impl) -> None:
    """forced_error gives the error of the forced version, for any bias and any number of steps"""
    for sizes in ((3, 4, 1), (3, 4, 2), (2, 5, 9)):
        given = arrays(*sizes, seed=sizes[2])
        wrong = _run_forced(sizes, given) - product(*given[:3])
        for shape in (wrong.shape, (wrong.size,)):  # one error per element, whatever the shape
            c, error = given[2].reshape(shape), wrong.reshape(shape)
            kept = c.copy()
            yours = impl.forced_error(c, sizes[2])
            FORCED.returns(yours, np.ndarray, "forced_error", "an array")
            what = f"The array that forced_error returns for k = {sizes[2]} has another shape than the bias."
            why = "Each element has its own bias, and so its own error."
            FORCED.equal(yours.shape, shape, what, why=why)
            for at in np.argwhere(yours != error)[:1]:
                spot = tuple(at.tolist())
                what = f"For k = {sizes[2]} and a bias of {kept[spot]}, the error is not what forced_error says."
                why = "The forced version adds the bias in its step, and the step runs k times."
                FORCED.predicted(yours[spot].item(), error[spot].item(), what, why=why)
            what = f"forced_error changes the bias that it is given, for k = {sizes[2]}."
            why = "The caller still needs it. Return a new array."
            FORCED.that(np.array_equal(c, kept), what, expected=kept, yours=c, why=why)
            what = "forced_error returns the array of the bias, not a new one."
            why = "A caller that changes the error would change the bias too."
            new = not np.shares_memory(yours, c)
            FORCED.that(
                new, what, expected="a new array", yours="the array that it was given", why=why
            )


def observe_5_4(impl):
    def describe(k, *shape):
        c = np.arange(1, 7, dtype=np.int32).reshape(shape)
        error = np.asarray(impl.forced_error(c, k))
        return error.tolist(), c.tolist(), np.shares_memory(error, c)

    return [partial(describe, *case) for case in ((1, 2, 3), (2, 2, 3), (9, 2, 3), (2, 6))]


# --- 5.5 ------------------------------------------------------------------------------------------


def _is_a_test(inputs: object) -> bool:
    """Whether `inputs` are (three whole numbers, three arrays)."""
    try:
        sizes, given = inputs
        kinds = [(int, np.integer)] * 3 + [np.ndarray] * 3
        return len(sizes) == len(given) == 3 and all(map(isinstance, (*sizes, *given), kinds))
    except (TypeError, ValueError):
        return False


def test_5_5_is_a_test_that_sees_nothing(impl) -> None:
    """on your inputs the forced version gives the right result, although the bias is nowhere 0"""
    inputs = impl.blind_test()
    BREAK.that(
        _is_a_test(inputs),
        "blind_test does not return two things: three whole numbers, and three arrays.",
        expected="(m, n, k), [a, b, c]",
        yours=repr(inputs)[:200],
        why="The check runs the forced version for these sizes, on these arrays.",
    )
    sizes, given = inputs
    what = "blind_test does not return three sizes of 1 or more."
    expected = "(m, n, k), each 1 or more"
    why = "A test without elements, or without steps, computes nothing, so it cannot fail for any program."
    BREAK.that(min(sizes) > 0, what, expected=expected, yours=sizes, why=why)
    a, b, c = (np.ascontiguousarray(x) for x in given)
    shapes = [(sizes[0], sizes[2]), (sizes[1], sizes[2]), (sizes[0], sizes[1])]
    what = f"The arrays of blind_test do not have the shapes that belong to sizes {sizes}."
    why = "A has the shape (m, k), B has (n, k), and C has (m, n)."
    BREAK.equal([x.shape for x in (a, b, c)], shapes, what, why=why)
    dtypes = [str(x.dtype) for x in (a, b, c)]
    what, why = "The arrays of blind_test have other dtypes.", "The kernel takes no others."
    BREAK.equal(dtypes, ["int8", "int8", "int32"], what, why=why)
    zero, why = "The bias in blind_test has a zero in it.", "Adding zero twice is always right."
    BREAK.that(bool((c != 0).all()), zero, expected="no zero in C", yours=c, why=why)
    out = _run_forced(tuple(sizes), [a, b, c, np.zeros(shapes[2], np.int32)])
    what = "On the inputs of blind_test the forced version is wrong, so this test sees the mistake."
    why = "The error is the one of exercise 5.4. Find sizes for which it is zero although the bias is not."
    BREAK.close(out, product(a, b, c), what, rtol=0, atol=0, why=why)


def observe_5_5(impl):
    def describe():
        sizes, (a, b, c) = impl.blind_test()
        out = _run_forced(tuple(sizes), [a, b, c, np.zeros_like(c)])
        return int(np.abs(out - product(a, b, c)).max() > 0), bool((c != 0).all())

    return [
        describe,
        lambda: impl.blind_test()[0][2] == 1,
        lambda: min(impl.blind_test()[0]) > 0,
    ]


# --- 5.6: the sums of rows -----------------------------------------------------------------------


ROWS = ((4, 24), (3, 40), (1, 8), (5, 4))  # the last two: a single row, a single group


def _columns_of_sums(sch: s_tir.Schedule, name: str) -> dict[tuple[int, ...], list[int]]:
    """For each partial sum, by its index in its buffer: the columns of A that block `name` adds to it, in order."""
    at, loops, simplify = _bindings(sch, name), loops_of(sch, name), tvm.sym.Analyzer().simplify
    store = nodes(sch.get(sch.get_sblock(name)).body, tirx.BufferStore)[0]
    (load,) = [one for one in nodes(store.value, tvm.ir.TensorLoad) if one.source.name == "A"]
    found: dict[tuple[int, ...], list[int]] = {}
    for iteration in product_of_ranges(*map(range, extents(loops))):
        here = {
            loop.loop_var: tirx.IntImm("int32", n) for loop, n in zip(loops, iteration, strict=True)
        }
        *place, column = (
            int(simplify(substitute(substitute(index, at), here)))
            for index in (*store.indices, load.indices[-1])
        )
        found.setdefault(tuple(place), []).append(column)
    return found


def _split_sums(impl, sizes) -> tuple[s_tir.Schedule, str]:
    """The schedule after partial_sums, and the name of the block that makes the partial sums."""
    sch, func = s_tir.Schedule(row_sums(*sizes)), row_sums(*sizes)
    impl.partial_sums(sch)
    _check_changed(sch, func, f"For {sizes[0]} rows of {sizes[1]} columns, partial_sums", HANDLES)
    names = _name_blocks(sch)
    others = [name for name in names if name not in ("root", "total")]
    ROWWISE.that(
        len(others) == 1 and "total" in names,
        "After partial_sums there are not two blocks, `total` and one that makes the partial sums.",
        expected="one call of sch.rfactor, which makes the second block",
        yours=", ".join(name for name in names if name != "root"),
        why="One block makes four sums per row that do not wait for one another; the other adds them up.",
    )
    return sch, others[0]


def test_5_6_keeps_the_lanes_of_a_row_together(impl) -> None:
    """the partial sums are a buffer of shape (rows, LANES)"""
    for sizes in ROWS:
        sch, name = _split_sums(impl, sizes)
        shape = tuple(int(n) for n in sch.get(sch.get_sblock(name)).writes[0].source.shape)
        wanted = sizes[0], reference.LANES
        ROWWISE.equal(
            shape,
            wanted,
            f"After partial_sums, the buffer of the partial sums has another shape, for {sizes[0]} rows of {sizes[1]} "
            "columns.",
            why="`factor_axis` is the position of the new dimension in the shape. In the last position, the partial "
            "sums of a row are neighbours in memory, so one vector instruction can load or store them."
            if shape == wanted[::-1]
            else "rfactor makes one partial sum per iteration of the loop that it is given.",
        )


def test_5_6_gives_each_lane_its_columns(impl) -> None:
    """partial sum number l adds the columns l, l + LANES, l + 2 * LANES and so on"""
    for sizes in ROWS:
        sch, name = _split_sums(impl, sizes)
        rows, columns = sizes
        for (row, lane), added in sorted(_columns_of_sums(sch, name).items()):
            ROWWISE.equal(
                sorted(added),
                list(range(lane, columns, reference.LANES)),
                f"Partial sum {lane} of row {row} adds other columns, for {rows} rows of {columns} columns.",
                why="The four lanes load neighbours: at each step, LANES successive columns, one for each lane.",
            )


def test_5_6_computes_the_same(impl) -> None:
    """the numbers are the same"""
    for sizes in ROWS:
        a = np.random.default_rng(0).integers(-99, 99, sizes, dtype=np.int32)
        given, size = [a, np.full(sizes[0], -12345, np.int32)], f"{sizes[0]} rows of {sizes[1]}"
        sch, hint = _split_sums(impl, sizes)[0], "loops that cover each row once"
        _check_result(sch, given, a.sum(axis=1), "partial_sums", size, hint, ROWWISE)


def test_5_6_returns_the_block(impl) -> None:
    """the block of the partial sums comes back"""
    sch = s_tir.Schedule(row_sums(*ROWS[0]))
    block = impl.partial_sums(sch)
    returned = _name_handle(sch, block, "block")
    ROWWISE.that(
        returned not in ("total", "root") and "not a block" not in returned,
        "partial_sums does not return the block that makes the partial sums.",
        expected="what sch.rfactor returns",
        yours=returned,
        why="That block is new, and the caller needs its handle to move or vectorize it.",
    )


def observe_5_6(impl):
    def describe(sizes):
        sch, name = _split_sums(impl, sizes)
        shape = [int(n) for n in sch.get(sch.get_sblock(name)).writes[0].source.shape]
        return shape, _columns_of_sums(sch, name), extents(loops_of(sch, "total"))

    def returned():
        return type(impl.partial_sums(s_tir.Schedule(row_sums(*ROWS[0])))).__name__

    return [*(lambda sizes=sizes: describe(sizes) for sizes in ROWS), returned]


# --- 5.7 and 5.8 ---------------------------------------------------------------------------------

DECODE, PREFILL = "schedule_decode", "schedule_prefill"
TARGETS = {"AVX2": products.NARROW, "AVX-512": products.WIDE}
TRIES = 4  # a machine that is busy with something else gets more chances
QUIET = 1.2  # two measurements of one kernel in one run differ by less, or the run says nothing


def _apply(schedule, func: tirx.PrimFunc, target: Target, whose: str) -> tirx.PrimFunc:
    """schedule(func, target), which must be a PrimFunc."""
    try:
        result = schedule(func, target)
    except Exception as error:
        w, x = (
            ", ".join(str(int(n) if isinstance(n, tirx.IntImm) else n) for n in buffer.shape)
            for buffer in func.params[:2]
        )
        error.given = f"x of shape ({x}) and w of shape ({w})"
        raise
    expected = 'sch.mod["main"], which the line below your region returns'
    FAST.returns(result, tirx.PrimFunc, whose, "a PrimFunc", expected=expected)
    return result


def _schedule_square(schedule, rows, target: Target, whose: str) -> tirx.PrimFunc:
    """The product of x (*rows, 256) and w (256, 256), scheduled."""
    return _apply(schedule, products.make_unscheduled(rows, 256, 256), target, whose)


def _check_threads(schedule, rows, whose: str) -> None:
    func = _schedule_square(schedule, rows, products.WIDE, whose)
    FAST.that(
        products.is_parallel(func),
        f"{whose} computes the product on one thread: no loop around the sums is parallel.",
        expected="a parallel loop of several iterations around the sums",
        yours=str(loop_nest(func)),
        why="The elements of the result are independent of one another. One core has only a part of the arithmetic and "
        "of the memory bandwidth of a machine. (The time below is that of one thread, so it does not show this.)",
    )


def _check_numbers(schedule, cases, whose: str) -> None:
    target = llvm_host()["target"]
    for said, rows, n, k in cases:
        w, x = products.draw(n, n, k), products.draw(k, *rows, k)
        func = _apply(schedule, products.make_unscheduled(said, n, k), target, whose)
        try:
            found = products.run(func, w, x)
        except WroteOutside:
            raise FAST.failed(
                f"After {whose}, the kernel writes outside its result for x of shape {x.shape} and w of shape "
                f"{w.shape}.",
                expected="a predicate, or a copy of only as many rows as there are",
                why="The last tile is larger than what is left of the result.",
            ) from None
        what = f"After {whose}, the kernel gives other numbers for x of shape {(*rows, k)} and w of shape {(n, k)}."
        why = "A schedule must not change the result, also where a size is not a multiple of the tile."
        FAST.close(
            found, x.astype("float64") @ w.astype("float64").T, what, rtol=1e-4, atol=1e-4, why=why
        )


def _check_block_behind(schedule, said, rows, whose: str) -> None:
    """The numbers of a product and a block behind it that adds a bias: chapter 9 schedules such kernels."""
    w, x, bias = products.draw(1, 24, 40), products.draw(2, *rows, 40), products.draw(3, 24)
    target = llvm_host()["target"]
    func = _apply(schedule, products.make_unscheduled(said, 24, 40, bias=True), target, whose)
    arrays = [w, x, bias, np.full((*rows, 24), np.nan, "float32")]
    found = run_compiled(tvm.IRModule({"main": func}), arrays, QUICK_HERE)[3]
    exact = x.astype("float64") @ w.astype("float64").T + bias
    what = f"After {whose}, a kernel in which a second block adds a bias to NT_matmul gives other numbers."
    why = "Chapter 9 gives your schedule such kernels. Schedule NT_matmul, and leave the second block as it is."
    FAST.close(found, exact, what, rtol=1e-4, atol=1e-4, why=why)


def _check_width(schedule, rows, whose: str) -> None:
    funcs = {name: _schedule_square(schedule, rows, t, whose) for name, t in TARGETS.items()}
    widths = {name: products.widest_vector(func) for name, func in funcs.items()}
    expected = "a vectorized loop over the lanes of a register"
    why = "Without it, each instruction multiplies one pair of numbers instead of eight or sixteen."
    yours = str(loop_nest(funcs["AVX2"]))
    FAST.that(
        min(widths.values()) > 1,
        f"{whose} vectorizes no loop.",
        expected=expected,
        yours=yours,
        why=why,
    )
    FAST.that(
        widths["AVX-512"] >= 2 * widths["AVX2"] >= 16,
        f"{whose} vectorizes {widths['AVX2']} lanes for AVX2 and {widths['AVX-512']} for AVX-512.",
        expected="at least the 8 lanes of a register for AVX2, and at least twice as many for AVX-512: take the number "
        "from `target`",
        why="Fewer lanes leave a part of each register unused; a constant number does so on one of the two machines.",
    )


def _check_goal(impl, whose: str, rows, n: int, k: int, goal: float) -> None:
    """At most `goal` times as slow as the course's schedule, measured in turn with it in the same run.

    The course's kernel is measured twice, so that a run in which the machine was busy is known as such.
    """
    course = getattr(reference, whose)
    schedules = (None, getattr(impl, whose), course, course)
    runs: list[list[float]] = []
    quiet: list[list[float]] = []
    for _ in range(TRIES):
        _, yours, *both = run = products.measure(schedules, rows, n, k)
        if yours <= goal * max(both):
            return
        runs.append(run)
        if max(both) <= QUIET * min(both):
            quiet.append(run)
            if yours > 2 * goal * max(both):  # another run would say the same
                break
    if not quiet:
        raise FAST.failed(
            "This machine is too busy to measure: the same kernel took different times in each run.",
            expected="a machine that runs little else; then check again",
            yours="; ".join(f"{1e6 * a:.1f} µs and {1e6 * b:.1f} µs" for *_, a, b in runs),
            why="This says nothing about your schedule.",
        )
    plain, yours, *both = min(quiet, key=lambda run: run[1] / max(run[2:]))
    target = llvm_host()["target"]
    func = _apply(getattr(impl, whose), products.make_unscheduled(rows, n, k), target, whose)
    limits = "\n".join(f"- {line}" for line in products.describe_limits(func, target))
    raise FAST.failed(
        f"After {whose}, the kernel takes {yours / max(both):.1f} times as long as the course's, for x of shape "
        f"{(*rows, k)} and w of shape {(n, k)}.",
        expected=f"at most {goal:g} times as long",
        yours=f"{1e6 * plain:.1f} µs unscheduled, {1e6 * yours:.1f} µs with your schedule, {1e6 * max(both):.1f} µs "
        f"with the course's, on one thread\n\n{loop_nest(func)}\n\nWhat the check sees in your kernel:\n{limits}",
        why="Follow the innermost loops for one step along k: what is loaded, what is added to, and what must wait.",
    )


def test_5_7_any_shape(impl) -> None:
    """right numbers for one row, a few rows and sizes that do not fill a register"""
    shapes = [((1,), 96, 128), ((1, 1), 30, 64), ((), 12, 32)]
    shapes += [((3,), 20, 48), ((2, 2), 6, 40), ((1,), 7, 33)]
    cases = [(rows, rows, n, k) for rows, n, k in shapes]
    _check_numbers(impl.schedule_decode, cases, DECODE)


def test_5_7_leaves_a_block_behind_it_alone(impl) -> None:
    """right numbers too where another block reads the product"""
    _check_block_behind(impl.schedule_decode, (3,), (3,), DECODE)


def test_5_7_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_decode, (1,), DECODE)


def test_5_7_reads_w_once(impl) -> None:
    """an element of w is loaded once, and serves all rows of x"""
    func = _schedule_square(impl.schedule_decode, (2, 3), products.WIDE, DECODE)
    often = products.count_loads_of_w(func)
    FAST.that(
        often == 1,
        f"{DECODE} loads each element of w {often} times, for an x of shape (2, 3, 256).",
        expected="once: whatever is loaded of w is multiplied with all rows of x before more of it is loaded",
        yours=str(loop_nest(func)),
        why="w is most of what decode reads. A loop that does not move along w, around one that does, loads the "
        "same elements again in each iteration, unless the inner one is unrolled or a vector.",
    )


def test_5_7_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_decode, (1,), DECODE)


def test_5_7_reaches_the_goal(impl) -> None:
    """one row of x takes at most 1.3 times as long as with the course's schedule, and four rows 1.5 times"""
    for rows, goal in ((1, 1.3), (4, 1.5)):
        _check_goal(impl, DECODE, (rows,), 128, 1024, goal)  # w is half a megabyte, and in a cache


def observe_5_7(impl):
    return _observe_schedule(impl.schedule_decode, (3,))


def _observe_schedule(schedule, rows):
    def describe_loops(target, rows):
        func = schedule(products.make_unscheduled(rows, 64, 64), target)
        vectors = [int(one.loop.extent) for one in products.find_loops(func) if one.vectorized]
        threads = products.is_parallel(func), sorted(products.name_blocks(func))
        along = products.vectors_along_w(func), products.vectors_in_partial_sums(func)
        return vectors, along, products.sums_of_a_step(func), threads

    def numbers(rows):
        target = llvm_host()["target"]
        func = schedule(products.make_unscheduled(rows, 24, 32), target)
        out = products.run(func, products.draw(1, 24, 32), products.draw(2, *rows, 32))
        return np.round(out, 2).tolist()

    return [
        lambda: describe_loops(products.NARROW, rows),
        lambda: describe_loops(products.WIDE, (2, *rows)),
        *(partial(numbers, shape) for shape in (rows, (1, *rows))),
    ]


def test_5_8_any_number_of_rows(impl) -> None:
    """right numbers for rows that fill a tile, that do not, and that are not known"""
    n, b = tirx.Var("n", "int64"), tirx.Var("b", "int64")
    cases = [((64,), (64,), 96, 128), ((17,), (17,), 24, 40), ((130,), (130,), 7, 33)]
    cases += [((1, n), (1, 70), 32, 64), ((b, 1), (5, 1), 16, 32), ((2, 3), (2, 3), 8, 16)]
    _check_numbers(impl.schedule_prefill, cases, PREFILL)


def test_5_8_takes_a_block_behind_it_for_the_copy(impl) -> None:
    """right numbers too where another block reads the product"""
    for said, rows in (((64,), (64,)), ((tirx.Var("n", "int64"),), (37,))):
        _check_block_behind(impl.schedule_prefill, said, rows, PREFILL)


def test_5_8_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_prefill, (64,), PREFILL)


def test_5_8_keeps_the_sums_in_registers(impl) -> None:
    """the sums of a step along k leave registers of the target for the operands"""
    for name, target in TARGETS.items():
        func = _schedule_square(impl.schedule_prefill, (64,), target, PREFILL)
        registers = vector_registers(target)
        for _, _, inside in products.find_tiles(func):
            needed = -(-prod(int(one.loop.extent) for one in inside) // registers.lanes("float32"))
            FAST.that(
                needed < registers.count,
                f"After {PREFILL} for {name}, a step along k adds to sums that take {needed} registers.",
                expected=f"fewer than the {registers.count} registers of {name}, since x and w need some too",
                yours=str(loop_nest(func)),
                why="Sums that do not fit are stored to memory and loaded again at every step. `tile` fits the target.",
            )


def test_5_8_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_prefill, (64,), PREFILL)


def test_5_8_reaches_the_goal(impl) -> None:
    """64 rows of x take at most 1.5 times as long as with the course's schedule"""
    _check_goal(impl, PREFILL, (64,), 1024, 1024, 1.5)


def observe_5_8(impl):
    return _observe_schedule(impl.schedule_prefill, (40,))
