"""What a check says of a pass that is wrong on drawn programs: the smallest program, and always the same."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import tvm
from hypothesis import strategies as st

from chapters.ch12_combine_products.check_programs import program
from chapters.checking import judge_programs
from chapters.checking.draws import find_smallest
from chapters.checking.judge_programs import failure_on, judge_on_draws
from chapters.checking.time_limit import TookTooLong, limit_time
from chapters.kit.ir.relax_effects import calls_of_module
from chapters.runner.failure import CheckFailed


def test_the_smallest_is_found_and_always_the_same():
    numbers = st.lists(st.integers(0, 1000), max_size=20)

    def failure_of(drawn: list[int]) -> Exception | None:
        return ValueError(f"{drawn}") if sum(drawn) > 100 else None

    found = [str(find_smallest(numbers, failure_of, sum, draws=50)) for _ in range(2)]
    assert found == ["[101]"] * 2
    assert find_smallest(numbers, lambda drawn: None, sum, draws=50) is None


def test_the_search_ends_after_some_hangs():
    tried = []

    def failure_of(drawn: int) -> Exception | None:
        tried.append(drawn)
        return TimeoutError(f"{drawn}") if drawn > 3 else None

    numbers = st.integers(0, 10**9)
    found = find_smallest(numbers, failure_of, int, draws=50, hangs=2, is_hang=lambda one: True)
    hangs = [drawn for drawn in tried if drawn > 3]
    assert len(hangs) <= 3 and str(found) == str(min(hangs))


def test_an_endless_body_is_stopped():
    start = time.monotonic()
    with pytest.raises(TookTooLong), limit_time(0.2):
        while True:
            pass
    assert time.monotonic() - start < 5
    with limit_time(5):
        pass
    with pytest.raises(KeyError), limit_time(5):
        raise KeyError


def test_an_endless_body_is_stopped_where_interrupts_are_ignored():
    """As in a process that a shell has started with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(TookTooLong), limit_time(0.2):
            while True:
                pass
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def products(count: int):
    """A program of so many products of one tensor."""
    made = [f"{name} = R.matmul(x, {name}4x2)" for name in "abcdefghi"[:count]]
    return program("\n".join(made) + f"\nreturn ({', '.join('abcdefghi'[:count])},)")


def is_large(mod: tvm.IRModule) -> bool:
    return len(calls_of_module(mod)) > 2


def endless(mod):
    while is_large(mod):
        pass
    return mod


def crashes(mod):
    if is_large(mod):
        raise KeyError("lv")
    return mod


def half_changed(mod):
    if is_large(mod):
        del mod["main"]
    return mod


def loses_a_function(mod):
    return tvm.IRModule() if is_large(mod) else mod


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (endless, "P did not finish within"),
        (crashes, "P raised KeyError"),
        (half_changed, "P changed the module it was given."),
        (lambda mod: None if is_large(mod) else mod, "P returned None, not an IRModule."),
        (loses_a_function, "P gave a module without the public function `main`."),
    ],
)
def test_whatever_a_pass_does_is_said_in_one_sentence_with_the_smallest_program(
    transform, says, monkeypatch
):
    monkeypatch.setattr(judge_programs, "SECONDS", 0.2)
    counts = st.integers(1, 9).map(products)
    with pytest.raises(CheckFailed) as raised:
        judge_on_draws(
            transform, counts, "P", Path("p.py"), draws=20, costs=lambda *_: None, read=""
        )
    failure = raised.value.failure
    assert failure.what.startswith(says)
    text = failure.yours.partition("The smallest program on which this was found")[2]
    assert text.partition("The same after")[0].count("R.matmul(") == 3


def test_a_program_that_stays_is_right():
    assert not failure_on(
        lambda mod: mod, products(3), "P", Path("p.py"), costs=lambda *_: None, read=""
    )
