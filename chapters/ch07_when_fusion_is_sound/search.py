"""Searches the programs that a generator draws for one that a primitive fuses wrongly, and makes that program smaller.

`python -m chapters.ch07_when_fusion_is_sound.search` takes your generator and your primitives, if your chapter passes:
it leaves out one condition of the guard after another, and prints the smallest program that then goes wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import tvm

from chapters.ch07_when_fusion_is_sound.side_by_side import BAD, fuse_case, judge_module
from chapters.kit.cases.guard_zones import run_compiled
from chapters.kit.cases.hard_cases import Case
from chapters.runner.earlier import describe_owners, earlier

DRAWS = 300  # programs, at most, until one goes wrong
CONDITIONS = "each point once", "nobody between", "own element", "sums unseen", "order of rounding"
Draw = Callable[[Sequence], Any]  # one of a list's elements


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A program that went wrong: its case, the module that the primitive made of it, and in what way it is wrong."""

    case: Case
    mod: tvm.IRModule
    came: str

    def __str__(self) -> str:
        return f"{self.case.text}\n{_describe_difference(self)}"


def draw_program(draw_case: Callable[[Draw], Case], number: int) -> Case:
    """The program number `number` of a generator: the same one each time."""
    return draw_case(random.Random(number).choice)


def find_wrong_numbers(case: Case, fuse: Callable) -> Wrong | None:
    """What the primitive `fuse` makes of `case`, if that is wrong."""
    try:
        mod, _ = fuse_case(case, fuse)
    except (tvm.error.InternalError, ValueError):
        return None
    if mod is None:
        return None
    came = judge_module(case, mod)
    return Wrong(case, mod, came) if came in BAD else None


def shrink(wrong: Wrong, fuse: Callable) -> Wrong:
    """`wrong` with as many fields of its case as possible set back to their defaults, one after another."""
    fields = [one for one in dataclasses.fields(Case) if one.name not in ("cause", "name")]
    for one in fields:
        default = one.default_factory() if one.default is dataclasses.MISSING else one.default
        if getattr(wrong.case, one.name) != default:
            simpler = dataclasses.replace(wrong.case, **{one.name: default})
            with contextlib.suppress(Exception):  # not every combination of fields is a program
                wrong = find_wrong_numbers(simpler, fuse) or wrong
    return wrong


@contextlib.contextmanager
def leave_out(code: ModuleType, condition: str) -> Iterator[None]:
    """While it lasts, `code.fuse_epilogue` does not ask for one of its conditions."""
    guard = next(one for one in (code.GUARD, code.GUARD_OF_INIT) if condition in one)
    with mock.patch.dict(guard):
        del guard[condition]
        yield


def _describe_difference(wrong: Wrong) -> str:
    """The first element that differs, unfused and fused."""
    if wrong.came != "wrong":
        return f"the fused program: {wrong.came}"
    arguments = wrong.case.arguments
    expected = run_compiled(tvm.IRModule({"main": wrong.case.func}), arguments())
    got = run_compiled(wrong.mod, arguments())
    for param, a, b in zip(wrong.case.func.params, expected, got, strict=True):
        if (a != b).any():
            at = tuple(int(n) for n in np.argwhere(a != b)[0])
            return f"{param.name}{list(at)} is {a[at]} unfused, and {b[at]} fused"
    return "no element differs on a second run"


def main() -> int:
    """Search, and print what was found; exit status 1 if some fault was not."""
    print(describe_owners([6, 7]))
    code, missed = earlier(7), []
    opponents = {"your chapter 6 primitive": earlier(6).fuse_reduction_epilogue}
    opponents |= dict.fromkeys((f"without “{name}”" for name in CONDITIONS), code.fuse_epilogue)
    for title, fuse in opponents.items():
        condition = title.partition("“")[2].rstrip("”")
        with leave_out(code, condition) if condition else contextlib.nullcontext():
            found = (
                find_wrong_numbers(draw_program(code.draw_case, n), fuse) for n in range(DRAWS)
            )
            first = next(filter(None, found), None)
            print(f"\n--- {title}\n{shrink(first, fuse) if first else 'nothing went wrong'}")
        missed += [title] * (first is None)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
