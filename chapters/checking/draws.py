"""How random programs are drawn: the same in every run with one version of Hypothesis, and as long as it takes.

A test gives `SAME_EVERYWHERE` to Hypothesis, with the number of its examples: `@settings(SAME_EVERYWHERE,
max_examples=40)`. `@seed(1)` draws others. `find_smallest` looks for a program on which an answer is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from hypothesis.internal.conjecture import providers

Program = TypeVar("Program")

SAME_EVERYWHERE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Newer versions of Hypothesis also try the constants of the local modules that are loaded. Which ones these are depends
# on what ran before in the same process, and there is no setting for it.
if hasattr(providers, "is_local_module_file"):
    providers.is_local_module_file = lambda path: False
# A random.Random whose choices Hypothesis makes, independent of each other, and shrinks towards the smallest numbers.
# Strategies within a strategy are not independent: to find coincidences, Hypothesis makes four of five draws by copying
# one part of an earlier draw over another part.
CHOICES = st.randoms(use_true_random=False)


class _Wrong(Exception):
    """Tells Hypothesis that the answer is wrong on a program."""


def find_smallest(
    programs: st.SearchStrategy[Program],
    failure_of: Callable[[Program], Exception | None],
    size: Callable[[Program], int],
    *,
    draws: int,
    tries: int = 150,
    hangs: int = 4,
    is_hang: Callable[[Exception], bool] = lambda failure: False,
) -> Exception | None:
    """The failure on the smallest program that was found on which `failure_of` gives one; None if there is none.

    After the first failure, Hypothesis tries at most `tries` smaller programs, and stops after `hangs` of them on which
    the answer `is_hang`: these numbers, and not a clock, end the search, so that it ends with the same program always.
    """
    best: list[tuple[int, Exception]] = []
    left = {"tries": tries, "hangs": hangs}

    def try_program(program: Program) -> None:
        if best and not (left["tries"] and left["hangs"]):
            return
        failure = failure_of(program)
        left["tries"] -= bool(best)
        if failure is None:
            return
        left["hangs"] -= is_hang(failure)
        if not best or size(program) <= best[0][0]:
            best[:] = [(size(program), failure)]
        raise _Wrong

    quiet = settings(
        SAME_EVERYWHERE,
        max_examples=draws,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    # once the tries are used up, Hypothesis calls the function flaky: then the best is known
    with contextlib.suppress(_Wrong, HypothesisException):
        seed(0)(quiet(given(programs)(try_program)))()
    return best[0][1] if best else None
