"""The perplexity of each runtime that the bench compares, in the runtime itself: how good the answers are.

All read the same text in the same windows. `python -m chapters.ch11_a_real_model.runtime_perplexity` NAME INPUTS
THREADS prints that of one runtime. Only our own needs TVM.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from chapters.ch11_a_real_model import bench_inputs
from chapters.child import ROOT
from chapters.kit.chat.losses import WINDOW, Model, perplexity
from chapters.kit.machine import baseline_python

QUICK_TOKENS = WINDOW  # of the text, in a quick run


def measure(path: str, threads: int, quick: bool, say: Callable[[str], None]) -> dict[str, float]:
    """{runtime: perplexity} for those that are installed, by their names in the bench. path: the bench's inputs."""
    found = {}
    in_torch = bench_inputs.FLOATS, bench_inputs.BFLOATS, bench_inputs.INT8
    weights = {*bench_inputs.read_facts(path)["models"], *in_torch}
    for name in (one for one, kind in bench_inputs.NAMES.items() if kind in weights):
        if name == bench_inputs.COMPILED:  # the same numbers as Transformers, made by other kernels
            continue
        python = sys.executable if name in bench_inputs.OUR_VARIANTS else baseline_python()
        count = str(QUICK_TOKENS if quick else 0)
        asked = [python, "-m", __name__, name, path, str(threads), count]
        ways = {"cwd": ROOT, "env": bench_inputs.with_threads(threads), "check": True}
        try:
            done = subprocess.run(asked, capture_output=True, text=True, **ways)
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            say(f"no perplexity of {name}: {said[-1]}")
            continue
        found[name] = float(done.stdout.split()[-1])
    if bench_inputs.TRANSFORMERS in found:
        found[bench_inputs.COMPILED] = found[bench_inputs.TRANSFORMERS]
    return found


def model_of(name: str, path: str, threads: int) -> Model:
    """The runtime `name` of the bench, as a function that gives the logits after all tokens."""
    facts = bench_inputs.read_facts(path)
    file = facts["models"].get(bench_inputs.NAMES[name])
    if name in bench_inputs.OUR_VARIANTS:
        from chapters.ch11_a_real_model.perplexity import make_verifier
        from chapters.kit.chat.gguf_file import read_gguf

        return make_verifier(read_gguf(file), exact=bench_inputs.OUR_VARIANTS[name][1])
    if name in (bench_inputs.LLAMA_CPP, bench_inputs.BEST):
        from chapters.ch11_a_real_model import llama_cpp_baseline

        model = llama_cpp_baseline.load(file)
        return llama_cpp_baseline.Context(model, WINDOW, threads).all_logits
    from chapters.ch11_a_real_model import transformers_baseline

    weights = bench_inputs.read_weights(path)
    return transformers_baseline.make_all_logits(facts, weights, bench_inputs.NAMES[name], threads)


def main(name: str, path: str, threads: str, count: str = "0") -> None:
    """Print the perplexity of the bench's text, or of its first `count` tokens."""
    reading: Sequence[int] = bench_inputs.read_facts(path)["reading"]
    print(perplexity(model_of(name, path, int(threads)), reading[: int(count) or None]))


if __name__ == "__main__":
    main(*sys.argv[1:])
