"""Fuses and runs hard cases with the built-in and with the course's primitive, and reports the results.

A wrongly fused program may write anywhere, so each case is judged in a child process. `verdicts(names)` keeps a few
children, each of which judges many cases. A case that kills its child is reported as such, and a new child takes the
next. `python -m chapters.ch07_when_fusion_is_sound.side_by_side NAME` prints the two verdicts of one case.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import tvm
from tvm import s_tir

from chapters.child import Child, Lost
from chapters.kit.cases.guard_zones import WroteOutside, run_compiled
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.ir.region_cover import find_undeclared
from chapters.runner.earlier import earlier

HERE = "chapters.ch07_when_fusion_is_sound.side_by_side"  # where a child finds `make_answerer`
SECONDS = 120  # for one primitive on one case, compilation included
MOST_CHILDREN = 4  # each holds TVM
OUTSIDE = "outside its arrays"
WRONG_NUMBERS = ("wrong", OUTSIDE, "died")
# with the last of these the numbers are right
INVALID_IR = ("not well-formed", "does not compile", "reads not declared")
BAD = WRONG_NUMBERS + INVALID_IR

# ReLU and clipping at every step: what the built-in's docstring announces for BiasReLU and Clipping
DOCUMENTED = ("relu", "bias and relu", "clip", "relu in a block of its own")


@dataclass(frozen=True)
class Verdict:
    """The results of one case. builtin, ours: a word or two; how: the way ours took, or the condition that failed."""

    name: str
    builtin: str
    ours: str
    how: str


# --- one case, in this process --------------------------------------------------------------------


def fuse_case(case: Case, fuse: Callable) -> tuple[tvm.IRModule | None, str]:
    """The module after `fuse(sch, "matmul", "bias")` and what it returned; None and the sentence if it refused."""
    sch = s_tir.Schedule(case.func)
    try:
        told = fuse(sch, "matmul", "bias")
    except s_tir.ScheduleError as error:
        return None, str(error).strip().splitlines()[-1]
    return sch.mod, "" if told is None else str(told)


def fuse_with_builtin(sch: s_tir.Schedule, reduction: str, epilogue: str) -> None:
    """TVM's own primitive."""
    sch.fuse_reduction_epilogue(reduction, epilogue)


def judge_module(case: Case, mod: tvm.IRModule | None) -> str:
    """Compare `mod` with the case unfused: "right", "refused" where it is None, or one of `BAD`."""
    if mod is None:
        return "refused"
    try:
        sch = s_tir.Schedule(mod)
    except Exception:
        return "not well-formed"
    expected = _run_unfused(case)
    try:
        got = run_compiled(mod, case.arguments())
    except WroteOutside:
        return OUTSIDE
    except Exception:
        return "does not compile"
    if not all(_are_equal(a, b) for a, b in zip(got, expected, strict=True)):
        return "wrong"
    undeclared = find_undeclared(sch.get(sch.get_sblock("matmul")))
    return "reads not declared" if undeclared.startswith("reads") else "right"


@lru_cache(maxsize=1000)  # all primitives are compared with the same run
def _run_unfused(case: Case) -> list[np.ndarray]:
    """What the case computes unfused."""
    return run_compiled(tvm.IRModule({"main": case.func}), case.arguments())


def _are_equal(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether the arrays are equal, with NaN equal to NaN; floats within 0.1 %, as mistakes here are larger."""
    if got.dtype.kind in "iu":
        return np.array_equal(got, expected)
    wide = got.astype("float64"), expected.astype("float64")
    return np.allclose(*wide, rtol=1e-3, atol=1e-4, equal_nan=True)


def judge(case: Case, fuse: Callable) -> tuple[str, str]:
    """The result of a case with the primitive `fuse`, and the way that it took or the condition that failed."""
    try:
        mod, how = fuse_case(case, fuse)
    except tvm.error.InternalError:
        return "internal error", ""
    return judge_module(case, mod), how


# --- many cases, in children ----------------------------------------------------------------------


def make_answerer() -> Callable[[list[str]], tuple[str, str]]:
    """The function that a child runs: a question is [primitive, name of a case], the answer is what `judge` returns."""
    primitives = {"ours": earlier(7).fuse_epilogue, "built-in": fuse_with_builtin}
    return lambda question: judge(CASES[question[1]], primitives[question[0]])


class Judge:
    """Judges one case after another in a child process; starts a new one where the last may be damaged."""

    def __init__(self):
        self._child: Child | None = None

    def verdict(self, name: str) -> Verdict:
        """Both primitives on the case called `name`; ours first, because the other may damage the process."""
        ours, how = self._ask("ours", name)
        builtin, _ = self._ask("built-in", name)
        return Verdict(name, builtin, ours, how)

    def _ask(self, primitive: str, name: str) -> tuple[str, str]:
        if self._child is None:
            self._child = Child(HERE)
        self._child.wait_until_ready()  # so that a child that cannot start does not count as a crash of the case
        try:
            came, how = self._child.ask([primitive, name], SECONDS)
        except Lost:
            self._child = None
            return "died", ""
        if came == OUTSIDE:  # it may have damaged the child's memory
            self.close()
        return came, how

    def close(self) -> None:
        if self._child:
            self._child.close()
        self._child = None


def verdicts(names: Iterable[str] = CASES) -> list[Verdict]:
    """The verdicts on the cases called `names`, in this order, for the built-in and the course's `fuse_epilogue`."""
    names = list(names)
    count = max(min(os.cpu_count() or 1, MOST_CHILDREN, len(names)), 1)
    with contextlib.ExitStack() as stack:
        judges = {}

        def verdict(name: str) -> Verdict:
            if (thread := threading.get_ident()) not in judges:
                judges[thread] = stack.enter_context(contextlib.closing(Judge()))
            return judges[thread].verdict(name)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(verdict, names))


def main(name: str) -> None:
    """Print the results of the case called `name`, one line per primitive."""
    (found,) = verdicts([name])
    print(f"built-in: {found.builtin}")
    print(f"ours:     {found.ours} ({found.how})")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CASES:
        sys.exit(f"Give the name of a hard case, one of: {', '.join(CASES)}")
    main(sys.argv[1])
