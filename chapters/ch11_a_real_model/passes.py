"""The pipeline of the chat: chapter 9's phases, with this chapter's passes before FuseOps, and what it compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from chapters.kit.chat.decoder_cache import Decoder, load_or_compile
from chapters.kit.chat.gguf_file import GGUF
from chapters.kit.chat.packed_weights import PackedWeights
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.weights import Weights
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.runner.earlier import describe_owner, earlier

if TYPE_CHECKING:  # a decoder that was compiled before runs without the compiler
    from tvm.ir.transform import Pass
    from tvm.target import Target

# chapters whose code compiles the decoder; 5 only matrices of floats
PASSES = (2, 3, 4, 5, 6, 7, 9, 11)
MULTIPLY = "11.4"  # a function in place of a pass: without it, one weight is multiplied at a time
# an exercise, or a chapter: the passes that do nothing without it
PASSES_OF = {
    "3": ("FuseTransposeMatmul",),
    "4": ("FuseAddRMSNorm",),
    "6": ("FuseEpilogues",),
    "7": ("FuseEpilogues",),
    "9.1": ("BindKnownSizes",),
    "9.3": ("FuseEpilogues",),
    "9.4": ("ScheduleMatmuls",),
    "11.3": ("FuseDequantizeTake", "FuseDequantizeMatmul"),
}


def phases(
    target: Target, exact: bool = False, without: str = "", **facts
) -> dict[str, list[Pass]]:
    """What chapter 9's `phases` gives, with this chapter's fusions in it, and the schedule of what they have fused.

    exact: on a CPU, keep x in float32; on a GPU it is always. without: the number of an exercise whose answer is
    replaced by nothing: its passes are left out, or, for MULTIPLY, one weight is multiplied at a time. facts: what the
    model's author knows, as chapter 9 takes it. Each chapter's code is the learner's own if it passes its checks.
    """
    from chapters.ch11_a_real_model.given import multiply_one_by_one
    from chapters.kit.quantized.quantized_matmuls_on_gpu import ScheduleQuantizedMatmulsOnGPU
    from chapters.kit.quantized.schedule_quantized_matmuls import ScheduleQuantizedMatmuls

    found, ours = dict(earlier(9).phases(target, **facts)), earlier(11)
    lower = list(found["graph and lower"])
    at = [str(one.info.name) for one in lower].index("FuseOps")
    lower[at:at] = [ours.FuseDequantizeTake(), ours.FuseDequantizeMatmul()]
    if target.kind.name == "llvm":
        multiply = multiply_one_by_one if without == MULTIPLY else ours.multiply_codes
        products = ScheduleQuantizedMatmuls(target, multiply, exact)
    else:
        products = ScheduleQuantizedMatmulsOnGPU(target)
    found |= {"graph and lower": lower, "schedule": [products, *found["schedule"]]}
    left_out = passes_without(without)
    return {
        name: [one for one in passes if str(one.info.name) not in left_out]
        for name, passes in found.items()
    }


def owners() -> dict[str, str]:
    """{number of a chapter in PASSES: whose passes it gives}."""
    return {str(number): describe_owner(number) for number in PASSES}


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
        return compile_model(file, config, exact, without)

    decoder, kept = load_or_compile((config, list_types(file), exact, without), by, compile_it)
    weights = PackedWeights(file, config, decoder.lanes)
    return ChatModel(decoder, weights), by, kept


def compile_model(
    file: GGUF,
    config: LlamaConfig,
    exact: bool,
    without: str = "",
    target: Target | None = None,
) -> Decoder:
    """The decoder of `file`, compiled for `target`, or for this machine's processor. without: see `phases`."""
    from chapters.kit.chat.compile_decoder import compile_decoder
    from chapters.kit.machine import llvm_host
    from chapters.kit.quantized.dot_products import lanes_of

    target = target or llvm_host()["target"]
    weights = Weights(file, config, lanes_of(target))
    return compile_decoder(weights, target, partial(phases, without=without), exact)


def list_types(file: GGUF) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of each tensor of `file`."""
    return [(name, one.type, one.shape) for name, one in file.tensors.items()]


# --- which exercises the pipeline uses, for `chat --without` and `chat --explain` -------------------------


def passes_without(exercise: str) -> tuple[str, ...]:
    """The names of the passes that are left out if `exercise` is answered by nothing; none for "" and MULTIPLY.

    Raises ValueError in one sentence if the pipeline does not use the exercise, or does not work without it.
    """
    if exercise in ("", MULTIPLY):
        return ()
    found = PASSES_OF.get(exercise) or PASSES_OF.get(exercise.split(".")[0])
    if found is None:
        known = ", ".join(
            sorted([*PASSES_OF, MULTIPLY], key=lambda one: [*map(int, one.split("."))])
        )
        raise ValueError(
            f"The model cannot be compiled without exercise {exercise}, or does not use it; --without takes one of "
            f"{known}, where a chapter's number stands for each exercise of it."
        )
    return found


def find_exercise(pass_name: str) -> str | None:
    """The exercise or chapter whose answer the pass runs; None for a pass that is given."""
    if pass_name == "ScheduleQuantizedMatmuls":
        return f"11.3, {MULTIPLY}"
    exercises = [exercise for exercise, names in PASSES_OF.items() if pass_name in names]
    return exercises[-1] if exercises else None
