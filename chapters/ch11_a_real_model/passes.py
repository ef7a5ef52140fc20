"""The pipeline of the chat: chapter 9's phases, with this chapter's passes before FuseOps, and what it compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from chapters.ch11_a_real_model.answers import MULTIPLY, passes_without
from chapters.kit.chat.gguf_file import GGUF
from chapters.kit.chat.kept_model import Decoder, load_or_compile
from chapters.kit.chat.packed_weights import PackedWeights
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.weights import Weights
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.runner.earlier import earlier, whose

if TYPE_CHECKING:  # a decoder that was compiled before runs without the compiler
    from tvm.ir.transform import Pass
    from tvm.target import Target

# chapters whose code compiles the decoder; 5 only matrices of floats
PASSES = (2, 3, 4, 5, 6, 7, 9, 11)


def phases(
    target: Target, exact: bool = False, without: str = "", **facts
) -> dict[str, list[Pass]]:
    """What chapter 9's `phases` gives, with this chapter's fusions in it, and the schedule of what they have fused.

    exact: on a CPU, keep x in float32; on a GPU it is always. without: the number of an exercise whose answer is
    replaced by nothing: its passes are left out, or, for MULTIPLY, one weight is multiplied at a time. facts: what the
    model's author knows, as chapter 9 takes it. Each chapter's code is the learner's own if it passes its checks.
    """
    from chapters.ch11_a_real_model.given import multiply_one_by_one
    from chapters.kit.quantized.coded_products_on_gpu import ScheduleCodedProductsOnGPU
    from chapters.kit.quantized.schedule_coded_products import ScheduleCodedProducts

    found, ours = dict(earlier(9).phases(target, **facts)), earlier(11)
    lower = list(found["graph and lower"])
    at = [str(one.info.name) for one in lower].index("FuseOps")
    lower[at:at] = [ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul()]
    if target.kind.name == "llvm":
        multiply = multiply_one_by_one if without == MULTIPLY else ours.multiply_codes
        products = ScheduleCodedProducts(target, multiply, exact)
    else:
        products = ScheduleCodedProductsOnGPU(target)
    found |= {"graph and lower": lower, "schedule": [products, *found["schedule"]]}
    left_out = passes_without(without)
    return {
        name: [one for one in passes if str(one.info.name) not in left_out]
        for name, passes in found.items()
    }


def owners() -> dict[str, str]:
    """{number of a chapter in PASSES: whose passes it gives}."""
    return {str(number): whose(number) for number in PASSES}


def chat_model(
    file: GGUF,
    config: LlamaConfig,
    exact: bool,
    say: Callable[[str], None] = lambda text: None,
    without: str = "",
) -> tuple[ChatModel, dict[str, str], bool]:
    """(the decoder of `file` on this machine, the `owners` of its passes, whether it was compiled before and kept).

    exact: with activations and the cache in float32 in place of 8 bits and float16. say: is told before it compiles,
    which takes some seconds. without: see `phases`; raises its ValueError.
    """
    by = owners()
    passes_without(without)

    def compile_it() -> Decoder:
        say("Compiling the model; it is kept until a pass changes …")
        return compiled(file, config, exact, without)

    decoder, kept = load_or_compile((config, stored_as(file), exact, without), by, compile_it)
    weights = PackedWeights(file, config, decoder.lanes)
    return ChatModel(decoder.executable, weights, decoder.names, decoder.cache), by, kept


def compiled(file: GGUF, config: LlamaConfig, exact: bool, without: str = "") -> Decoder:
    """The decoder of `file`, compiled for this machine's processor. without: see `phases`."""
    from chapters.kit.chat.compiled import cache_dtype, compile_decoder
    from chapters.kit.machine import llvm_host
    from chapters.kit.quantized.dot_products import lanes_of

    target = llvm_host()["target"]
    lanes = lanes_of(target)
    found = partial(phases, without=without)
    made = compile_decoder(Weights(file, config, lanes), target, found, exact)
    return Decoder(*made, cache_dtype(target, exact), lanes)


def stored_as(file: GGUF) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of each tensor of `file`."""
    return [(name, one.type, one.shape) for name, one in file.tensors.items()]
