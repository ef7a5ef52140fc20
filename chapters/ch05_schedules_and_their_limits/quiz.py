"""Predict-then-run questions of chapter 5; TVM computes every answer."""

from __future__ import annotations

import math
import textwrap

import numpy as np
import tvm
from tvm import s_tir, te

from chapters.ch05_schedules_and_their_limits.given import forced
from chapters.kit.cases.example_programs import matmul_bias, row_sums
from chapters.kit.cpu.matmul_tile import lanes_of
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.machine import llvm_host
from chapters.kit.quiz import Question, outcome
from chapters.runner.earlier import earlier


def _schedule(m: int = 8, n: int = 16, k: int = 6) -> s_tir.Schedule:
    return s_tir.Schedule(matmul_bias(m, n, k))


def _points_after_split() -> str:
    """How often the block's loops run for 10 rows in tiles of 4."""
    sch = _schedule(m=10)
    sch.split(sch.get_loops("matmul")[0], [None, 4])
    outer, inner = (int(sch.get(loop).extent) for loop in sch.get_loops("matmul")[:2])
    return str(outer * inner)


def _parallel_steps() -> str:
    sch = _schedule()
    return outcome(lambda: sch.parallel(sch.get_loops("matmul")[2]))


def _vectorized_late() -> str:
    sch = _schedule()
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    return outcome(lambda: sch.vectorize(sch.get_loops("matmul_update")[1]))


def _rows_in_two_groups() -> s_tir.Schedule:
    """The sums of ten rows of 24 elements: for each group of five rows, eight columns at a time."""
    sch = s_tir.Schedule(row_sums(10, 24))
    i, k = sch.get_loops("total")
    group, row = sch.split(i, [2, 5])
    piece, column = sch.split(k, [3, 8])
    sch.reorder(group, piece, row, column)
    return sch


def _nest_of_two_groups() -> str:
    """Its loops and its block as text, without the function around them."""
    text = _rows_in_two_groups().mod["main"].script()
    return textwrap.dedent(text.partition('"root"):\n')[2])


def _zeros_at_a_time() -> str:
    """The loops that decompose_reduction accepts, each with the zeros that the init then writes at a time."""
    found = []
    for number, name in enumerate(("i_0", "k_0", "i_1", "k_1")):
        sch = _rows_in_two_groups()
        try:
            init = sch.decompose_reduction("total", sch.get_loops("total")[number])
        except s_tir.ScheduleError:
            continue
        inside = sch.get_loops(init)[number:]
        zeros = math.prod(int(sch.get(loop).extent) for loop in inside)
        found.append(f"{zeros} before {name}")
    return ", ".join(found)


def _producers() -> str:
    sch = _schedule()
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    return str(len(sch.get_producers("bias")))


def _bias_at_the_steps() -> str:
    sch = _schedule()
    earlier(5).tile(sch, 4, 8)
    sch.reverse_compute_at("bias", sch.get_loops("matmul")[2])
    return str(math.prod(int(sch.get(loop).extent) for loop in sch.get_loops("bias")))


def _sums_in_a_register() -> str:
    w, x = (te.placeholder((n, 64), "float16", name=name) for n, name in ((64, "w"), (1, "x")))
    kernel = te.create_prim_func([w, x, earlier(3).nt_matmul(w, x, "float32")])
    target = llvm_host()["target"]
    fits = {vector_registers(target).lanes(dtype): dtype for dtype in ("float16", "float32")}
    return f"as many as {fits[lanes_of(kernel, target)]} values"


def _loops_of_partial_sums() -> str:
    """Which loops of `total_rf` the vectorizer accepts after rfactor."""
    accepted = []
    for number, name in enumerate(("rows", "groups of columns", "lanes")):
        sch = s_tir.Schedule(row_sums(4, 24))
        earlier(5).partial_sums(sch)
        loop = sch.get_loops("total_rf")[number]
        if outcome(lambda sch=sch, loop=loop: sch.vectorize(loop)) == "it is accepted":
            accepted.append(name)
    return " and ".join(accepted)


def _error(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """What the careless program gives, minus the product with its bias."""
    out = tvm.runtime.tensor(np.zeros(c.shape, "int32"))
    kernel = tvm.compile(forced(*c.shape, a.shape[1]), target="llvm")
    kernel["main"](*map(tvm.runtime.tensor, (a, b, c)), out)
    return out.numpy() - (a.astype("int32") @ b.T.astype("int32") + c)


def _what_the_error_depends_on() -> str:
    random = np.random.default_rng(0)
    a, other = random.integers(-9, 9, (2, 3, 64), "int8")
    b = random.integers(-9, 9, (5, 64), "int8")
    c = random.integers(-9, 9, (3, 5), "int32")
    depends_on_a = (_error(a, b, c) != _error(other, b, c)).any()
    depends_on_c = (_error(a, b, c) != _error(a, b, c + 1)).any()
    if depends_on_a and depends_on_c:
        return "on A, B and C"
    return "on A and B alone" if depends_on_a else "on C alone"


PREDICT = [
    Question(
        ask="Besides the number of steps: what does the error depend on?",
        choices=("on A and B alone", "on C alone", "on A, B and C"),
        compute=_what_the_error_depends_on,
        because="Each product enters the sum once, as it should. Only the bias is added too often.",
    ),
]

QUESTIONS = [
    Question(
        ask="10 rows are split into tiles of 4. How often do the two loops over rows run their body?",
        choices=("8", "10", "12"),
        compute=_points_after_split,
        because="Three tiles of four are twelve. `split` adds a predicate, `T.where(…)`, that skips the last two.",
    ),
    Question(
        ask="You call `sch.parallel` on the loop over the steps of the sum. What happens?",
        choices=("it is refused", "it is accepted", "it is accepted, and the result is wrong"),
        compute=_parallel_steps,
        because="Two steps of one sum would add to the same element at the same time.",
    ),
    Question(
        ask="After decompose_reduction you call `sch.vectorize` on the update's loop over columns. What happens?",
        choices=("it is accepted", "the init is vectorized instead", "it is refused"),
        compute=_vectorized_late,
        because="Without its init, the update is not a reduction block, and TVM refuses to vectorize its loops.",
    ),
    Question(
        ask="Ten rows are summed in two groups of five, and their 24 columns in three pieces of eight. Before which "
        "loops can `decompose_reduction` put the init, and how many zeros does the init write each time it runs?",
        show=_nest_of_two_groups,
        choices=(
            "10 before i_0",
            "10 before i_0, 10 before k_0",
            "10 before i_0, 5 before k_0",
            "10 before i_0, 5 before k_0, 5 before i_1, 1 before k_1",
        ),
        compute=_zeros_at_a_time,
        because="The init sets the sums that are made inside its loop: all ten, or those of one group. i_1 and k_1 are "
        "inside k_0, which runs along the sums. There the init would run again in the middle of a sum, and erase it.",
    ),
    Question(
        ask="After decompose_reduction, how many producers does the block `bias` have?",
        choices=("1", "2", "3"),
        compute=_producers,
        because="Both the init and the update write temp. To inline `bias`, TVM asks for a single producer.",
    ),
    Question(
        ask="Sizes (8, 16, 6), tiles of (4, 8), `bias` moved into the loop over steps: how often does it run?",
        choices=("32", "128", "768"),
        compute=_bias_at_the_steps,
        because="128 elements, six times each. What the last time stores is right and stays, so TVM allows it.",
    ),
    Question(
        ask="After rfactor over the lanes, which loops of `total_rf` may be vectorized?",
        choices=("lanes", "rows and lanes", "rows and groups of columns and lanes"),
        compute=_loops_of_partial_sums,
        because="Each row and each lane has its own sum. All groups of a row add to the same partial sums.",
    ),
    Question(
        ask="Operands are float16, out_dtype is float32. How many sums does the decode schedule keep in a register?",
        choices=("as many as float32 values", "as many as float16 values", "one"),
        compute=_sums_in_a_register,
        because="Lanes hold sums, and a sum has the dtype of the result. Operands are converted when they are loaded.",
    ),
]
