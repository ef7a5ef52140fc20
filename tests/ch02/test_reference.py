"""Chapter 2 where it goes further than its checks ask: constants, closures, cuts that are none."""

from __future__ import annotations

import pytest
from tvm import relax

from chapters.ch02_attach_metadata import checks
from chapters.ch02_attach_metadata.given import even_starts
from chapters.kit.cases.relax_text import relax_module
from solutions.ch02_attach_metadata.attach_support_info import crossing_tensors


def _crossing(func: relax.Function, start: str) -> list[tuple]:
    found = crossing_tensors(func, checks.find_variables(func, start))
    return [(c.name, c.from_stage, c.to_stages) for c in found]


# `inner` captures a, is defined before k is computed, and is called last.
CLOSURE = relax_module("""
@bare
def main(x: (4,)):
    a = R.exp(x)
    @R.function
    def inner(z: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        b = R.add(a, z)
        return b
    k = R.tanh(x)
    r: R.Tensor((4,), "float32") = inner(k)
    return r
""")


def test_a_closure_uses_what_it_captures_where_it_is_called():
    func = CLOSURE["main"]
    assert _crossing(func, "r") == [("a", 0, (1,)), ("k", 0, (1,))]
    assert _crossing(func, "k") == [("a", 0, (1,))]


def test_a_function_without_calls_is_not_cut():
    only_names = relax_module("@bare\ndef main(x: (4,)):\n    y = x\n    return y")
    func = only_names["main"].with_attr("pipeline_parallel_stages", 3)
    assert even_starts(func) == []
    assert _crossing(func, "y") == []


def test_a_start_that_is_not_bound_is_refused():
    stranger = relax.Var("stranger", relax.TensorType((4,), "float32"))
    with pytest.raises(ValueError, match="No binding of the function binds stranger"):
        crossing_tensors(CLOSURE["main"], [stranger])
