"""Predict-then-run questions of chapter 3; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.cases.linear_layer import linear_layer
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.read_order import read_order
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

Cube = relax_module("""
def main(x: (4, 4, 4), w: (4, 4, 4)):
    turned = R.permute_dims(w)
    out = R.matmul(x, turned)
""")
Returned = relax_module("""
def main(x: (4, 6), y: (2, 6), w: (7, 6)):
    turned = R.permute_dims(w)
    a = R.matmul(x, turned)
    b = R.matmul(y, turned)
    return a, b, turned
""")
Gram = relax_module("""
def main(x: (4, 6)):
    turned = R.permute_dims(x)
    out = R.matmul(x, turned)
""")


def _fused(mod: tvm.IRModule) -> tvm.IRModule:
    return earlier(3).FuseTransposeMatmul()(mod)


def _count(mod: tvm.IRModule, operator: str) -> int:
    return sum(call.op == tvm.ir.Op.get(operator) for call in calls_in(mod["main"]))


def _parameters_of_a_composite() -> str:
    chapter = earlier(3)
    grouped = chapter.group(chapter.own_transposes(Gram, chapter.may_fuse), chapter.may_fuse)
    functions = grouped.functions_items()
    (composite,) = (f for gvar, f in functions if gvar.name_hint.startswith("fused"))
    return str(len(composite.params))


def _step_through_w() -> str:
    kernel = _fused(linear_layer(1, 4, 6))["NT_matmul"]
    return str(read_order(kernel, "w", "NT_matmul", count=5).strides[0])


def _built_in() -> str:
    try:
        relax.transform.FuseTransposeMatmul()(Gram)
    except Exception as error:
        return "it raises an " + type(error).__name__
    return "it fuses"


QUESTIONS = [
    Question(
        ask="w has three dimensions and permute_dims has no axes. Does the pass fire?",
        show=Cube.script,
        choices=("yes", "no", "it raises an error"),
        compute=lambda: "no" if _count(_fused(Cube), "relax.matmul") else "yes",
        because="Without axes all dimensions are reversed. For a matrix that is the swap. With three dimensions the "
        "batch moves too; here all sizes are equal, so only the axes show it.",
    ),
    Question(
        ask="Two matmuls share a transpose, which is also returned. How many permute_dims are left after the pass?",
        show=Returned.script,
        choices=("0", "1", "2", "3"),
        compute=lambda: _count(_fused(Returned), "relax.permute_dims"),
        because="Both matmuls become kernels that read w as it is stored. The original stays for the caller.",
    ),
    Question(
        ask="x @ x.T is grouped into a composite. How many parameters does it have?",
        show=Gram.script,
        choices=("1", "2", "3"),
        compute=_parameters_of_a_composite,
        because="One parameter per different tensor, in order of first use. So look operands up; do not count them.",
    ),
    Question(
        ask="What does TVM's own FuseTransposeMatmul do with x @ x.T?",
        choices=("it fuses", "it leaves it alone", "it raises an IndexError"),
        compute=_built_in,
        because="It takes the second argument of a call that has one. A pass that raises stops the whole "
        "compilation, even though the module is correct.",
    ),
    Question(
        ask="By how many elements does NT_matmul move through the memory of w from one step of k to the next?",
        choices=("1", "4", "6"),
        compute=_step_through_w,
        because="The reduction axis is the last index of the stored tensor: its neighbours are adjacent in memory.",
    ),
]
