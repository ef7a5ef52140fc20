"""The checks of chapter 5: primitives that change how a product is computed and not what, attempts that TVM refuses,
and schedules that make a product fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import ForKind

from chapters.ch05_schedules_and_their_limits.given import ATTEMPTS, forced, rows_in_two_groups
from chapters.kit.cases.guarded import WroteOutside, run_compiled
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.ir.tensor_ir import nodes, substitute
from chapters.kit.machine import llvm_host
from solutions.ch05_schedules_and_their_limits import schedules as reference
from tests.ch05 import products
from tests.support import expect
from tests.support.expect import Section
from tests.support.interpret import OutOfBounds, interpret

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
EXACT = "Integers are exact: any difference is a mistake."


def arrays(m: int, n: int, k: int, seed: int = 0) -> list[np.ndarray]:
    """A (m, k) and B (n, k) of int8, C (m, n) of int32, and a D (m, n) of int32 that holds poison."""
    random = np.random.default_rng(seed)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (n, k)))
    c = random.integers(-99, 99, (m, n), dtype=np.int32)
    return [a, b, c, np.full((m, n), -12345, np.int32)]


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A @ B.T + C, exactly."""
    return a.astype("int64") @ b.astype("int64").T + c


def listing(sch: s_tir.Schedule) -> str:
    lines = sch.mod["main"].script().splitlines()
    start = next(i for i, line in enumerate(lines) if "with T.sblock" in line)
    return "\n".join(line[4:] for line in lines[start + 1 :])


def computes_the_same(scheduled: Callable, impl, whose: str, read: Section) -> None:
    """What `scheduled(impl, sizes)` makes gives A @ B.T + C for all SIZES, interpreted and compiled."""
    hint = "a predicate that skips the iterations a split has added; sch.split makes one"
    for sizes in SIZES:
        sch, given, size = scheduled(impl, sizes), arrays(*sizes), f"sizes {sizes}"
        _writes(sch, given, product(*given[:3]), f"{whose}: the program", size, hint, read)


def _writes(
    sch: s_tir.Schedule, given: list, expected: np.ndarray, whose: str, size: str, hint: str, read
) -> None:
    """The last of `given` is `expected` after `sch` ran on it, interpreted and compiled; hint: if it goes outside."""
    try:
        interpreted = [array.copy() for array in given]
        interpret(sch.mod["main"], interpreted)
        results = [interpreted[-1], run_compiled(sch.mod, given)[-1]]
    except (OutOfBounds, WroteOutside) as error:
        what = f"{whose} accesses memory outside its buffers for {size}."
        raise read.failed(what, expected=hint, yours=f"{error}\n{listing(sch)}") from None
    for result in results:
        what = f"{whose} computes something else for {size}."
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
        what = f"The loops of matmul have other extents than those of {tile}."
        why = "Row tiles, column tiles, steps, then the `rows` of a tile and its `columns`."
        LOOPS.equal(extents(loops_of(sch)), wanted, what, why=why)
        steps = [f"vi*{rows}", f"vj*{columns}", "vk*1", "vi*1", "vj*1"]
        what = "The loops of matmul have the right extents but drive other axes than they should."
        why = "The inner loop of a split takes steps of one, the outer one steps as wide as a tile."
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
    expect.that(five, "tile does not return five loops.", expected=wanted, yours=repr(loops)[:200])
    mine = [sch.get(loop).loop_var.name for loop in loops]
    theirs = [loop.loop_var.name for loop in loops_of(sch)]
    LOOPS.equal(mine, theirs, "tile returns the loops in another order than the program has.")


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
            "The loops of matmul have other kinds, or other extents.",
            why="One loop over all tiles keeps every core busy even if there are few rows. The steps of one sum run "
            "one after another.",
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
    why = "`fuse` returns the handle of the loop it makes. To move a block there, the caller needs it."
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
            "The outermost loop of matmul is no longer the parallel one over tiles.",
            expected="matmul with the loops that use_the_machine gave it; only bias moves",
            yours=listing(sch),
            why="A producer that you move gets new loops, as many as its consumer needs there.",
        )
        shared = _shared(sch)
        what = "bias still runs outside the loop over tiles: it shares no loop with matmul."
        expected = "one shared loop, the one over tiles"
        why = "By then all sums have left the cache, and must be read from memory again."
        PLACE.that(bool(shared), what, expected=expected, yours=listing(sch), why=why)
        what = f"bias runs too deep: matmul and bias share {len(shared)} loops, and the second is the one over steps."
        expected = "one shared loop, the one over tiles"
        why = (
            "The result is the same, for the last step writes it last. But inside the loop over steps the bias runs "
            "once for each step, on sums that are not complete before the last."
        )
        PLACE.that(len(shared) == 1, what, expected=expected, yours=listing(sch), why=why)
        tiles, runs = int(shared[0].extent), int(np.prod(extents(loops_of(sch, "bias"))))
        what = f"In {tiles} tiles of 32 elements, bias runs {runs} times."
        expected = "once for each element of a tile"
        PLACE.that(runs <= tiles * 32, what, expected=expected, yours=listing(sch))


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
        what = f"scheduled returned {type(sch).__name__}, not a Schedule."
        expect.that(isinstance(sch, s_tir.Schedule), what, expected="return sch")


def _scheduled(impl, sizes) -> s_tir.Schedule:
    try:
        return impl.scheduled(matmul_bias(*sizes), 4, 8)
    except s_tir.ScheduleError as error:
        useful = str(error).partition("Error message: ")[2] or str(error)
        raise INIT.failed(
            "TVM refuses a primitive in scheduled.",
            expected="the same primitives in an order in which each is allowed",
            yours=useful.splitlines()[0][:300],
            why="After decompose_reduction, the update is not a reduction block: it adds to what another block set. "
            "A primitive that needs a reduction block refuses it.",
        ) from None


def test_5_4_takes_the_init_out_of_the_steps(impl) -> None:
    """no step asks whether it is the first, and the init of a tile stays with the tile"""
    for sizes in SIZES:
        sch = _scheduled(impl, sizes)
        what = "A block still has its init, so every step tests whether it is the first."
        expected = "two blocks, one that sets and one that adds"
        INIT.that(not _inits(sch), what, expected=expected, yours=listing(sch))
        inits = sum(name.endswith("_init") for name in _names(sch))
        INIT.equal(inits, 1, "There is not exactly one block that sets the sums to 0.")
        shared = _shared(sch, "matmul_update", "matmul_init")
        INIT.that(
            len(shared) == 1,
            f"The block that sets the sums to 0 shares {len(shared)} loops with the one that adds.",
            expected="one, the loop over tiles, with the init right before the loop over steps",
            yours=listing(sch),
            why="Further out, the init writes all of temp before anything is added: one more pass over memory.",
        )


def test_5_4_keeps_the_machine_busy(impl) -> None:
    """the update is parallel over tiles and vectorized over columns, and the bias runs in a tile"""
    sch = _scheduled(impl, SIZES[0])
    kinds = _kinds(sch, "matmul_update")
    INIT.that(
        kinds[0] == "parallel" and kinds[-1] == "vectorized",
        "The update's loops are not parallel outside and vectorized inside.",
        expected="parallel, serial, unrolled, vectorized",
        yours=", ".join(kinds),
    )
    lanes = extents(loops_of(sch, "matmul_update"))[-1]
    LOOPS.that(
        lanes == 8,
        f"scheduled(func, 4, 8) vectorizes {lanes} columns.",
        expected="tiles of 4 rows and 8 columns: rows comes first, here and in `tile`",
        yours=listing(sch),
        why="Exchanged, the numbers are the same, and a vector has half the lanes.",
    )
    what = "The bias does not run in the loop over tiles."
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
        what = f"For sizes {sizes} the lowered program has another number of '{{}}'."
        why = (
            "An init belongs to a sum and runs at its first step. While the init is inside the block, every step "
            "must test whether it is the first."
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
            f"“{name}” is refused for another reason.",
            expected="the reason in TVM's error, or what `sch.get_producers` shows",
            yours=given[name],
            why="The last line of TVM's message states the condition. Two attempts end in the same sentence: look at "
            "how many producers the bias block has in each.",
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
        expect.equal(yours.shape, wrong.shape, "forced_error has another shape than the bias.")
        for at in np.argwhere(yours != wrong)[:1]:
            spot = tuple(at.tolist())
            what = f"For k = {sizes[2]} and a bias of {given[2][spot]} the forced version has another error than yours."
            why = "Its step adds the bias, and runs once for each k."
            FORCED.predicted(yours[spot].item(), wrong[spot].item(), what, why=why)


def observe_5_7(impl):
    c = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    return [lambda k=k: np.asarray(impl.forced_error(c, k)).tolist() for k in (1, 2, 9)]


# --- 5.8 ------------------------------------------------------------------------------------------


def test_5_8_is_a_test_that_sees_nothing(impl) -> None:
    """on your inputs the forced version gives the right result, although the bias is nowhere 0"""
    sizes, given = impl.blind_test()
    what = "A test without elements, or without steps, cannot fail for any program."
    expected = "three sizes of 1 or more, (m, n, k)"
    expect.that(len(sizes) == 3 and min(sizes) > 0, what, expected=expected, yours=sizes)
    a, b, c = (np.ascontiguousarray(x) for x in given)
    shapes = [(sizes[0], sizes[2]), (sizes[1], sizes[2]), (sizes[0], sizes[1])]
    what = f"A, B and C do not have the shapes of sizes {sizes}."
    expect.equal([x.shape for x in (a, b, c)], shapes, what)
    dtypes = [str(x.dtype) for x in (a, b, c)]
    expect.equal(dtypes, ["int8", "int8", "int32"], "A and B are int8, C is int32.")
    zero = "The bias has a zero in it."
    expect.that(bool((c != 0).all()), zero, expected="no zero in C", yours=c)
    out = _forced(tuple(sizes), [a, b, c, np.zeros(shapes[2], np.int32)])
    what = "Your test notices that the forced version is wrong."
    why = "It is wrong by (k - 1) times the bias."
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
        what, hint = f"{whose}: the program", "loops that cover each row once"
        _writes(scheduled(impl, sizes), given, a.sum(axis=1), what, size, hint, PUZZLES)


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
            f"The loops of total differ from the drawing's, for {rows} rows of {columns} columns.",
            why="Each entry is a loop, from outside to inside: how often it runs, and by how much it moves which axis "
            "of the block. Pieces move vk by eight, groups by four, columns by one.",
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
        expected="sch.rfactor, once",
        yours=", ".join(name for name in names if name != "root"),
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
            f"The partial sums of {sizes[0]} rows of {sizes[1]} columns have another shape.",
            why="`factor_axis` is the position of the new dimension in the shape. In the last position, the partial "
            "sums of a row lie side by side, so one vector instruction can load or store them.",
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
            f"The partial sums add other columns than they should, for {sizes[0]} rows of {sizes[1]} columns.",
            why="For each loop: by how many elements an iteration moves in the buffer of the partial sums, and by how "
            "many in A. The loop over the lanes moves by one in both; the loop along the row adds to the same sum.",
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
        why="That block is new. To move or vectorize it, the caller needs a handle.",
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
    what = "Another number of zeros is written if the init is taken out before the loop {}."
    why = (
        "The new block comes right before that loop. It writes a zero for each sum that is made inside the loop. "
        "TVM refuses a loop inside a sum, which would be reset half-way; then nothing is written."
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
            "The innermost loop of total_rf is not the only vectorized one.",
            expected="the loop over the lanes innermost, and vectorized",
            yours=", ".join(kinds),
        )
        steps = {name: _steps_through(sch, "total_rf", name)[-1] for name in ("A", "total_rf")}
        PUZZLES.equal(
            steps,
            {"A": 1, "total_rf": 1},
            f"The lanes of a vector are not adjacent in memory, for {sizes[0]} rows of {sizes[1]} columns.",
            why="The numbers say how far one lane is from the next. If that is 1, one instruction loads the whole "
            "vector; if not, each lane is loaded by itself.",
        )
        what = "A vector has another number of lanes."
        PUZZLES.equal(extents(loops_of(sch, "total_rf"))[-1], reference.LANES, what)


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
    what = f"{whose} returned {type(result).__name__}, not a PrimFunc."
    expect.that(isinstance(result, tirx.PrimFunc), what, expected='sch.mod["main"]')
    return result


def _scheduled_square(schedule, rows, target: Target, whose: str) -> tirx.PrimFunc:
    """The product of x (*rows, 256) and w (256, 256), scheduled."""
    return _apply(schedule, products.unscheduled(rows, 256, 256), target, whose)


def _check_threads(schedule, rows, whose: str) -> None:
    func = _scheduled_square(schedule, rows, products.WIDE, whose)
    FAST.that(
        products.is_parallel(func),
        f"{whose} leaves the product to one thread.",
        expected="a parallel loop of several iterations around the sums",
        why="Outputs are independent of one another, and one core has only a part of the arithmetic and of the "
        "memory bandwidth of a machine.",
    )


def _check_registers(schedule, rows, whose: str) -> None:
    """The sums of a step are variables of their own, no step asks for an init, and steps follow one another."""
    func = _scheduled_square(schedule, rows, products.WIDE, whose)
    inits = products.inits_in_steps(func)
    FAST.that(
        not inits,
        f"{whose} leaves an init inside a loop along k.",
        expected="each init a block of its own, before the steps: decompose_reduction, last of all",
        yours=", ".join(inits),
        why="Every step then asks whether it is the first, and the sums are stored and loaded around the question.",
    )
    for around, steps, inside in products.tiles(func):
        order = "from outside to inside: " + ", ".join(map(str, [*around, *steps, *inside]))
        left = [one for one in inside if not one.vectorized and not one.written_out]
        FAST.that(
            not left,
            f"{whose} leaves a loop over the sums of a step as a loop: {', '.join(map(str, left))}.",
            expected="the loops inside a step along k vectorized or unrolled",
            yours=order,
            why="A register has a name and no index, so a loop cannot run over registers. Written out one after "
            "another, each sum can have a register of its own.",
        )
        FAST.that(
            not any(a.written_out and not b.written_out for a, b in pairwise(steps)),
            f"{whose} writes out steps along k that are far apart.",
            expected="the steps that are written out inside the loop over the others",
            yours=order,
            why="A step reads the elements of w that follow those of the step before. The outer loop along k jumps.",
        )
        follow = math.prod(int(one.loop.extent) for one in steps)
        FAST.that(
            follow >= 32 or len(around) == sum(not one.steps for one in around),
            f"{whose} leaves a tile of sums after {follow} steps along k, and comes back to it later.",
            expected="the steps of a block along k next to one another, with the tile inside",
            yours=order,
            why="When the next tile begins, the sums of this one go to memory, and are loaded again for the next "
            "steps. That must be rare.",
        )


def _check_numbers(schedule, cases, whose: str) -> None:
    target = llvm_host()["target"]
    for said, rows, n, k in cases:
        w, x = products.array(n, n, k), products.array(k, *rows, k)
        func = _apply(schedule, products.unscheduled(said, n, k), target, whose)
        found = _product(func, w, x, whose)
        what = f"{whose} changes the numbers for x {(*rows, k)} and w {(n, k)}."
        why = "A schedule changes the order of the work, never its result, also where a size does not fit a tile."
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
    what = f"{whose} changes the numbers of a kernel in which a block behind NT_matmul adds a bias."
    why = "Chapter 9 gives your schedule such kernels. It schedules the block NT_matmul, whatever else there is."
    FAST.close(found, exact, what, rtol=1e-4, atol=1e-4, why=why)


def _product(func: tirx.PrimFunc, w: np.ndarray, x: np.ndarray, whose: str) -> np.ndarray:
    try:
        return products.run(func, w, x, llvm_host()["target"])
    except WroteOutside:
        raise FAST.failed(
            f"{whose}: the kernel writes outside of its result for x {x.shape} and w {w.shape}.",
            expected="a predicate, or a copy of only as many rows as there are",
        ) from None


def _check_width(schedule, rows, whose: str) -> None:
    targets = {"AVX2": products.NARROW, "AVX-512": products.WIDE}
    funcs = {name: _scheduled_square(schedule, rows, t, whose) for name, t in targets.items()}
    widths = {name: products.widest(func) for name, func in funcs.items()}
    expected = "a vectorized loop over the lanes of a register"
    why = "Without it each instruction multiplies one pair of numbers instead of eight or sixteen."
    FAST.that(min(widths.values()) > 1, f"{whose} vectorizes no loop.", expected=expected, why=why)
    FAST.that(
        widths["AVX-512"] == 2 * widths["AVX2"],
        f"{whose} vectorizes {widths['AVX2']} lanes for AVX2 and {widths['AVX-512']} for AVX-512.",
        expected="twice as many for registers twice as wide: the number comes from `target`",
        why="A constant width wastes half the registers of one machine or spills those of another.",
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
    sizes = f"for x {(*rows, k)} and w {(n, k)}"
    if max(gains) < least:
        raise FAST.failed(
            f"{whose} is {max(gains):.1f} times as fast as no schedule, {sizes}.",
            expected=f"at least {least:g} times; the reference has several times that",
            why="An unscheduled sum is one chain of additions, each waiting for the one before.",
        )
    raise FAST.failed(
        f"{whose} takes {min(shares):.1f} times as long as the reference's, {sizes}.",
        expected=f"at most {SLOWER:g} times",
        why="It uses vectors and threads. So look at what it stores: add partial sums up soon after they are made, and "
        "let a step along k add to several registers of sums that do not wait for one another.",
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
        expected="a vectorized loop along k, over the partial sums of one output",
        why="The elements of a vector are then far apart in memory, and each is loaded by itself. Decode mostly reads "
        "w, whose rows are contiguous along k.",
    )
    FAST.that(
        all(products.vectors_in_partial_sums(func)),
        "schedule_decode stores the partial sums of one output far apart.",
        expected="the lanes as the last dimension of the partial sums: factor_axis=len(rows) + 1",
        why="A register of partial sums is then taken apart to be stored, lane by lane.",
    )


def test_5_13_keeps_sums_in_registers(impl) -> None:
    """the sums of a step along k are written out, and no step asks for an init"""
    for rows in ((1,), (3,)):
        _check_registers(impl.schedule_decode, rows, DECODE)


def test_5_13_reads_w_once(impl) -> None:
    """a vector of w is multiplied by all rows of x, not read again for each"""
    func = _scheduled_square(impl.schedule_decode, (5,), products.WIDE, DECODE)
    for sums, lanes in products.sums_of_a_step(func, written_out=True):
        if lanes > 1:
            what = "schedule_decode reads w again for each row of x."
            wanted = "the loops over the rows inside the loop along k"
            yours = f"for five rows, a step along k adds to {sums // lanes} registers of sums"
            why = "A vector of w in a register serves all rows, and w is most of what decode reads."
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
    def told(target):
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

    return [lambda: told(products.NARROW), lambda: told(products.WIDE), numbers]


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
                f"{PREFILL} runs along k inside the vectorized loop, so no register of sums stays while k runs.",
                expected="the vectorized loop inside all loops along k",
                yours=order,
                why="A step of k adds to one register of sums. The loop over the steps must be outside of it, or "
                "the sums go to memory and back.",
            )
            FAST.that(
                sums <= lanes * registers,
                f"{PREFILL} adds to {sums} sums in each step of k, {sums // lanes} registers of {lanes}; "
                f"the target has {registers}.",
                expected="inside the innermost loop along k only one tile: its columns, vectors and lanes",
                yours=order,
                why="Sums that do not fit the registers go to memory and back in every step.",
            )


def test_5_14_steps_follow_one_another(impl) -> None:
    """the sums of a step along k are written out, no step asks for an init, and a tile stays for many steps"""
    _check_registers(impl.schedule_prefill, (64,), PREFILL)


def test_5_14_copies_out_what_is_done(impl) -> None:
    """a thread copies its block of the result out as soon as it is done"""
    func = _scheduled_square(impl.schedule_prefill, (64,), products.WIDE, PREFILL)
    FAST.that(
        products.copies_out_with_sums(func),
        f"{PREFILL} copies the result out after all of it has been computed.",
        expected="the copy of the result in the parallel loop over blocks of rows of w: reverse_compute_at",
        why="By then the sums have left the cache, and one thread copies what many have made.",
    )


def test_5_14_is_faster(impl) -> None:
    """64 rows of x are multiplied many times faster than unscheduled"""
    _check_speed(impl, PREFILL, (64,), 1024, 1024, 6)


def observe_5_14(impl):
    return _observe_schedule(impl.schedule_prefill, (40,))
