"""Predict-then-run questions of chapter 9; TVM computes every answer."""

from __future__ import annotations

import functools
import textwrap
from dataclasses import replace

import tvm
from tvm import relax, tirx
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import CONFIGS
from chapters.kit.gpu.targets import DLIGHT_CUDA as CUDA
from chapters.kit.passes.planned_storage import plan_storage
from chapters.kit.quiz import Question
from chapters.runner.earlier import earlier

LLVM = Target("llvm")
LINEAR = """
def main(x: (64, 128), w: (256, 128), b: (256,)):
    out = R.add(R.matmul(x, R.permute_dims(w)), b)
"""


@functools.cache
def _decode(dtype: str = "float32") -> tvm.IRModule:
    return decoder("tiny", dtype, ["decode"])[0]


@functools.cache
def _decode_of(layers: int) -> tvm.IRModule:
    config = replace(CONFIGS["tiny"], num_hidden_layers=layers)
    return decoder(config, "float32", ["decode"])[0]


def _through(target: Target, last: str, mod: tvm.IRModule | None = None, **facts) -> tvm.IRModule:
    """`mod`, or a decode step of `tiny`, after the phases up to `last`."""
    found = earlier(9).phases(target, **facts)
    names = list(found)[: list(found).index(last) + 1]
    if mod is None:
        mod = _decode("float32" if target is LLVM else "float16")
    with target:
        return tvm.transform.Sequential([one for name in names for one in found[name]])(mod)


def _error_of_a_late_pass() -> str:
    """Whether FuseTransposeMatmul after LegalizeOps raises, or changes anything."""
    lowered = relax.transform.LegalizeOps()(_decode())
    try:
        after = earlier(3).FuseTransposeMatmul()(lowered)
    except Exception:
        return "it raises an error"
    return "it changes nothing" if after.same_as(lowered) else "it fuses the pairs anyway"


def _rule_for_the_head() -> str:
    """Which of dlight's rules takes the head of `tiny` for CUDA, once GEMV declines."""
    rules = (dl.gpu.Matmul(), dl.gpu.Reduction(), dl.gpu.Fallback())
    mod = _through(CUDA, "graph and lower", metadata={"vocab_size": 500})
    kernels = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    head = next(func for func in kernels if _rows(func) == 500)
    with CUDA:
        return next(type(rule).__name__ for rule in rules if rule.apply(head, CUDA, False))


def _rows(func: tirx.PrimFunc) -> int:
    shape = func.params[0].shape
    return int(shape[0]) if isinstance(shape[0], tirx.IntImm) else 0


def _planned_memory() -> str:
    """Which tensor of a decode step is the largest storage of TVM's default plan."""
    sizes = {"context_window": 64, "vocab_size": 500}
    largest = max(storage.bytes(sizes) for storage in plan_storage(_decode()).storages)
    weights = {128 * 704 * 4: "a weight, transposed", 128 * 500 * 4: "the head, transposed"}
    return weights.get(largest, "the attention scores")


def _calls_of_one_layer() -> str:
    """The calls in a decode step of one layer, in order, by the names of operators and kernels."""
    found = [b.value for block in _decode_of(1)["decode"].body.blocks for b in block.bindings]
    names = [
        call.args[0].name_hint if "call_tir" in call.op.name else call.op.name.rpartition(".")[2]
        for call in found
        if isinstance(call, relax.Call)
    ]
    return textwrap.fill(", ".join(names), 90)


def _launches_of_one_layer() -> str:
    """How many launches one more layer adds to a decode step, by TVM's default pipeline and by ours."""

    def added(*steps: tvm.IRModule) -> int:
        one, two = (earlier(1).launches(mod)["decode"] for mod in steps)
        return two - one

    steps = [_decode_of(layers) for layers in (1, 2)]
    ours = (_through(LLVM, "graph and lower", mod) for mod in steps)
    return f"{added(*steps)} and {added(*ours)}"


def _products() -> list[tirx.PrimFunc]:
    """The different products of a decode step of three layers, scheduled by chapter 5 where it can."""
    mod = earlier(5).schedule_kernels(_through(LLVM, "graph and lower"), LLVM)
    return [mod[g] for g in mod.get_global_vars() if g.name_hint.startswith("NT_matmul")]


def _symbolic_dimensions() -> str:
    """Which dimensions of a batch's decode step are symbolic after the attach phase."""
    mod, _ = decoder("tiny", "float32", ["batch_decode"])
    metadata = {"vocab_size": 500, "batch_size": 16}
    passes = earlier(9).phases(LLVM, variable_bounds={"batch_size": 16}, metadata=metadata)
    with LLVM:
        found = tvm.transform.Sequential(passes["attach"])(mod)["batch_decode"]
    left = {var.name for var in relax.analysis.defined_symbolic_vars(found)}
    return ", ".join(sorted(left & {"batch_size", "vocab_size"})) or "neither"


def _layer_after_its_epilogue() -> str:
    """Who schedules a product with a bias, if FuseEpilogues comes first."""
    mod = relax_module(LINEAR)
    passes = {name: list(found) for name, found in earlier(9).phases(LLVM).items()}
    schedules = passes["schedule"]
    names = [one.info.name for one in schedules]
    schedules.insert(names.index("ScheduleMatmuls"), schedules.pop(names.index("FuseEpilogues")))
    before = [*passes["attach"], *passes["graph and lower"]]
    with LLVM:
        mod = tvm.transform.Sequential(before)(mod)
        for one in schedules:
            mod = one(mod)
            kernels = [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]
            if all("tirx.is_scheduled" in (func.attrs or {}) for func in kernels):
                return one.info.name
    return "none of the passes"


QUESTIONS = [
    Question(
        ask="FuseTransposeMatmul runs on a decoder that LegalizeOps has already lowered. What does it do?",
        choices=("it changes nothing", "it raises an error", "it fuses the pairs anyway"),
        compute=_error_of_a_late_pass,
        because="It looks for permute_dims and matmul, but LegalizeOps has replaced both by calls of kernels.",
    ),
    Question(
        ask="The decoder has three layers with four products each, and a head. How many product kernels are compiled?",
        choices=("4", "5", "13"),
        compute=lambda: len(_products()),
        because="Equal kernels share one PrimFunc, which every layer calls: four shapes per layer, and the head's.",
    ),
    Question(
        ask="Without a vocab_size in the metadata, how many of these kernels get no schedule from chapter 5?",
        choices=("0", "1", "5"),
        compute=lambda: sum("tirx.is_scheduled" not in (f.attrs or {}) for f in _products()),
        because="The head's weight then has a symbolic number of rows. In most models it is the largest weight.",
    ),
    Question(
        ask="In TVM's default plan for a decode step of `tiny`, which tensor needs the largest storage?",
        choices=("the attention scores", "the head, transposed", "a weight, transposed"),
        compute=_planned_memory,
        because="It is the transposed copy of gate_up_proj. Without transposes, no storage of that size is planned.",
    ),
    Question(
        ask="The caller passes `variable_bounds={'batch_size': 16}` and the metadata `{'vocab_size': 500, "
        "'batch_size': 16}`. Which of the two dimensions is still symbolic after the attach phase?",
        choices=("batch_size", "neither", "batch_size, vocab_size"),
        compute=_symbolic_dimensions,
        because="A batch has 16 sequences at most, and 3 today: that is a bound. Bound to 16, the function would "
        "refuse 3. The vocabulary is the same in every call, so its number is a size.",
    ),
    Question(
        ask="FuseEpilogues is moved before ScheduleMatmuls, on a CPU. Which pass then schedules this layer?",
        choices=("ScheduleMatmuls", "TileProducts", "ApplyCPUFallback"),
        compute=_layer_after_its_epilogue,
        because="FuseEpilogues makes one block of the product and its bias. The schedules of products do not know that "
        "form, so the layer is left to the fallback.",
        show=LINEAR,
    ),
    Question(
        ask="For CUDA, GEMV declines the head of `tiny`, 500 rows. Which of the next rules schedules it?",
        choices=("Matmul", "Reduction", "Fallback"),
        compute=_rule_for_the_head,
        because="A product of one row is a reduction. This rule uses one block of threads per result, so each is full.",
    ),
    Question(
        ask="These are the calls in a decode step of one layer. The decoder gets one more layer. How many more kernels "
        "does the step launch then, compiled by TVM's default pipeline and by yours?",
        show=_calls_of_one_layer,
        choices=("16 and 12", "20 and 12", "20 and 16", "22 and 14"),
        compute=_launches_of_one_layer,
        because="Both reshapes become views. Yours has none of the layer's four transposes, computes its two residual "
        "sums in the norms behind them, and makes one kernel of split, silu and multiply.",
    ),
]

PREDICT = QUESTIONS[:1]  # the lesson asks it at its beginning
