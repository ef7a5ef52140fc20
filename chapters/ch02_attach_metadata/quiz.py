"""Predict-then-run questions of chapter 2; TVM computes every answer."""

from __future__ import annotations

import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS
from chapters.kit.pipeline.captured_kernels import captured
from chapters.kit.pipeline.planned_storage import lower, planned
from chapters.kit.quiz import Question

CHAIN = relax_module("""
def main(x: ("n", 16)):
    a = R.exp(x)
    b = R.tanh(a)
    out = R.sqrt(b)
""")

WITH_UNUSED = relax_module("""
@T.prim_func(s_tir=True, private=True)
def unused(a: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("zero"):
            vi = T.axis.spatial(4, i)
            a[vi] = T.float32(0)

def main(x: ("n", 16)):
    out = R.exp(x)
""")

FLAT = relax_module("""
def main(x: ("batch_size", "vocab_size")):
    flat = R.reshape(x, R.shape([batch_size * vocab_size]))
    one = R.exp(flat)
    out = R.exp(one)
""")


def _with(mod: tvm.IRModule, **attrs: object) -> tvm.IRModule:
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = func.with_attrs(attrs)
    return result


def _bounded(mod: tvm.IRModule, **bounds: int) -> tvm.IRModule:
    return _with(mod, tir_var_upper_bound=bounds)


def _sizes_with_another_variable() -> str:
    sizes = {str(s) for s in planned(_bounded(CHAIN, m=1024)).storages}
    if sizes == {str(s) for s in planned(CHAIN).storages}:
        return "nothing: the sizes stay symbolic"
    return "the sizes become numbers"


def _storages() -> str:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    before = len(planned(mod).storages)
    after = len(planned(_bounded(mod, batch_size=8, context_window=64)).storages)
    if after == before:
        return "as many"
    return "fewer" if after < before else "more"


def _attribute_after_planning() -> str:
    name = "relax.memory_plan_dynamic_func_output"
    attrs = lower(_with(CHAIN, **{name: True}))["main"].attrs
    return ("yes, still True" if attrs[name] else "yes, now False") if name in attrs else "no"


def _survivors() -> str:
    left = relax.transform.DeadCodeElimination()(WITH_UNUSED)
    return "it is there" if "unused" in left else "it is gone"


def _captured_with_bounds_only() -> str:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    return str(captured(_bounded(mod, batch_size=8, context_window=64), "batch_decode").captured)


def _largest_temporary() -> str:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    plan = planned(_bounded(mod, batch_size=8, context_window=64))
    sizes, tokens = CONFIGS["tiny"], 64  # of a sequence
    names = {
        8 * sizes.num_attention_heads * tokens * 4: "the attention scores",
        8 * 2 * sizes.intermediate_size * 4: "the hidden states of the feed-forward layer",
    }
    return names.get(max(storage.bytes() for storage in plan.constant), "something else")


PREDICT = [
    Question(
        ask="Which temporary tensor of that decode step is the largest?",
        choices=(
            "the attention scores",
            "the hidden states of the feed-forward layer",
            "something else",
        ),
        compute=_largest_temporary,
        because="Its size does not depend on the number of sequences: the step makes it of a weight alone.",
    ),
]

QUESTIONS = [
    Question(
        ask="You attach tir_var_upper_bound = {'m': 1024} to this function. What does the memory planner do "
        "differently?",
        show=CHAIN.script,
        choices=(
            "the sizes become numbers",
            "nothing: the sizes stay symbolic",
            "it raises an error: there is no m",
        ),
        compute=_sizes_with_another_variable,
        because="The planner looks up each variable of the signature by its name. For a misspelt name it reports no "
        "error.",
    ),
    Question(
        ask="The planner plans batch_decode without bounds, then with bounds. How many allocations does it make with "
        "them?",
        choices=("fewer", "as many", "more"),
        compute=_storages,
        because="Numbers can always be compared, so the planner can reuse a storage for every later tensor that fits "
        "into it.",
    ),
    Question(
        ask="After the memory planner has run, is relax.memory_plan_dynamic_func_output still on the function?",
        choices=("yes, still True", "yes, now False", "no"),
        compute=_attribute_after_planning,
        because="The planner removes this attribute after reading it. The bounds stay.",
    ),
    Question(
        ask="x is (batch_size, vocab_size), reshaped to one dimension, with batch_size at most 8 and no bound on "
        "vocab_size. What is the planned size of a float32 temporary of that shape?",
        choices=(
            "4 * (batch_size * vocab_size)",
            "4 * (8 * vocab_size)",
            "4 * T.Select(vocab_size >= 0, 8 * vocab_size, 0)",
        ),
        compute=lambda: planned(_bounded(FLAT, batch_size=8)).symbolic[0],
        because="If vocab_size were negative, 8 * vocab_size would not be an upper bound. tir_non_negative_var "
        "promises that it is not negative.",
    ),
    Question(
        ask="A private PrimFunc that no Relax function calls is added to a module. After DeadCodeElimination…",
        choices=("it is there", "it is gone", "the module is not well-formed"),
        compute=_survivors,
        because="Only a global_symbol tells TVM that code outside the module may call the function.",
    ),
    Question(
        ask="batch_decode gets bounds on batch_size and context_window and no hint. With the flag on, "
        "how many of its kernels does RewriteCUDAGraph capture?",
        choices=("0", "12", "47", "63"),
        compute=_captured_with_bounds_only,
        because="The transposes of weights, four per layer, have no symbolic size. They need neither a hint nor a "
        "bound.",
    ),
]
