"""Predict-then-run questions of chapter 3; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.cases.example_programs import linear_layer
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.read_order import read_order
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

Cube = relax_module("""
def main(x: (4, 4, 4), w: (4, 4, 4)):
    wt = R.permute_dims(w)
    out = R.matmul(x, wt)
""")
Returned = relax_module("""
def main(x: (4, 6), y: (2, 6), w: (7, 6)):
    wt = R.permute_dims(w)
    a = R.matmul(x, wt)
    b = R.matmul(y, wt)
    return a, b, wt
""")
Gram = relax_module("""
def main(x: (4, 6)):
    wt = R.permute_dims(x)
    out = R.matmul(x, wt)
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
        because="Without axes, permute_dims reverses all dimensions. On a matrix that is the exchange of the last "
        "two. On three dimensions the batch moves too. Here all sizes are equal, so only the axes show it.",
    ),
    Question(
        ask="Two matmuls share a transpose, which is also returned. How many permute_dims are left after the pass?",
        show=Returned.script,
        choices=("0", "1", "2", "3"),
        compute=lambda: _count(_fused(Returned), "relax.permute_dims"),
        because="Both matmuls become kernels that read w as it is stored. The original transpose stays, because the "
        "function returns it.",
    ),
    Question(
        ask="The pass groups x @ x.T into a composite. How many parameters does the composite have?",
        show=Gram.script,
        choices=("1", "2", "3"),
        compute=_parameters_of_a_composite,
        because="A composite has one parameter per distinct tensor, in order of first use. So look operands up, and do "
        "not take them by position.",
    ),
    Question(
        ask="What does TVM's own FuseTransposeMatmul do with x @ x.T?",
        choices=("it fuses", "it leaves it alone", "it raises an IndexError"),
        compute=_built_in,
        because="It takes the second argument of the composite's call, which has only one. A pass that raises an error "
        "ends the compilation, although the module is correct.",
    ),
    Question(
        ask="From one iteration of k to the next, how many elements further does NT_matmul read in the memory of w?",
        choices=("1", "4", "6"),
        compute=_step_through_w,
        because="The reduction axis is the last index of the stored tensor, and the last index walks through adjacent "
        "elements.",
    ),
]

PREDICT = QUESTIONS[:1]  # the lesson asks it at its beginning
