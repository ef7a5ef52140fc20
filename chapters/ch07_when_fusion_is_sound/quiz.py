"""Predict-then-run questions of chapter 7; TVM computes every answer."""

from __future__ import annotations

import numpy as np
from tvm import s_tir

from chapters.ch07_when_fusion_is_sound.side_by_side import fuse_case, fuse_with_builtin, judge
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.quiz import Question, outcome
from chapters.runner.earlier import earlier


def _way(case: Case) -> str:
    """The way `fuse_epilogue` takes, or "refused"."""
    mod, how = fuse_case(case, earlier(7).fuse_epilogue)
    return how.split(":")[0] if mod is not None else "refused"


def _reorder_after_last_step() -> str:
    sch = s_tir.Schedule(CASES["relu"].func)
    earlier(7).fuse_epilogue(sch, "matmul", "bias")
    outer, inner = sch.split(sch.get_loops("matmul")[-1], [None, 2])
    return outcome(lambda: sch.reorder(inner, outer), "TVM does it", "TVM refuses")


def _half_sum(*numbers: float) -> str:
    """The sum from left to right, rounded to float16 after every addition."""
    total = np.float16(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            total = np.float16(total + np.float16(number))
    return f"{total:.0f}"


def _after_every_step(*steps: int) -> int:
    total = 0
    for step in steps:
        total = max(total + step, 0)
    return total


WAYS = ("init", "scaled", "last step", "refused")

PREDICT = [
    Question(
        ask="The maximum is taken after every step. What is the result of the steps 3 and -5, and of -5 and 3?",
        choices=("-2 and -2", "0 and 0", "0 and 3"),
        compute=lambda: f"{_after_every_step(3, -5)} and {_after_every_step(-5, 3)}",
        because="In the second order the maximum raises -5 to 0 before 3 is added. So the result depends on the order "
        "of the steps. For a sum, the order must not matter.",
    ),
]

QUESTIONS = [
    Question(
        ask="A max over products, and the epilogue adds a bias to it. Which way does fuse_epilogue take?",
        show=CASES["a maximum"].text,
        choices=WAYS,
        compute=lambda: _way(CASES["a maximum"]),
        because="max(t, x) + c is not max(t + c, x), so the bias may not enter the init. At the last step it may run.",
    ),
    Question(
        ask="The epilogue takes the remainder of the sum by 7. What is the result of the built-in?",
        show=CASES["remainder"].text,
        choices=("right", "wrong", "refused"),
        compute=lambda: judge(CASES["remainder"], fuse_with_builtin)[0],
        because="It takes the remainder at every step. ((t mod 7) + x) mod 7 is (t + x) mod 7, so it is right by luck.",
    ),
    Question(
        ask="After a fusion at the last step, the reduction loop is split and its halves exchanged. What happens?",
        choices=("TVM refuses", "TVM does it", "it compiles and is wrong"),
        compute=_reorder_after_last_step,
        because="The predicate makes the epilogue's binding non-affine, and reorder refuses loops around such a block.",
    ),
    Question(
        ask="The epilogue adds a bias; another block copies the sums afterwards. Which way does fuse_epilogue take?",
        show=CASES["the sums read afterwards"].text,
        choices=WAYS,
        compute=lambda: _way(CASES["the sums read afterwards"]),
        because="With the bias in the init there would be no sums to copy. The last step leaves the sums as they are.",
    ),
    Question(
        ask="2048 + 1 + 1 + 1 in float16, from left to right?",
        choices=("2048", "2050", "2051", "2052"),
        compute=lambda: _half_sum(2048, 1, 1, 1),
        because="float16 has no 2049. It is halfway between 2048 and 2050 and is rounded to 2048, in each step anew.",
    ),
    Question(
        ask="60000 + 8000 - 8000 in float16, from left to right?",
        choices=("57504", "60000", "inf"),
        compute=lambda: _half_sum(60000, 8000, -8000),
        because="The largest number is 65504, so the first addition overflows to infinity, and infinity minus 8000 is "
        "infinity. In another order, 8000 - 8000 + 60000, the result is 60000.",
    ),
]
