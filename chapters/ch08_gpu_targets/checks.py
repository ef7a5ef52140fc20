"""The checks of chapter 8: threads, a schedule within limits, occupancy, the bias of one row, and tensor cores."""

from __future__ import annotations

import math
import re

import numpy as np
import tvm
from tvm import s_tir, tirx

from chapters.ch08_gpu_targets import goals
from chapters.ch08_gpu_targets.device_kernels import scaled_sum
from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile, start_from_bias
from chapters.ch08_gpu_targets.warp_schedule import schedule_for_tensor_cores
from chapters.checking import gpu_kernels as gpu
from chapters.checking.expect import Section
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.draw.table import count_noun
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.kernel_report import occupancy
from chapters.kit.gpu.launches import host_program
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import accesses, bytes_moved
from chapters.kit.ir.tensor_ir import nodes, substitute
from chapters.runner.loading import last_line

LESSON = "chapters/ch08_gpu_targets/lesson.md"
THREADS = Section(LESSON, "Blocks and threads")
TILES = Section(LESSON, "Tiles in registers")
SHARED = Section(LESSON, "A copy that a block shares")
REPORT = Section(LESSON, "What the compiler reports")
DECODE = Section(LESSON, "When it must not fire")
CORES = Section(LESSON, "Tensor cores that start from the bias")
# Compiling a kernel, by g++ or by NVIDIA's compiler, takes seconds where other work goes on.
LIMITS = {
    "test_8_1_computes_every_element": 90,
    "test_8_2_right_numbers": 90,
    "test_8_4_right_numbers": 90,
    "test_8_5_is_taken_by_tensorize": 60,
    "test_8_5_right_numbers": 90,
}

# --- 8.1 ------------------------------------------------------------------------------------------


# (shape, dtype, threads, vector)
ELEMENTWISE = [
    ((10, 30), "float32", 32, 4),
    ((3, 4, 16), "float32", 64, 2),
    ((50,), "float32", 32, 2),  # one block, which has more threads than vectors
]


def _bind(impl, shape, dtype, threads, vector) -> tirx.PrimFunc:
    sch = s_tir.Schedule(scaled_sum(shape, dtype))
    impl.bind_elementwise(sch, sch.get_sblock("D"), threads, vector)
    return sch.mod["main"]


def test_8_1_computes_every_element(impl) -> None:
    """every element is computed, also where the last block has fewer"""
    for shape, dtype, threads, vector in ELEMENTWISE:
        func, count = _bind(impl, shape, dtype, threads, vector), math.prod(shape)
        for how, target, backwards in gpu.engines(dtype):
            random = np.random.default_rng(1)
            a, b = (random.standard_normal(shape).astype(dtype) for _ in range(2))
            d = np.full_like(a, np.nan)
            launches = gpu.launch(func, [a, b, d], target, backwards, THREADS)
            THREADS.close(
                d,
                a + b * b,
                f"With {threads} threads, some elements of a {shape} tensor are wrong (run {how}).",
                why=f"There are {count} elements, and a block computes {threads * vector}. The output starts "
                "as nan, and an element that your kernel never computes is still nan.",
            )
            per_block, blocks = math.prod(launches[0].block), math.prod(launches[0].grid)
            what = "Your blocks do not have the number of threads that was asked for."
            THREADS.equal(per_block, threads, what)
            wanted = math.ceil(count / (threads * vector))
            THREADS.equal(
                blocks,
                wanted,
                f"Your kernel does not have {wanted} blocks of {threads} threads.",
                why=f"A thread computes {vector} elements, so a block computes {threads * vector} of the {count}. Each "
                "block runs on one multiprocessor: with fewer blocks, more multiprocessors idle.",
            )


def test_8_1_threads_lie_side_by_side(impl) -> None:
    """a thread loads a vector, and the next thread the next one"""
    for shape, dtype, threads, vector in ELEMENTWISE:
        for access in accesses(_bind(impl, shape, dtype, threads, vector), CUDA):
            what = f"the {'store to' if access.writes else 'load of'} {access.buffer}"
            said = f"In {what}, a thread of your kernel does not take {vector} neighbouring elements at a time."
            why = (
                "One vector load replaces several loads: fewer instructions, and more bytes in flight per "
                "instruction."
            )
            THREADS.equal(access.lanes, vector, said, why=why)
            THREADS.equal(
                access.first[1] - access.first[0],
                vector,
                f"In {what}, neighbouring threads do not take neighbouring vectors.",
                why=f"Memory answers in sectors of 32 bytes. Your warp touches {access.sectors} of them; with "
                f"neighbouring vectors, {access.least_sectors} are enough. The numbers are the distance from thread 0 "
                "to thread 1.",
            )


def observe_8_1(impl):
    def describe(case) -> str:
        found = accesses(_bind(impl, *case), CUDA)
        return str([(a.buffer, a.lanes, a.first[:3], a.times) for a in found])

    return [lambda case=case: describe(case) for case in ELEMENTWISE]


# --- 8.2 ------------------------------------------------------------------------------------------


OTHER_SIZE = (128, 64, 128)


def _schedule(impl, size: tuple[int, int, int] = goals.SIZE) -> s_tir.Schedule:
    sch, block = start_from_bias(linear_bias(*size, "float32"))
    try:
        impl.schedule_within_limits(sch, block)
    except Exception as error:
        error.given = "a layer with m, n, k = {}, {}, {}".format(*size)
        raise
    for one in sch.get_child_blocks(sch.get_sblock("root")):
        written = sch.get(one).writes
        # dynamic shared memory is as good, and the engines that run kernels here have static memory alone
        if written and str(written[0].source.scope()) == "shared.dyn":
            sch.set_scope(one, 0, "shared")
    nest = loop_nest(sch)
    if unbound := _find_unbound(nest.body):
        raise TILES.failed(
            f"No loop around {' and '.join(unbound)} is bound to blocks or threads.",
            expected="each block of the schedule inside loops that are bound",
            yours=str(nest),
            why="What stands outside every bound loop would have to run on the CPU.",
        )
    return sch


def _find_unbound(parts) -> list[str]:
    """The names of the blocks, in the body of a LoopNest, that stand inside no loop that is bound to threads."""
    found = []
    for part in parts:
        if not hasattr(part, "body"):
            found.append(part.name)
        elif not part.kind.startswith(("blockIdx", "threadIdx")):
            found += _find_unbound(part.body)
    return found


def test_8_2_right_numbers(impl) -> None:
    """run as GPU code in both orders of the threads, every element is right"""
    for size in (goals.SIZE, OTHER_SIZE):
        func = _schedule(impl, size).mod["main"]
        why = "An element that no thread computes is still nan. A sum starts from the bias, once."
        gpu.layer(func, size, "float32", why, TILES)


def _make_one_kernel(impl) -> tuple[tirx.PrimFunc, str]:
    """The answer's kernel for the size that the goals are for, and its loops as text."""
    func = _schedule(impl).mod["main"]
    try:
        kernels = goals.list_launches(func)
    except Exception as error:
        raise TILES.failed(
            f"TVM cannot compile your schedule to a GPU kernel: {last_line(error)[:300]}",
            expected="a PrimFunc whose every loop nest is bound to blocks and threads",
            yours=str(loop_nest(func)),
        ) from None
    what = f"Your schedule makes {len(kernels)} kernels."
    why = "Each loop nest that stands beside the others at the top becomes a kernel of its own, which is launched."
    loops = str(loop_nest(func))
    TILES.that(len(kernels) == 1, what, expected="one kernel", yours=loops, why=why)
    return func, loops


def _check_goal(impl, number: int, read: Section) -> None:
    """The answer's kernel stays within the limits of goal `number`."""
    func, loops = _make_one_kernel(impl)
    used, limit = goals.use_of(func), goals.GOALS[number]
    above = used.exceeded(limit)
    if not above:
        return
    name, most = above[0], getattr(limit, above[0])
    raise read.failed(
        f"Your kernel does not reach goal {number}. Its {goals.NAMES[name]}: {getattr(used, name):,}; the goal allows "
        f"{most:,}.",
        expected="at most\n" + goals.list_numbers(limit),
        yours=f"{goals.list_numbers(used)}\n{loops}",
        why=goals.describe(func, name),
    )


def test_8_2_is_one_kernel(impl) -> None:
    """one kernel, in 8 or more blocks of 32 to 128 threads"""
    func, loops = _make_one_kernel(impl)
    ((blocks, threads),) = goals.list_launches(func)
    TILES.that(
        blocks >= goals.LEAST_BLOCKS,
        f"Your kernel has {count_noun(blocks, 'block')}.",
        expected=f"at least {goals.LEAST_BLOCKS} blocks",
        yours=loops,
        why="A block runs on one multiprocessor. If few blocks do all the work, the other multiprocessors idle.",
    )
    TILES.that(
        goals.LEAST_THREADS <= threads <= goals.MOST_THREADS,
        f"A block of your kernel has {count_noun(threads, 'thread')}.",
        expected=f"{goals.LEAST_THREADS} to {goals.MOST_THREADS} threads per block",
        yours=loops,
        why="A warp has 32 threads, so fewer leave lanes idle. More would need registers that other blocks could use.",
    )


def test_8_2_keeps_sums_in_registers(impl) -> None:
    """D is stored and never read, and each sum has a constant place in a thread's own buffer"""
    func, loops = _make_one_kernel(impl)
    read = {a.buffer for a in accesses(func, CUDA) if not a.writes}
    TILES.that(
        "D" not in read,
        "Your kernel reads D from memory.",
        expected="sums that stay in the thread until they are complete",
        yours=loops,
        why="If a sum is loaded and stored in every step, each multiplication costs two accesses to memory.",
    )
    found = goals.find_run_time_indices(func)
    TILES.that(
        not found,
        f"Your kernel computes at run time which element of {' and '.join(found)} it uses.",
        expected="indices that are constants when the unrolled loops are written out",
        yours=loops,
        why="Registers have no addresses: a program cannot compute which one it uses. The buffer would be in memory.",
    )


def test_8_2_reaches_the_first_goal(impl) -> None:
    """it stays within the limits of goal 1"""
    _check_goal(impl, 1, TILES)


def test_8_2_reaches_the_second_goal(impl) -> None:
    """it stays within the limits of goal 2"""
    _check_goal(impl, 2, SHARED)


def observe_8_2(impl):
    def numbers() -> str:
        return gpu.digest(_schedule(impl).mod["main"], goals.SIZE, "float32")

    def used() -> str:
        func, _ = _make_one_kernel(impl)
        return f"{goals.use_of(func)} {goals.requested_by_buffer(func)} {goals.find_run_time_indices(func)}"

    def first() -> str:
        func, _ = _make_one_kernel(impl)
        seen = [(a.buffer, a.lanes, a.first[:9]) for a in accesses(func, CUDA)]
        return str(sorted(set(seen)))

    def other() -> str:
        return type(_schedule(impl, OTHER_SIZE)).__name__  # or what the schedule refuses

    return [numbers, used, first, other]


# --- 8.3 ------------------------------------------------------------------------------------------


def _used(registers: int, shared: int, spilled: int = 0) -> Resources:
    return Resources(registers, spilled, spilled, spilled, shared)


SMALL, MIDDLE = ThreadTile(32, 32, 16, 2, 2), ThreadTile(64, 64, 16, 4, 4)
LARGE, THIN = ThreadTile(128, 128, 16, 16, 16), ThreadTile(64, 64, 16, 2, 2)
WIDE, TALL = ThreadTile(128, 64, 16, 8, 4), ThreadTile(64, 128, 16, 4, 8)
CANDIDATES = {
    "nothing spills": (
        [(SMALL, _used(32, 4352)), (LARGE, _used(255, 17408)), (MIDDLE, _used(64, 8704))],
        LARGE,
        "A tile of 128 x 128 loads half of what one of 64 x 64 does, and hides latency with its own arithmetic. A "
        "thread may have 255 registers.",
    ),
    "the smaller block has the larger threads": (
        [(ThreadTile(32, 32, 16, 8, 8), _used(64, 4352)), (MIDDLE, _used(32, 8704))],
        MIDDLE,
        "The threads of a block can share what the block has loaded, so the size of the block decides.",
    ),
    "the largest spills": (
        [(SMALL, _used(32, 4352)), (MIDDLE, _used(64, 8704)), (LARGE, _used(255, 17408, 224))],
        MIDDLE,
        "A spilled register costs a store and a load in the innermost loop.",
    ),
    "a tile that does not fit": (
        [(MIDDLE, _used(64, 8704)), (WIDE, _used(128, 60_000))],
        MIDDLE,
        "A block has 48 KiB of static shared memory.",
    ),
    "a block of one thread too many": (
        [
            (ThreadTile(16, 16, 16, 1, 1), _used(16, 4352)),
            (ThreadTile(41, 25, 16, 1, 1), _used(16, 4352)),
        ],
        ThreadTile(16, 16, 16, 1, 1),
        "41 x 25 threads are 1025. A block has 1024 at most, however few registers they need.",
    ),
    "a block as large as it may be": (
        [(SMALL, _used(32, 4352)), (THIN, _used(32, 49152))],
        THIN,
        "1024 threads and 49152 bytes of shared memory are just allowed.",
    ),
    "loads alone are spilled": (
        [(MIDDLE, _used(64, 8704)), (LARGE, Resources(255, 224, 0, 224, 17408))],
        MIDDLE,
        "Loads count as spills too: a number that was stored once is loaded in each step.",
    ),
    "stores alone are spilled": (
        [(MIDDLE, _used(64, 8704)), (LARGE, Resources(255, 224, 224, 0, 17408))],
        MIDDLE,
        "Stores count as spills too: the register is stored, even if it is not loaded again.",
    ),
    "a long tile": (
        [
            (ThreadTile(256, 16, 16, 8, 2), _used(64, 8704)),
            (ThreadTile(48, 48, 16, 3, 3), _used(64, 8704)),
        ],
        ThreadTile(48, 48, 16, 3, 3),
        "A tile of 256 x 16 has more elements and loads 1/256 + 1/16 for each of them, 0.066. One of 48 x 48 loads "
        "1/48 + 1/48, which is 0.042.",
    ),
    "a block that does not fit": (
        [(SMALL, _used(32, 4352)), (ThreadTile(128, 128, 16, 4, 4), _used(128, 17408))],
        SMALL,
        "1024 threads of 128 registers need twice as many registers as a multiprocessor has.",
    ),
    "registers that come in portions": (
        [(SMALL, _used(32, 4352)), (ThreadTile(48, 96, 16, 4, 4), _used(200, 17408))],
        SMALL,
        "288 * 200 is less than 65,536. But 65,536 // (32 * 200) is 10 warps, rounded down to 8, and 288 threads are 9 "
        "warps: no block fits.",
    ),
    "equal loads": (
        [(WIDE, _used(128, 13056)), (TALL, _used(80, 13056)), (SMALL, _used(32, 4352))],
        TALL,
        "Both load the same; the second has the higher occupancy.",
    ),
    "equal loads, the other way round": (
        [(TALL, _used(128, 13056)), (WIDE, _used(80, 13056)), (SMALL, _used(32, 4352))],
        WIDE,
        "Both load the same: a row of A costs as much as a row of B. The second has the higher occupancy.",
    ),
}


# Equal loads, 1024 and 768 threads: 2048 threads fit a multiprocessor of sm_90a, and 1536 one of sm_86.
FULL, PART = ThreadTile(96, 64, 16, 3, 2), ThreadTile(64, 96, 16, 2, 4)
CASES = {title: ("sm_90a", *case) for title, case in CANDIDATES.items()} | {
    f"equal loads on {arch}": (
        arch,
        [(FULL, _used(32, 13056)), (PART, _used(32, 13056))],
        wanted,
        f"Both load the same. On {arch}, the occupancy of the other tile is lower.",
    )
    for arch, wanted in {"sm_90a": FULL, "sm_86": PART}.items()
}
SPILLING = [(LARGE, _used(255, 17408, 224))]


def test_8_3_chooses_what_loads_least(impl) -> None:
    """the least traffic among kernels that spill nothing and fit"""
    for title, (arch, compiled, wanted, why) in CASES.items():
        found, used = impl.best_tile(list(compiled), arch), dict(compiled)
        what = "Your best_tile did not return one of the tiles that it was given."
        right, given = isinstance(found, ThreadTile) and found in used, repr(found)[:200]
        REPORT.that(right, what, expected="a ThreadTile of the list", yours=given)
        what = f"Your best_tile returns another tile than the best of {len(compiled)}. The case: {title}."
        wanted, yours = (_describe(tile, used[tile], arch) for tile in (wanted, found))
        REPORT.that(yours == wanted, what, expected=wanted, yours=yours, why=why)


def _describe(tile: ThreadTile, used: Resources, arch: str) -> str:
    """What decides about a tile."""
    threads = math.prod(tile.threads)
    loads = 1 / tile.block_m + 1 / tile.block_n
    return (
        f"{tile.block_m} x {tile.block_n}: {loads:.4f} numbers loaded per element and step of k, "
        f"{used.spill_store_bytes} bytes spilled and {used.spill_load_bytes} loaded again, blocks of {threads} "
        f"threads with {used.shared_bytes} bytes of shared memory, {used.registers} registers per thread, occupancy "
        f"{occupancy(used, threads, arch):g}"
    )


def test_8_3_says_when_there_is_none(impl) -> None:
    """a ValueError where no kernel is sound"""
    for compiled in (SPILLING, []):
        try:
            found = impl.best_tile(list(compiled), "sm_90a")
        except ValueError:
            continue
        said = "whose only tile spills" if compiled else "without tiles"
        what = f"Your best_tile does not raise a ValueError for a list {said}."
        why = "The caller could try other tiles. Without the error, it would go on with a tile that is not sound."
        raise REPORT.failed(what, expected="a ValueError", yours=repr(found), why=why)


def observe_8_3(impl):
    return [
        *(lambda c=c: str(impl.best_tile(list(c[1]), c[0])) for c in CASES.values()),
        lambda: str(impl.best_tile(list(SPILLING), "sm_90a")),
    ]


# --- 8.4 ------------------------------------------------------------------------------------------

ROW = (1, 12, 512)


def _make_decode(impl, size=ROW, dtype="float16") -> tirx.PrimFunc:
    func = gpu.parsed(lambda: impl.decode_matmul(size[1], size[2], dtype), "8.4", DECODE)
    DECODE.returns(func, tirx.PrimFunc, "decode_matmul", "a PrimFunc")
    return func


def _count_biases(impl, target: tvm.target.Target, backwards: bool) -> list[float]:
    """By what number the biases are multiplied in the result, if all weights are 0: each number once, rounded."""
    _, n, k = ROW
    given = gpu.draw_arrays(1, n, k, "float32")
    given[1][...] = 0
    given[2][-1] = 2e37  # 32 of it are more than a float32 holds
    gpu.launch(_make_decode(impl, ROW, "float32"), given, target, backwards, DECODE)
    return np.unique(np.round(given[3][0] / given[2], 5)).tolist()


def test_8_4_has_the_bias_once(impl) -> None:
    """with all weights 0, one row is the bias"""
    for how, target, backwards in gpu.engines("float32"):
        times = _count_biases(impl, target, backwards)
        what = f"With all weights 0, your kernel's result is not the bias (run {how})."
        yours = f"{', '.join(f'{one:g}' for one in times[:4])} times the bias"
        why = (
            "Each number is an element of D, divided by its bias. The last bias is 2e37: 32 of it are more than a "
            "float32 holds. Memory that a kernel reads before it has written it gives inf or nan, too."
        )
        DECODE.that(times == [1.0], what, expected="1 times the bias", yours=yours, why=why)


def test_8_4_right_numbers(impl) -> None:
    """one row, in both orders of the threads, on random weights"""
    for dtype, size in (("float16", ROW), ("float32", (1, 5, 256))):
        why = "The 32 parts of a sum and its bias must each be in the result once."
        func = _make_decode(impl, size, dtype)
        gpu.layer(func, size, dtype, why, DECODE, wgsl=dtype == "float32")


def test_8_4_reads_the_weight_once(impl) -> None:
    """the weight is loaded once, 16 bytes at a time"""
    _, n, k = ROW
    func = _make_decode(impl)
    what = "Your kernel does not load each byte of the weight once."
    why = "With one row, the whole weight is loaded for one row of results, so its bytes decide the time."
    DECODE.equal(bytes_moved(func, CUDA).get("B"), n * k * 2, what, why=why)
    lanes = {a.lanes for a in accesses(func, CUDA) if a.buffer == "B"}
    DECODE.equal(
        lanes,
        {8},
        "A thread of your kernel does not load 16 bytes of the weight at a time (8 elements of "
        "float16).",
    )


def observe_8_4(impl):
    def times() -> str:
        _, target, backwards = gpu.engines("float32", wgsl=False)[0]
        return str(_count_biases(impl, target, backwards))

    return [
        times,
        lambda: gpu.digest(_make_decode(impl), ROW, "float16"),
        lambda: gpu.digest(_make_decode(impl, (1, 5, 256), "float32"), (1, 5, 256), "float32"),
    ]


# --- 8.5 -----------------------------------------------------------------------------------------

CORE_SIZE = (64, 128, 64)


def _schedule_cores(impl, dtype: str) -> tirx.PrimFunc:
    """The schedule for tensor cores with the answer's intrinsic."""
    pair = gpu.parsed(impl.bias_fragment, "8.5", CORES)
    what = "Your bias_fragment did not return two functions."
    yours = type(pair).__name__
    CORES.that(isinstance(pair, tuple) and len(pair) == 2, what, expected="desc, impl", yours=yours)
    try:
        return schedule_for_tensor_cores(linear_bias(*CORE_SIZE, dtype), WarpTile(), pair)
    except (s_tir.ScheduleError, tvm.error.InternalError, ValueError) as error:
        raise CORES.failed(
            "`tensorize` refuses your intrinsic for the init of the fused block.",
            expected="a desc with the loops, the store and the regions of the init that the page prints, for one tile, "
            "and an impl with the same regions",
            yours=last_line(error).partition(" / The pattern")[0][:300],
            why="`tensorize` replaces loops only if your description has the same loops, stores and regions. TVM's "
            "message is under “yours”.",
        ) from None


def test_8_5_is_taken_by_tensorize(impl) -> None:
    """the init of the fused block becomes the intrinsic: no fill with zero, no second kernel"""
    kernels = list(host_program(_schedule_cores(impl, "float16"), CUDA).kernels.values())
    CORES.equal(len(kernels), 1, "The layer with your intrinsic is not one kernel.")
    source = kernels[0].source
    stored = nodes(gpu.parsed(impl.bias_fragment, "8.5", CORES)[1].body, tirx.BufferStore)
    CORES.that(
        not stored,
        "Your impl stores single elements of the fragment S.",
        expected="a call of a device function that sets the whole fragment",
        yours=f"{count_noun(len(stored), 'assignment')} to an element",
        why="A fragment is spread over the lanes of a warp, and CUDA does not say which lane has which element. So a "
        "kernel cannot name a single one.",
    )
    what = "Your kernel fills fragments with a number."
    why = "A fragment that is filled with one number has the same number for every column, and lacks the bias."
    CORES.that("fill_fragment" not in source, what, expected="no fill_fragment", why=why)
    called = set(re.findall(r"(?<![:\w])(\w+)\(D_wmma_accumulator_ptr", source))
    missing = sorted(name for name in called if not re.search(rf"\bvoid {name}\(", source))
    CORES.that(
        not missing,
        f"The kernel calls {' and '.join(missing)}, but the text of that function is missing.",
        expected="a call that brings the function's text along",
        yours="a call by name alone",
        why="It is not a function of CUDA. Without its text, the kernel does not compile.",
    )


def test_8_5_right_numbers(impl) -> None:
    """run with emulated tensor cores in both orders, the sums start from the bias"""
    for dtype in ("float16", "bfloat16"):
        func = _schedule_cores(impl, dtype)
        why = "Each column of a fragment starts from its own bias, and each fragment from its own 16 biases."
        gpu.layer(func, CORE_SIZE, dtype, why, CORES, wgsl=False)


def _describe_desc(impl) -> str:
    """What the description stores, with its axes renamed to i and j."""
    desc, _ = gpu.parsed(impl.bias_fragment, "8.5", CORES)
    said = []
    for block in nodes(desc.body, s_tir.SBlock):
        named = zip(block.iter_vars, "ij", strict=False)
        axes = {axis.var: tirx.Var(name, "int32") for axis, name in named}
        for store in nodes(block.body, tirx.BufferStore) if axes else []:
            indices = [substitute(one, axes) for one in store.indices]
            said.append(f"{indices} = {substitute(store.value, axes)}")
    return "; ".join(said)


def observe_8_5(impl):
    def calls() -> str:
        kernels = host_program(_schedule_cores(impl, "float16"), CUDA).kernels.values()
        return str([kernel.source.count("start_from_row(") for kernel in kernels])

    return [
        lambda: _describe_desc(impl),
        lambda: gpu.digest(_schedule_cores(impl, "float16"), CORE_SIZE, "float16"),
        calls,
    ]
