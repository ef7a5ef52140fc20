"""Measures the chat model on this CPU: `python -m chapters bench 11`.

SmolLM2-135M, from the file that `chat` uses, runs in this chapter's compiled decoder, in llama.cpp and in Transformers.
All get the same tokens, and take turns in the same rounds: a decode step after CONTEXT tokens, which reads every weight
once, and a prefill of PREFILL tokens, which computes. Before the timing, logits are compared with NumPy's in float64. A
decode step cannot be faster than reading the weights, so a kernel that only reads is measured too. A runtime whose
weights or activations have fewer bits is faster and answers worse, so each has its perplexity beside its time.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from chapters.ch11_a_real_model import (
    bench_inputs,
    bench_kernels,
    first_token,
    runtime_perplexity,
)
from chapters.ch11_a_real_model.bench_inputs import (
    CONTEXT,
    EXACT_LIMIT,
    FILE,
    LLAMA_CPP,
    LLAMA_CPP_VARIANTS,
    NAMES,
    OUR_VARIANTS,
    PREFILL,
    Q4_0,
    ROUNDED_LIMIT,
    TORCH_NAMES,
    chat_model,
    check_logits,
    make_calls,
    needs_of,
    read_facts,
    seconds_of,
    write_inputs,
)
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import (
    Candidate,
    CandidateFailed,
    Timing,
    Unavailable,
    call_apart,
    compare,
)
from chapters.kit.draw.table import Table
from chapters.kit.machine import physical_cores

TORCH = "chapters.ch11_a_real_model.transformers_baseline"
LLAMA_CPP_MODULE = "chapters.ch11_a_real_model.llama_cpp_baseline"
ROUNDS, QUICK_ROUNDS = 15, 3


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: what was measured}."""
    from chapters.ch11_a_real_model.passes import owners
    from chapters.kit.chat.model_cache import fetch_model

    say("passes: " + ", ".join(f"chapter {number} {whose}" for number, whose in owners().items()))
    with tempfile.TemporaryDirectory() as folder:
        models = {FILE: fetch_model()}
        if as_q4_0 := store_as_q4_0(models[FILE], Path(folder)):
            models[Q4_0] = as_q4_0
        path = str(write_inputs(Path(folder), models))
        nbytes = read_facts(path)["bytes"]
        cases, missing = [], {}
        for threads in sorted({1, physical_cores()}):
            rounds = QUICK_ROUNDS if quick else ROUNDS
            timings, lacking = compare(
                list_candidates(path, threads), threads=threads, rounds=rounds
            )
            missing |= dict.fromkeys(lacking)
            cases.append({"threads": threads, **summarize(timings, nbytes[FILE])})
        for reason in missing:
            say(reason)
        measured = {
            "cases": cases,
            "bytes": {name: nbytes[kind] for name, kind in NAMES.items() if kind in nbytes},
            "context": CONTEXT,
            "prefill": PREFILL,
            "builds": describe_builds(),
            "perplexity": runtime_perplexity.measure(path, threads, quick, say),
            "first token": first_token.measure(path, threads, quick, say),
            "kernels": bench_kernels.measure(path, quick),
        }
    return {"ch11_chat": measured}


def list_candidates(path: str, threads: int) -> list[Candidate]:
    """Everything that is measured with `threads` threads."""
    given = {"path": path, "threads": threads}
    models = read_facts(path)["models"]
    found = [Candidate(bench_inputs.__name__, "reading", {"path": path})]
    for name, (weights, _) in OUR_VARIANTS.items():
        if weights in models:
            found.append(Candidate(__name__, "ours", {"name": name, "path": path}))
    for name, (weights, _) in LLAMA_CPP_VARIANTS.items():
        if weights in models:
            asked = {"name": name, **given}
            found.append(Candidate(LLAMA_CPP_MODULE, "llama_cpp_baseline", asked, needs_of(name)))
    for name in TORCH_NAMES:
        asked = {"name": name, **given}
        found.append(Candidate(TORCH, "transformers_baseline", asked, needs_of(name)))
    return found


def ours(name: str, path: str) -> dict:
    """One of OUR_VARIANTS, compiled by the course's passes: the learner's where they pass their checks."""
    weights, exact = OUR_VARIANTS[name]
    limit = EXACT_LIMIT if exact else ROUNDED_LIMIT
    calls = make_calls(chat_model(path, exact, weights), read_facts(path)["tokens"])
    return {
        f"{name} {function}": (call, check_logits(call(), path, f"{weights} {function}", limit))
        for function, call in calls.items()
    }


def store_as_q4_0(model: Path, folder: Path) -> Path | None:
    """The weights of `model` in a file that llama.cpp wrote into `folder`; None without llama.cpp."""
    target = folder / "Q4_0.gguf"
    ask_llama_cpp("store_as_q4_0", source=str(model), target=str(target))
    return target if target.exists() else None


def describe_builds() -> dict[str, str]:
    """How the libraries that we compare with were built, in their own words; empty without them."""
    build = ask_llama_cpp("describe_build")
    return {LLAMA_CPP: build} if build else {}


def ask_llama_cpp(function: str, **arguments) -> Any:
    """What a function of LLAMA_CPP_MODULE returns; None without llama.cpp: its baseline will say so."""
    with contextlib.suppress(Unavailable, CandidateFailed):
        candidate = Candidate(LLAMA_CPP_MODULE, function, arguments, needs_of(LLAMA_CPP))
        return call_apart(candidate, physical_cores())


def summarize(timings: dict[str, Timing], nbytes: int) -> dict:
    """What was measured with one number of threads: seconds, errors, and the bandwidth of reading, in bytes per second.

    nbytes: of the weights in the file. All are medians of the rounds.
    """
    others = {name: timing for name, timing in timings.items() if name != "reading"}
    return {
        "seconds": {name: timing.seconds for name, timing in others.items()},
        "errors": {name: timing.error for name, timing in others.items()},
        "bandwidth": nbytes / timings["reading"].seconds,
    }


# --- tables ---------------------------------------------------------------------------------------------


def make_table(measured: dict) -> Table:
    """One row per runtime. A cell has one number for each number of threads, as in "12.1 / 6.3"."""
    cases, rows = measured["cases"], []
    for name in NAMES:
        steps = [seconds_of(case["seconds"], name, "decode") for case in cases]
        prefills = [seconds_of(case["seconds"], name, "prefill") for case in cases]
        if None in steps or name not in measured["perplexity"]:
            continue
        rates = [measured["bytes"][name] / seconds for seconds in steps]
        shares = [rate / case["bandwidth"] for rate, case in zip(rates, cases, strict=True)]
        cells = (
            [f"{1e3 * seconds:.3g}" for seconds in steps],
            [f"{1 / seconds:.0f}" for seconds in steps],
            [f"{rate / 1e9:.1f}" for rate in rates],
            [f"{share:.0%}" for share in shares],
            [f"{measured['prefill'] / seconds:.0f}" for seconds in prefills],
        )
        weights = f"{measured['bytes'][name] / 1e6:.0f} MB", f"{measured['perplexity'][name]:.2f}"
        rows.append((name, *weights, *map(" / ".join, cells)))
    counts = " / ".join(str(case["threads"]) for case in cases)
    bandwidths = " / ".join(f"{case['bandwidth'] / 1e9:.1f}" for case in cases)
    note = (
        f"With {counts} thread{'' if counts == '1' else 's'}. A decode step after {measured['context']} tokens reads "
        f"all weights once; a kernel that only reads as many bytes reaches {bandwidths} GB/s. Prefill: "
        f"{measured['prefill']} tokens. Perplexity: of each runtime on the same text; less is better."
    )
    for library, build in measured.get("builds", {}).items():
        note += f" {library}: {build}."
    header = ("runtime", "weights", "perplexity", "decode, ms", "tokens/s", "GB/s of weights")
    return Table((*header, "of reading them", "prefill, tokens/s"), rows, note)


def perplexity_table(measured: dict) -> Table:
    """What storing the weights in other types costs, which has a command of its own."""
    from chapters.ch11_a_real_model import perplexity

    return perplexity.variants_table(measured)


TABLES = {
    "decoder": (make_table, "ch11_chat"),
    "first token": (lambda found: first_token.make_table(found["first token"]), "ch11_chat"),
    "step": (lambda found: bench_kernels.make_figure(found["kernels"]), "ch11_chat"),
    "kernels": (lambda found: bench_kernels.make_table(found["kernels"]), "ch11_chat"),
    "perplexity": (perplexity_table, "ch11_perplexity"),
}
show_results = partial(show_one, TABLES)
