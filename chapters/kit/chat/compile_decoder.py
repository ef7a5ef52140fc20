"""Compiles the decoder of a file. What runs it is in run_decoder.py, and needs no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass
from tvm.target import Target

from chapters.kit.chat.chat_decoder import FUNCTIONS, chat_decoder
from chapters.kit.chat.decoder_cache import Decoder
from chapters.kit.chat.weights import Weights
from chapters.kit.passes.share_tensors import ShareTensors
from chapters.kit.quantized.dot_products import dot_products
from chapters.kit.schedules.unscheduled import needs_schedule
from chapters.kit.schedules.warn_of_fallback import trace_schedulers


def add_share_tensors(phases: Mapping[str, Sequence[Pass]]) -> list[Pass]:
    """The passes of `phases` in order, and ShareTensors behind the memory plan. phases: chapter 11's."""
    memory = list(phases["memory"])
    at = [str(one.info.name) for one in memory].index("KillAfterLastUse")
    memory[at:at] = [
        ShareTensors(),
        # CallTIRRewrite leaves a tuple behind each kernel with two results: it is read directly, then by nothing
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    changed = {**phases, "memory": memory}
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
) -> Decoder:
    """The compiled decoder for `weights`.

    phases: chapter 11's function of this name, in passes.py. exact: products take x in float32, and the cache holds
    float32; without it 8 bits and float16, where the processor has instructions for products of 8 bits.
    """
    mod, names, passes = _build_decoder(weights, target, phases, exact, functions)

    @tvm.transform.module_pass(opt_level=0, name="chat")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        with target:
            return tvm.transform.Sequential(passes)(mod)

    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    return Decoder(executable, names, cache_dtype(target, exact), weights.lanes)


def kernel_passes(
    weights: Weights,
    target: Target,
    phases: Callable[..., Mapping[str, Sequence[Pass]]],
    exact: bool,
) -> dict[str, str]:
    """{kernel: the name of the pass that scheduled it}, for the decoder that `compile_decoder` compiles.

    A kernel that the model itself brings with its schedule is not in it.
    """
    mod, _, passes = _build_decoder(weights, target, phases, exact, FUNCTIONS)
    funcs = [(g.name_hint, f) for g, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    brought = {name for name, func in funcs if not needs_schedule(func)}
    _, by = trace_schedulers(mod, passes, target)
    return {name: scheduler for name, scheduler in by.items() if name not in brought}


def _build_decoder(
    weights, target, phases, exact, functions
) -> tuple[tvm.IRModule, list[str], list[Pass]]:
    """(the decoder as a module, the names of its parameters, the passes that compile it)."""
    on_gpu = target.kind.name != "llvm"
    mod, names = chat_decoder(weights, functions, cache_dtype(target, exact), on_gpu)
    bounds = {"seq_len": weights.config.context_window_size}
    return mod, names, add_share_tensors(phases(target, exact, variable_bounds=bounds))
