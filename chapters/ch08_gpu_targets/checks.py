"""The checks of chapter 8: targets, threads, tiles, barriers, occupancy, tensor cores, and the choice among them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from functools import partial
from unittest import mock

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.target import Target

from chapters.ch08_gpu_targets.given import H200, ThreadTile, start_from_bias
from chapters.checking import gpu_kernels as gpu
from chapters.checking.expect import Section
from chapters.kit.gpu.call import ASYNCHRONOUS
from chapters.kit.gpu.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.gpu.launches import HostProgram, LaunchError
from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.gpu.targets import CUDA, cuda
from chapters.kit.gpu.warp_access import accesses, bytes_moved, conflicts
from chapters.kit.ir.tensor_ir import innermost_blocks, nodes, substitute
from chapters.runner.loading import last_line
from solutions.ch08_gpu_targets import gpu_schedules as sound

LESSON = "chapters/ch08_gpu_targets/lesson.md"
TARGETS = Section(LESSON, "A target is a promise")
THREADS = Section(LESSON, "Blocks and threads")
TILES = Section(LESSON, "Tiles in registers")
SHARED = Section(LESSON, "A copy that a block shares")
BREAK = Section(LESSON, "Break it")
PIPE = Section(LESSON, "Copies in flight")
REPORT = Section(LESSON, "What the compiler reports")
DECODE = Section(LESSON, "When it must not fire")
CORES = Section(LESSON, "Tensor cores that start from the bias")
ORDER = Section(LESSON, "Which comes first")
MEASURE = Section(LESSON, "Measure it")
# Compiling a kernel, by g++ or by NVIDIA's compiler, takes seconds where other work goes on.
LIMITS = {
    "test_8_2_computes_every_element": 90,
    "test_8_4_right_numbers": 90,
    "test_8_5_right_numbers": 90,
    "test_8_6_deletes_one_barrier": 40,
    "test_8_6_hides_with_one_block_of_k": 90,
    "test_8_6_shows_with_more": 90,
    "test_8_7_copies_are_asynchronous": 40,
    "test_8_7_right_numbers": 90,
    "test_8_10_right_numbers": 90,
    "test_8_11_is_taken_by_tensorize": 60,
    "test_8_11_right_numbers": 90,
}

# --- 8.1 ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _tags(known: bool):
    """tvm.target as if H200's tag were `known` or not; yields the configurations that are registered meanwhile."""
    there, register = tvm.target.list_tags, tvm.target.register_tag
    registered: list[dict] = []

    def list_tags():
        names = dict(there())
        names.pop(H200, None)
        if known or registered:
            names[H200] = None
        return names

    def register_tag(name, config, override=False):
        if name == H200:
            registered.append(dict(config))
        return register(name, config, override or name == H200)

    with mock.patch.multiple(tvm.target, list_tags=list_tags, register_tag=register_tag):
        yield registered


FACTS = {
    "arch": "sm_90a",
    "max_num_threads": 1024,
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "max_shared_memory_per_block": 49152,
    "registers_per_block": 65536,
    "l2_cache_size_bytes": 52428800,
}
ABOUT = {
    "arch": "Without the `a`, the compiler refuses the instructions that only this architecture has, such as wgmma.",
    "max_shared_memory_per_block": "Every NVIDIA GPU gives a block 48 KiB of static shared memory. A kernel must ask "
    "for more when it is launched. A schedule that uses more without asking fails to launch.",
}


def test_8_1_knows_the_limits(impl) -> None:
    """the target has the architecture and the limits of an H200"""
    with _tags(known=False):
        target = impl.h200_target()
    TARGETS.returns(target, Target, "h200_target", "a Target")
    TARGETS.equal(target.kind.name, "cuda", "The target's kind is not cuda.")
    for key, value in FACTS.items():
        mine = target.attrs.get(key)
        what = f"Your target's {key} is not that of an H200."
        why = ABOUT.get(
            key, "A schedule reads the limits of the target before it chooses its sizes."
        )
        TARGETS.equal(None if mine is None else type(value)(mine), value, what, why=why)


def test_8_1_keeps_its_name(impl) -> None:
    """the target knows its own tag"""
    with _tags(known=False) as registered:
        target = impl.h200_target()
    TARGETS.that(
        registered,
        "Your h200_target does not register the tag, although tvm.target.list_tags() does not have it.",
        expected="tvm.target.register_tag(H200, {...})",
        why="An earlier call in this process may have registered it. In a new process, TVM would not know the tag.",
    )
    why = 'Target("nvidia/nvidia-h200") has the right limits and forgets its tag. Target({"tag": ...}) keeps it.'
    TARGETS.equal(
        str(target.tag), H200, "The target that you return does not know its own tag.", why=why
    )


def test_8_1_leaves_a_known_tag_alone(impl) -> None:
    """a tag that is there is not registered again"""
    impl.h200_target()
    with _tags(known=True) as registered:
        impl.h200_target()
    TARGETS.that(
        not registered,
        "Your h200_target registers a tag that TVM already has.",
        expected="register it only if it is not among tvm.target.list_tags()",
        why="Tags are global to the process. A later release of TVM may have this one, or other code may have "
        "registered it, with better numbers than yours.",
    )


def observe_8_1(impl):
    def fact(key):
        with _tags(known=False):
            return str(impl.h200_target().attrs.get(key))

    def again() -> str:
        with _tags(known=True) as registered:
            impl.h200_target()
        return str(len(registered))

    return [*(lambda key=key: fact(key) for key in FACTS), again]


# --- 8.2 ------------------------------------------------------------------------------------------


def _scaled_sum(rows: int, columns: int, dtype: str) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((rows, columns), dtype),
        B: T.Buffer((rows, columns), dtype),
        D: T.Buffer((rows, columns), dtype),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(rows, columns):
            with T.sblock("sum"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] + B[vi, vj] * B[vi, vj]

    return main.with_attr("global_symbol", "main")


ELEMENTWISE = [(10, 30, "float32", 32, 4), (3, 64, "float32", 64, 2)]


def _bound(impl, rows, columns, dtype, threads, vector) -> tirx.PrimFunc:
    sch = s_tir.Schedule(_scaled_sum(rows, columns, dtype))
    impl.bind_elementwise(sch, sch.get_sblock("sum"), threads, vector)
    return sch.mod["main"]


def test_8_2_computes_every_element(impl) -> None:
    """every element is computed, also where the last block has fewer"""
    for rows, columns, dtype, threads, vector in ELEMENTWISE:
        func = _bound(impl, rows, columns, dtype, threads, vector)
        for how, target, backwards in gpu.engines(dtype):
            random = np.random.default_rng(1)
            a, b = (random.standard_normal((rows, columns)).astype(dtype) for _ in range(2))
            d = np.full_like(a, np.nan)
            launches = gpu.launch(func, [a, b, d], target, backwards, THREADS)
            THREADS.close(
                d,
                a + b * b,
                f"With {threads} threads, some elements of a ({rows}, {columns}) tensor are wrong (run {how}).",
                why=f"There are {rows * columns} elements, and a block computes {threads * vector}. The output starts "
                "as nan, and an element that your kernel never computes is still nan.",
            )
            what = "Your blocks do not have the number of threads that was asked for."
            THREADS.equal(launches[0].block, (threads, 1, 1), what)
            blocks = math.ceil(rows * columns / (threads * vector))
            THREADS.equal(
                launches[0].grid,
                (blocks, 1, 1),
                f"Your kernel does not have {blocks} blocks of {threads} threads.",
                why="Each block runs on one multiprocessor. If one block loops over all elements, the other "
                "multiprocessors idle.",
            )


def test_8_2_threads_lie_side_by_side(impl) -> None:
    """a thread loads a vector, and the next thread the next one"""
    for rows, columns, dtype, threads, vector in ELEMENTWISE:
        for access in accesses(_bound(impl, rows, columns, dtype, threads, vector), CUDA):
            what = f"the {'store to' if access.writes else 'load of'} {access.buffer}"
            said = f"In {what}, a thread of your kernel does not take {vector} elements at a time."
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


def observe_8_2(impl):
    def seen(case) -> str:
        found = accesses(_bound(impl, *case), CUDA)
        return str([(a.buffer, a.lanes, a.first[:3], a.times) for a in found])

    return [lambda case=case: seen(case) for case in ELEMENTWISE]


# --- 8.3 ------------------------------------------------------------------------------------------

COUNTED = [
    (32, 128, 32, ThreadTile(32, 64, 16, 2, 4), "float32"),
    (32, 64, 64, ThreadTile(32, 16, 16, 2, 2, 2), "float16"),
]


def _counted(func: tirx.PrimFunc) -> int:
    moved = bytes_moved(func, CUDA)
    return moved["A"] + moved["B"]


def test_8_3_prediction_holds(impl) -> None:
    """the predicted bytes are those the kernels' own index expressions load"""
    for m, n, k, tile, dtype in COUNTED:
        yours = impl.bytes_loaded(m, n, k, tile, ITEM_BYTES[dtype])
        SHARED.that(
            isinstance(yours, dict) and {"naive", "tiled"} <= set(yours),
            "Your bytes_loaded did not return a dict with the keys naive and tiled.",
            expected='{"naive": ..., "tiled": ...}',
            yours=yours,
        )
        func = matmul_bias(m, n, k, dtype)
        one_each = dataclasses.replace(tile, thread_m=1, thread_n=1, vector=1)
        kernels = {
            "naive": sound.naive_matmul(func, dataclasses.replace(one_each, block_m=8, block_n=8)),
            "tiled": sound.shared_matmul(func, tile),
        }
        for name, kernel in kernels.items():
            SHARED.predicted(
                yours[name],
                _counted(kernel),
                f"The {name} kernel loads another number of bytes than you predict, for {m} x {n} x {k} in {dtype}.",
                why="naive: each of the m * n threads loads one row of A and one row of B. tiled: each block loads "
                "block_m rows of A and block_n rows of B, once.",
            )


def observe_8_3(impl):
    def loaded(*sizes_and_tile, dtype: str):
        return sorted(impl.bytes_loaded(*sizes_and_tile, ITEM_BYTES[dtype]).items())

    return [partial(loaded, *case, dtype=dtype) for *case, dtype in COUNTED]


# --- 8.4 ------------------------------------------------------------------------------------------

SIZE, CUT = (32, 64, 24), ThreadTile(16, 32, 8, 2, 4)
# with how many columns a thread stores at a time; in the last one a thread has one element, as in the naive kernel
CUTS = [
    (SIZE, CUT, 4),
    ((8, 24, 16), ThreadTile(4, 12, 8, 1, 6), 2),
    ((8, 16, 8), ThreadTile(4, 8, 4, 1, 1), 1),
]


def _tiled(impl, size=SIZE, cut=CUT):
    sch, block = start_from_bias(matmul_bias(*size, "float32"))
    try:
        return sch, block, impl.tile_and_bind(sch, block, cut)
    except s_tir.ScheduleError as error:
        if cut == CUT:
            raise
        raise TILES.failed(
            f"TVM refuses a step of your tile_and_bind for {cut}: {last_line(error)[:200]}",
            expected="a schedule for every tile, also where a thread has one row or one column",
            why="With one row or column per thread, a loop has one iteration. `reverse_compute_at` removes such a "
            "loop around the store unless you pass preserve_unit_loops=True. The last loop around the store is then "
            "another one.",
        ) from None


def _loops(sch: s_tir.Schedule, block) -> list[str]:
    """Of each loop around `block`: its thread axis or kind, how often it runs, what one iteration adds to i, j or k."""
    found = innermost_blocks(sch.mod["main"].body)
    loops, realize = next(one for one in found if one[1].block.same_as(sch.get(block)))
    still = {loop.loop_var: tirx.IntImm("int32", 0) for loop in loops}

    def said(loop: tirx.For) -> str:
        once = {**still, loop.loop_var: tirx.IntImm("int32", 1)}
        indices = zip("ijk", realize.iter_values, strict=True)
        steps = {i: substitute(value, once) - substitute(value, still) for i, value in indices}
        steps = {i: int(Analyzer().simplify(step)) for i, step in steps.items()}
        axis = next((i for i, step in steps.items() if step), "")
        return _loop(_kind(loop, axis), int(loop.extent), axis, steps.get(axis, 0))

    return [said(loop) for loop in loops]


def _kind(loop: tirx.For, axis: str) -> str:
    """Its thread axis; else "unrolled" or "serial", where that matters: around a thread's own elements."""
    if loop.thread_binding is not None:
        return str(loop.thread_binding.thread_tag)
    return "unrolled" if loop.kind == tirx.ForKind.UNROLLED and axis != "k" else "serial"


def _loop(kind: str, extent: int, axis: str, step: int) -> str:
    thread = kind.startswith(("block", "thread"))
    if extent == 1:
        return f"{kind} of 1" if thread else "loop of 1"
    return f"{kind} of {extent}: {axis} + {step}"


def _asked(size, cut: ThreadTile) -> list[str]:
    """What `_loops` says of the loops that were asked for."""
    (m, n, k), (rows, columns) = size, cut.threads
    return [
        _loop("blockIdx.y", m // cut.block_m, "i", cut.block_m),
        _loop("blockIdx.x", n // cut.block_n, "j", cut.block_n),
        _loop("threadIdx.y", rows, "i", cut.thread_m),
        _loop("threadIdx.x", columns, "j", cut.thread_n),
        _loop("serial", k // cut.block_k, "k", cut.block_k),
        _loop("serial", cut.block_k, "k", 1),
        _loop("unrolled", cut.thread_m, "i", 1),
        _loop("unrolled", cut.thread_n, "j", 1),
    ]


# Why each of the eight loops is as asked, from the outside.
ASKED_BECAUSE = [
    *["Each block has one tile of D: blockIdx.y counts the tiles along i, and blockIdx.x those along j."] * 2,
    *["Threads with neighbouring threadIdx.x belong to one warp. They must have neighbouring columns, and a thread's "
      "own columns must be neighbours too. Then a warp stores one run of memory (coalescing)."] * 2,
    *["In one step of k, a number of A serves all columns of the thread, and a number of B all of its rows. So the "
      "loops over the thread's own rows and columns are inside k1, and k1 is inside k0."] * 2,
    *["The loops over a thread's own rows and columns are innermost and unrolled. Registers cannot be indexed at run "
      "time, so each sum needs a name of its own."] * 2,
]  # fmt: skip


def test_8_4_cuts_as_asked(impl) -> None:
    """the loops are blocks, threads, pieces of k, steps, and a thread's own elements"""
    for size, cut, _ in CUTS:
        sch, block, k0 = _tiled(impl, size, cut)
        wanted = "the loop k0, over pieces of k"
        TILES.returns(k0, s_tir.schedule.LoopRV, "tile_and_bind", "a loop", expected=wanted)
        found, asked = _loops(sch, block), _asked(size, cut)
        differ = [n for n, pair in enumerate(zip(found, asked, strict=False)) if pair[0] != pair[1]]
        TILES.that(
            found == asked,
            f"With {cut}, the loops around your sums are not those that were asked for.",
            expected="from the outside in, each with what one iteration adds to i, j or k:\n"
            + "\n".join(asked),
            yours="\n".join(found),
            why=ASKED_BECAUSE[differ[0]] if differ else "There are eight loops.",
        )
        TILES.that(
            sch.get(k0).same_as(sch.get(sch.get_loops(block)[4])),
            "The loop that you return is not k0, the loop over pieces of k.",
            expected=f"the loop of {size[2] // cut.block_k} iterations around the {cut.block_k} steps",
            yours=f"a loop of {sch.get(k0).extent} iterations",
            why="Exercise 8.5 puts the copies of A and B into this loop.",
        )


def test_8_4_keeps_sums_in_registers(impl) -> None:
    """each element of D is stored once, up to four columns at a time, and never read"""
    for size, cut, lanes in CUTS:
        sch, block, _ = _tiled(impl, size, cut)
        stores = []
        for access in accesses(sch.mod["main"], CUDA):
            if access.buffer != "D":
                continue
            expected = 'sums in a buffer of scope "local": a thread\'s own registers'
            why = "If a sum is loaded and stored in every step, the kernel is as slow as memory."
            TILES.that(
                access.writes, "Your kernel reads D from memory.", expected=expected, why=why
            )
            stores.append(access)
        what = "Your kernel does not store each element of D exactly once (in bytes)."
        why = (
            "The store belongs after the loops over k, in the loop of the thread that has the sums."
        )
        TILES.equal(sum(one.bytes_moved for one in stores), size[0] * size[1] * 4, what, why=why)
        what = f"With {cut}, your kernel does not store {lanes} columns at a time."
        why = "One instruction stores at most 16 bytes, which are 4 float32. So a vector has as many columns as divide "
        why += "both thread_n and 4."
        TILES.equal({one.lanes for one in stores}, {lanes}, what, why=why)
        TILES.equal(
            str(sch.get(block).writes[0].source.scope()),
            "local",
            "Your sums are not in a buffer of scope local.",
            why="A buffer of scope local belongs to one thread, and NVIDIA's compiler keeps it in registers. In "
            "shared memory, each step would load the sum and store it again.",
        )


def test_8_4_right_numbers(impl) -> None:
    """run as GPU code in both orders of the threads, the sums are right and start from the bias"""
    func = _tiled(impl)[0].mod["main"]
    why = "The init belongs in front of k0. Inside k0, each piece of k would start from the bias again."
    gpu.layer(func, SIZE, "float32", why, TILES)


def test_8_4_leaves_true_regions(impl) -> None:
    """both halves declare what they read"""
    sch, block, _ = _tiled(impl)
    what = "The init is still inside the block that adds the products."
    wanted = "a separate init block in front of k0, by decompose_reduction"
    yours = "one block for both, which tests in every step whether it is the first"
    why = "Only a separate init block can be tensorized. The schedule for tensor cores does that in exercise 8.11."
    TILES.that(sch.get(block).init is None, what, expected=wanted, yours=yours, why=why)
    names = {str(region.source.name) for region in sch.get(block).reads}
    TILES.that(
        "C" not in names,
        "The block that adds the products still declares that it reads the bias.",
        expected="earlier(6).refresh_regions(sch, half), for the init and for the update",
        yours=", ".join(sorted(names)),
        why="`decompose_reduction` leaves the update with the reads of the whole block, and the init with none. "
        "`tensorize` compares these declarations, and would refuse both blocks later.",
    )


def observe_8_4(impl):
    def loops() -> str:
        sch, block, k0 = _tiled(impl)
        return f"{_loops(sch, block)} {sch.get(k0).extent}"

    def one_element() -> str:
        return str(_loops(*_tiled(impl, *CUTS[-1][:2])[:2]))

    def regions() -> str:
        sch, block, _ = _tiled(impl)
        names = sorted(str(region.source.name) for region in sch.get(block).reads)
        scope = sch.get(block).writes[0].source.scope()
        return f"{names} {'with' if sch.get(block).init is not None else 'without'} an init {scope}"

    def memory() -> str:
        moved = bytes_moved(_tiled(impl)[0].mod["main"], CUDA)
        return str(sorted(moved.items()))

    def numbers() -> str:
        return gpu.digest(_tiled(impl)[0].mod["main"], SIZE, "float32")

    return [loops, regions, memory, numbers, one_element]


# --- 8.5 ------------------------------------------------------------------------------------------

# (block_k, step, bytes per item, elements per vector)
PADDED = [
    (16, 4, 2, 2), (16, 4, 4, 1), (16, 1, 4, 4), (32, 2, 2, 8), (24, 4, 2, 2), (8, 1, 4, 1), (33, 1, 4, 1),
    (16, 1, 2, 1), (15, 1, 2, 1), (15, 64, 2, 1),
]  # fmt: skip


def _banks(block_k, step, item_bytes, padding) -> int:
    """How many banks 32 rows that are `step` apart begin in."""
    words = [row * step * (block_k + padding) * item_bytes // 4 for row in range(32)]
    return len({word % 32 for word in words})


def test_8_5_padding_spreads_the_rows(impl) -> None:
    """rows begin in as many banks as they can, with the least padding"""
    for block_k, step, item_bytes, vector in PADDED:
        what = f"rows of {block_k} elements of {item_bytes} bytes, read {step} apart, stored {vector} at a time"
        mine = impl.row_padding(block_k, step, item_bytes, vector)
        SHARED.that(
            isinstance(mine, int) and mine >= 0 and mine % vector == 0,
            f"Your padding for {what} is not a multiple of {vector}.",
            expected=f"0, {vector}, {2 * vector}, ...",
            yours=mine,
            why="A vector store must begin at a multiple of its size, in every row.",
        )
        whole = [p for p in range(0, 32 * vector, vector) if (block_k + p) * item_bytes % 4 == 0]
        said = f"With your padding of {mine}, the {what}, are not whole words long."
        why = "Then every second row begins in the middle of a word. A bank serves whole words."
        yours = f"{(block_k + mine) * item_bytes} bytes, and a word has 4"
        SHARED.that(mine in whole or mine >= 32 * vector, said, yours=yours, why=why)
        best = max(_banks(block_k, step, item_bytes, p) for p in whole)
        said = f"With your padding of {mine}, the {what}, begin in fewer banks than is possible."
        why = (
            "Different words of one bank are read one after the other. If 32 rows begin in 2 banks, a read takes 16 "
            "cycles."
        )
        SHARED.equal(_banks(block_k, step, item_bytes, mine), best, said, why=why)
        least = min(p for p in whole if _banks(block_k, step, item_bytes, p) == best)
        why = "Padding costs shared memory, and shared memory limits how many blocks are resident."
        SHARED.equal(mine, least, f"A smaller padding reaches as many banks, for {what}.", why=why)


COPIED = ((32, 64, 32), ThreadTile(16, 32, 16, 2, 4, 2), "float16")


def _staged(impl, padding: int = 2) -> tirx.PrimFunc:
    size, tile, dtype = COPIED
    sch, block = start_from_bias(matmul_bias(*size, dtype))
    k0 = sound.tile_and_bind(sch, block, tile)
    for name in ("A", "B"):
        copy = impl.stage_in_shared(sch, block, name, k0, tile, padding)
        SHARED.returns(copy, s_tir.schedule.SBlockRV, "stage_in_shared", "the copy's block")
        scope = str(sch.get(copy).writes[0].source.scope())
        SHARED.that(
            scope in ("shared", "shared.dyn"),
            f"Your copy of {name} is not in shared memory.",
            expected='scope "shared"',
            yours=f'scope "{scope}"',
            why="A thread reads what other threads of its block have copied. Only shared memory is visible to all of "
            "them.",
        )
        if (
            scope == "shared.dyn"
        ):  # as good an answer, and the engines that run kernels here have static memory alone
            sch.set_scope(copy, 0, "shared")
    return sch.mod["main"]


def test_8_5_shares_the_copying(impl) -> None:
    """each element of a tile is loaded by one thread, in vectors, neighbours by neighbours"""
    size, tile, _dtype = COPIED
    func = _staged(impl)
    expected = sound.bytes_loaded(*size, tile, 2)["tiled"]
    SHARED.equal(
        _counted(func),
        expected,
        "Your kernel does not load each tile of A and B once (in bytes of A and B).",
        why="If it loads more, several threads copy the same elements, or the copy is inside k1. Each element of a "
        "tile should be loaded by one thread, for all threads of the block.",
    )
    for access in accesses(func, CUDA):
        if access.scope != "global" or access.buffer not in ("A", "B"):
            continue
        what = f"A thread of your kernel does not load {tile.vector} elements of {access.buffer} at a time."
        SHARED.equal(access.lanes, tile.vector, what)
        SHARED.equal(
            access.sectors,
            access.least_sectors,
            f"When your first warp loads {access.buffer}, it touches more sectors of 32 bytes than necessary.",
            why="Neighbouring threads should take neighbouring elements (coalescing). If each thread takes a run of "
            "its own, their addresses are far apart.",
        )


def test_8_5_pads_the_rows(impl) -> None:
    """the padding is there, and the warp's reads meet fewer bank conflicts"""

    def ways(whose, padding: int) -> int | None:
        """In how many cycles a warp reads the copy of B."""
        found = conflicts(_staged(whose, padding), CUDA).items()
        return next((cycles for name, cycles in found if name.startswith("read B_shared")), None)

    SHARED.equal(
        {padding: ways(impl, padding) for padding in (0, 2)},
        {padding: ways(sound, padding) for padding in (0, 2)},
        "When your kernel reads the copy of B, the bank conflicts are not those of its padding ({padding: cycles per "
        "read}).",
        why="`storage_align(copy, 0, axis=-2, factor, offset)` makes the distance from row to row a multiple of "
        "`factor`, plus `offset`. Here a row has block_k elements, and its padding is `padding`.",
    )


def test_8_5_right_numbers(impl) -> None:
    """run as GPU code in both orders of the threads, the numbers are right"""
    size, _, dtype = COPIED
    gpu.layer(
        _staged(impl),
        size,
        dtype,
        "The sums are the same as before, only their operands are read from a copy.",
        SHARED,
    )


def observe_8_5(impl):
    def copied(padding: int) -> str:
        func = _staged(impl, padding)
        seen = [(a.buffer, a.lanes, a.times, a.first[:2]) for a in accesses(func, CUDA)]
        return str(sorted(set(seen)))

    return [
        lambda: str([impl.row_padding(*case) for case in PADDED]),
        lambda: copied(0),
        lambda: copied(2),
    ]


# --- 8.6 ------------------------------------------------------------------------------------------

BARRIER = "__syncthreads();"
ITERATIONS = re.compile(r"(for \(int (p_0\w*) = 0; \2 < )3;")


def _shared_program() -> HostProgram:
    return HostProgram(sound.shared_matmul(matmul_bias(*SIZE, "float32"), CUT), CUDA)


def _edited(impl, iterations: int) -> HostProgram:
    """The program with its kernel's text as the answer leaves it, stopped after `iterations` of its 3 pieces of k."""
    program = _shared_program()
    for name, kernel in program.kernels.items():
        text = impl.without_barrier(kernel.source)
        BREAK.returns(text, str, "without_barrier", "a text")
        text = ITERATIONS.sub(rf"\g<1>{iterations};", text)
        program.kernels[name] = dataclasses.replace(kernel, source=text)
    return program


def _complaint(impl, iterations: int, backwards: bool) -> str:
    """The engine's complaint about the edited kernel; without one, "wrong numbers" or, if they are right, ""."""
    gpu.needs_cuda_text()
    given = gpu.arrays(*SIZE, "float32")
    program = _edited(impl, iterations)
    try:
        program.run(CudaOnCpu(backwards), given)
    except LaunchError as error:
        return str(error)
    a, b, c, d = given
    steps = iterations * CUT.block_k
    wanted = gpu.exact(a[:, :steps], b[:, :steps], c)
    return "" if np.allclose(d, wanted, atol=1e-3) else "wrong numbers"


def test_8_6_deletes_one_barrier(impl) -> None:
    """one barrier is gone, and everything else is as it was"""
    for kernel in _shared_program().kernels.values():
        text = impl.without_barrier(kernel.source)
        BREAK.that(
            isinstance(text, str)
            and text.count(BARRIER) == kernel.source.count(BARRIER) - 1
            and "".join(text.split()).replace(BARRIER, "")
            == "".join(kernel.source.split()).replace(BARRIER, ""),
            "without_barrier must remove exactly one barrier, and change nothing else.",
            expected=f"the text with {kernel.source.count(BARRIER) - 1} × {BARRIER} and everything else as it was",
            yours=f"{text.count(BARRIER)} × {BARRIER}"
            if isinstance(text, str)
            else type(text).__name__,
        )


def test_8_6_hides_with_one_block_of_k(impl) -> None:
    """with one piece of k the fault does not show: right numbers and no race, in both orders of the threads"""
    for backwards in (False, True):
        said = _complaint(impl, 1, backwards)
        BREAK.equal(
            said,
            "",
            "Without the barrier that you deleted, the kernel is wrong even with one piece of k.",
            why="You deleted the barrier between the copying and the reading. The other one is between the reading "
            "and the next copying. With one piece of k there is no next copying.",
        )


def test_8_6_shows_with_more(impl) -> None:
    """where k is several blocks, a thread overwrites what another still reads"""
    said = [_complaint(impl, 3, backwards) for backwards in (False, True)]
    what = "Without the barrier that you deleted, the kernel is still right with three pieces of k."
    expected = "a race that a test with one piece of k cannot see"
    why = (
        "Both barriers of the kernel are needed. Without either of them, some order of the threads gives wrong "
        "numbers."
    )
    BREAK.that(any(said), what, expected=expected, why=why)


def observe_8_6(impl):
    return [
        lambda: impl.without_barrier("a __syncthreads(); b __syncthreads(); c"),
        lambda: impl.without_barrier("x\n__syncthreads();\ny\n__syncthreads();\nz"),
    ]


# --- 8.7 ------------------------------------------------------------------------------------------

PIPED = ThreadTile(16, 32, 8, 2, 4, 2)


def _piped(impl) -> HostProgram:
    """The program of `shared_matmul` on SIZE with the answer's pipeline; what TVM says of it is a CheckFailed."""
    sch, block = start_from_bias(matmul_bias(*SIZE, "float32"))
    k0 = sound.tile_and_bind(sch, block, PIPED)
    for name in ("A", "B"):
        sound.stage_in_shared(sch, block, name, k0, PIPED, 2)
    impl.overlap_copies(sch, k0)
    try:
        return HostProgram(sch.mod["main"], CUDA, ASYNCHRONOUS)
    except Exception as error:
        raise PIPE.failed(
            f"TVM cannot build your pipeline: {last_line(error)}",
            expected="stage and order: one number per statement of k0's body, which has three; async_stages: a list "
            "of stages",
        ) from None


def test_8_7_copies_are_asynchronous(impl) -> None:
    """the copies are cp.async, and a thread waits for all groups but the newest"""
    (kernel,) = _piped(impl).kernels.values()
    text = kernel.source[kernel.source.rindex("__global__") :]
    copies = len(re.findall(r"ptx_cp_async\w*\(", text))
    what = "Your copies for the first and for the next piece of k are not asynchronous."
    expected = "cp.async for A and for B, before the loop and in it"
    why = "An ordinary copy loads into a register first. The thread waits for that load before the steps begin."
    PIPE.that(copies >= 4, what, expected=expected, yours=f"{copies} of them", why=why)
    waits = re.findall(r"wait_group_(\d+)\(\)", text)
    PIPE.that(
        len(waits) <= 2,
        f"Your pipeline has {len(waits)} stages, not two.",
        expected="copies in stage 0 and steps in stage 1",
        yours=f"steps that run {len(waits) - 1} pieces of k after the copy of A",
        why="Each further stage starts the copies one piece of k earlier, and needs one more buffer in shared memory.",
    )
    PIPE.equal(
        waits,
        ["1", "0"],
        "Your threads do not wait for the older group in the loop (1), and for the last group after it (0).",
        why="The number says how many groups may still be in flight. Waiting for 0 in the loop would also wait for "
        "the copies that have just started.",
    )


def test_8_7_has_two_halves(impl) -> None:
    """each copy has two buffers"""
    (kernel,) = _piped(impl).kernels.values()
    found = dict(re.findall(r"__shared__ .*?float (\w+)_shared_ptr\[(\d+)\]", kernel.source))
    row = PIPED.block_k + 2
    PIPE.equal(
        {name: int(size) for name, size in found.items()},
        {"A": 2 * PIPED.block_m * row, "B": 2 * PIPED.block_n * row},
        "Your copies do not have two buffers each (in elements of shared memory).",
        why="While the steps read one buffer, the copies fill the other. The stages decide how many buffers there are.",
    )


def test_8_7_right_numbers(impl) -> None:
    """with copies that arrive as late as allowed, in both orders of the threads, the numbers are right"""
    gpu.needs_cuda_text()
    for backwards in (False, True):
        given = gpu.arrays(*SIZE, "float32")
        gpu.ran(lambda: _piped(impl), CudaOnCpu(backwards), given, PIPE)
        why = "A thread that does not wait for a copy reads what was in shared memory before."
        gpu.right(given[3], given, "as CUDA", why, PIPE)


def observe_8_7(impl):
    def text() -> str:
        (kernel,) = _piped(impl).kernels.values()
        body = kernel.source[kernel.source.rindex("__global__") :]
        words = r"wait_group_\d+|ptx_cp_async_legacy|__syncthreads|for \(int p_\w+ = 0; \w+ < \d+"
        return str(re.findall(words, body))

    def room() -> str:
        (kernel,) = _piped(impl).kernels.values()
        return str(re.findall(r"_shared_ptr\[(\d+)\];", kernel.source))

    return [text, room]


# --- 8.8 and 8.9 ----------------------------------------------------------------------------------


def _used(registers: int, shared: int, spilled: int = 0) -> Resources:
    return Resources(registers, spilled, spilled, spilled, shared)


# (registers per thread, shared bytes per block, threads per block, arch, the occupancy, why): worked out by hand from
# the documented portions; why names the limit.
OCCUPANCY = [
    (32, 0, 1024, "sm_90a", 1.0, "1024 threads of 32 registers: two blocks use all 65536."),
    (33, 0, 1024, "sm_90a", 0.5,
     "33 registers are five portions of 256 per warp: 51 warps, rounded down to 48; one block of 32."),
    (64, 8704, 256, "sm_90a", 0.5, "64 registers leave room for 32 warps: four blocks of eight."),
    (41, 4608, 256, "sm_90a", 0.625, "41 registers are six portions: 42 warps, 40 in fours; five blocks of eight."),
    (255, 16384, 256, "sm_80", 0.125, "255 registers: eight warps, one block."),
    (32, 40960, 128, "sm_80", 0.25, "40 KiB and a reserved one per block: four fit in 164 KiB."),
    (32, 40960, 128, "sm_90a", 0.3125, "Of 40 KiB and a reserved one, five fit in 228 KiB."),
    (32, 82 * 1024, 128, "sm_80", 0.0625, "Of 82 KiB and a reserved one, one fits in 164 KiB."),
    (33, 0, 512, "sm_89", 1.0, "1536 threads at a time: three blocks of 16 warps."),
    (16, 0, 32, "sm_80", 0.5, "A block of one warp: 32 blocks at a time, and no more."),
    (20, 1024, 48, "sm_80", 1.0, "48 threads are two warps."),
    (16, 0, 1024, "sm_80", 1.0, "2048 threads at a time: two blocks, though there are registers for four."),
    (16, 0, 768, "sm_80", 0.75, "64 warps at a time: two blocks of 24, and 16 warps of no use."),
    (41, 0, 64, "sm_90a", 0.625, "42 warps have registers, but warps come by fours: 40, twenty blocks of two."),
]  # fmt: skip


def test_8_8_counts_by_every_limit(impl) -> None:
    """of blocks, threads, registers and shared memory, the limit that is reached first decides"""
    for registers, shared, threads, arch, part, why in OCCUPANCY:
        REPORT.equal(
            round(float(impl.occupancy(_used(registers, shared), threads, arch)), 6),
            part,
            f"Your occupancy is wrong for {registers} registers per thread, {shared} bytes of shared memory per "
            f"block, and blocks of {threads} threads on {arch}.",
            why=why,
        )


def test_8_8_is_nothing_where_no_block_fits(impl) -> None:
    """a kernel of which not one block fits gives 0"""
    for registers, shared, threads in ((128, 0, 1024), (32, 300_000, 128)):
        found = float(impl.occupancy(_used(registers, shared), threads, "sm_90a"))
        what = f"Your occupancy is not 0 for {registers} registers, {shared} bytes, and blocks of {threads} threads."
        REPORT.equal(
            found,
            0.0,
            what,
            why="Not even one such block fits a multiprocessor, so the kernel does not launch.",
        )


def observe_8_8(impl):
    cases = [*OCCUPANCY, (128, 0, 1024, "sm_90a", 0, ""), (32, 300_000, 128, "sm_90a", 0, "")]
    return [
        lambda c=c: round(float(impl.occupancy(_used(c[0], c[1]), c[2], c[3])), 4) for c in cases
    ]


SMALL, MIDDLE = ThreadTile(32, 32, 16, 2, 2), ThreadTile(64, 64, 16, 4, 4)
LARGE = ThreadTile(128, 128, 16, 16, 16)
WIDE, TALL = ThreadTile(128, 64, 16, 8, 4), ThreadTile(64, 128, 16, 4, 8)
CANDIDATES = {
    "the largest spills": (
        [(SMALL, _used(32, 4352)), (MIDDLE, _used(64, 8704)), (LARGE, _used(255, 17408, 224))],
        MIDDLE,
        "A spilled register costs a store and a load in the innermost loop.",
    ),
    "nothing spills": (
        [(SMALL, _used(32, 4352)), (LARGE, _used(250, 17408)), (MIDDLE, _used(64, 8704))],
        LARGE,
        "A tile of 128 x 128 loads half of what one of 64 x 64 does, and hides latency with its own arithmetic.",
    ),
    "a tile that does not fit": (
        [(MIDDLE, _used(64, 8704)), (WIDE, _used(128, 60_000))],
        MIDDLE,
        "A block has 48 KiB of static shared memory.",
    ),
    "a block of too many threads": (
        [(SMALL, _used(32, 4352)), (ThreadTile(64, 64, 16, 1, 2), _used(16, 8704))],
        SMALL,
        "A block has 1024 threads at most, however few registers they need.",
    ),
    "a block of one thread too many": (
        [
            (ThreadTile(16, 16, 16, 1, 1), _used(16, 4352)),
            (ThreadTile(41, 25, 16, 1, 1), _used(16, 4352)),
        ],
        ThreadTile(16, 16, 16, 1, 1),
        "41 x 25 threads are 1025.",
    ),
    "a block as large as it may be": (
        [(SMALL, _used(32, 4352)), (ThreadTile(64, 64, 16, 2, 2), _used(32, 49152))],
        ThreadTile(64, 64, 16, 2, 2),
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


def test_8_9_chooses_what_loads_least(impl) -> None:
    """the least traffic among kernels that spill nothing and fit"""
    for title, (compiled, wanted, why) in CANDIDATES.items():
        found, used = impl.best_tile(list(compiled), "sm_90a"), dict(compiled)
        what = "Your best_tile did not return one of the tiles that it was given."
        REPORT.that(
            found in used, what, expected="a ThreadTile of the list", yours=repr(found)[:200]
        )
        what = f"Your best_tile returns another tile than the best of {len(compiled)}. The case: {title}."
        wanted, yours = _facts(wanted, used[wanted]), _facts(found, used[found])
        REPORT.that(yours == wanted, what, expected=wanted, yours=yours, why=why)


def _facts(tile: ThreadTile, used: Resources) -> str:
    """What decides about a tile."""
    threads = math.prod(tile.threads)
    loads = 1 / tile.block_m + 1 / tile.block_n
    return (
        f"{tile.block_m} x {tile.block_n}: {loads:.4f} numbers loaded per element and step of k, "
        f"{used.spill_store_bytes} bytes spilled and {used.spill_load_bytes} loaded again, blocks of {threads} "
        f"threads with {used.shared_bytes} bytes of shared memory, {used.registers} registers per thread, occupancy "
        f"{sound.occupancy(used, threads, 'sm_90a'):g}"
    )


def test_8_9_says_when_there_is_none(impl) -> None:
    """a ValueError where no kernel is sound"""
    try:
        found = impl.best_tile([(LARGE, _used(255, 17408, 224))], "sm_90a")
    except ValueError:
        return
    what = "Your best_tile returns a tile although no kernel is sound."
    why = "The caller could try other tiles. It cannot know that the returned one spills or does not launch."
    raise REPORT.failed(what, expected="a ValueError", yours=found, why=why)


def observe_8_9(impl):
    return [
        *(lambda c=c: str(impl.best_tile(list(c[0]), "sm_90a")) for c in CANDIDATES.values()),
        lambda: str(impl.best_tile([(LARGE, _used(255, 17408, 224))], "sm_90a")),
    ]


# --- 8.10 ------------------------------------------------------------------------------------------

ROW = (1, 12, 512)


def _decode(impl, size=ROW, dtype="float16") -> tirx.PrimFunc:
    func = gpu.parsed(lambda: impl.decode_matmul(size[1], size[2], dtype), "8.10", DECODE)
    DECODE.returns(func, tirx.PrimFunc, "decode_matmul", "a PrimFunc")
    return func


def test_8_10_right_numbers(impl) -> None:
    """one row, in both orders of the threads: the bias is there, once"""
    for dtype, size in (("float16", ROW), ("float32", (1, 5, 256))):
        why = "32 lanes share one sum. If each of them starts from the bias, the result has it 32 times."
        func = _decode(impl, size, dtype)
        gpu.layer(func, size, dtype, why, DECODE, wgsl=dtype == "float32")


def test_8_10_reads_the_weight_once(impl) -> None:
    """the weight is loaded once, 16 bytes at a time"""
    _, n, k = ROW
    func = _decode(impl)
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


def observe_8_10(impl):
    return [
        lambda: gpu.digest(_decode(impl), ROW, "float16"),
        lambda: gpu.digest(_decode(impl, (1, 5, 256), "float32"), (1, 5, 256), "float32"),
    ]


# --- 8.11 -----------------------------------------------------------------------------------------

CORE_SIZE = (64, 128, 64)


def _cores(impl, dtype: str, size=CORE_SIZE) -> tirx.PrimFunc:
    """The reference's schedule with the answer's intrinsic."""
    pair = gpu.parsed(impl.bias_fragment, "8.11", CORES)
    what = "Your bias_fragment did not return two functions."
    yours = type(pair).__name__
    CORES.that(isinstance(pair, tuple) and len(pair) == 2, what, expected="desc, impl", yours=yours)
    kernels = dataclasses.replace(sound.KERNELS, bias_fragment=lambda: pair)
    try:
        return kernels.tensor_core_matmul(matmul_bias(*size, dtype))
    except (s_tir.ScheduleError, tvm.error.InternalError, ValueError) as error:
        raise CORES.failed(
            "`tensorize` refuses your intrinsic for the init of the fused block.",
            expected="a desc that stores S[vi, vj] = C[vj] for a tile of 16 x 16, and declares exactly these reads "
            "and writes",
            yours=last_line(error)[:300],
            why="`tensorize` replaces loops only if your description has the same loops, stores and regions. TVM's "
            "message is under “yours”.",
        ) from None


def test_8_11_is_taken_by_tensorize(impl) -> None:
    """the init of the fused block becomes the intrinsic: no fill with zero, no second kernel"""
    kernels = list(HostProgram(_cores(impl, "float16"), CUDA).kernels.values())
    CORES.equal(len(kernels), 1, "The layer with your intrinsic is not one kernel.")
    source = kernels[0].source
    calls = source.count("start_from_row(D_")
    CORES.that(
        calls >= 1 and "fill_fragment" not in source,
        "Your intrinsic does not start the fragments by start_from_row.",
        expected="calls of start_from_row and no fill_fragment",
        yours=f"{calls} calls, {source.count('fill_fragment')} fills",
        why="An accumulator that is not set holds what its registers held before. One that is filled with zero lacks "
        "the bias.",
    )
    what = "The kernel calls start_from_row, but the text of that function is missing."
    wanted = "T.cuda.func_call, whose source_code is wmma.START_FROM_ROW"
    yours = "a call by name alone"
    why = "start_from_row is not a function of CUDA. Without its text, the kernel does not compile."
    CORES.that("void start_from_row(" in source, what, expected=wanted, yours=yours, why=why)


def test_8_11_right_numbers(impl) -> None:
    """run with emulated tensor cores in both orders, the sums start from the bias"""
    for dtype in ("float16", "bfloat16"):
        func = _cores(impl, dtype)
        why = "Each column of a fragment starts from its own bias, and each fragment from its own 16 biases."
        gpu.layer(func, CORE_SIZE, dtype, why, CORES, wgsl=False)


def _described(impl) -> str:
    """What the description stores, with its axes renamed to i and j."""
    desc, _ = gpu.parsed(impl.bias_fragment, "8.11", CORES)
    said = []
    for block in nodes(desc.body, s_tir.SBlock):
        named = zip(block.iter_vars, "ij", strict=False)
        axes = {axis.var: tirx.Var(name, "int32") for axis, name in named}
        for store in nodes(block.body, tirx.BufferStore) if axes else []:
            indices = [substitute(one, axes) for one in store.indices]
            said.append(f"{indices} = {substitute(store.value, axes)}")
    return "; ".join(said)


def observe_8_11(impl):
    def calls() -> str:
        kernels = HostProgram(_cores(impl, "float16"), CUDA).kernels.values()
        return str([kernel.source.count("start_from_row(") for kernel in kernels])

    return [
        lambda: _described(impl),
        lambda: gpu.digest(_cores(impl, "float16"), CORE_SIZE, "float16"),
        calls,
    ]


# --- 8.12 -----------------------------------------------------------------------------------------

SM_60, SM_70, SM_75, SM_80, SM_100 = map(cuda, ("sm_60", "sm_70", "sm_75", "sm_80", "sm_100a"))
CHOICES = [
    ((4096, 4096, 4096, "float16", CUDA), "tensor_cores", "The sizes are multiples, and the architecture has tensor "
    "cores."),
    ((4096, 4096, 4096, "float16", SM_100), "tensor_cores", "sm_100a is later than sm_70: compare numbers, not texts."),
    ((4096, 4096, 4096, "float16", SM_70), "tensor_cores", "The first tensor cores came with sm_70."),
    ((64, 64, 96, "float16", SM_75), "tensor_cores", "Each size is a multiple of WarpTile's: 64, 64 and 32."),
    ((128, 128, 80, "float16", CUDA), "dlight", "k is 80, not a multiple of WarpTile's block_k, 32. dlight pads."),
    ((4096, 4096, 4096, "bfloat16", SM_80), "tensor_cores", "bfloat16 has tensor cores from sm_80."),
    ((4096, 4096, 4096, "bfloat16", SM_75), "registers", "sm_75 has no tensor cores for bfloat16."),
    ((4096, 4096, 4096, "float32", CUDA), "registers", "Tensor cores take float32 only as tf32, with fewer digits."),
    ((4096, 4096, 4096, "float16", SM_60), "registers", "sm_60 has no tensor cores."),
    ((100, 4096, 4096, "float16", CUDA), "dlight", "dlight pads 100 rows, and keeps the tensor cores."),
    ((4096, 4090, 4096, "float16", SM_75), "dlight", "dlight pads the columns."),
    ((100, 4096, 4096, "bfloat16", CUDA), "registers", "dlight's rule tensorizes float16, not bfloat16."),
    ((16, 4096, 4096, "float16", CUDA), "registers", "dlight does not tensorize a matmul with a side of 64 or less."),
    ((64, 4090, 4096, "float16", CUDA), "registers", "A side of 64 is not above 64."),
    ((65, 65, 65, "float16", CUDA), "dlight", "Each side is above 64."),
    ((1, 4096, 4096, "float16", CUDA), "decode", "One row."),
    ((1, 4096, 4096, "float32", SM_60), "decode", "There is one row, and decode_matmul needs no tensor core."),
    ((1, 4096, 100, "float16", CUDA), "registers", "k is 100, not a multiple of 32 vectors of 8 elements, which are "
    "256."),
    ((1, 4096, 160, "float16", CUDA), "registers", "32 vectors of 8 elements are 256, and 160 is not a multiple of "
    "256."),
    ((1, 4096, 128, "float32", CUDA), "decode", "32 vectors of 4 elements."),
]  # fmt: skip


def test_8_12_chooses(impl) -> None:
    """the kernel that reaches tensor cores where there are any, and is fused where it can be"""
    for (m, n, k, dtype, target), wanted, why in CHOICES:
        what = (
            f"Your choose_kernel returns another kernel than the first that applies to {m} x {n} x {k} in {dtype} "
            f"on {target.attrs['arch']}."
        )
        ORDER.equal(impl.choose_kernel(m, n, k, dtype, target), wanted, what, why=why)


def observe_8_12(impl):
    return [lambda case=case: str(impl.choose_kernel(*case)) for case, _, _ in CHOICES]


# --- 8.13 -----------------------------------------------------------------------------------------

RATE, BANDWIDTH = 800e12, 4e12
MEASURED = [
    (2e-3, 2 * 4096**3, 3 * 4096**2 * 2),
    (1e-5, 2 * 4096**2, 4096**2 * 2),
    (1e-4, 4 * 4096 * 4096, 4 * 4096 * 4096 * 2),  # add-RMSNorm of 4096 rows
    (5e-4, 1e9, 1e9),
]


def _share(impl, case, rate=RATE, bandwidth=BANDWIDTH):
    seconds, operations, moved = case
    found = impl.share_of_limit(seconds, operations, moved, rate, bandwidth)
    what = "Your share_of_limit did not return a share and what limits it."
    expected = 'such as (0.8, "memory")'
    MEASURE.that(isinstance(found, tuple) and len(found) == 2, what, expected=expected, yours=found)
    return found


def test_8_13_places_a_measurement(impl) -> None:
    """the limit that counts, and how close the kernel is to it"""
    for case in MEASURED:
        seconds, operations, moved = case
        for rate, bandwidth in ((RATE, BANDWIDTH), (RATE / 3, BANDWIDTH * 2)):
            limits = {"memory": moved / bandwidth, "arithmetic": operations / rate}
            part, what = _share(impl, case, rate=rate, bandwidth=bandwidth)
            expected = max(limits, key=limits.get)
            MEASURE.equal(
                what,
                expected,
                f"For {operations:.3g} operations and {moved:.3g} bytes, your share_of_limit names the wrong limit.",
                why=f"Memory needs {limits['memory']:.3g} s, and arithmetic {limits['arithmetic']:.3g} s. They run at "
                "the same time, so the longer one is the limit.",
            )
            share = max(limits.values()) / seconds
            MEASURE.that(
                math.isclose(part, share, rel_tol=1e-4),
                f"Your share of the limit is wrong for a measured time of {seconds:g} s.",
                expected=f"{share:.6g}",
                yours=f"{part:.6g}",
                why=f"At its limit, the kernel would take {max(limits.values()):.3g} s. The share is that time "
                "divided by the measured one.",
            )


def test_8_13_doubts_the_impossible(impl) -> None:
    """a time below the limit is an error, unless measurement noise explains it"""
    limit = 2 * 4096**3 / RATE
    part, _ = _share(impl, (limit / 1.02, 2 * 4096**3, 1e6))
    MEASURE.equal(part, 1.0, "Your share for a time 2 % below the limit is not 1.")
    try:
        found = _share(impl, (limit / 2, 2 * 4096**3, 1e6))
    except ValueError:
        return
    what = "Your share_of_limit accepts a kernel that is twice as fast as the machine allows."
    why = "Such a kernel did not do its work, or its data was in a cache, or the rate is not that of the machine."
    raise MEASURE.failed(what, expected="a ValueError", yours=found, why=why)


def observe_8_13(impl):
    return [
        *(lambda case=case: str(_share(impl, case)) for case in MEASURED),
        lambda: str(_share(impl, (1e-6, 2 * 4096**3, 1e6))),
    ]
