"""Chapter 2 where it goes further than its checks ask: constants, closures, cuts that are none, other words."""

from __future__ import annotations

import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from chapters.toolkit.course import ROOT, chapter
from solutions.ch02_attach_metadata.attach_support_info import crossing_tensors, even_starts
from tests.checks import ch02 as checks
from tests.harness.diagnose import diagnose
from tests.harness.loading import load


def _var(func: relax.Function, name: str) -> relax.Var:
    return next(b.var for block in func.body.blocks for b in block.bindings if b.var.name == name)


def _crossing(func: relax.Function, *starts: str) -> list[tuple]:
    found = crossing_tensors(func, [_var(func, name) for name in starts])
    return [(c.name, c.from_stage, c.to_stages) for c in found]


@I.ir_module
class Closure:
    """`inner` captures a, is defined before k is computed, and is called last."""

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        a = R.exp(x)

        @R.function
        def inner(z: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            b = R.add(a, z)
            return b

        k = R.tanh(x)
        r: R.Tensor((4,), "float32") = inner(k)
        return r


def test_a_closure_uses_what_it_captures_where_it_is_called():
    func = Closure["main"]
    assert _crossing(func, "r") == [("a", 0, (1,)), ("k", 0, (1,))]
    assert _crossing(func, "k") == [("a", 0, (1,))]


@I.ir_module
class OnlyNames:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = x
        return y


def test_a_function_without_calls_is_not_cut():
    func = OnlyNames["main"].with_attr("pipeline_parallel_stages", 3)
    assert even_starts(func) == []
    assert _crossing(func, "y") == []


def test_a_start_that_is_not_bound_is_refused():
    stranger = relax.Var("stranger", relax.TensorType((4,), "float32"))
    with pytest.raises(ValueError, match="No binding of the function binds stranger"):
        crossing_tensors(Closure["main"], [stranger])


def test_a_refusal_is_known_whatever_its_words(tmp_path):
    """An answer that refuses as a catalogued one does, in a sentence of its own."""
    catalogued = ROOT / "tests" / "wrong" / "ch02" / "refuses_every_taken_name.py"
    text = catalogued.read_text(encoding="utf-8")
    path = tmp_path / "answer.py"
    path.write_text(
        text.replace('f"The module already has a function {name!r}."', "name"), encoding="utf-8"
    )
    assert path.read_text(encoding="utf-8") != text
    assert diagnose(checks, chapter(2), "2.2", load(path))["file"] == catalogued.name
