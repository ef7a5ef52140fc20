"""Compiles the decoder of a file. What runs it is in run_decoder.py, and needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir.transform import Pass
from tvm.target import Target

from chapters.kit.chat.model import FUNCTIONS, chat_decoder
from chapters.kit.chat.weights import Weights
from chapters.kit.pipeline.share_tensors import ShareTensors
from chapters.kit.quantized.coded_products_on_gpu import ScheduleCodedProductsOnGPU
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.quantized.schedule_coded_products import ScheduleCodedProducts


def with_coded_passes(
    phases: Mapping[str, Sequence[Pass]], target: Target, exact: bool
) -> list[Pass]:
    """The passes of `phases` in order, with the one for coded products first among the schedules, and ShareTensors.

    phases: chapter 9's, with chapter 11's passes, which fuse `dequantize` with its readers. exact: for a CPU, see
    `compile_decoder`. Products on a GPU are always exact.
    """
    schedule = list(phases["schedule"])
    on_cpu = target.kind.name == "llvm"
    products = (
        ScheduleCodedProducts(target, exact) if on_cpu else ScheduleCodedProductsOnGPU(target)
    )
    schedule.insert(0, products)
    memory = list(phases["memory"])
    at = [str(one.info.name) for one in memory].index("KillAfterLastUse")
    memory[at:at] = [
        ShareTensors(),
        # CallTIRRewrite leaves a tuple behind each kernel with two results: it is read directly, then by nothing
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    changed = {**phases, "schedule": schedule, "memory": memory}
    return [one for phase in changed.values() for one in phase]


def cache_dtype(target: Target, exact: bool) -> str:
    """The dtype of the cache of a decoder that is compiled for `target`."""
    rounds = not exact and target.kind.name == "llvm" and dot_products(target)
    return "float16" if rounds else "float32"


def compile_decoder(
    weights: Weights,
    target: Target,
    phases: Callable[..., Mapping[str, Sequence[Pass]]],
    exact: bool = False,
    functions: Sequence[str] = FUNCTIONS,
) -> tuple[tvm.runtime.Executable, list[str]]:
    """(the executable, the names of its parameters) of the decoder for `weights`.

    phases: chapter 11's function of this name, in passes.py. exact: products take x in float32, and the cache holds
    float32; without it 8 bits and float16, where the processor has instructions for products of 8 bits.
    """
    on_gpu = target.kind.name != "llvm"
    mod, names = chat_decoder(weights, functions, cache_dtype(target, exact), on_gpu)
    bounds = {"seq_len": weights.config.context_window_size}
    passes = with_coded_passes(phases(target, variable_bounds=bounds), target, exact)

    @tvm.transform.module_pass(opt_level=0, name="chat")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return tvm.compile(mod, target, relax_pipeline=pipeline), names
