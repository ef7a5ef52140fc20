"""The trace: every pass once, nested as it ran, with what it changed; and its page."""

from __future__ import annotations

import time

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from chapters.toolkit.course import CourseError
from chapters.toolkit.pages.pass_stepper import Stepper
from chapters.toolkit.pipeline.pass_trace import counts, listings, trace
from chapters.toolkit.pipeline.traced_pipelines import pipelines, trace_decoder


@I.ir_module
class Two:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            a = R.add(x, y)
            b = R.nn.relu(a)
            R.output(b)
        return b

    @R.function
    def other(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            a = R.exp(x)
            R.output(a)
        return a


class Stopped(Exception):
    """Compiling was stopped: the pipeline has run, and code is not wanted."""


def stop(*_):
    raise Stopped


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


FUSE = [
    relax.transform.LegalizeOps(),
    relax.transform.AnnotateTIROpPattern(),
    relax.transform.FuseOps(),
]


def test_every_pass_is_a_step_with_its_depth():
    made = trace(tvm.transform.Sequential([outer, *FUSE]), Two)
    assert [(s.depth, s.name) for s in made.steps] == [
        (0, "sequential"),
        (1, "Outer"),
        (2, "Slow"),
        (2, "AnnotateTIROpPattern"),
        (1, "LegalizeOps"),
        (1, "AnnotateTIROpPattern"),
        (1, "FuseOps"),
    ]
    assert [s.number for s in made.steps] == list(range(1, 8))
    names = [s.name for s in made.passes]
    assert names == ["Outer", "LegalizeOps", "AnnotateTIROpPattern", "FuseOps"]


def test_an_outer_pass_has_at_least_the_time_of_what_it_runs():
    made = trace(outer, Two)
    whole, inner, _ = made.steps
    assert whole.seconds >= inner.seconds >= 0.02


def test_what_changed_is_told_by_function():
    legalize, _, fuse = trace(tvm.transform.Sequential(FUSE), Two).passes
    assert set(legalize.altered) == {"main", "other"}
    assert set(legalize.added) == {"add", "relu", "tir_exp"}
    assert legalize.counts[0].operators == 3 and legalize.counts[1].operators == 0
    assert (legalize.counts[1].launches, fuse.counts[1].launches) == (3, 2)
    assert fuse.altered == ("main",) and fuse.added == ("fused_add_relu",)
    assert fuse.diff("main") and not fuse.diff("other")
    assert fuse.summary() == "main; 1 new"


def test_a_pass_that_writes_into_its_input_is_seen_and_the_caller_keeps_his_module():
    before = Two.script()
    step = trace(writes_into_its_input, Two).steps[0]
    assert step.altered == ("other",) and '"seen": 1' in step.diff("other").after
    assert "seen" not in step.diff("other").before
    assert Two.script() == before


def test_a_pass_that_changes_nothing_says_so():
    step = trace(slow, Two).steps[0]
    assert not step.changed and step.summary() == "–"


def test_each_function_has_its_own_listing():
    found = listings(Two)
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
        trace(fails, Two)


def test_find_knows_names_numbers_and_near_misses():
    made = trace(tvm.transform.Sequential(FUSE), Two)
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
        ({"function": "main"}, "There is no function of the decoder 'main'"),
        ({"target": "abacus"}, "TVM knows no target 'abacus'"),
    ],
)
def test_a_name_there_is_not_gets_one_sentence(arguments, says):
    with pytest.raises(CourseError, match=says):
        trace_decoder(**arguments)


@pytest.mark.parametrize("name", ["llvm", "cuda"])
def test_default_is_what_compiling_runs(name):
    """`--pipeline default` has the passes, in their order, that `tvm.compile` runs where no pipeline is named."""

    @tvm.ir.instrument.pass_instrument
    class Names:
        def __init__(self):
            self.seen = []

        def run_before_pass(self, mod, info):
            self.seen.append(info.name)

    target = tvm.target.Target("nvidia/nvidia-a100" if name == "cuda" else name)
    ran = Names()
    with (
        tvm.transform.PassContext(instruments=[ran]),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(relax.vm_build, "_vmcodegen", stop)
        with pytest.raises(Stopped):
            tvm.compile(Two, target)
    traced = trace(pipelines()["default"](target), Two, target)
    assert [step.name for step in traced.steps] == ran.seen


def test_the_page_has_every_pass_and_folds_what_did_not_change():
    made = trace(tvm.transform.Sequential([slow, *FUSE]), Two)
    page = Stepper(made, "Passes & more", "main")._repr_html_()
    assert page.count('role="listitem"') == 4 and page.count("step-idle") == 1
    assert 'id="pass-2"' in page and 'aria-label="Passes &amp; more"' in page
    assert "new: fused_add_relu" in page
    assert str(Stepper(made, "x", "main")) == str(made)


def test_the_command_prints_the_table_and_one_pass(course):
    table = course.learner("trace").stdout
    assert "LegalizeOps" in table and "launches" in table and "51 → 0" in table
    one = course.learner("trace", "--pass", "fuseops").stdout
    assert "new: fused_" in one and "\n- " in one and "\n+ " in one
    wrong = course.learner("trace", "--pass", "FuseOp")
    assert wrong.returncode == 2 and "Did you mean FuseOps" in wrong.stdout
    assert counts(Two).kernels == 0
