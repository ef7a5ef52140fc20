"""The checks of chapter 5: schedules that keep the result, attempts that TVM refuses, and schedules that are fast."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from traceback import extract_tb

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import ForKind

from chapters.ch05_schedules_and_their_limits import check_products as products
from chapters.ch05_schedules_and_their_limits.given import ATTEMPTS, forced, rows_in_two_groups
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.interpret import OutOfBounds, interpret
from chapters.checking.programs import listing
from chapters.kit.cases.guard_zones import WroteOutside, run_compiled
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.cpu.vector_registers import vector_registers
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
REFUSED = Section(LESSON, "Three attempts")
FORCED = Section(LESSON, "The forced one")
PUZZLES = Section(LESSON, "Four puzzles")
FAST = Section(LESSON, "Now make it fast")
LIMITS = {"test_5_13_is_faster": 60, "test_5_14_is_faster": 60, "test_5_14_any_number_of_rows": 60}
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


def computes_the_same(scheduled: Callable, impl, whose: str, read: Section) -> None:
    """What `scheduled(impl, sizes)` makes gives A @ B.T + C for all SIZES, interpreted and compiled."""
    hint = "sch.split, which adds a predicate that skips the iterations beyond the end of a loop"
    for sizes in SIZES:
        sch, given, size = scheduled(impl, sizes), arrays(*sizes), f"sizes {sizes}"
        _writes(sch, given, product(*given[:3]), whose, size, hint, read)


def _writes(
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
    return [sch.get(loop) for loop in sch.get_loops(name)]


def _found(sch: s_tir.Schedule, handle: object, kind: str) -> str:
    """The name of the loop or block that a returned `handle` finds, or that it is not one. kind: which of the two."""
    try:
        found = sch.get(handle)
        return found.loop_var.name if kind == "loop" else found.name_hint
    except Exception:
        return f"{type(handle).__name__}, which is not a {kind} of the schedule"


def extents(loops: list[tirx.For]) -> list[int]:
    return [int(loop.extent) for loop in loops]


def drives(sch: s_tir.Schedule, name: str = "matmul") -> list[str]:
    """For each loop around a block, the axes that it drives and its step in each: `i*4`, or `i*4 j*8`."""
    found = []
    for loop in loops_of(sch, name):
        steps = [(axis, _width(at, loop.loop_var)) for axis, at in _bindings(sch, name).items()]
        found.append(" ".join(f"{axis.name}*{width}" for axis, width in steps if width))
    return found


def _bindings(sch: s_tir.Schedule, name: str) -> dict:
    """The value of each axis of a block, in the variables of the loops around it."""
    block = sch.get(sch.get_sblock(name))
    realizes = nodes(sch.mod["main"].body, s_tir.SBlockRealize)
    realize = next(one for one in realizes if one.block.same_as(block))
    return dict(zip([axis.var for axis in block.iter_vars], realize.iter_values, strict=True))


def _width(value, var) -> int:
    """By how much `value` grows when `var` goes from 0 to 1 and every other variable is 0."""
    zero = {v: tirx.IntImm("int32", 0) for v in nodes(value, tvm.ir.Var)}
    simplify = tvm.sym.Analyzer().simplify
    at = [int(simplify(substitute(value, {**zero, var: tirx.IntImm("int32", x)}))) for x in (0, 1)]
    return at[1] - at[0]


# --- 5.1 ------------------------------------------------------------------------------------------


TILED = ((SIZES[0], 4, 8), (SIZES[1], 4, 8), (SIZES[0], 2, 4))


def _tiled(impl, sizes, rows=4, columns=8) -> s_tir.Schedule:
    sch = s_tir.Schedule(matmul_bias(*sizes))
    impl.tile(sch, rows, columns)
    return sch


def test_5_1_makes_five_loops(impl) -> None:
    """row tiles, column tiles, steps, rows, columns, in this order"""
    for sizes, rows, columns in TILED:
        m, n, k = sizes
        sch = _tiled(impl, sizes, rows, columns)
        wanted = [-(-m // rows), -(-n // columns), k, rows, columns]
        tile = f"a ({rows}, {columns}) tile of sizes {sizes}"
        what = f"After tile(sch, {rows}, {columns}), the loops of matmul do not have the extents of {tile}."
        why = "From outside to inside: row tiles, column tiles, steps, the `rows` of a tile, its `columns`."
        LOOPS.equal(extents(loops_of(sch)), wanted, what, why=why)
        steps = [f"vi*{rows}", f"vj*{columns}", "vk*1", "vi*1", "vj*1"]
        what = f"After tile(sch, {rows}, {columns}), the loops of matmul have the right extents but drive other axes."
        why = (
            "Each entry is a loop, from outside to inside: the axis that it drives, and by how much. The inner loop of "
            "a split moves its axis by one, the outer loop by as much as a tile is wide."
        )
        LOOPS.equal(drives(sch), steps, what, why=why)


def test_5_1_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    computes_the_same(_tiled, impl, "tile", LOOPS)


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
    mine = [sch.get(loop).loop_var.name for loop in loops]
    theirs = [loop.loop_var.name for loop in loops_of(sch)]
    what = "tile returns the five loops in another order than that of the program."
    why = "The caller takes them apart in the order of the program, from outside to inside."
    LOOPS.equal(mine, theirs, what, why=why)


def observe_5_1(impl):
    def seen(sizes, rows, columns):
        sch = _tiled(impl, sizes, rows, columns)
        return extents(loops_of(sch)), drives(sch)

    def returned():
        return len(impl.tile(s_tir.Schedule(matmul_bias(*SIZES[0])), 4, 8))

    return [*(partial(seen, *case) for case in TILED), returned]


# --- 5.2 ------------------------------------------------------------------------------------------


def _on_machine(impl, sizes) -> s_tir.Schedule:
    sch = s_tir.Schedule(matmul_bias(*sizes))
    reference.tile(sch, 4, 8)
    impl.use_the_machine(sch)
    return sch


def _kinds(sch: s_tir.Schedule, name: str = "matmul") -> list[str]:
    return [ForKind(loop.kind).name.lower() for loop in loops_of(sch, name)]


def test_5_2_gives_each_loop_its_kind(impl) -> None:
    """one parallel loop over tiles, serial steps, unrolled rows, vectorized columns"""
    for sizes in SIZES:
        sch = _on_machine(impl, sizes)
        m, n, k = sizes
        tiles = -(-m // 4) * -(-n // 8)
        KINDS.equal(
            list(zip(_kinds(sch), extents(loops_of(sch)), strict=True)),
            [("parallel", tiles), ("serial", k), ("unrolled", 4), ("vectorized", 8)],
            f"After use_the_machine, the loops of matmul run in another way than asked, for sizes {sizes}.",
            why="Each entry is a loop, from outside to inside: how it runs, and how often. One parallel loop over all "
            "tiles keeps every core busy even if there are few rows. The steps of one sum run one after another.",
        )


def test_5_2_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    computes_the_same(_on_machine, impl, "use_the_machine", KINDS)


def test_5_2_returns_the_loop_over_tiles(impl) -> None:
    """the loop over tiles comes back"""
    sch = s_tir.Schedule(matmul_bias(*SIZES[0]))
    reference.tile(sch, 4, 8)
    loop = impl.use_the_machine(sch)
    returned = _found(sch, loop, "loop")
    what = "use_the_machine does not return the loop over tiles."
    why = "The next exercise moves a block into this loop. `sch.fuse` returns its handle."
    LOOPS.equal(returned, loops_of(sch)[0].loop_var.name, what, why=why)


def observe_5_2(impl):
    def seen(sizes):
        sch = _on_machine(impl, sizes)
        return _kinds(sch), extents(loops_of(sch)), drives(sch)

    def returned():
        sch = s_tir.Schedule(matmul_bias(*SIZES[0]))
        reference.tile(sch, 4, 8)
        return type(impl.use_the_machine(sch)).__name__

    return [*(lambda sizes=sizes: seen(sizes) for sizes in SIZES), returned]


# --- 5.3 ------------------------------------------------------------------------------------------


def _with_bias(impl, sizes) -> s_tir.Schedule:
    sch = _on_machine(reference, sizes)
    impl.bias_at_the_tile(sch)
    return sch


def _shared(sch: s_tir.Schedule, one: str = "matmul", other: str = "bias") -> list[tirx.For]:
    """The loops around both blocks."""
    mine, theirs = loops_of(sch, one), loops_of(sch, other)
    return [a for a, b in zip(mine, theirs, strict=False) if a.same_as(b)]


def test_5_3_shares_the_loop_over_tiles(impl) -> None:
    """both blocks run inside the loop over tiles, and the bias no deeper than that"""
    for sizes in SIZES:
        sch = _with_bias(impl, sizes)
        PLACE.that(
            ForKind(loops_of(sch)[0].kind) == ForKind.PARALLEL,
            "After bias_at_the_tile, the outermost loop of matmul is no longer the parallel loop over tiles.",
            expected="matmul with the loops that use_the_machine gave it; only bias moves",
            yours=listing(sch.mod["main"]),
            why="compute_at makes new loops for the block that it moves. If you move matmul, its tiles are gone.",
        )
        shared = _shared(sch)
        what = "After bias_at_the_tile, bias still runs outside the loop over tiles: it shares no loop with matmul."
        expected = "one shared loop, the one over tiles"
        why = "When bias runs after all tiles, the first sums have left the cache and are read from memory again."
        PLACE.that(bool(shared), what, expected=expected, yours=listing(sch.mod["main"]), why=why)
        what = f"After bias_at_the_tile, bias is in {len(shared)} loops of matmul, one of them along the sum."
        expected = "one shared loop, the one over tiles"
        why = (
            "Inside the loop over steps, bias runs after every step, on sums that are not complete. The result is "
            "right, because what it stores after the last step stays. But it does k times the work."
        )
        PLACE.that(
            len(shared) == 1, what, expected=expected, yours=listing(sch.mod["main"]), why=why
        )
        tiles, runs = int(shared[0].extent), int(np.prod(extents(loops_of(sch, "bias"))))
        what = f"After bias_at_the_tile, bias runs {runs} times in {tiles} tiles of 32 elements."
        expected = f"once for each element of a tile, {tiles * 32} times"
        why = "Each further run computes an element that is there already."
        PLACE.that(
            runs <= tiles * 32, what, expected=expected, yours=listing(sch.mod["main"]), why=why
        )


def test_5_3_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    computes_the_same(_with_bias, impl, "bias_at_the_tile", PLACE)


def observe_5_3(impl):
    def seen(sizes):
        sch = _with_bias(impl, sizes)
        return extents(_shared(sch)), extents(loops_of(sch, "bias"))

    return [lambda sizes=sizes: seen(sizes) for sizes in SIZES]


# --- 5.4 ------------------------------------------------------------------------------------------


def _names(sch: s_tir.Schedule) -> list[str]:
    return [block.name_hint for block in nodes(sch.mod["main"].body, s_tir.SBlock)]


def _inits(sch: s_tir.Schedule) -> list[s_tir.SBlock]:
    return [block for block in nodes(sch.mod["main"].body, s_tir.SBlock) if block.init is not None]


def test_5_4_schedules(impl) -> None:
    """scheduled returns a schedule, and TVM refuses none of its primitives"""
    for sizes in SIZES:
        sch = _scheduled(impl, sizes)
        why = "The caller compiles `sch.mod`."
        INIT.returns(sch, s_tir.Schedule, "scheduled", "a Schedule", expected="return sch", why=why)


def _scheduled(impl, sizes) -> s_tir.Schedule:
    try:
        return impl.scheduled(matmul_bias(*sizes), 4, 8)
    except s_tir.ScheduleError as error:
        useful = str(error).partition("Error message: ")[2] or str(error)
        calls = [at for at in extract_tb(error.__traceback__) if at.filename.endswith(FILE)]
        raise INIT.failed(
            f"In scheduled, TVM refuses `{calls[-1].line}`."
            if calls
            else "TVM refuses a primitive.",
            expected="the same primitives in an order in which TVM accepts each of them",
            yours=f"TVM's message:\n{useful}",
            why="After decompose_reduction, `matmul_update` adds to what `matmul_init` has set, so it is not a "
            "reduction block. A primitive that needs a reduction block refuses it.",
        ) from None


def test_5_4_takes_the_init_out_of_the_steps(impl) -> None:
    """no step asks whether it is the first, and the init of a tile stays with the tile"""
    for sizes in SIZES:
        sch = _scheduled(impl, sizes)
        what = "In scheduled, the init is still inside the block matmul."
        expected = "two blocks, one that sets the sums to 0 and one that adds"
        why = "While the init is inside, every step asks whether it is the first of its sum."
        INIT.that(not _inits(sch), what, expected=expected, yours=listing(sch.mod["main"]), why=why)
        inits = sum(name.endswith("_init") for name in _names(sch))
        what = "The program that scheduled makes does not have exactly one block whose name ends in _init."
        INIT.equal(inits, 1, what, why="decompose_reduction makes one; call it once.")
        shared = _shared(sch, "matmul_update", "matmul_init")
        INIT.that(
            len(shared) == 1,
            f"In scheduled, the block that sets the sums to 0 shares {len(shared)} loops with the one that adds.",
            expected="one shared loop, the one over tiles: the init right before the loop over steps",
            yours=listing(sch.mod["main"]),
            why="Further out, the init writes zeros to all of temp first: one more pass over memory.",
        )


def test_5_4_keeps_the_machine_busy(impl) -> None:
    """the update is parallel over tiles and vectorized over columns, and the bias runs in a tile"""
    sch = _scheduled(impl, SIZES[0])
    kinds = _kinds(sch, "matmul_update")
    INIT.that(
        kinds[0] == "parallel" and kinds[-1] == "vectorized",
        "In scheduled, the outermost loop of matmul_update is not parallel, or its innermost loop not vectorized.",
        expected="parallel, serial, unrolled, vectorized",
        yours=", ".join(kinds),
        why="`scheduled` does all that 5.1 to 5.3 do.",
    )
    lanes = extents(loops_of(sch, "matmul_update"))[-1]
    LOOPS.that(
        lanes == 8,
        f"scheduled(func, 4, 8) vectorizes {lanes} columns, not 8.",
        expected="tiles of 4 rows and 8 columns: `rows` comes first, here and in `tile`",
        yours=listing(sch.mod["main"]),
        why="If you exchange the two, the numbers stay the same, but a vector has half the lanes.",
    )
    what = "In scheduled, bias does not share exactly one loop with matmul_update, the loop over tiles."
    why = "`scheduled` does all that 5.1 to 5.3 do."
    PLACE.equal(len(_shared(sch, "matmul_update", "bias")), 1, what, why=why)


def test_5_4_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are not multiples of the tile"""
    computes_the_same(_scheduled, impl, "scheduled", INIT)


def observe_5_4(impl):
    def seen(sizes):
        sch = impl.scheduled(matmul_bias(*sizes), 4, 8)
        kinds = [ForKind(loop.kind).name for loop in nodes(sch.mod["main"].body, tirx.For)]
        return _names(sch), kinds, len(_inits(sch)), extents(loops_of(sch, "bias"))

    return [lambda sizes=sizes: seen(sizes) for sizes in SIZES]


# --- 5.5 ------------------------------------------------------------------------------------------


def _counted(m: int, n: int, k: int) -> dict[str, int]:
    """How often the lowered program stores a 0 into temp, and how often it tests for the first step."""
    sch = s_tir.Schedule(matmul_bias(m, n, k))
    lowered = tvm.s_tir.transform.LowerInitBlock()(sch.mod)["main"]
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    taken = tvm.s_tir.transform.LowerInitBlock()(sch.mod)["main"]
    counts = {"stores": 0, "tests": 0}

    def walk(stmt, times: int, steps: int) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                walk(part, times, steps)
        elif isinstance(stmt, tirx.For):
            inside = steps * (int(stmt.extent) if stmt.loop_var.name == "p" else 1)
            walk(stmt.body, times * int(stmt.extent), inside)
        elif isinstance(stmt, s_tir.SBlockRealize):
            walk(stmt.block.body, times, steps)
        elif isinstance(stmt, tirx.IfThenElse):
            counts["tests"] += times
            counts["stores"] += times // steps

    walk(lowered.body, 1, 1)
    before = dict(counts)
    counts["tests"] = 0
    walk(taken.body, 1, 1)
    return {**before, "tests after": counts["tests"]}


def test_5_5_prediction_holds(impl) -> None:
    """the predicted work of the init is what the lowered loops do"""
    for sizes in ((2, 3, 4), (5, 2, 7)):
        what = f"For sizes {sizes} the lowered program has another number of '{{}}' than init_work says."
        why = (
            "An init belongs to a sum and runs at its first step. While the init is inside the block, every step "
            "asks whether it is the first."
        )
        INIT.each_predicted(impl.init_work(*sizes), _counted(*sizes), "init_work", what, why=why)


def observe_5_5(impl):
    return [lambda s=s: impl.init_work(*s) for s in ((2, 3, 4), (5, 2, 7))]


# --- 5.6 ------------------------------------------------------------------------------------------


def _reason(name: str) -> str:
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


def test_5_6_names_each_reason(impl) -> None:
    """each attempt is refused for the reason you give"""
    given = impl.reasons()
    expect.has_keys(given, ATTEMPTS, "reasons does not give a reason for each attempt.")
    for name in ATTEMPTS:
        what = f"Your reason for “{name}” is not one of REASONS."
        wanted = "one of the sentences in REASONS, such as REASONS[3]"
        yours = repr(given[name])[:200]
        expect.that(given[name] in reference.REASONS, what, expected=wanted, yours=yours)
        REFUSED.that(
            given[name] == _reason(name),
            f"TVM refuses “{name}” for another reason than the one that you give.",
            expected="the condition in the last line of TVM's error that fails here",
            yours=given[name],
            why="Two attempts end in the same sentence, which lists several conditions. What `sch.get_producers` "
            "returns for the block `bias` tells you which of them fails.",
        )


def observe_5_6(impl):
    return [lambda name=name: impl.reasons()[name] for name in ATTEMPTS]


# --- 5.7 ------------------------------------------------------------------------------------------


def _forced(sizes: tuple[int, int, int], given: list[np.ndarray]) -> np.ndarray:
    return run_compiled(tvm.IRModule({"main": forced(*sizes)}), given)[3]


def test_5_7_says_how_wrong_it_is(impl) -> None:
    """forced_error gives the error of the forced version, for any bias and any number of steps"""
    for sizes in ((3, 4, 1), (3, 4, 2), (2, 5, 9)):
        given = arrays(*sizes, seed=sizes[2])
        wrong = _forced(sizes, given) - product(*given[:3])
        yours = np.asarray(impl.forced_error(given[2], sizes[2])) + np.zeros_like(wrong)
        what = "The array that forced_error returns has another shape than the bias."
        FORCED.equal(
            yours.shape,
            wrong.shape,
            what,
            why="Each element has its own bias, and so its own error.",
        )
        for at in np.argwhere(yours != wrong)[:1]:
            spot = tuple(at.tolist())
            what = f"For k = {sizes[2]} and a bias of {given[2][spot]}, the error is not what forced_error says."
            why = "The forced version adds the bias in its step, and the step runs k times."
            FORCED.predicted(yours[spot].item(), wrong[spot].item(), what, why=why)


def observe_5_7(impl):
    c = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    return [lambda k=k: np.asarray(impl.forced_error(c, k)).tolist() for k in (1, 2, 9)]


# --- 5.8 ------------------------------------------------------------------------------------------


def test_5_8_is_a_test_that_sees_nothing(impl) -> None:
    """on your inputs the forced version gives the right result, although the bias is nowhere 0"""
    sizes, given = impl.blind_test()
    what = "blind_test does not return three sizes of 1 or more."
    expected = "(m, n, k), each 1 or more"
    why = "A test without elements, or without steps, computes nothing, so it cannot fail for any program."
    BREAK.that(len(sizes) == 3 and min(sizes) > 0, what, expected=expected, yours=sizes, why=why)
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
    out = _forced(tuple(sizes), [a, b, c, np.zeros(shapes[2], np.int32)])
    what = "On the inputs of blind_test the forced version is wrong, so this test sees the mistake."
    why = "The error is the one of exercise 5.7. Find sizes for which it is zero although the bias is not."
    BREAK.close(out, product(a, b, c), what, rtol=0, atol=0, why=why)


def observe_5_8(impl):
    def noticed():
        sizes, (a, b, c) = impl.blind_test()
        out = _forced(tuple(sizes), [a, b, c, np.zeros_like(c)])
        return int(np.abs(out - product(a, b, c)).max() > 0), bool((c != 0).all())

    return [noticed, lambda: impl.blind_test()[0][2] == 1, lambda: min(impl.blind_test()[0]) > 0]


# --- 5.9 to 5.12: puzzles on the sums of rows ------------------------------------------------------


ROWS = ((4, 24), (3, 40))


def _sums_rows(scheduled: Callable, impl, whose: str) -> None:
    """What `scheduled(impl, sizes)` makes gives the sums of the rows of A for all ROWS, interpreted and compiled."""
    for sizes in ROWS:
        a = np.random.default_rng(0).integers(-99, 99, sizes, dtype=np.int32)
        given, size = [a, np.full(sizes[0], -12345, np.int32)], f"{sizes[0]} rows of {sizes[1]}"
        hint = "loops that cover each row once"
        _writes(scheduled(impl, sizes), given, a.sum(axis=1), whose, size, hint, PUZZLES)


def _steps_through(sch: s_tir.Schedule, name: str, buffer: str) -> list[int]:
    """For each loop around a block, by how many elements one more iteration moves in `buffer`."""
    at = _bindings(sch, name)
    store = sch.get(sch.get_sblock(name)).body
    places = [load for load in nodes(store.value, tvm.ir.TensorLoad) if load.source.name == buffer]
    where = places[0] if places else store
    shape = (places[0].source if places else store.buffer).shape
    flat = tirx.IntImm("int32", 0)
    for index, extent in zip(where.indices, shape, strict=True):
        flat = flat * extent + substitute(index, at)
    return [_width(flat, loop.loop_var) for loop in loops_of(sch, name)]


def _in_pieces(impl, sizes) -> s_tir.Schedule:
    sch = s_tir.Schedule(row_sums(*sizes))
    impl.in_pieces(sch)
    return sch


def test_5_9_makes_four_loops(impl) -> None:
    """pieces, rows, groups, columns, in this order"""
    for rows, columns in ROWS:
        sch = _in_pieces(impl, (rows, columns))
        PUZZLES.equal(
            list(zip(extents(loops_of(sch, "total")), drives(sch, "total"), strict=True)),
            [(columns // 8, "vk*8"), (rows, "vi*1"), (2, "vk*4"), (4, "vk*1")],
            f"After in_pieces, the loops of total differ from the picture's, for {rows} rows of {columns} columns.",
            why="Each entry is a loop, from outside to inside: how often it runs, and the axis of the block that it "
            "moves and by how much. Pieces move vk by eight, groups by four, columns by one.",
        )


def test_5_9_computes_the_same(impl) -> None:
    """the numbers are the same"""
    _sums_rows(_in_pieces, impl, "in_pieces")


def observe_5_9(impl):
    def seen(sizes):
        sch = _in_pieces(impl, sizes)
        return extents(loops_of(sch, "total")), drives(sch, "total")

    return [lambda sizes=sizes: seen(sizes) for sizes in (*ROWS, (2, 8))]


def _split_sums(impl, sizes) -> tuple[s_tir.Schedule, str]:
    """The schedule after partial_sums, and the name of the block that makes the partial sums."""
    sch = s_tir.Schedule(row_sums(*sizes))
    impl.partial_sums(sch)
    names = _names(sch)
    others = [name for name in names if name not in ("root", "total")]
    PUZZLES.that(
        len(others) == 1 and "total" in names,
        "After partial_sums there are not two blocks, `total` and one that makes the partial sums.",
        expected="one call of sch.rfactor, which makes the second block",
        yours=", ".join(name for name in names if name != "root"),
        why="One block makes four sums per row that do not wait for one another; the other adds them up.",
    )
    return sch, others[0]


def test_5_10_keeps_the_lanes_of_a_row_together(impl) -> None:
    """the partial sums are a buffer of shape (rows, LANES)"""
    for sizes in ROWS:
        sch, name = _split_sums(impl, sizes)
        shape = tuple(int(n) for n in sch.get(sch.get_sblock(name)).writes[0].source.shape)
        PUZZLES.equal(
            shape,
            (sizes[0], reference.LANES),
            f"After partial_sums, the buffer of the partial sums has another shape, for {sizes[0]} rows of {sizes[1]} "
            "columns.",
            why="`factor_axis` is the position of the new dimension in the shape. In the last position, the partial "
            "sums of a row are neighbours in memory, so one vector instruction can load or store them.",
        )


def test_5_10_gives_each_lane_its_columns(impl) -> None:
    """partial sum number l adds the columns l, l + LANES, l + 2 * LANES and so on"""
    for sizes in ROWS:
        sch, name = _split_sums(impl, sizes)
        in_sums, in_a = (_steps_through(sch, name, buffer) for buffer in (name, "A"))
        through = dict(zip(in_sums, in_a, strict=True))
        PUZZLES.equal(
            through,
            {0: reference.LANES, 1: 1, reference.LANES: sizes[1]},
            f"After partial_sums, a partial sum adds other columns, for {sizes[0]} rows of {sizes[1]} columns.",
            why="Each entry is a loop: by how many elements an iteration moves in the buffer of the partial sums, and "
            "by how many in A. The loop over the lanes moves by one in both. The loop along the row moves by LANES in "
            "A, and stays at the same sum.",
        )


def test_5_10_computes_the_same(impl) -> None:
    """the numbers are the same"""
    _sums_rows(lambda *given: _split_sums(*given)[0], impl, "partial_sums")


def test_5_10_returns_the_block(impl) -> None:
    """the block of the partial sums comes back"""
    sch = s_tir.Schedule(row_sums(*ROWS[0]))
    block = impl.partial_sums(sch)
    returned = _found(sch, block, "block")
    PUZZLES.that(
        returned not in ("total", "root") and "not a block" not in returned,
        "partial_sums does not return the block that makes the partial sums.",
        expected="what sch.rfactor returns",
        yours=returned,
        why="That block is new, and the caller needs its handle to move or vectorize it.",
    )


def observe_5_10(impl):
    def seen(sizes):
        sch, name = _split_sums(impl, sizes)
        shape = [int(n) for n in sch.get(sch.get_sblock(name)).writes[0].source.shape]
        return shape, _steps_through(sch, name, "A"), extents(loops_of(sch, "total"))

    def returned():
        return type(impl.partial_sums(s_tir.Schedule(row_sums(*ROWS[0])))).__name__

    return [*(lambda sizes=sizes: seen(sizes) for sizes in ROWS), returned]


def _zeros_at_a_time() -> dict[str, int]:
    """How many zeros the init writes at a time before each loop of 5.11's nest; 0 if TVM refuses the loop."""
    found: dict[str, int] = {}
    for number, loop in enumerate(loops_of(rows_in_two_groups(), "total")):
        sch = rows_in_two_groups()
        try:
            sch.decompose_reduction("total", sch.get_loops("total")[number])
        except s_tir.ScheduleError:
            found[loop.loop_var.name] = 0
            continue
        around = len(_shared(sch, "total_update", "total_init"))
        found[loop.loop_var.name] = int(np.prod(extents(loops_of(sch, "total_init")[around:])))
    return found


def test_5_11_prediction_holds(impl) -> None:
    """for each loop: how many zeros the init writes at a time, 0 if TVM refuses the loop"""
    yours, counted = impl.zeros_at_a_time(), _zeros_at_a_time()
    what = "Before the loop {}, the init writes another number of zeros at a time than zeros_at_a_time says."
    why = (
        "The init stands right before that loop, and writes a zero for each sum that is made inside the loop. If the "
        "loop is itself inside a loop along the sum, TVM refuses, and the number is the one that stands for a refusal."
    )
    PUZZLES.each_predicted(yours, counted, "zeros_at_a_time", what, why=why)


def observe_5_11(impl):
    return [lambda name=name: impl.zeros_at_a_time()[name] for name in _zeros_at_a_time()]


def _in_a_register(impl, sizes) -> s_tir.Schedule:
    sch = s_tir.Schedule(row_sums(*sizes))
    reference.partial_sums(sch)
    impl.lanes_in_a_register(sch)
    return sch


def test_5_12_reads_neighbours(impl) -> None:
    """the innermost loop of total_rf is vectorized, and its iterations read and write adjacent elements"""
    for sizes in ROWS:
        sch = _in_a_register(impl, sizes)
        kinds = _kinds(sch, "total_rf")
        PUZZLES.that(
            kinds[-1] == "vectorized" and kinds.count("vectorized") == 1,
            "After lanes_in_a_register, the innermost loop of total_rf is not vectorized, or not the only one that is.",
            expected="the loop over the lanes innermost, and vectorized",
            yours=", ".join(kinds),
            why="The iterations of a vectorized loop become the lanes of one register.",
        )
        steps = {name: _steps_through(sch, "total_rf", name)[-1] for name in ("A", "total_rf")}
        PUZZLES.equal(
            steps,
            {"A": 1, "total_rf": 1},
            f"After lanes_in_a_register, the lanes of a vector are not neighbours in memory, for {sizes[0]} rows of "
            f"{sizes[1]} columns.",
            why="The numbers say how many elements one lane is from the next, in each buffer. If that is 1, one "
            "instruction loads the whole vector. If not, each lane is loaded by itself.",
        )
        what = "After lanes_in_a_register, a vector has another number of lanes than LANES."
        why = "The loop over the lanes is the one that rfactor was given."
        PUZZLES.equal(extents(loops_of(sch, "total_rf"))[-1], reference.LANES, what, why=why)


def test_5_12_computes_the_same(impl) -> None:
    """the numbers are the same"""
    _sums_rows(_in_a_register, impl, "lanes_in_a_register")


def observe_5_12(impl):
    def seen(sizes):
        try:
            sch = _in_a_register(impl, sizes)
        except s_tir.ScheduleError as error:  # TVM underlines the block that it speaks of
            before, _, _ = str(error).partition("^^^")
            return "refused", re.findall(r'sblock\("(\w+)"\)', before)[-1:]
        kinds = [_kinds(sch, name) for name in ("total_rf", "total")]
        return kinds, _steps_through(sch, "total_rf", "A")

    return [lambda sizes=sizes: seen(sizes) for sizes in ROWS]


# --- 5.13 and 5.14 ---------------------------------------------------------------------------------

DECODE, PREFILL = "schedule_decode", "schedule_prefill"
SLOWER = 2.5  # times the reference's seconds; schedules that keep sums in registers need far less on any machine


def _apply(schedule, func: tirx.PrimFunc, target: Target, whose: str) -> tirx.PrimFunc:
    """schedule(func, target), which must be a PrimFunc."""
    result = schedule(func, target)
    expected = 'sch.mod["main"], which the line below your region returns'
    FAST.returns(result, tirx.PrimFunc, whose, "a PrimFunc", expected=expected)
    return result


def _scheduled_square(schedule, rows, target: Target, whose: str) -> tirx.PrimFunc:
    """The product of x (*rows, 256) and w (256, 256), scheduled."""
    return _apply(schedule, products.unscheduled(rows, 256, 256), target, whose)


def _check_threads(schedule, rows, whose: str) -> None:
    func = _scheduled_square(schedule, rows, products.WIDE, whose)
    FAST.that(
        products.is_parallel(func),
        f"{whose} computes the product on one thread: no loop around the sums is parallel.",
        expected="a parallel loop of several iterations around the sums",
        why="The elements of the result are independent of one another. One core has only a part of the arithmetic and "
        "of the memory bandwidth of a machine.",
    )


def _check_registers(schedule, rows, whose: str) -> None:
    """The sums of a step are unrolled, no step asks for an init, and a tile stays for many steps."""
    func = _scheduled_square(schedule, rows, products.WIDE, whose)
    inits = products.inits_in_steps(func)
    FAST.that(
        not inits,
        f"{whose} leaves an init inside a loop along k.",
        expected="each init in its own block, before the steps: decompose_reduction, last of all",
        yours=", ".join(inits),
        why="With the init inside, every step asks whether it is the first, and the sums are stored and loaded around "
        "that question.",
    )
    for around, steps, inside in products.tiles(func):
        order = "from outside to inside: " + ", ".join(map(str, [*around, *steps, *inside]))
        left = [one for one in inside if not one.vectorized and not one.written_out]
        FAST.that(
            not left,
            f"{whose} leaves a loop over the sums of a step serial: {', '.join(map(str, left))}.",
            expected="the loops inside a step along k vectorized or unrolled",
            yours=order,
            why="A register has a name and no index, so a loop cannot run over registers. Once the loop is unrolled, "
            "each sum can have its own register.",
        )
        FAST.that(
            not any(a.written_out and not b.written_out for a, b in pairwise(steps)),
            f"{whose} unrolls steps along k that are far apart.",
            expected="the unrolled loop along k inside the serial one",
            yours=order,
            why="Consecutive steps read neighbouring elements of w. The iterations of an outer loop along k are far "
            "apart.",
        )
        follow = math.prod(int(one.loop.extent) for one in steps)
        FAST.that(
            follow >= 32 or len(around) == sum(not one.steps for one in around),
            f"{whose} leaves a tile of sums after {follow} steps along k, and comes back to it later.",
            expected="the loops over the steps of a block along k directly around the tile",
            yours=order,
            why="Each time another tile begins, the sums of this one are stored to memory, and later loaded again.",
        )


def _check_numbers(schedule, cases, whose: str) -> None:
    target = llvm_host()["target"]
    for said, rows, n, k in cases:
        w, x = products.array(n, n, k), products.array(k, *rows, k)
        func = _apply(schedule, products.unscheduled(said, n, k), target, whose)
        found = _product(func, w, x, whose)
        what = f"After {whose}, the kernel gives other numbers for x of shape {(*rows, k)} and w of shape {(n, k)}."
        why = "A schedule must not change the result, also where a size is not a multiple of the tile."
        FAST.close(
            found, x.astype("float64") @ w.astype("float64").T, what, rtol=1e-4, atol=1e-4, why=why
        )


def _check_block_behind(schedule, said, rows, whose: str) -> None:
    """The numbers of a product and a block behind it that adds a bias: chapter 9 schedules such kernels."""
    w, x, bias = products.array(1, 24, 40), products.array(2, *rows, 40), products.array(3, 24)
    target = llvm_host()["target"]
    func = _apply(schedule, products.unscheduled(said, 24, 40, bias=True), target, whose)
    arrays = [w, x, bias, np.full((*rows, 24), np.nan, "float32")]
    found = run_compiled(tvm.IRModule({"main": func}), arrays, target)[3]
    exact = x.astype("float64") @ w.astype("float64").T + bias
    what = f"After {whose}, a kernel in which a second block adds a bias to NT_matmul gives other numbers."
    why = "Chapter 9 gives your schedule such kernels. Schedule NT_matmul, and leave the second block as it is."
    FAST.close(found, exact, what, rtol=1e-4, atol=1e-4, why=why)


def _product(func: tirx.PrimFunc, w: np.ndarray, x: np.ndarray, whose: str) -> np.ndarray:
    try:
        return products.run(func, w, x, llvm_host()["target"])
    except WroteOutside:
        raise FAST.failed(
            f"After {whose}, the kernel writes outside its result for x of shape {x.shape} and w of shape {w.shape}.",
            expected="a predicate, or a copy of only as many rows as there are",
            why="The last tile is larger than what is left of the result.",
        ) from None


def _check_width(schedule, rows, whose: str) -> None:
    targets = {"AVX2": products.NARROW, "AVX-512": products.WIDE}
    funcs = {name: _scheduled_square(schedule, rows, t, whose) for name, t in targets.items()}
    widths = {name: products.widest(func) for name, func in funcs.items()}
    expected = "a vectorized loop over the lanes of a register"
    why = "Without it, each instruction multiplies one pair of numbers instead of eight or sixteen."
    FAST.that(min(widths.values()) > 1, f"{whose} vectorizes no loop.", expected=expected, why=why)
    FAST.that(
        widths["AVX-512"] == 2 * widths["AVX2"],
        f"{whose} vectorizes {widths['AVX2']} lanes for AVX2 and {widths['AVX-512']} for AVX-512.",
        expected="twice as many for AVX-512, whose registers are twice as wide: take the number from `target`",
        why="A constant width leaves half of each register of one machine unused, or spills those of another.",
    )


def _check_speed(impl, whose: str, rows, n: int, k: int, least: float) -> None:
    """At least `least` times as fast as unscheduled, and at most SLOWER times as slow as the reference."""
    gains, shares = [], []
    schedules = (None, getattr(impl, whose), getattr(reference, whose))
    for _ in range(3):  # a machine that is busy with something else gets two more chances
        plain, yours, best = products.times(schedules, rows, n, k)
        gains.append(plain / yours)
        shares.append(yours / best)
        if gains[-1] >= least and shares[-1] <= SLOWER:
            return
    sizes = f"for x of shape {(*rows, k)} and w of shape {(n, k)}"
    if max(gains) < least:
        raise FAST.failed(
            f"After {whose}, the kernel is only {max(gains):.1f} times as fast as without a schedule, {sizes}.",
            expected=f"at least {least:g} times; the reference reaches several times that",
            why="An unscheduled sum is one chain of additions, each waiting for the one before it.",
        )
    raise FAST.failed(
        f"After {whose}, the kernel takes {min(shares):.1f} times as long as the reference's, {sizes}.",
        expected=f"at most {SLOWER:g} times as long",
        why="It has vectors and threads, so look at what it stores. Partial sums should be added up soon after they "
        "are made, and a step along k should add to several registers of sums that do not wait for one another.",
    )


def test_5_13_any_shape(impl) -> None:
    """right numbers for one row, a few rows and sizes that do not fill a register"""
    shapes = [((1,), 96, 128), ((1, 1), 30, 64), ((), 12, 32)]
    shapes += [((3,), 20, 48), ((2, 2), 6, 40), ((1,), 7, 33)]
    cases = [(rows, rows, n, k) for rows, n, k in shapes]
    _check_numbers(impl.schedule_decode, cases, DECODE)


def test_5_13_leaves_a_block_behind_it_alone(impl) -> None:
    """right numbers too where another block reads the product"""
    _check_block_behind(impl.schedule_decode, (3,), (3,), DECODE)


def test_5_13_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_decode, (1,), DECODE)


def test_5_13_vectors_lie_along_w(impl) -> None:
    """a vector is read from one row of w, where its elements lie side by side"""
    func = _scheduled_square(impl.schedule_decode, (1,), products.NARROW, DECODE)
    FAST.that(
        any(products.vectors_along_w(func)),
        "schedule_decode vectorizes across the rows of w.",
        expected="a vectorized loop along k, over the partial sums of one element of the result",
        why="Elements of different rows of w are far apart in memory, so each lane is loaded by itself. Along k, the "
        "elements of w are neighbours, and one instruction loads a vector of them.",
    )
    FAST.that(
        all(products.vectors_in_partial_sums(func)),
        "schedule_decode stores the partial sums of one element of the result far apart.",
        expected="the lanes as the last dimension of the partial sums: factor_axis=len(rows) + 1",
        why="If they are far apart, a register of partial sums is stored lane by lane.",
    )


def test_5_13_keeps_sums_in_registers(impl) -> None:
    """the sums of a step along k are written out, and no step asks for an init"""
    for rows in ((1,), (3,)):
        _check_registers(impl.schedule_decode, rows, DECODE)


def test_5_13_reads_w_once(impl) -> None:
    """a vector of w is multiplied by all rows of x, not read again for each"""
    func = _scheduled_square(impl.schedule_decode, (5,), products.WIDE, DECODE)
    for around, steps, inside in products.tiles(func):
        FAST.that(
            not any(one.vectorized for one in around),
            "schedule_decode puts the steps along k inside the vectorized loop.",
            expected="the vectorized loop inside the loop along k",
            yours="from outside to inside: " + ", ".join(map(str, [*around, *steps, *inside])),
            why="One sum is then finished before the next begins, and w is read again for each row of x.",
        )
    for sums, lanes in products.sums_of_a_step(func, written_out=True):
        if lanes > 1:
            what = "schedule_decode reads w again for each row of x."
            wanted = "the loops over the rows of x inside the loop along k"
            yours = f"for five rows of x, a step along k adds to {sums // lanes} registers of sums"
            why = "A vector of w that is in a register can serve all rows of x, and w is most of what decode reads."
            FAST.that(sums % (5 * lanes) == 0, what, expected=wanted, yours=yours, why=why)


def test_5_13_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_decode, (1,), DECODE)


def test_5_13_is_faster(impl) -> None:
    """one row of x and four are multiplied several times faster than unscheduled"""
    for rows in (1, 4):
        _check_speed(impl, DECODE, (rows,), 1024, 1024, 2.5)


def observe_5_13(impl):
    return _observe_schedule(impl.schedule_decode, (3,))


def _observe_schedule(schedule, rows):
    def describe_loops(target):
        func = schedule(products.unscheduled(rows, 64, 64), target)
        loops = [one for loops in products.loops_of_sums(func) for one in loops]
        vectors = [int(one.loop.extent) for one in loops if one.vectorized]
        threads = products.is_parallel(func), sorted(products.blocks(func))
        return vectors, products.vectors_along_w(func), products.sums_of_a_step(func), threads

    def numbers():
        target = llvm_host()["target"]
        func = schedule(products.unscheduled(rows, 24, 32), target)
        out = products.run(func, products.array(1, 24, 32), products.array(2, *rows, 32), target)
        return np.round(out, 2).tolist()

    return [lambda: describe_loops(products.NARROW), lambda: describe_loops(products.WIDE), numbers]


def test_5_14_any_number_of_rows(impl) -> None:
    """right numbers for rows that fill a tile, that do not, and that are not known"""
    n, b = tirx.Var("n", "int64"), tirx.Var("b", "int64")
    cases = [((64,), (64,), 96, 128), ((17,), (17,), 24, 40), ((130,), (130,), 7, 33)]
    cases += [((1, n), (1, 70), 32, 64), ((b, 1), (5, 1), 16, 32), ((2, 3), (2, 3), 8, 16)]
    _check_numbers(impl.schedule_prefill, cases, PREFILL)


def test_5_14_takes_a_block_behind_it_for_the_copy(impl) -> None:
    """right numbers too where another block reads the product"""
    for said, rows in (((64,), (64,)), ((tirx.Var("n", "int64"),), (37,))):
        _check_block_behind(impl.schedule_prefill, said, rows, PREFILL)


def test_5_14_width_from_the_target(impl) -> None:
    """the vector width follows the target"""
    _check_width(impl.schedule_prefill, (64,), PREFILL)


def test_5_14_uses_all_threads(impl) -> None:
    """the outputs are spread over threads"""
    _check_threads(impl.schedule_prefill, (64,), PREFILL)


def test_5_14_sums_stay_in_registers(impl) -> None:
    """one step of k adds to as many sums as the vector registers hold"""
    for target in (products.NARROW, products.WIDE):
        func = _scheduled_square(impl.schedule_prefill, (64,), target, PREFILL)
        registers = vector_registers(target).count
        steps = products.sums_of_a_step(func)
        for loops, (sums, lanes) in zip(products.loops_of_sums(func), steps, strict=True):
            order = "from outside to inside: " + ", ".join(map(str, loops))
            FAST.that(
                lanes > 1,
                f"{PREFILL} puts a loop along k inside the vectorized loop, so no register of sums stays while k runs.",
                expected="the vectorized loop inside all loops along k",
                yours=order,
                why="The sums of a step stay in registers only if the loops over them are inside the loop over steps.",
            )
            FAST.that(
                sums <= lanes * registers,
                f"{PREFILL} adds to {sums} sums in each step of k, {sums // lanes} registers of {lanes}; "
                f"the target has {registers}.",
                expected="inside the innermost loop along k only one tile: its columns, vectors and lanes",
                yours=order,
                why="Sums that do not fit the registers are stored and loaded again at every step.",
            )


def test_5_14_steps_follow_one_another(impl) -> None:
    """the sums of a step along k are written out, no step asks for an init, and a tile stays for many steps"""
    _check_registers(impl.schedule_prefill, (64,), PREFILL)


def test_5_14_copies_out_what_is_done(impl) -> None:
    """a thread copies its block of the result out as soon as it is done"""
    func = _scheduled_square(impl.schedule_prefill, (64,), products.WIDE, PREFILL)
    FAST.that(
        products.copies_out_with_sums(func),
        f"{PREFILL} copies the result out only after all of it has been computed.",
        expected="the copy of the result in the parallel loop over blocks of rows of w: reverse_compute_at",
        why="After the last block, the first sums have left the cache, and one thread copies what many have made.",
    )


def test_5_14_is_faster(impl) -> None:
    """64 rows of x are multiplied many times faster than unscheduled"""
    _check_speed(impl, PREFILL, (64,), 1024, 1024, 6)


def observe_5_14(impl):
    return _observe_schedule(impl.schedule_prefill, (40,))
