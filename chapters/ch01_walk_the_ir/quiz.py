"""Predict-then-run questions of chapter 1; TVM computes every answer."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from chapters.ch01_walk_the_ir.given import Small
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

Ends = relax_module("""
def main(x: (4, 6)):
    wide = R.reshape(x, (3, 8))
    out = R.reshape(wide, (24,))
""")
Rotated = relax_module("""
def main(x: (2, 3, 4)):
    a = R.permute_dims(x, axes=[1, 2, 0])
    b = R.permute_dims(a, axes=[1, 2, 0])
    c = R.permute_dims(b, axes=[1, 2, 0])
    d = R.permute_dims(c, axes=[1, 2, 0])
""")


def _four_rotations() -> str:
    vm = relax.VirtualMachine(tvm.compile(Rotated, target="llvm"), tvm.cpu())
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    for times in range(4):
        axes = [(i + times) % 3 for i in range(3)]
        if result.shape == x.transpose(axes).shape and (result == x.transpose(axes)).all():
            return str(times)
    return "none of them"


def _attribute_after_with_attr() -> str:
    mod = Ends.clone()
    mod["main"].with_attr("note", 1)
    return "yes" if "note" in (mod["main"].attrs or {}) else "no"


def _result_of_a_mutator() -> str:
    @relax.expr_functor.mutator
    class Idle(relax.PyExprMutator):
        pass

    func = Ends["main"]
    new = Idle().visit_expr(func)
    if new.same_as(func):
        return "the same object"
    return "an equal copy" if tvm_ffi.structural_equal(new, func) else "a different function"


def _launches_beside_calls() -> str:
    launches, calls = earlier(1).launches(Small)["main"], len(calls_in(Small["main"]))
    if launches == calls:
        return "as many kernels as calls"
    return "fewer kernels than calls" if launches < calls else "more kernels than calls"


PREDICT = [
    Question(
        ask="Compare the launches with the calls in this listing. Does the function launch…",
        choices=("fewer kernels than calls", "as many kernels as calls", "more kernels than calls"),
        compute=_launches_beside_calls,
        because="Some of the calls cost nothing: a reshape can become a view. Exercise 1.6 asks for the number.",
    ),
]

QUESTIONS = [
    Question(
        ask="How many kernels does main launch?",
        show=Ends.script,
        choices=("0", "1", "2"),
        compute=lambda: earlier(1).launches(Ends)["main"],
        because="A reshape inside a dataflow block becomes a view. The second reshape is the block's output, so it "
        "becomes a kernel that copies.",
    ),
    Question(
        ask="Each permute_dims rotates the three dimensions. Four of them equal how many?",
        show=Rotated.script,
        choices=("0", "1", "2"),
        compute=_four_rotations,
        because="Three rotations of three dimensions cancel, so one is left. A pass that looks at two calls at a time "
        "leaves all four, because no two neighbours cancel.",
    ),
    Question(
        ask='After mod["main"].with_attr("note", 1), does mod["main"] have the attribute?',
        choices=("no", "yes", "only under PassContext"),
        compute=_attribute_after_with_attr,
        because="Functions cannot be changed. with_attr returns a new one, which the module gets only if you store it.",
    ),
    Question(
        ask="A mutator that overrides nothing visits a function. What does it return?",
        choices=("the same object", "a different function", "an equal copy"),
        compute=_result_of_a_mutator,
        because="It builds a new function. So compare with tvm_ffi.structural_equal, not with same_as, to find out "
        "whether a pass has changed anything.",
    ),
    Question(
        ask="How many bytes does R.Tensor((3, 3), int4) take?",
        choices=("4", "5", "9"),
        compute=lambda: earlier(1).type_bytes(relax.TensorType((3, 3), "int4"), {}),
        because="Nine elements of 4 bits are 36 bits, which is 4.5 bytes, rounded up to five.",
    ),
]
