"""The trace: every pass once, nested as it ran, with what it changed. docs/timeline.md shows its page."""

from __future__ import annotations

import argparse
import time
from unittest.mock import Mock

import pytest
import tvm
from tvm import relax

from chapters.ch09_the_compiler.trace import PIPELINES, trace_decoder
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.measure.pass_trace import Recorder, count_module, listings, trace
from chapters.runner.commands import trace as command

TWO = relax_module("""
def main(x: (2, 3), y: (2, 3)):
    a = R.add(x, y)
    b = R.nn.relu(a)

def other(x: (4,)):
    a = R.exp(x)
""")


class Stopped(Exception):
    """Compiling was stopped: the pipeline has run, and code is not wanted."""


@tvm.transform.module_pass(opt_level=0, name="Slow")
def slow(mod, ctx):
    time.sleep(0.02)
    return mod


@tvm.transform.module_pass(opt_level=0, name="WritesIntoItsInput")
def writes_into_its_input(mod, ctx):
    mod["other"] = mod["other"].with_attr("seen", 1)
    return mod


@tvm.transform.module_pass(opt_level=0, name="Outer")
def outer(mod, ctx):
    return relax.transform.AnnotateTIROpPattern()(slow(mod))


PASSES = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps")
FUSE = [getattr(relax.transform, name)() for name in PASSES]


def test_every_pass_is_a_step_with_its_depth():
    made = trace(tvm.transform.Sequential([outer, *FUSE]), TWO)
    names = ["Outer", *PASSES]
    within = [(2, "Slow"), (2, "AnnotateTIROpPattern")]
    steps = [(0, "sequential"), (1, names[0]), *within, *((1, name) for name in names[1:])]
    assert [(s.depth, s.name) for s in made.steps] == steps
    assert [s.number for s in made.steps] == list(range(1, 8))
    assert [s.name for s in made.passes] == names


def test_an_outer_pass_has_at_least_the_time_of_what_it_runs():
    made = trace(outer, TWO)
    whole, inner, _ = made.steps
    assert whole.seconds >= inner.seconds >= 0.02


def test_what_changed_is_told_by_function():
    legalize, _, fuse = trace(tvm.transform.Sequential(FUSE), TWO).passes
    assert set(legalize.altered) == {"main", "other"}
    assert set(legalize.added) == {"add", "relu", "tir_exp"}
    assert legalize.counts[0].operators == 3 and legalize.counts[1].operators == 0
    assert (legalize.counts[1].launches, fuse.counts[1].launches) == (3, 2)
    assert fuse.altered == ("main",) and fuse.added == ("fused_add_relu",)
    assert fuse.diff("main") and not fuse.diff("other")
    assert fuse.summary() == "main; 1 new"


def test_a_pass_that_writes_into_its_input_is_seen_and_the_caller_keeps_his_module():
    before = TWO.script()
    step = trace(writes_into_its_input, TWO).steps[0]
    assert step.altered == ("other",) and '"seen": 1' in step.diff("other").after
    assert "seen" not in step.diff("other").before
    assert TWO.script() == before


def test_a_pass_that_changes_nothing_says_so():
    step = trace(slow, TWO).steps[0]
    assert not step.changed and step.summary() == "–"


def test_each_function_has_its_own_listing():
    found = listings(TWO)
    assert set(found) == {"main", "other"}
    assert found["other"].startswith("@R.function\ndef other(") and "R.exp" in found["other"]
    assert "R.exp" not in found["main"] and not found["main"].startswith(" ")


def test_a_hosts_function_is_no_launch():
    shapes = trace_decoder("zero", layers=1).find("VMShapeLower")[0]
    assert shapes.added == ("shape_func",)
    assert shapes.counts[0].launches == shapes.counts[1].launches > 0


def test_an_error_in_a_pass_is_raised():
    @tvm.transform.module_pass(opt_level=0, name="Fails")
    def fails(mod, ctx):
        raise ValueError("as it must")

    with pytest.raises(ValueError, match="as it must"):
        trace(fails, TWO)


def test_find_knows_names_numbers_and_near_misses():
    made = trace(tvm.transform.Sequential(FUSE), TWO)
    assert [s.name for s in made.find("fuseops")] == ["FuseOps"] == [s.name for s in made.find("4")]
    with pytest.raises(KeyError, match="Did you mean FuseOps"):
        made.find("FuseOp")
    with pytest.raises(KeyError, match="These did: sequential, LegalizeOps"):
        made.find("xyz")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"pipeline": "none"}, "There is no pipeline 'none'; there are zero"),
        ({"config": "huge"}, "There is no configuration 'huge'"),
        ({"function": "main"}, "The decoder has no function 'main'"),
        ({"target": "abacus"}, "TVM knows no target 'abacus'"),
    ],
)
def test_a_name_there_is_not_gets_one_sentence(arguments, says):
    with pytest.raises(ValueError, match=says):
        trace_decoder(**arguments)


@pytest.mark.parametrize("name", ["llvm", "cuda"])
def test_default_is_what_compiling_runs(name, monkeypatch):
    """`--pipeline default` has the passes, in their order, that `tvm.compile` runs where no pipeline is named."""

    target = tvm.target.Target("nvidia/nvidia-a100" if name == "cuda" else name)
    ran = Recorder()
    monkeypatch.setattr(relax.vm_build, "_vmcodegen", Mock(side_effect=Stopped))
    with tvm.transform.PassContext(instruments=[ran]), pytest.raises(Stopped):
        tvm.compile(TWO, target)
    traced = trace(PIPELINES["default"](target), TWO, target)
    assert [step.name for step in traced.steps] == [step.name for step in ran.steps]


def test_the_command_prints_the_table_and_one_pass(course, capsys):
    def printed(*arguments: str) -> str:
        parser = argparse.ArgumentParser()
        command.arguments(parser)
        assert command.run(parser.parse_args(arguments)) == 0
        return capsys.readouterr().out

    table = printed()
    assert "LegalizeOps" in table and "launches" in table and "51 → 0" in table
    one = printed("--pass", "fuseops")
    assert "new: fused_" in one and "\n- " in one and "\n+ " in one
    wrong = course.learner("trace", "--pass", "FuseOp")
    assert wrong.returncode == 2 and "Did you mean FuseOps" in wrong.stdout
    assert count_module(TWO).kernels == 0
