"""Predict-then-run questions of chapter 10; TVM computes every answer."""

from __future__ import annotations

import warnings

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.ch10_imported_models import layers
from chapters.ch10_imported_models.given import cuda_source
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.ir.relax_effects import calls_in
from chapters.kit.quiz import Question
from chapters.kit.schedules.warn_of_fallback import FallbackWarning
from chapters.runner.earlier import earlier

NORM = """
def main(x: (8, 8), r: (8, 8), w: (8,)):
    h = R.add(x, r)
    mean = R.mean(R.power(h, R.const(2.0)), axis=[-1], keepdims=True)
    out = R.multiply(w, R.multiply(h, R.rsqrt(R.add(mean, R.const(1e-05)))))
    return h, out
"""
HALF = """
def main(x: (4, 8, "float16"), w: (8, "float16")):
    wide = R.astype(x, "float32")
    scale = R.rsqrt(R.add(R.mean(R.power(wide, R.const(2.0)), axis=[-1], keepdims=True), R.const(0.01)))
    narrow = R.astype(R.multiply(wide, scale), "float16")
    out = R.multiply(w, narrow)
"""
TIED = """
def main(ids: (7, "int32"), x: (7, 24)):
    rows = R.take(TABLE, ids, axis=0)
    out = R.matmul(R.add(x, rows), R.permute_dims(TABLE))
"""
FEED_FORWARD = """
def main(x: (7, 24), w: (24,), up: (40, 24), up_b: (40,), down: (24, 40), down_b: (24,)):
    mean = R.mean(R.power(x, R.const(2.0)), axis=[-1], keepdims=True)
    norm = R.multiply(R.multiply(x, R.rsqrt(R.add(mean, R.const(1e-05)))), w)
    wide = R.nn.gelu(R.add(up_b, R.matmul(norm, R.permute_dims(up))))
    out = R.add(x, R.add(down_b, R.matmul(wide, R.permute_dims(down))))
"""
SCORES = """
def main(q: (4, 1, 64), k: (4, 48, 64)):
    out = R.nn.softmax(R.matmul(q, R.permute_dims(k, [0, 2, 1])))
"""
PRODUCT = "def main(x: (7, 24)):\n    out = R.matmul(x, W)"


def _weight(*shape: int) -> relax.Expr:
    return relax.const(np.ones(shape, "float32"))


def _operators(mod: tvm.IRModule) -> list[str]:
    return [call.op.name.removeprefix("relax.") for call in calls_in(mod["main"])]


def _launches(mod: tvm.IRModule) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        lowered, _ = layers.compile_layer(mod)
    return str(len(calls_in(lowered["main"])))


def _half() -> str:
    after = _operators(earlier(10).RecognizeRMSNorm()(relax_module(HALF)))
    found = {
        ("nn.rms_norm",): "rms_norm with the weight inside",
        ("nn.rms_norm", "multiply"): "rms_norm, and a multiplication by the weight",
    }
    return found.get(tuple(after), "nothing changes")


def _transposes_at_run_time() -> str:
    mod = earlier(10).canonicalize()(relax_module(PRODUCT, W=_weight(24, 40)))
    lowered, by = layers.compile_layer(mod)
    names = [gvar.name_hint for gvar in lowered.get_global_vars()]
    if any("transpose" in name for name in names):
        return "one kernel per call"
    return (
        "none: it is part of the product's kernel"
        if "NT_matmul" in by
        else "none: the product has (k, n)"
    )


def _embedding() -> str:
    """How many constants a graph with a tied embedding has, after the canonical form."""
    mod = earlier(10).canonicalize()(relax_module(TIED, TABLE=_weight(96, 24)))
    shapes: set[tuple[int, ...]] = set()

    def note(expr: tvm.ir.Expr) -> None:
        if (
            isinstance(expr, GenericConst)
            and isinstance(expr.ty, relax.TensorType)
            and expr.ty.ndim == 2
        ):
            shapes.add(tuple(int(dim) for dim in expr.ty.shape))

    relax.analysis.post_order_visit(mod["main"], note)
    return "one copy, (96, 24)" if shapes == {(96, 24)} else "two copies, (96, 24) and (24, 96)"


def _took() -> str:
    func = tvm.IRModule({"main": linear_bias(128, 128, 128, "float16")})
    target: Target = DLIGHT_CUDA
    with target:
        mod = dl.ApplyDefaultSchedule(dl.gpu.Matmul())(func)
    if "tirx.is_scheduled" not in (mod["main"].attrs or {}):
        return "the rule declines"
    on_cores = "mma_sync" in cuda_source(mod, target)
    return "the code uses tensor cores" if on_cores else "the code multiplies number by number"


def _scheduled_the_scores() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        _, by = layers.compile_layer(relax_module(SCORES))
    return next(name for kernel, name in by.items() if "matmul" in kernel)


def _operators_of_a_norm() -> str:
    import torch  # for the lesson alone: `python -m chapters quiz 10` does without

    from chapters.kit.models.from_torch import import_program

    norm = torch.nn.RMSNorm(24, eps=1e-5).eval()
    return str(len(_operators(import_program(norm, (torch.randn(7, 24),)))))


def _layers_that_fuse() -> str:
    graphs = {
        "for `Linear`": relax_module(
            "def main(x: (7, 24), w: (40, 24)):\n    out = R.matmul(x, R.permute_dims(w))"
        ),
        "for GPT-2's layer": relax_module(
            "def main(x: (7, 24), w: (24, 40)):\n    out = R.matmul(x, w)"
        ),
    }
    fuse = earlier(3).FuseTransposeMatmul()
    found = [name for name, mod in graphs.items() if "matmul" not in _operators(fuse(mod))]
    return found[0] if len(found) == 1 else "for both" if found else "for neither"


PREDICT = [
    Question(
        ask="A model has `torch.nn.RMSNorm`. How many Relax operators does the importer make of it?",
        choices=("1", "3", "6"),
        compute=_operators_of_a_norm,
        because="The exporter spells the norm out: a power, a mean, an addition, a root and two products.",
    ),
    Question(
        ask="For which layer does chapter 3's pass find something?",
        choices=("for `Linear`", "for GPT-2's layer", "for both"),
        compute=_layers_that_fuse,
        because="The pass looks for a `permute_dims` and a `matmul`. GPT-2's layer multiplies by its weight as it is "
        "stored, so its graph has no transpose.",
    ),
    Question(
        ask="How many kernels does the compiled model of 14 operators launch?",
        choices=("3", "6", "14"),
        compute=lambda: _launches(earlier(10).canonicalize()(relax_module(FEED_FORWARD))),
        because="One for the norm, and one for each product. A product's kernel also computes the operators that "
        "follow it.",
    ),
]

QUESTIONS = [
    Question(
        ask="This graph is a residual and a norm, as exported. How many kernels does the pipeline launch for it, "
        "without the canonical form?",
        choices=("1", "3", "7"),
        compute=lambda: _launches(relax_module(NORM)),
        because="FuseOps joins the mean and the operators after it. The add and the power stay kernels of their own. "
        "From the canonical form, chapter 4 makes one kernel.",
        show=NORM,
    ),
    Question(
        ask="A float16 model computes its norm in float32, and rounds it before it multiplies by the weight. What does "
        "RecognizeRMSNorm make of it?",
        choices=(
            "rms_norm with the weight inside",
            "rms_norm, and a multiplication by the weight",
            "nothing changes",
        ),
        compute=_half,
        because="With the weight inside, the result would be rounded once instead of twice, and the numbers would "
        "change.",
        show=HALF,
    ),
    Question(
        ask="RecognizeLinear adds a permute_dims to this graph. What does the transpose cost when the model runs?",
        choices=(
            "one kernel per call",
            "none: it is part of the product's kernel",
            "none: the product has (k, n)",
        ),
        compute=_transposes_at_run_time,
        because="The constant was transposed while the model was compiled. FuseTransposeMatmul moves permute_dims into "
        "the product's kernel.",
        show=PRODUCT,
    ),
    Question(
        ask="In this graph, the embedding's table is also the weight of the head. How many copies of it does the "
        "canonical graph have?",
        choices=("one copy, (96, 24)", "two copies, (96, 24) and (24, 96)", "three copies"),
        compute=_embedding,
        because="The head already has the form matmul(x, permute_dims(w)), so the rule does not change it.",
        show=TIED,
    ),
    Question(
        ask="dlight's rule Matmul is given a float16 product for sm_90a. What is true of the result?",
        choices=(
            "the rule declines",
            "the code uses tensor cores",
            "the code multiplies number by number",
        ),
        compute=_took,
        because="The rule takes the kernel but does not use the tensor cores, because it cannot read the number in "
        "90a. Only the generated code shows it.",
    ),
    Question(
        ask="In each of four heads, one query is multiplied by 48 keys. Which pass schedules that product, on a CPU?",
        choices=("ScheduleMatmuls", "TileProducts", "ApplyCPUFallback"),
        compute=_scheduled_the_scores,
        because="The keys are not one matrix, so chapter 5 has no schedule for them. TileProducts would copy all keys "
        "to multiply each by a single row. So the fallback is left.",
        show=SCORES,
    ),
]
