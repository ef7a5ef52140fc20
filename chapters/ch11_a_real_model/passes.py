"""The pipeline of the chat: chapter 9's phases, with this chapter's passes before FuseOps, and what it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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


def phases(target: Target, **facts) -> dict[str, list[Pass]]:
    """What chapter 9's `phases` gives, with FuseDequantizeTake and FuseDequantizeMatmul in it.

    facts: what the model's author knows, as chapter 9 takes it. Each chapter's passes are the learner's own if they
    pass their checks.
    """
    found, ours = dict(earlier(9).phases(target, **facts)), earlier(11)
    lower = list(found["graph and lower"])
    at = [str(one.info.name) for one in lower].index("FuseOps")
    lower[at:at] = [ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul()]
    return {**found, "graph and lower": lower}


def owners() -> dict[str, str]:
    """{number of a chapter in PASSES: whose passes it gives}."""
    return {str(number): whose(number) for number in PASSES}


def chat_model(
    file: GGUF, config: LlamaConfig, exact: bool, say: Callable[[str], None] = lambda text: None
) -> tuple[ChatModel, dict[str, str], bool]:
    """(the decoder of `file` on this machine, the `owners` of its passes, whether it was compiled before and kept).

    exact: with activations and the cache in float32 in place of 8 bits and float16. say: is told before it compiles,
    which takes some seconds.
    """
    by = owners()

    def compile_it() -> Decoder:
        say("Compiling the model; it is kept until a pass changes …")
        return compiled(file, config, exact)

    decoder, kept = load_or_compile((config, stored_as(file), exact), by, compile_it)
    weights = PackedWeights(file, config, decoder.lanes)
    return ChatModel(decoder.executable, weights, decoder.names, decoder.cache), by, kept


def compiled(file: GGUF, config: LlamaConfig, exact: bool) -> Decoder:
    """The decoder of `file`, compiled for this machine's processor."""
    from chapters.kit.chat.compiled import cache_dtype, compile_decoder
    from chapters.kit.machine import llvm_host
    from chapters.kit.quantized.dot_products import lanes_of

    target = llvm_host()["target"]
    lanes = lanes_of(target)
    made = compile_decoder(Weights(file, config, lanes), target, phases, exact)
    return Decoder(*made, cache_dtype(target, exact), lanes)


def stored_as(file: GGUF) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of each tensor of `file`."""
    return [(name, one.type, one.shape) for name, one in file.tensors.items()]
