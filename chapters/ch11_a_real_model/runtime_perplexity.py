"""The perplexity of each runtime that the bench compares, in the runtime itself: how good the answers are.

All read the same text in the same windows, each in a process of its own. Only our own needs TVM.
"""

from __future__ import annotations

from collections.abc import Callable

from chapters.ch11_a_real_model import bench_inputs
from chapters.kit.bench.timing import Candidate, CandidateFailed, Unavailable, call_apart
from chapters.kit.chat.losses import WINDOW, Model, perplexity

QUICK_TOKENS = WINDOW  # of the text, in a quick run


def measure(path: str, threads: int, quick: bool, say: Callable[[str], None]) -> dict[str, float]:
    """{runtime: perplexity} for those that are installed, by their names in the bench. path: the bench's inputs."""
    found = {}
    in_torch = bench_inputs.FLOATS, bench_inputs.BFLOATS, bench_inputs.INT8
    weights = {*bench_inputs.read_facts(path)["models"], *in_torch}
    for name in (one for one, kind in bench_inputs.NAMES.items() if kind in weights):
        if name == bench_inputs.COMPILED:  # the same numbers as Transformers, made by other kernels
            continue
        asked = {"name": name, "path": path, "threads": threads, "count": QUICK_TOKENS * quick}
        candidate = Candidate(__name__, "read_text", asked, bench_inputs.needs_of(name))
        try:
            found[name] = call_apart(candidate, threads)
        except (Unavailable, CandidateFailed) as reason:
            say(f"no perplexity of {name}: {str(reason).splitlines()[-1]}")
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


def read_text(name: str, path: str, threads: int, count: int) -> float:
    """The perplexity of the bench's text, or of its first `count` tokens unless that is 0."""
    reading = bench_inputs.read_facts(path)["reading"]
    return perplexity(model_of(name, path, threads), reading[: count or None])
