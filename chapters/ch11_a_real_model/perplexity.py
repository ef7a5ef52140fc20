"""Measures what storing the chat model in other types costs: `python -m chapters.ch11_a_real_model.perplexity`.

It takes some minutes and 3 GB of memory. With `--save` it writes docs/results/ch11_perplexity.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from chapters.ch11_a_real_model.passes import phases
from chapters.kit.bench.results import save
from chapters.kit.chat.model_cache import cached_model
from chapters.kit.chat.perplexity import measure
from chapters.kit.draw.table import Table

NAME = "ch11_perplexity"
COMMAND = "python -m chapters.ch11_a_real_model.perplexity --save"


def measure_default(say: Callable[[str], None]) -> dict:
    """What `measure` gives for the default model, compiled by chapter 9's passes.

    Raises ValueError if the model is not in the cache.
    """
    path = cached_model()
    if path is None:
        raise ValueError("The chat model is not in the cache; run `python -m chapters chat` once.")
    return measure(path, phases, say)


def variants(results: dict) -> Table:
    """The perplexity of the whole model, per way of storing its weights and of multiplying."""
    rows = [
        (name, f"{one['bytes'] / 1e6:.1f}", f"{one['perplexity']:.2f}", _format_loss(one))
        for name, one in results["variants"].items()
    ]
    return Table(("weights", "MB per token", "perplexity", "loss"), rows, _note(results))


def kinds(results: dict) -> Table:
    """Per kind of matrix: the loss if only it is in Q4_0, and the loss that is left if only it is in Q8_0."""
    rows = []
    for kind, alone in results["alone"].items():
        sizes = (f"{alone['bytes_of_kind'][one] / 1e6:.2f}" for one in ("Q4_0", "Q8_0"))
        rows.append((kind, *sizes, _format_loss(alone), _format_loss(results["kept"][kind])))
    header = (
        "matrices",
        "MB in Q4_0",
        "MB in Q8_0",
        "loss if only these are in Q4_0",
        "loss if only these are in Q8_0",
    )
    return Table(header, rows, "The last column has all other matrices in Q4_0.")


def _format_loss(entry: dict) -> str:
    return f"{round(entry['loss'], 4) + 0.0:+.4f} ± {entry['error']:.4f}"  # + 0.0: no -0.0000


def _note(results: dict) -> str:
    return (
        f"{results['scored']:,} tokens of {results['text']} in windows of {results['window']}. The loss is the "
        "logarithm of the perplexity over that of float32, with its standard error. Where x has 8 bits, keys and "
        "values are stored in float16."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="write the results file")
    options = parser.parse_args(arguments)
    try:
        results = measure_default(lambda text: print(f"  {text}", file=sys.stderr, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{variants(results)}\n\n{kinds(results)}")
    if options.save:
        print(f"\nWritten to {save(NAME, results, COMMAND)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
