"""Measures what each answer is worth: `python -m chapters.ch11_a_real_model.bench_answers [--threads N]`.

The chat's model is compiled with all answers, and once without each exercise that `chat --without` takes. Their decode
steps run in turns, and the median of each counts. The results file is read by this chapter's page.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

from chapters.ch11_a_real_model.passes import MULTIPLY, PASSES_OF, compile_model
from chapters.kit.bench import results
from chapters.kit.draw.table import Table, tabulate
from chapters.kit.machine import processors
from chapters.kit.measure.quantiles import measure_in_turns
from chapters.program import run_program

NAME = "ch11_answers"
COMMAND = "python -m chapters.ch11_a_real_model.bench_answers"
ALL = "with all answers"
ROUNDS, CONTEXT = 15, 100
# of exercises with the same passes, the last is measured
EXERCISES = (*{passes: exercise for exercise, passes in PASSES_OF.items()}.values(), MULTIPLY)


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """Return the seconds of a decode step after CONTEXT tokens: {ALL or an exercise: the median of `rounds` rounds}."""
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.model_cache import fetch_model
    from chapters.kit.chat.packed_weights import PackedWeights
    from chapters.kit.chat.run_decoder import ChatModel
    from chapters.kit.chat.weights import read_config

    file = read_gguf(fetch_model())
    config = read_config(file)
    models, tokens = {}, [one % 1000 + 2 for one in range(CONTEXT)]
    for name in (ALL, *EXERCISES):
        decoder = compile_model(file, config, exact=False, without="" if name == ALL else name)
        weights = PackedWeights(file, config, decoder.lanes)
        models[name] = ChatModel(decoder, weights)
        models[name].feed(tokens)

    def step(model: ChatModel) -> list[float]:
        model.length, start = CONTEXT, time.perf_counter()
        model.feed(tokens[:1])
        return [time.perf_counter() - start]

    clocks = {name: partial(step, model) for name, model in models.items()}
    return {name: found.median for name, found in measure_in_turns(clocks, rounds, seed=0).items()}


def make_table(measured: dict) -> Table:
    """One row per exercise, the one that is worth most first."""
    (case,) = measured["cases"]
    seconds = case["seconds"]
    skipped = {**PASSES_OF, MULTIPLY: ("`multiply_codes`",), ALL: ()}
    columns = {
        "compiled": lambda name: name if name == ALL else f"without {name}",
        "what is missing": lambda name: ", ".join(skipped[name]),
        "tokens/s": lambda name: f"{1 / seconds[name]:.3g}",
        "times as long": lambda name: f"{seconds[name] / seconds[ALL]:,.1f}",
    }
    note = (
        f"A decode step after {case['context']} tokens, with {case['threads']} threads. Without an exercise, "
        f"the passes of the second column are left out; without {MULTIPLY}, one weight is multiplied at a time. "
        "The models take turns, so each finds its weights in memory and not in a cache, and is slower than alone."
    )
    return tabulate(sorted(seconds, key=seconds.get), columns, note)


show_results = partial(results.show_results, make_table, NAME, command=COMMAND)


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description="what each answer is worth")
    parser.add_argument("--threads", type=int, default=processors(), help="all cores, if not given")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = str(options.threads)  # read when TVM starts its threads
    about = {"threads": options.threads, "context": CONTEXT}
    make = lambda: {"cases": [{**about, "seconds": measure()}]}  # noqa: E731
    return results.measure_and_save(NAME, make, make_table, COMMAND)


if __name__ == "__main__":
    sys.exit(run_program(main))
