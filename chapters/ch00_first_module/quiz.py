"""Predict-then-run questions of chapter 0; TVM computes every answer."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend import nn

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

TWICE = relax_module("""
def main(x: (4, 8)):
    a = R.add(x, x)
    b = R.add(a, a)
""")


def _kernels_of_twice() -> str:
    legal = relax.transform.LegalizeOps()(TWICE)
    return str(sum(isinstance(f, tvm.tirx.PrimFunc) for f in legal.functions.values()))


def _script_equals_builder() -> str:
    first = earlier(0)
    parsed, built = first.from_script()["main"], first.from_block_builder()["main"]
    return "yes" if tvm_ffi.structural_equal(parsed, built) else "no"


def _parameters_of_a_layer() -> str:
    spec = {"forward": {"x": nn.spec.Tensor(["n", 16], "float32")}}
    mod, _weights = nn.Linear(16, 8, bias=True).export_tvm(spec=spec)
    return str(len(mod["forward"].params))


def _result_type() -> str:
    mod = relax_module('def main(x: ("n", 16), w: (16, 8)):\n    out = R.matmul(x, w)')
    rows, columns = mod["main"].ret_ty.shape
    return f"({rows}, {int(columns)})"


def _main_after_lowering() -> str:
    main = relax.transform.LegalizeOps()(earlier(0).from_script())["main"]
    called = {call.op.name for call in calls_in(main)}
    return "it calls PrimFuncs" if called == {"relax.call_tir"} else "it still calls operators"


PREDICT = [
    Question(
        ask="What becomes of `main` when LegalizeOps runs on the model?",
        choices=(
            "it still calls operators",
            "it calls PrimFuncs",
            "it is gone: PrimFuncs replace it",
        ),
        compute=_main_after_lowering,
        because="`main` stays, with as many calls as before. Each operator is replaced by a call of a PrimFunc, which "
        "holds the loops.",
    ),
]

QUESTIONS = [
    Question(
        ask="main adds twice, on the same shapes. How many PrimFuncs are there after LegalizeOps?",
        show=TWICE.script,
        choices=("0", "1", "2"),
        compute=_kernels_of_twice,
        because="Both calls need the same loops over the same shapes, so one PrimFunc is made, and called twice.",
    ),
    Question(
        ask="Is the `main` parsed from TVMScript structurally equal to the one BlockBuilder builds?",
        choices=("yes", "no", "it raises an error"),
        compute=_script_equals_builder,
        because="Both ways build the same data structure. Structural equality does not compare the names of variables.",
    ),
    Question(
        ask="nn.Linear(16, 8, bias=True) is exported. How many parameters does the exported `forward` have?",
        choices=("1", "2", "3"),
        compute=_parameters_of_a_layer,
        because="x, the weight and the bias. An exported function holds no data, so every call passes the weights.",
    ),
    Question(
        ask="x is (n, 16), w is (16, 8). What shape does TVM derive for matmul(x, w) before anything runs?",
        choices=("(n, 8)", "(?, 8)", "unknown until it runs"),
        compute=_result_type,
        because="n stays in the type as a variable, so TVM knows that x and the result have equally many rows.",
    ),
    Question(
        ask="relax.TensorType((4,)) is given no dtype. What is its dtype?",
        choices=("float32", "unknown", "float64"),
        compute=lambda: relax.TensorType((4,)).dtype,
        because="The default is float32. If you forget the dtype in a float16 model, one tensor of it is float32.",
    ),
]
