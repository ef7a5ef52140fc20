"""NT_matmul for the checks of 5.7 and 5.8: the kernel, what the loops of a scheduled one say, how long it takes."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tvm
from tvm import te, tirx
from tvm.ir import Expr
from tvm.s_tir import SBlock, SBlockRealize
from tvm.target import Target

from chapters.kit.bench.timing import time_call
from chapters.kit.cases.guard_zones import QUICK_HERE, compile_once, run_compiled
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.ir.tensor_ir import (
    innermost_blocks,
    loads,
    mentions,
    nodes,
    substitute,
    summed_values,
)
from chapters.kit.machine import llvm_host
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul

Schedule = Callable[[tirx.PrimFunc, Target], tirx.PrimFunc]
USE_BIG_CORES = 1  # a mode of TVM's thread pool: prefer fast cores, where a processor has two kinds
COPIES = ("_pad", "_global", "_local", "_init")
WIDE = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})
NARROW = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})


def make_unscheduled(
    rows, n: int, k: int, dtype="float32", out_dtype="float32", *, bias: bool = False
) -> tirx.PrimFunc:
    """NT_matmul as chapter 3's pass makes it, for x of shape (*rows, k): (w, x, out), or (w, x, bias, out) with a bias.

    The bias, of shape (n,), is added by a second block.
    """
    w = te.placeholder((n, k), dtype, name="w")
    x = te.placeholder((*rows, k), dtype, name="x")
    b = te.placeholder((n,), out_dtype, name="bias")
    product = nt_matmul(w, x, out_dtype)
    if not bias:
        return te.create_prim_func([w, x, product], "int64")
    total = te.compute((*rows, n), lambda *at: product(*at) + b[at[-1]], name="T_add")
    return te.create_prim_func([w, x, b, total], "int64")


def draw(seed: int, *shape: int) -> np.ndarray:
    """Random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def run(func: tirx.PrimFunc, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The result of a kernel (w, x, out). Raises WroteOutside as `run_compiled` does.

    LLVM does not optimize it: that takes ten seconds where a schedule unrolls a tile without vectors.
    """
    poison = np.full((*x.shape[:-1], len(w)), np.nan, "float32")
    return run_compiled(tvm.IRModule({"main": func}), [w, x, poison], QUICK_HERE)[2]


def name_blocks(func: tirx.PrimFunc) -> set[str]:
    """The names of the blocks of `func`."""
    return {block.name_hint for block in nodes(func.body, SBlock)}


# --- what the loops say ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LoopOfSums:
    """A loop around a block that adds up the product. steps: whether it runs along k, so that its iterations add."""

    loop: tirx.For
    steps: bool

    @property
    def vectorized(self) -> bool:
        return self.loop.kind == tirx.ForKind.VECTORIZED

    @property
    def written_out(self) -> bool:
        """Whether its iterations stand one after another in the code: it is unrolled, or there is only one."""
        return self.loop.kind == tirx.ForKind.UNROLLED or int(self.loop.extent) == 1

    def __str__(self) -> str:
        kind = tirx.ForKind(self.loop.kind).name.lower()
        kind = "" if kind == "serial" else f" {kind}"
        return f"{self.loop.loop_var.name}{' (along k)' if self.steps else ''}{kind} {int(self.loop.extent)}"


def find_sums(func: tirx.PrimFunc) -> list[tuple[SBlockRealize, list[LoopOfSums]]]:
    """Each block that adds up the product, with the loops around it, outermost first; copies are left out."""
    found = []
    for loops, realize in innermost_blocks(func.body):
        name, along_k = realize.block.name_hint, summed_values(realize)
        if name.startswith("NT_matmul") and not name.endswith(COPIES):
            around = [LoopOfSums(one, mentions(along_k, one.loop_var)) for one in loops]
            found.append((realize, around))
    return found


def find_loops(func: tirx.PrimFunc) -> list[LoopOfSums]:
    """The loops around all blocks that add up the product."""
    return [one for _, loops in find_sums(func) for one in loops]


def _find_indices(
    func: tirx.PrimFunc, accesses: Callable[[tirx.Stmt], list]
) -> list[tuple[list[Expr], list[LoopOfSums]]]:
    """For each of the `accesses` of a block that adds up the product: its indices, and the loops around the block.

    The indices are in the variables of the loops.
    """
    found = []
    for realize, loops in find_sums(func):
        values = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        axes = {axis.var: value for axis, value in values}
        for access in accesses(realize.block.body):
            found.append((substitute(list(access.indices), axes), loops))
    return found


def _indices_of_w(func: tirx.PrimFunc) -> list[tuple[list[Expr], list[LoopOfSums]]]:
    return _find_indices(func, lambda body: loads(body, func.params[0]))


def vectors_along_w(func: tirx.PrimFunc) -> list[str]:
    """For each load of w in a vectorized loop: whether a lane is the next element, in another row, or the same one."""
    found = []
    for (row, column), loops in _indices_of_w(func):
        for var in (one.loop.loop_var for one in loops if one.vectorized):
            moves = "another row" if mentions(row, var) else "same"
            found.append("next" if mentions(column, var) and moves == "same" else moves)
    return found


def vectors_in_partial_sums(func: tirx.PrimFunc) -> list[bool]:
    """For each vectorized loop around sums that read w: whether it stores its sums side by side."""

    def find_stores(body: tirx.Stmt) -> list[tirx.BufferStore]:
        return nodes(body, tirx.BufferStore) if loads(body, func.params[0]) else []

    return [
        mentions(last, var) and not mentions(lead, var)
        for (*lead, last), loops in _find_indices(func, find_stores)
        for var in (one.loop.loop_var for one in loops if one.vectorized)
    ]


def find_tiles(
    func: tirx.PrimFunc,
) -> list[tuple[list[LoopOfSums], list[LoopOfSums], list[LoopOfSums]]]:
    """For each block that multiplies elements of w: its loops outside of the steps along k, those steps, those inside.

    The steps are the innermost loop along k that is not written out, and the loops along k around and in it with
    nothing else between them. Loops of one iteration are left out.
    """
    found = []
    for realize, loops in find_sums(func):
        if not loads(realize.block.body, func.params[0]):
            continue
        loops = [one for one in loops if int(one.loop.extent) > 1]
        at = [n for n, one in enumerate(loops) if one.steps]
        if not at:
            continue
        first = last = at[-1]
        while first > 0 and loops[first - 1].steps:
            first -= 1
        found.append((loops[:first], loops[first : last + 1], loops[last + 1 :]))
    return found


def find_inits_in_steps(func: tirx.PrimFunc) -> list[str]:
    """The loops along k that are not written out, around a block that still holds its init."""
    return [
        f"{realize.block.name_hint} in {one}"
        for realize, loops in find_sums(func)
        for one in loops
        if realize.block.init is not None and one.steps and not one.written_out
    ]


def copies_out_with_sums(func: tirx.PrimFunc) -> bool:
    """Whether what writes the last parameter is in the parallel loop in which the sums are."""
    around = [one.loop for one in find_loops(func) if one.loop.kind == tirx.ForKind.PARALLEL]
    return any(mentions(loop.body, func.params[-1]) for loop in around)


def widest_vector(func: tirx.PrimFunc) -> int:
    """The extent of the longest vectorized loop around the sums; 1 if there is none."""
    return max([1, *(int(one.loop.extent) for one in find_loops(func) if one.vectorized)])


def is_parallel(func: tirx.PrimFunc) -> bool:
    """Whether the sums are in a parallel loop of several iterations; copies of x and of the result do not count."""
    every = (one.loop for one in find_loops(func))
    return any(loop.kind == tirx.ForKind.PARALLEL and int(loop.extent) > 1 for loop in every)


def sums_of_a_step(func: tirx.PrimFunc) -> list[tuple[int, int]]:
    """For each block that adds up the product: (sums that one step of k adds to, those of them in one vector).

    These sums must be kept: the loops over them are inside the innermost one along k.
    """
    found = []
    for _, loops in find_sums(func):
        steps = (n for n, one in enumerate(loops) if one.steps)
        inside = loops[max(steps, default=-1) + 1 :]
        lanes = math.prod(int(one.loop.extent) for one in inside if one.vectorized)
        found.append((math.prod(int(one.loop.extent) for one in inside), lanes))
    return found


# --- what limits it -------------------------------------------------------------------------------


def count_loads_of_w(func: tirx.PrimFunc) -> int:
    """How often the kernel loads each element of w: once per iteration of a loop that w does not depend on.

    A loop that does not move along w, around a serial one that does, loads the same elements again each time. Unrolled
    and vectorized loops around the load belong to one step, whose loads are in registers.
    """
    often = 1
    for index, loops in _indices_of_w(func):
        moves = [mentions(index, one.loop.loop_var) for one in loops]
        serial = [not one.written_out and not one.vectorized for one in loops]
        gone_through = [n for n in range(len(loops)) if moves[n] and serial[n]]
        last = max(gone_through, default=0)
        again = (int(one.loop.extent) for n, one in enumerate(loops[:last]) if not moves[n])
        often = max(often, math.prod(again))
    return often


@dataclass(frozen=True)
class InnerLoop:
    """The loop of a compiled kernel that multiplies most. lanes: numbers in one of its multiplications.

    spills: its instructions that load or store something on the stack, because registers were short.
    """

    multiplications: int
    lanes: int
    spills: int


_LANES = {"zmm": 16, "ymm": 8, "xmm": 4}  # of float32


def inner_loop(func: tirx.PrimFunc, target: Target) -> InnerLoop | None:
    """The inner loop of `func`, compiled for an x86 or Arm processor; None if it is not recognized."""
    assembly = tvm.compile(func, target=target).mod.inspect_source("asm")
    best = None
    for part in re.split(r"^(?=[.\w]+:)", assembly, flags=re.MULTILINE):
        label = part.partition(":")[0]
        if not re.search(
            rf"^\s+(j\w+|b\.\w+|cbn?z|tbn?z)\s.*{re.escape(label)}\s*$", part, re.MULTILINE
        ):
            continue
        x86 = re.findall(
            r"^\s+v?f?n?m(?:add\w*|ul)([ps])s\s.*%([xyz]mm)\d+\s*$", part, re.MULTILINE
        )
        arm = re.findall(r"^\s+fm(?:la|add|ul)(?:\.\w+)?\s+(v|s)\d+", part, re.MULTILINE)
        lanes = [_LANES[register] if kind == "p" else 1 for kind, register in x86]
        lanes += [4 if register == "v" else 1 for register in arm]
        spills = len(re.findall(r"\(%r[sb]p\)|\[sp[,\]]", part))
        if lanes and (best is None or len(lanes) > best.multiplications):
            best = InnerLoop(len(lanes), max(lanes), spills)
    return best


def describe_limits(func: tirx.PrimFunc, target: Target) -> list[str]:
    """Sentences about a scheduled NT_matmul of constant sizes that may say why it is slow; each was counted."""
    said = []
    if inits := find_inits_in_steps(func):
        said.append(
            f"an init is inside a loop along k: {', '.join(inits)}. Each step asks whether it is the first"
        )
    if "another row" in vectors_along_w(func):
        said.append(
            "the lanes of a vector are in different rows of w, so each lane is loaded by itself"
        )
    if not all(vectors_in_partial_sums(func)):
        said.append("the sums in the lanes of a vector are far apart in their buffer")
    often = count_loads_of_w(func)
    times = "once" if often == 1 else f"{often} times"
    said.append(f"each element of w is loaded {times} from the cache or from memory")
    registers = vector_registers(target)
    for held, lanes in sums_of_a_step(func):
        if lanes > 1:
            one = held == lanes
            waits = ", so each addition waits for the one before" if one else ""
            vectors = "one vector" if one else f"{held // lanes} vectors"
            said.append(
                f"a step along k adds to {vectors} of {lanes} sums{waits}; the target has {registers.count} registers "
                f"of {registers.lanes('float32')}"
            )
    for around, steps, inside in find_tiles(func):
        left = [str(one) for one in inside if not one.vectorized and not one.written_out]
        if left:
            said.append(f"inside the steps along k, a loop over sums is serial: {', '.join(left)}")
        follow = math.prod(int(one.loop.extent) for one in steps)
        if any(one.steps for one in around):
            said.append(
                f"the sums of a tile are stored after {follow} steps along k, and loaded again later"
            )
    if not copies_out_with_sums(func):
        said.append("the result is stored outside of the parallel loop around the sums")
    if compiled := inner_loop(func, target):
        said.append(
            f"the compiled inner loop has {compiled.multiplications} multiplications of {compiled.lanes} "
            f"number{'s' * (compiled.lanes > 1)}, and {compiled.spills} accesses to the stack"
        )
    return said


# --- how long it takes ----------------------------------------------------------------------------


def measure(schedules: list[Schedule | None], rows, n: int, k: int) -> list[float]:
    """Seconds of a call of the kernel by each of `schedules`, None for unscheduled: medians of interleaved runs.

    One thread runs them, and its CPU time is measured. Several threads on a busy machine wait for one another, and a
    fast kernel would then lose to a slow one. Whether the work is spread over threads is seen in the loops.
    """
    target = llvm_host()["target"]
    plain = make_unscheduled(rows, n, k)
    funcs = [plain if schedule is None else schedule(plain, target) for schedule in schedules]
    kernels = [compile_once(tvm.IRModule({"main": func}), target)["main"] for func in funcs]
    arrays = draw(1, n, k), draw(2, *rows, k), np.zeros((*rows, n), "float32")
    w, x, out = (tvm.runtime.tensor(a) for a in arrays)
    spent: list[list[float]] = [[] for _ in kernels]
    threads = tvm.get_global_func("runtime.NumThreads")()
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(USE_BIG_CORES, 1)
    try:
        for _ in range(5):
            for kernel, mine in zip(kernels, spent, strict=True):
                mine.append(time_call(partial(kernel, w, x, out), threads=1))
    finally:
        configure(USE_BIG_CORES, threads)
    return [statistics.median(mine) for mine in spent]
