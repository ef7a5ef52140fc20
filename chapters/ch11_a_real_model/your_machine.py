"""Times the real model on this machine: `python -m chapters.ch11_a_real_model.your_machine`.

It says where the time before the first token goes, at a first start and at the next one, and how close a decode step
comes to reading its weights.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

BEGIN = time.perf_counter()  # before TVM is imported


from chapters.ch11_a_real_model.passes import chat_model, compile_model, list_types, owners  # noqa: E402
from chapters.kit.bench.cpu_bounds import make_reader  # noqa: E402
from chapters.kit.chat.decoder_cache import Decoder, load_or_compile  # noqa: E402
from chapters.kit.chat.gguf_file import GGUF, read_gguf  # noqa: E402
from chapters.kit.chat.model_cache import fetch_model  # noqa: E402
from chapters.kit.chat.packed_weights import PackedWeights  # noqa: E402
from chapters.kit.chat.run_decoder import ChatModel  # noqa: E402
from chapters.kit.chat.tokenizer import Tokenizer  # noqa: E402
from chapters.kit.chat.weights import Weights, read_config  # noqa: E402
from chapters.kit.draw.table import Table, format_duration  # noqa: E402
from chapters.kit.machine import llvm_host  # noqa: E402
from chapters.kit.measure.quantiles import measure_in_turns  # noqa: E402
from chapters.program import run_program  # noqa: E402

IMPORTED = time.perf_counter() - BEGIN
PROMPT = "What is a compiler? Answer in one sentence."
STEPS = 50


def clock(call: Callable, *arguments) -> tuple[float, object]:
    """(seconds of a call, what it returns)."""
    start = time.perf_counter()
    found = call(*arguments)
    return time.perf_counter() - start, found


def time_start(
    file: GGUF, get_decoder: Callable[[], Decoder], weights: type[Weights], prompt: Sequence[int]
) -> tuple[dict[str, float], ChatModel]:
    """({part of a start and of an answer: its seconds}, the model).

    `prompt` is fed in one call, as a whole. A step is the median of STEPS decode steps, each of which feeds the token
    that the call before it gave.
    """
    compiling, made = clock(get_decoder)
    loading, model = clock(lambda: ChatModel(made, weights(file, read_config(file), made.lanes)))
    reading, logits = clock(model.feed, prompt)
    steps = []
    for _ in range(STEPS):
        seconds, logits = clock(model.feed, [int(logits.argmax())])
        steps.append(seconds)
    step = statistics.median(steps)
    taken = {"compile": compiling, "load": loading, "prompt": reading, "one step after it": step}
    return taken, model


def main() -> int:
    try:
        file = read_gguf(fetch_model())
        tokens = Tokenizer.from_gguf(file).encode(PROMPT)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Importing TVM and the course took {format_duration(IMPORTED)}.")
    config = read_config(file)
    chat_model(file, config, exact=False)  # from now on there is a kept model
    anew = partial(compile_model, file, config, exact=False)
    facts = config, list_types(file), False, ""
    first, _ = time_start(file, anew, Weights, tokens)
    later, model = time_start(
        file, lambda: load_or_compile(facts, owners(), anew)[0], PackedWeights, tokens
    )
    rows = [(part, format_duration(first[part]), format_duration(later[part])) for part in first]
    note = f"The prompt has {len(tokens)} tokens."
    print(f"\n{Table(('part', 'first start', 'next start'), rows, note)}\n")

    read = make_reader(sum(one.nbytes for one in file.tensors.values()), llvm_host()["target"])
    at = model.length

    def step() -> list[float]:
        model.length = at  # the same step each time
        return [clock(model.feed, tokens[:1])[0]]

    found = measure_in_turns({"predicted": lambda: [clock(read)[0]], "measured": step}, STEPS)
    for name, seconds in found.items():
        print(f"{name}: {1 / seconds.median:.0f} tokens per second")
    share = found["predicted"].median / found["measured"].median
    print(f"A step reaches {share:.0%} of the speed of reading.")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
