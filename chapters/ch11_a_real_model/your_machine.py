"""Times the real model on this machine: `python -m chapters.ch11_a_real_model.your_machine`.

It says where the time before the first token goes, at a first start and at the next one, and how close a decode step
comes to reading its weights.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

BEGIN = time.perf_counter()  # before TVM is imported


from chapters.ch11_a_real_model.passes import chat_model, compiled, owners, stored_as  # noqa: E402
from chapters.kit.bench.cpu_bounds import reader  # noqa: E402
from chapters.kit.chat.gguf_file import GGUF, read_gguf  # noqa: E402
from chapters.kit.chat.kept_model import Decoder, load_or_compile  # noqa: E402
from chapters.kit.chat.model_cache import fetch_model  # noqa: E402
from chapters.kit.chat.packed_weights import PackedWeights  # noqa: E402
from chapters.kit.chat.run_decoder import ChatModel  # noqa: E402
from chapters.kit.chat.tokenizer import Tokenizer  # noqa: E402
from chapters.kit.chat.weights import Weights, read_config  # noqa: E402
from chapters.kit.draw.table import Table, duration  # noqa: E402
from chapters.kit.machine import llvm_host  # noqa: E402
from chapters.program import run_program  # noqa: E402

IMPORTED = time.perf_counter() - BEGIN
PROMPT = "What is a compiler? Answer in one sentence."
STEPS = 50


class FirstStart:
    """The chat model at a first start: it compiles, although there may be a compiled model in the cache."""

    def __init__(self, file: GGUF):
        self.file, self.config = file, read_config(file)

    def compile(self) -> None:
        self.decoder = self.compiled_anew()

    def compiled_anew(self) -> Decoder:
        return compiled(self.file, self.config, exact=False)

    def load(self) -> None:
        self.model = self.loaded(Weights)

    def loaded(self, weights: type[Weights]) -> ChatModel:
        made = self.decoder
        packed = weights(self.file, self.config, made.lanes)
        return ChatModel(made.executable, packed, made.names, made.cache)

    def feed(self, tokens: Sequence[int]) -> int:
        return int(self.model.feed(tokens).argmax())


class NextStart(FirstStart):
    """The same, with what an earlier start has compiled and kept."""

    def compile(self) -> None:
        facts = self.config, stored_as(self.file), False, ""
        self.decoder, _ = load_or_compile(facts, owners(), self.compiled_anew)

    def load(self) -> None:
        self.model = self.loaded(PackedWeights)


def time_to_first_token(
    model: FirstStart,
    prompt: Sequence[int],
    steps: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the seconds of each part of an answer: "compile", "load", "prompt", and "step".

    "step" is the median of `steps` decode steps. `prompt` is fed in one call, as a whole. Each step feeds the token
    that the call before it returned.
    """
    taken, later = {}, []
    for part in ("compile", "load"):
        start = clock()
        getattr(model, part)()
        taken[part] = clock() - start
    start = clock()
    token = model.feed(list(prompt))
    taken["prompt"] = clock() - start
    for _ in range(steps):
        start = clock()
        token = model.feed([token])
        later.append(clock() - start)
    return {**taken, "step": statistics.median(later)}


def predicted_and_measured(
    step: Callable[[], object],
    read: Callable[[], object],
    step_bytes: int,
    read_bytes: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return tokens per second: "predicted" from the memory's bandwidth, and "measured".

    `step()` computes one token, and reads `step_bytes` bytes of weights. `read()` reads `read_bytes` bytes, and does
    nothing else. The two take turns, `read` first. The first call of each does not count; of the next `repeats` calls
    the median does.
    """
    reading, stepping = [], []
    for _ in range(repeats + 1):
        for call, taken in ((read, reading), (step, stepping)):
            start = clock()
            call()
            taken.append(clock() - start)
    bandwidth = read_bytes / statistics.median(reading[1:])
    return {
        "predicted": bandwidth / step_bytes,
        "measured": 1 / statistics.median(stepping[1:]),
    }


def main() -> int:
    try:
        file = read_gguf(fetch_model())
        tokens = Tokenizer.from_gguf(file).encode(PROMPT)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Importing TVM and the course took {duration(IMPORTED)}.")
    chat_model(file, read_config(file), exact=False)  # from now on there is a kept model
    starts = {"first start": FirstStart(file), "next start": NextStart(file)}
    found = {name: time_to_first_token(one, tokens, STEPS) for name, one in starts.items()}
    parts = {"compile": "compile", "load": "load", "prompt": "prompt", "step": "one step after it"}
    rows = [
        (words, *(duration(found[name][key]) for name in found)) for key, words in parts.items()
    ]
    print(f"\n{Table(('part', *found), rows, f'The prompt has {len(tokens)} tokens.')}\n")

    model = starts["next start"].model
    nbytes = sum(one.nbytes for one in file.tensors.values())
    read = reader(nbytes, llvm_host()["target"])
    at = model.length

    def step() -> None:
        model.length = at  # the same step each time
        model.feed(tokens[:1])

    rates = predicted_and_measured(step, read, nbytes, nbytes, STEPS)
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} tokens per second")
    print(f"A step reaches {rates['measured'] / rates['predicted']:.0%} of the speed of reading.")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
