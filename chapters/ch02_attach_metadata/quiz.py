"""Predict-then-run questions of chapter 2; TVM computes every answer."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS
from chapters.kit.measure.captured_kernels import count_captured
from chapters.kit.passes.planned_storage import lower, plan_storage
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

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

DOUBLE = kernel("double(a, b)", (4,), "b[at] = a[at] * T.float32(2)")
HALVE = relax_module(DOUBLE.replace("T.float32(2)", "T.float32(0.5)"))["double"]
CALLS_DOUBLE = relax_module(f"""{DOUBLE}
def main(x: (4,)):
    out = R.call_tir(cls.double, (x,), out_ty=R.Tensor((4,), "float32"))
""")

TWO_SIZES = relax_module("""
def main(x: ("m", "n")):
    a = R.exp(x)
    b = R.tanh(a)
    c = R.sqrt(b)
    out = R.add(c, x)
""")

FLAT = relax_module("""
def main(x: ("batch_size", "vocab_size")):
    flat = R.reshape(x, R.shape([batch_size * vocab_size]))
    one = R.exp(flat)
    out = R.exp(one)
""")


def _bounded(mod: tvm.IRModule, **bounds: int) -> tvm.IRModule:
    key = "tir_var_upper_bound"
    return earlier(2).map_relax_functions(mod, lambda _name, func: func.with_attr(key, bounds))


def _sizes_with_another_variable() -> str:
    sizes = {str(s) for s in plan_storage(_bounded(CHAIN, m=1024)).storages}
    if sizes == {str(s) for s in plan_storage(CHAIN).storages}:
        return "nothing: the sizes stay symbolic"
    return "the sizes become numbers"


def _batch_decode() -> tvm.IRModule:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    return _bounded(mod, batch_size=8, context_window=64)


def _left_without_the_plan_attribute() -> str:
    left, symbolic = plan_storage(_batch_decode()).unplanned, plan_storage(_batch_decode()).symbolic
    if not left:
        return "nothing"
    return "the output, in every call" if len(left) == 1 and symbolic else "all tensors"


def _misspelt_hint() -> str:
    hint = earlier(2).AttachCUDAGraphSymbolicCaptureHints
    names = ["batch_size", "context_window"]
    try:
        wrong = count_captured(
            hint({"batch-decode": names})(_batch_decode()), "batch_decode"
        ).captured
    except Exception:
        return "the pass raises an error"
    right = count_captured(hint({"batch_decode": names})(_batch_decode()), "batch_decode").captured
    if wrong == right:
        return "as many are captured as without the misprint"
    return (
        "fewer are captured, without a message" if wrong else "none is captured, without a message"
    )


def _one_hint_for_two_sizes() -> str:
    mod = _bounded(TWO_SIZES, m=64, n=64)
    func = mod["main"].with_attr("relax.rewrite_cuda_graph.capture_symbolic_vars", ["m"])
    mod["main"] = func
    return ("neither", "one of them", "both")[count_captured(mod, "main").captured]


def _kernel_of_the_same_name() -> str:
    mod = CALLS_DOUBLE.clone()
    try:
        mod["double"] = HALVE
    except Exception:
        return "TVM raises an error"
    main = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())["main"]
    doubled = main(tvm.runtime.tensor(np.ones(4, "float32"))).numpy()[0] == 2
    return f"main calls {'double, as before' if doubled else 'yours'}"


def _without_stages() -> str:
    mod = _batch_decode()
    staged = lower(earlier(2).AttachPipelineParallelStages(2)(mod))
    staged["batch_decode"] = staged["batch_decode"].without_attr("pipeline_parallel_stages")
    if tvm_ffi.structural_equal(staged, lower(mod)):
        return "nothing"
    return "the function is no longer cut in two"


def _largest_temporary() -> str:
    mod, _ = decoder("tiny", functions=["batch_decode"])
    plan = plan_storage(_bounded(mod, batch_size=8, context_window=64))
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
        ask="batch_decode has its two bounds, and you leave AttachMemoryPlanAttr out. What is allocated outside of the "
        "planner's storages?",
        choices=("nothing", "the output, in every call", "all tensors"),
        compute=_left_without_the_plan_attribute,
        because="The planner reads this attribute. Without it, the planner leaves an output of symbolic size alone. A "
        "server then allocates new memory for the logits in each call.",
    ),
    Question(
        ask='A misprint: AttachCUDAGraphSymbolicCaptureHints gets {"batch-decode": …}, and the function is called '
        "batch_decode. Its bounds are right. What becomes of its kernels?",
        choices=(
            "the pass raises an error",
            "fewer are captured, without a message",
            "none is captured, without a message",
            "as many are captured as without the misprint",
        ),
        compute=_misspelt_hint,
        because="The pass ignores names that the module lacks, so that one set of hints serves several models. "
        "RewriteCUDAGraph then finds no hint, and captures only kernels without a symbolic size: the transposes of "
        "weights. Count what is captured; no message says it.",
    ),
    Question(
        ask="Two symbolic sizes, both with a bound. Only m has a hint, and the flag is on. Which of tanh and sqrt are "
        "captured?",
        show=TWO_SIZES.script,
        choices=("both", "one of them", "neither"),
        compute=_one_hint_for_two_sizes,
        because="A replay uses the sizes that were recorded. So every symbolic size of a kernel needs a hint, and a "
        "bound for its address. A function without symbolic sizes needs only the flag.",
    ),
    Question(
        ask="You leave AttachPipelineParallelStages(2) out, and compile with TVM. What else changes in the lowered "
        "function?",
        choices=("nothing", "the function is no longer cut in two", "the cache is no longer split"),
        compute=_without_stages,
        because="No pass of TVM reads pipeline_parallel_stages. A pass of MLC-LLM does. Without a reader, an attribute "
        "changes nothing.",
    ),
    Question(
        ask="x is (batch_size, vocab_size), reshaped to one dimension, with batch_size at most 8 and no bound on "
        "vocab_size. What is the planned size of a float32 temporary of that shape?",
        choices=(
            "4 * (batch_size * vocab_size)",
            "4 * (8 * vocab_size)",
            "4 * T.Select(vocab_size >= 0, 8 * vocab_size, 0)",
        ),
        compute=lambda: plan_storage(_bounded(FLAT, batch_size=8)).symbolic[0],
        because="If vocab_size were negative, 8 * vocab_size would not be an upper bound. tir_non_negative_var "
        "promises that it is not negative.",
    ),
    Question(
        ask="The function main calls the kernel double. You add a kernel of yours to the module, and do not know that "
        'its name is taken: mod["double"] = yours. What happens?',
        choices=("TVM raises an error", "main calls double, as before", "main calls yours"),
        compute=_kernel_of_the_same_name,
        because="The assignment replaces a function without a message, and a call finds its function by the GlobalVar. "
        "So AttachAdditionalPrimFuncs compares the two functions first, and refuses a name that is taken.",
    ),
]
