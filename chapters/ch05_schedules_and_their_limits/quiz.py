"""Predict-then-run questions of chapter 5; TVM computes every answer."""

from __future__ import annotations

from tvm import s_tir

from chapters.toolkit.cases.matmul_bias import matmul_bias
from chapters.toolkit.earlier import earlier
from chapters.toolkit.quiz import Question


def _schedule(m: int = 8, n: int = 16, k: int = 6) -> s_tir.Schedule:
    return s_tir.Schedule(matmul_bias(m, n, k))


def _outcome(act) -> str:
    try:
        act()
    except s_tir.ScheduleError:
        return "it is refused"
    return "it is accepted"


def _points_after_split() -> str:
    """How often the block's loops run for 10 rows in tiles of 4."""
    sch = _schedule(m=10)
    sch.split(sch.get_loops("matmul")[0], [None, 4])
    outer, inner = (int(sch.get(loop).extent) for loop in sch.get_loops("matmul")[:2])
    return str(outer * inner)


def _parallel_steps() -> str:
    sch = _schedule()
    return _outcome(lambda: sch.parallel(sch.get_loops("matmul")[2]))


def _vectorized_late() -> str:
    sch = _schedule()
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    return _outcome(lambda: sch.vectorize(sch.get_loops("matmul_update")[1]))


def _producers() -> str:
    sch = _schedule()
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    return str(len(sch.get_producers("bias")))


def _bias_at_the_steps() -> str:
    sch = _schedule()
    earlier(5).tile(sch, 4, 8)
    sch.reverse_compute_at("bias", sch.get_loops("matmul")[2])
    runs = 1
    for loop in sch.get_loops("bias"):
        runs *= int(sch.get(loop).extent)
    return str(runs)


QUESTIONS = [
    Question(
        ask="10 rows are split into tiles of 4. How often do the two loops over rows run their body?",
        choices=("10", "12", "8"),
        compute=_points_after_split,
        because="Three tiles of four: the last one is cut off by a predicate, `T.where(…)`, that split adds.",
    ),
    Question(
        ask="What becomes of `sch.parallel` on the loop over the steps of the sum?",
        choices=("it is accepted", "it is refused", "it is accepted, and the result is wrong"),
        compute=_parallel_steps,
        because="Two steps of one sum would write the same element at the same time.",
    ),
    Question(
        ask="After decompose_reduction, what becomes of `sch.vectorize` on the loop over columns of the update?",
        choices=("it is accepted", "it is refused", "the init is vectorized instead"),
        compute=_vectorized_late,
        because="The update has no init any more, and is no reduction block: TVM cannot tell what its loops do.",
    ),
    Question(
        ask="After decompose_reduction, how many producers has the block `bias`?",
        choices=("1", "2", "3"),
        compute=_producers,
        because="Both the init and the update write temp. Inlining `bias` needs a single producer.",
    ),
    Question(
        ask="Sizes (8, 16, 6), tiles of (4, 8), `bias` moved into the loop over steps: how often does it run?",
        choices=("128", "768", "32"),
        compute=_bias_at_the_steps,
        because="128 elements, six times each. Only the last time is it right; TVM allows it because the result is.",
    ),
]
