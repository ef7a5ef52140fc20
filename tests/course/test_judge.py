"""The judge of module passes: of its eight looks, the first that is not right is the one that fails."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from chapters.checking.judge import judge_pass, same_numbers
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.runner.failure import CheckFailed

TWICE = kernel("twice(a, b)", (4, 6), "b[at] = a[at] + a[at]")
ONE_KERNEL = """
def main(x: (4, 6)):
    twice = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((4, 6), "float32"))
    out = R.exp(twice)
"""
MOD = relax_module("def main(x: (4, 6)):\n    out = R.exp(R.add(x, x))")
FUSED = relax_module(TWICE + ONE_KERNEL)
THREE_TIMES = relax_module(
    kernel("twice(a, b)", (4, 6), "b[at] = a[at] * T.float32(3)") + ONE_KERNEL
)
# the kernel leaves the last row as it is
THREE_ROWS = relax_module(TWICE.replace("T.grid(4, 6)", "T.grid(3, 6)") + ONE_KERNEL)


def _in_place(mod: tvm.IRModule) -> tvm.IRModule:
    mod["main"] = FUSED["main"].with_attr("seen", 1)
    return mod


def _undefined(_mod: tvm.IRModule) -> tvm.IRModule:
    """A module that returns a variable of another function."""
    x, other = (relax.Var(name, relax.TensorType((4, 6), "float32")) for name in "xy")
    return tvm.IRModule(
        {"main": relax.Function([x], other, x.ty).with_attr("global_symbol", "main")}
    )


def _grows(mod: tvm.IRModule) -> tvm.IRModule:
    """Right the first time; each further run adds an operator that changes nothing."""
    if mod["main"].body.blocks[0].bindings[0].value.op == tvm.ir.Op.get("relax.add"):
        return FUSED.clone()
    more = ONE_KERNEL.replace("R.exp(twice)", "R.exp(R.negative(R.negative(twice)))")
    return relax_module(TWICE + more)


LOOKS = {
    "calls": {"add": 0, "call_tir": 1},
    "fewer": ("functions", lambda mod: len(mod.functions), 1),
}
WRONG = [
    (lambda mod: None, {}, "returned None, not an IRModule"),
    (_in_place, {}, "changed the module it was given"),
    (_undefined, {}, "not well-formed"),
    (lambda mod: mod, LOOKS, "leaves the wrong calls in a sum"),
    (lambda mod: FUSED, {"stays": True}, "changes a sum, which it must leave alone"),
    (lambda mod: THREE_TIMES, LOOKS, "changes the numbers of a sum"),
    (lambda mod: THREE_ROWS, LOOKS, "changes the numbers of a sum"),
    (_grows, LOOKS, "changed its own result when it ran a second time"),
    (lambda mod: FUSED, LOOKS, "has 2 functions, and 1 without it"),
]


@pytest.mark.parametrize(("transform", "looks", "said"), WRONG)
def test_the_first_look_that_is_not_right_fails(transform, looks, said):
    with pytest.raises(CheckFailed) as failed:
        judge_pass(transform, MOD, "Fuse", "a sum", **looks)
    assert said in failed.value.failure.what


def test_what_is_right_passes():
    looks = {**LOOKS, "fewer": ("functions", lambda mod: len(mod.functions), -1)}
    assert judge_pass(lambda mod: FUSED, MOD, "Fuse", "a sum", **looks).same_as(FUSED)


def test_an_element_that_no_kernel_writes_is_not_a_number():
    with pytest.raises(CheckFailed) as failed:
        same_numbers(MOD, THREE_ROWS, "Fuse", "a sum")
    assert "6 of 24 elements are off, 6 of them NaN" in failed.value.failure.yours


def test_both_values_of_a_condition_are_run():
    """Only where the condition is false does the result differ."""
    text = """
def main(x: (3,), c: ("bool",)):
    if c:
        out = R.exp(x)
    else:
        out = R.{}(x)
    return out
"""
    modules = [relax_module(text.format(name)) for name in ("negative", "abs")]
    with pytest.raises(CheckFailed):
        same_numbers(*modules, "Fuse", "a branch")


def test_of_many_functions_the_one_that_differs_is_named():
    text = "def one(x: (3,)):\n    out = R.exp(x)\n\ndef two(x: ('n', 3)):\n    out = R.{}(x)\n"
    modules = [relax_module(text.format(name)) for name in ("negative", "abs")]
    with pytest.raises(CheckFailed) as failed:
        same_numbers(*modules, "Fuse", "two functions")
    assert failed.value.failure.what == "Fuse changes the numbers of two functions, in `two`."
