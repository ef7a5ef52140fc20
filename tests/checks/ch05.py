"""The checks of chapter 5: primitives that change how a product is computed and not what, and three that refuse."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.tirx import ForKind

from chapters.toolkit.cases.matmul_bias import matmul_bias
from chapters.toolkit.ir.tensor_ir import nodes
from solutions.ch05_schedules_and_their_limits import schedules as reference
from tests.harness import expect
from tests.harness.failure import CheckFailed
from tests.property.guarded import WroteOutside, run_compiled
from tests.property.interpret import OutOfBounds, interpret

LESSON = "chapters/ch05_schedules_and_their_limits/lesson.md"
LOOPS = f"{LESSON}, “Loops around a block”"
KINDS = f"{LESSON}, “What a loop may become”"
PLACE = f"{LESSON}, “Where a block runs”"
INIT = f"{LESSON}, “The init, taken apart”"
ATTEMPTS = f"{LESSON}, “Three attempts”"
FORCED = f"{LESSON}, “The forced one”"
SIZES = ((8, 16, 6), (5, 21, 3))  # the second are no multiples of a (4, 8) tile
EXACT = "Integers are exact: any difference is a mistake."


def arrays(m: int, n: int, k: int, seed: int = 0) -> list[np.ndarray]:
    """A, B, C and a D full of something else."""
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


def computes_the_same(
    sch: s_tir.Schedule, sizes: tuple[int, int, int], whose: str, read: str
) -> None:
    """`sch` gives A @ B.T + C, interpreted and compiled."""
    given = arrays(*sizes)
    expected = product(*given[:3])
    try:
        interpreted = [array.copy() for array in given]
        interpret(sch.mod["main"], interpreted)
        results = [interpreted[3], run_compiled(sch.mod, given)[3]]
    except (OutOfBounds, WroteOutside) as error:
        raise CheckFailed(
            f"{whose}: the program accesses memory outside its buffers for sizes {sizes}.",
            expected="a predicate that cuts off what a split has added; sch.split makes it",
            yours=f"{error}\n{listing(sch)}",
            read=read,
        ) from None
    for result in results:
        expect.close(
            result,
            expected,
            f"{whose}: the program computes something else for sizes {sizes}.",
            rtol=0,
            atol=0,
            why=EXACT,
            read=read,
        )


def loops_of(sch: s_tir.Schedule, name: str = "matmul") -> list[tirx.For]:
    return [sch.get(loop) for loop in sch.get_loops(name)]


def extents(loops: list[tirx.For]) -> list[int]:
    return [int(loop.extent) for loop in loops]


def drives(sch: s_tir.Schedule, name: str = "matmul") -> list[str]:
    """For each loop around a block, the axes it drives and how wide a step it takes there: `i*4`, or `i*4 j*8`."""
    values = dict(_bindings(sch, name))
    found = []
    for loop in loops_of(sch, name):
        steps = []
        for axis, value in values.items():
            width = _width(value, loop.loop_var)
            if width:
                steps.append(f"{axis}*{width}")
        found.append(" ".join(steps))
    return found


def _bindings(sch: s_tir.Schedule, name: str):
    block = sch.get(sch.get_sblock(name))
    realize = next(
        r for r in nodes(sch.mod["main"].body, s_tir.SBlockRealize) if r.block.same_as(block)
    )
    for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
        yield axis.var.name, value


def _width(value, var) -> int:
    """By how much `value` grows when `var` goes from 0 to 1 and every other variable is 0."""
    from chapters.toolkit.ir.tensor_ir import substitute

    zero = {v: tirx.IntImm("int32", 0) for v in nodes(value, tvm.ir.Var)}
    simplify = tvm.sym.Analyzer().simplify
    at = [int(simplify(substitute(value, {**zero, var: tirx.IntImm("int32", x)}))) for x in (0, 1)]
    return at[1] - at[0]


# --- 5.1 ------------------------------------------------------------------------------------------


def _tiled(impl, sizes, rows=4, columns=8) -> s_tir.Schedule:
    sch = s_tir.Schedule(matmul_bias(*sizes))
    impl.tile(sch, rows, columns)
    return sch


def test_5_1_makes_five_loops(impl) -> None:
    """row tiles, column tiles, steps, rows, columns, in this order"""
    for sizes in SIZES:
        m, n, k = sizes
        sch = _tiled(impl, sizes)
        wanted = [-(-m // 4), -(-n // 8), k, 4, 8]
        yours = extents(loops_of(sch))
        expect.equal(
            yours,
            wanted,
            f"The loops of matmul have other extents than those of a (4, 8) tile of sizes {sizes}.",
            why="Row tiles, column tiles, steps, rows of a tile, columns of a tile.",
            read=LOOPS,
        )
        expect.equal(
            drives(sch),
            ["vi*4", "vj*8", "vk*1", "vi*1", "vj*1"],
            "The loops of matmul have the right extents and drive other axes than they should.",
            why="The inner loop of a split takes steps of one, the outer one steps as wide as a tile.",
            read=LOOPS,
        )
    expect.equal(
        extents(loops_of(_tiled(impl, SIZES[0], rows=2, columns=4))),
        [4, 4, 6, 2, 4],
        f"The loops of matmul have other extents than those of a (2, 4) tile of sizes {SIZES[0]}.",
        why="`rows` and `columns` say how large a tile is.",
        read=LOOPS,
    )


def test_5_1_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are no multiples of the tile"""
    for sizes in SIZES:
        computes_the_same(_tiled(impl, sizes), sizes, "tile", LOOPS)


def test_5_1_returns_the_loops(impl) -> None:
    """the five loops come back in their order"""
    sch = s_tir.Schedule(matmul_bias(8, 16, 6))
    loops = impl.tile(sch, 4, 8)
    expect.that(
        isinstance(loops, (list, tuple)) and len(loops) == 5,
        "tile does not return five loops.",
        expected="[row_tile, column_tile, step, row, column]",
        yours=repr(loops)[:200],
    )
    mine = [sch.get(loop).loop_var.name for loop in loops]
    theirs = [loop.loop_var.name for loop in loops_of(sch)]
    expect.equal(
        mine, theirs, "tile returns the loops in another order than they stand.", read=LOOPS
    )


def observe_5_1(impl):
    def seen(sizes, rows, columns):
        sch = _tiled(impl, sizes, rows, columns)
        return extents(loops_of(sch)), drives(sch)

    return [
        lambda: seen((8, 16, 6), 4, 8),
        lambda: seen((5, 21, 3), 4, 8),
        lambda: seen((8, 16, 6), 2, 4),
        lambda: len(impl.tile(s_tir.Schedule(matmul_bias(8, 16, 6)), 4, 8)),
    ]


# --- 5.2 ------------------------------------------------------------------------------------------


def _on_machine(impl, sizes) -> s_tir.Schedule:
    sch = s_tir.Schedule(matmul_bias(*sizes))
    reference.tile(sch, 4, 8)
    impl.use_the_machine(sch)
    return sch


def _kinds(sch: s_tir.Schedule) -> list[str]:
    return [ForKind(loop.kind).name.lower() for loop in loops_of(sch)]


def test_5_2_gives_each_loop_its_kind(impl) -> None:
    """one parallel loop over tiles, serial steps, unrolled rows, vectorized columns"""
    for sizes in SIZES:
        sch = _on_machine(impl, sizes)
        m, n, k = sizes
        tiles = -(-m // 4) * -(-n // 8)
        expect.equal(
            list(zip(_kinds(sch), extents(loops_of(sch)), strict=True)),
            [("parallel", tiles), ("serial", k), ("unrolled", 4), ("vectorized", 8)],
            "The loops of matmul have other kinds, or other extents.",
            why="One loop over all tiles keeps every core busy even where there are few rows. Steps of one sum run one "
            "after another.",
            read=KINDS,
        )


def test_5_2_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are no multiples of the tile"""
    for sizes in SIZES:
        computes_the_same(_on_machine(impl, sizes), sizes, "use_the_machine", KINDS)


def test_5_2_returns_the_loop_over_tiles(impl) -> None:
    """the loop over tiles comes back"""
    sch = s_tir.Schedule(matmul_bias(*SIZES[0]))
    reference.tile(sch, 4, 8)
    loop = impl.use_the_machine(sch)
    try:
        returned = sch.get(loop).loop_var.name
    except Exception:
        returned = f"{type(loop).__name__}, which is no loop of the schedule"
    expect.equal(
        returned,
        loops_of(sch)[0].loop_var.name,
        "use_the_machine does not return the loop over tiles.",
        why="`fuse` gives the handle of the loop it makes; whoever moves a block there needs it.",
        read=LOOPS,
    )


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
    sch = s_tir.Schedule(matmul_bias(*sizes))
    reference.tile(sch, 4, 8)
    reference.use_the_machine(sch)
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
        expect.that(
            ForKind(loops_of(sch)[0].kind) == ForKind.PARALLEL,
            "The outermost loop of matmul is the parallel one over tiles no more.",
            expected="matmul with the loops that use_the_machine gave it; only bias moves",
            yours=listing(sch),
            why="A producer that is moved gets new loops, as many as its consumer needs there.",
            read=PLACE,
        )
        shared = _shared(sch)
        expect.that(
            bool(shared),
            "bias still runs outside the loop over tiles: it shares no loop with matmul.",
            expected="one shared loop, the one over tiles",
            yours=listing(sch),
            why="By then all sums have left the cache, and are read from memory again.",
            read=PLACE,
        )
        expect.that(
            len(shared) == 1,
            f"bias runs too deep: matmul and bias share {len(shared)} loops, and the second is the one over steps.",
            expected="one shared loop, the one over tiles",
            yours=listing(sch),
            why="Inside the loop over steps, the bias is added to sums that are not complete, once for each step.",
            read=PLACE,
        )
        tiles, runs = int(shared[0].extent), int(np.prod(extents(loops_of(sch, "bias"))))
        expect.that(
            runs <= tiles * 32,
            f"In {tiles} tiles of 32 elements, bias runs {runs} times.",
            expected="once for each element of a tile",
            yours=listing(sch),
            read=PLACE,
        )


def test_5_3_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are no multiples of the tile"""
    for sizes in SIZES:
        computes_the_same(_with_bias(impl, sizes), sizes, "bias_at_the_tile", PLACE)


def observe_5_3(impl):
    def seen(sizes):
        sch = _with_bias(impl, sizes)
        return extents(_shared(sch)), extents(loops_of(sch, "bias"))

    return [lambda sizes=sizes: seen(sizes) for sizes in SIZES]


# --- 5.4 ------------------------------------------------------------------------------------------


def _inits(sch: s_tir.Schedule) -> list[s_tir.SBlock]:
    return [block for block in nodes(sch.mod["main"].body, s_tir.SBlock) if block.init is not None]


def test_5_4_schedules(impl) -> None:
    """scheduled gives a schedule, and TVM refuses none of its primitives"""
    for sizes in SIZES:
        sch = _scheduled(impl, sizes)
        expect.that(
            isinstance(sch, s_tir.Schedule),
            f"scheduled returned {type(sch).__name__}, not a Schedule.",
            expected="return sch",
        )


def _scheduled(impl, sizes) -> s_tir.Schedule:
    try:
        return impl.scheduled(matmul_bias(*sizes), 4, 8)
    except s_tir.ScheduleError as error:
        useful = str(error).partition("Error message: ")[2] or str(error)
        raise CheckFailed(
            "TVM refuses a primitive in scheduled.",
            expected="the same primitives in an order in which each is allowed",
            yours=useful.splitlines()[0][:300],
            why="After decompose_reduction, the update is no reduction block: it adds to what another block set. "
            "Primitives that have to know what a loop does cannot tell.",
            read=INIT,
        ) from None


def test_5_4_takes_the_init_out_of_the_steps(impl) -> None:
    """no step asks whether it is the first, and the init of a tile stays with the tile"""
    for sizes in SIZES:
        sch = _scheduled(impl, sizes)
        expect.that(
            not _inits(sch),
            "A block still has its init, which is tested at every step.",
            expected="two blocks, one that sets and one that adds",
            yours=listing(sch),
            read=INIT,
        )
        inits = [
            r for r in nodes(sch.mod["main"].body, s_tir.SBlock) if r.name_hint.endswith("_init")
        ]
        expect.equal(len(inits), 1, "There is not one block that sets the sums to 0.", read=INIT)
        shared = _shared(sch, "matmul_update", "matmul_init")
        expect.that(
            len(shared) == 1,
            f"The block that sets the sums to 0 shares {len(shared)} loops with the one that adds.",
            expected="one, the loop over tiles: the init stands right before the loop over steps",
            yours=listing(sch),
            why="Further out, all of temp is written before anything is added: a pass over memory of its own.",
            read=INIT,
        )


def test_5_4_keeps_the_machine_busy(impl) -> None:
    """the update is parallel over tiles and vectorized over columns, and the bias runs in a tile"""
    sch = _scheduled(impl, SIZES[0])
    kinds = [ForKind(loop.kind).name.lower() for loop in loops_of(sch, "matmul_update")]
    expect.that(
        kinds[0] == "parallel" and kinds[-1] == "vectorized",
        "The update's loops are not parallel outside and vectorized inside.",
        expected="parallel, serial, unrolled, vectorized",
        yours=", ".join(kinds),
        read=INIT,
    )
    expect.equal(
        len(_shared(sch, "matmul_update", "bias")),
        1,
        "The bias does not run in the loop over tiles.",
        why="`scheduled` puts together all that 5.1 to 5.3 do.",
        read=PLACE,
    )


def test_5_4_computes_the_same(impl) -> None:
    """the numbers are the same, also where the sizes are no multiples of the tile"""
    for sizes in SIZES:
        computes_the_same(_scheduled(impl, sizes), sizes, "scheduled", INIT)


def observe_5_4(impl):
    def seen(sizes):
        sch = impl.scheduled(matmul_bias(*sizes), 4, 8)
        names = [block.name_hint for block in nodes(sch.mod["main"].body, s_tir.SBlock)]
        kinds = [ForKind(loop.kind).name for loop in nodes(sch.mod["main"].body, tirx.For)]
        bias = extents(loops_of(sch, "bias"))
        return names, kinds, len(_inits(sch)), bias

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
        yours, counted = impl.init_work(*sizes), _counted(*sizes)
        expect.that(
            isinstance(yours, dict) and set(yours) == set(counted),
            "init_work does not return a dict of three numbers.",
            expected=", ".join(repr(key) for key in counted),
            yours=repr(yours)[:200],
        )
        for key, number in counted.items():
            expect.predicted(
                yours[key],
                number,
                f"The lowered program of sizes {sizes} has another number of {key!r}.",
                why="An init belongs to a sum and runs at the first of its steps; while it is inside the block, every "
                "step has to ask whether it is the first.",
                read=INIT,
            )


def observe_5_5(impl):
    return [lambda s=s: impl.init_work(*s) for s in ((2, 3, 4), (5, 2, 7))]


# --- 5.6 ------------------------------------------------------------------------------------------


def _reason(name: str) -> str:
    """Why TVM refuses an attempt: from its error and from what its schedule says of the blocks."""
    sch = s_tir.Schedule(matmul_bias(4, 4, 4))
    try:
        reference.ATTEMPTS[name](sch)
    except s_tir.ScheduleError as error:
        message = str(error)
    else:
        raise AssertionError(f"this release accepts {name}")
    if "has init statement" in message:
        return reference.REASONS[0]
    assert "single producer block" in message
    producers = sch.get_producers("bias")
    return reference.REASONS[2 if len(producers) > 1 else 1]


def test_5_6_names_each_reason(impl) -> None:
    """each attempt is refused for the reason you give"""
    given = impl.reasons()
    expect.that(
        isinstance(given, dict) and set(given) == set(reference.ATTEMPTS),
        "reasons does not speak of the three attempts.",
        expected=", ".join(reference.ATTEMPTS),
        yours=repr(given)[:200],
    )
    for name in reference.ATTEMPTS:
        expect.that(
            given[name] in reference.REASONS,
            f"What you give for “{name}” is none of REASONS.",
            expected="one of the sentences in REASONS, such as REASONS[3]",
            yours=repr(given[name])[:200],
        )
        expect.that(
            given[name] == _reason(name),
            f"“{name}” is refused for another reason.",
            expected="the reason that its error gives, or that `sch.get_producers` shows",
            yours=given[name],
            why="The last line of TVM's message says the condition. The same sentence serves for two: look at how many "
            "producers the bias block has at that moment.",
            read=ATTEMPTS,
        )


def observe_5_6(impl):
    return [lambda name=name: impl.reasons()[name] for name in reference.ATTEMPTS]


# --- 5.7 ------------------------------------------------------------------------------------------


def _forced(sizes: tuple[int, int, int], given: list[np.ndarray]) -> np.ndarray:
    return run_compiled(tvm.IRModule({"main": reference.forced(*sizes)}), given)[3]


def test_5_7_says_how_wrong_it_is(impl) -> None:
    """the error of the forced version is what you say, for any bias and any number of steps"""
    for sizes in ((3, 4, 1), (3, 4, 2), (2, 5, 9)):
        given = arrays(*sizes, seed=sizes[2])
        wrong = _forced(sizes, given) - product(*given[:3])
        yours = np.asarray(impl.forced_error(given[2], sizes[2])) + np.zeros_like(wrong)
        expect.equal(yours.shape, wrong.shape, "forced_error has another shape than the bias.")
        for at in np.argwhere(yours != wrong)[:1]:
            spot = tuple(at.tolist())
            expect.predicted(
                yours[spot].item(),
                wrong[spot].item(),
                f"For k = {sizes[2]} and a bias of {given[2][spot]} the forced version is wrong by something else.",
                why="Its step adds the bias, and runs once for each k.",
                read=FORCED,
            )


def observe_5_7(impl):
    c = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    return [lambda k=k: np.asarray(impl.forced_error(c, k)).tolist() for k in (1, 2, 9)]


# --- 5.8 ------------------------------------------------------------------------------------------


def test_5_8_is_a_test_that_sees_nothing(impl) -> None:
    """on your inputs the forced version gives the right result, with a bias that is nowhere 0"""
    sizes, given = impl.blind_test()
    expect.that(
        len(sizes) == 3 and min(sizes) > 0,
        "A test of no elements, or of no steps, sees nothing of any program.",
        expected="three sizes of 1 or more, (m, n, k)",
        yours=sizes,
    )
    a, b, c = (np.ascontiguousarray(x) for x in given)
    shapes = [(sizes[0], sizes[2]), (sizes[1], sizes[2]), (sizes[0], sizes[1])]
    expect.equal(
        [x.shape for x in (a, b, c)], shapes, f"A, B and C have not the shapes of sizes {sizes}."
    )
    dtypes = [str(x.dtype) for x in (a, b, c)]
    expect.equal(dtypes, ["int8", "int8", "int32"], "A and B are int8, C is int32.")
    expect.that(
        bool((c != 0).all()), "The bias has a zero in it.", expected="no zero in C", yours=c
    )
    out = _forced(tuple(sizes), [a, b, c, np.zeros(shapes[2], np.int32)])
    expect.close(
        out,
        product(a, b, c),
        "Your test notices that the forced version is wrong.",
        rtol=0,
        atol=0,
        why="It is wrong by (k - 1) times the bias.",
        read=f"{LESSON}, “Break it”",
    )


def observe_5_8(impl):
    def noticed():
        sizes, (a, b, c) = impl.blind_test()
        out = _forced(tuple(sizes), [a, b, c, np.zeros_like(c)])
        return int(np.abs(out - product(a, b, c)).max() > 0), bool((c != 0).all())

    return [
        noticed,
        lambda: impl.blind_test()[0][2] == 1,
        lambda: min(impl.blind_test()[0]) > 0,
    ]
