"""Measures the chat model on this CPU: `python -m chapters bench 11`.

SmolLM2-135M, from the file that `chat` uses, runs in this chapter's compiled decoder, in llama.cpp and in Transformers.
All get the same tokens, and take turns in the same rounds: a decode step after CONTEXT tokens, which reads every weight
once, and a prefill of PREFILL tokens, which computes. Before the timing, logits are compared with NumPy's in float64. A
decode step cannot be faster than reading the weights, so a kernel that only reads is measured too. A runtime whose
weights or activations have fewer bits is faster and answers worse, so each has its perplexity beside its time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from chapters.ch11_a_real_model import bench_kernels, first_token, runtime_perplexity
from chapters.child import ROOT
from chapters.kit.bench.results import Shown, load, shown_as
from chapters.kit.bench.timing import Peer, Timing, compare
from chapters.kit.draw.bars import Bars
from chapters.kit.draw.table import Table
from chapters.kit.machine import peer_python, physical_cores

TORCH = "chapters.ch11_a_real_model.transformers_peer"
LLAMA_CPP_PEER = "chapters.ch11_a_real_model.llama_cpp_peer"
# the weights: as they are in the file; stored anew by llama.cpp; unpacked; unpacked and rounded to bfloat16 or, by
# torchao, to 8 bits with a scale per row
FILE, Q4_0, FLOATS, BFLOATS, INT8 = "file", "Q4_0", "float32", "bfloat16", "int8"
OURS, EXACT = "fusion_by_hand", "fusion_by_hand, float32 activations"
LLAMA_CPP, TRANSFORMERS, COMPILED = "llama.cpp", "Transformers", "Transformers, torch.compile"
OURS_Q4_0 = "fusion_by_hand, Q4_0"
# name -> (its weights, whether activations stay in float32)
OUR_VARIANTS = {OURS: (FILE, False), EXACT: (FILE, True), OURS_Q4_0: (Q4_0, False)}
# name -> (its weights, its flash attention: None for llama.cpp's default)
LLAMA_CPP_VARIANTS = {
    LLAMA_CPP: (FILE, None),
    "llama.cpp, Q4_0, flash attention": (Q4_0, True),
    "llama.cpp, Q4_0, plain attention": (Q4_0, False),
}
BEST = "llama.cpp, Q4_0"  # the faster of the last two
# runtime -> its weights
NAMES = {OURS: FILE, EXACT: FILE, LLAMA_CPP: FILE, OURS_Q4_0: Q4_0, BEST: Q4_0}
NAMES |= {TRANSFORMERS: FLOATS, COMPILED: FLOATS}
NAMES |= {f"{COMPILED}, {kind}": kind for kind in (BFLOATS, INT8)}
TORCH_NAMES = tuple(name for name in NAMES if name.startswith(TRANSFORMERS))
CONTEXT, PREFILL = 100, 256  # tokens before a decode step; tokens of a prefill
ROUNDS, QUICK_ROUNDS = 15, 3
# Errors relative to the largest logit. float32 through 30 layers loses about 2e-6. Activations of 8 bits cost 0.02 to
# 0.05, here and in llama.cpp, which round at the same places and not in the same way. A position that is off by one
# costs 0.4. Weights that are stored anew as Q4_0 are other weights, so they have a reference of their own.
EXACT_LIMIT, ROUNDED_LIMIT = 1e-4, 0.1
TABLES = ("decoder", "first token", "step", "kernels", "perplexity")  # what `shown` knows


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: what was measured}; also passes each table to `say`."""
    from chapters.ch11_a_real_model.passes import owners
    from chapters.kit.chat.model_cache import fetch_model

    say("passes: " + ", ".join(f"chapter {number} {whose}" for number, whose in owners().items()))
    with tempfile.TemporaryDirectory() as folder:
        models = {FILE: fetch_model()}
        if as_q4_0 := stored_as_q4_0(models[FILE], Path(folder)):
            models[Q4_0] = as_q4_0
        path = str(write_inputs(Path(folder), models))
        nbytes = read_facts(path)["bytes"]
        by_threads, missing = {}, {}
        for threads in sorted({1, physical_cores()}):
            rounds = QUICK_ROUNDS if quick else ROUNDS
            timings, lacking = compare(peers(path, threads), threads=threads, rounds=rounds)
            missing |= dict.fromkeys(lacking)
            by_threads[str(threads)] = of_threads(timings, nbytes[FILE])
        for reason in missing:
            say(reason)
        measured = {
            "threads": by_threads,
            "bytes": {name: nbytes[kind] for name, kind in NAMES.items() if kind in nbytes},
            "context": CONTEXT,
            "prefill": PREFILL,
            "builds": builds(),
            "perplexity": runtime_perplexity.measure(path, threads, quick, say),
            "first token": first_token.measure(path, threads, quick, say),
            "kernels": bench_kernels.measure(path, quick),
        }
    for name, table in tables(measured).items():
        say(f"\n{name}\n{table}")
    return {"ch11_chat": measured}


def peers(path: str, threads: int) -> list[Peer]:
    """Everything that is measured with `threads` threads."""
    given = {"path": path, "threads": threads}
    models = read_facts(path)["models"]
    found = [Peer(__name__, "reading", {"path": path})]
    for name, (weights, _) in OUR_VARIANTS.items():
        if weights in models:
            found.append(Peer(__name__, "ours", {"name": name, "path": path}))
    for name, (weights, _) in LLAMA_CPP_VARIANTS.items():
        if weights in models:
            asked = {"name": name, **given}
            found.append(Peer(LLAMA_CPP_PEER, "llama_cpp_peer", asked, ("llama_cpp",)))
    for name in TORCH_NAMES:
        needs = ("torch", "transformers", *(["torchao"] if NAMES[name] == INT8 else []))
        found.append(Peer(TORCH, "transformers_peer", {"name": name, **given}, needs))
    return found


def builds() -> dict[str, str]:
    """How the libraries that we compare with were built, in their own words; empty without them."""
    asked = [peer_python(), "-m", LLAMA_CPP_PEER]
    with contextlib.suppress(OSError):
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        if not done.returncode:
            return {LLAMA_CPP: " ".join(done.stdout.split())}
    return {}


def of_threads(timings: dict[str, Timing], nbytes: int) -> dict:
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


def tables(measured: dict) -> dict[str, Table | Bars]:
    """The tables of what `run` measured, and one picture, by their names in TABLES."""
    return {
        "decoder": table_of(measured),
        "first token": first_token.table_of(measured["first token"]),
        "step": bench_kernels.figure_of(measured["kernels"]),
        "kernels": bench_kernels.table_of(measured["kernels"]),
    }


def table_of(measured: dict) -> Table:
    """One row per runtime. A cell has one number for each number of threads, as in "12.1 / 6.3"."""
    by_threads = measured["threads"].values()
    rows = []
    for name in NAMES:
        steps = [seconds_of(one["seconds"], name, "decode") for one in by_threads]
        prefills = [seconds_of(one["seconds"], name, "prefill") for one in by_threads]
        if None in steps or name not in measured["perplexity"]:
            continue
        rates = [measured["bytes"][name] / seconds for seconds in steps]
        shares = [rate / one["bandwidth"] for rate, one in zip(rates, by_threads, strict=True)]
        cells = (
            [f"{1e3 * seconds:.3g}" for seconds in steps],
            [f"{1 / seconds:.0f}" for seconds in steps],
            [f"{rate / 1e9:.1f}" for rate in rates],
            [f"{share:.0%}" for share in shares],
            [f"{measured['prefill'] / seconds:.0f}" for seconds in prefills],
        )
        weights = f"{measured['bytes'][name] / 1e6:.0f} MB", f"{measured['perplexity'][name]:.2f}"
        rows.append((name, *weights, *map(" / ".join, cells)))
    counts = " / ".join(measured["threads"])
    bandwidths = " / ".join(f"{one['bandwidth'] / 1e9:.1f}" for one in by_threads)
    header = ("runtime", "weights", "perplexity", "decode, ms", "tokens/s", "GB/s of weights")
    note = (
        f"With {counts} thread{'' if counts == '1' else 's'}. A decode step after {measured['context']} tokens reads "
        f"all weights once; a kernel that only reads as many bytes reaches {bandwidths} GB/s. Prefill: "
        f"{measured['prefill']} tokens. Perplexity: of each runtime on the same text; less is better."
    )
    for library, build in measured.get("builds", {}).items():
        note += f" {library}: {build}."
    return Table((*header, "of reading them", "prefill, tokens/s"), rows, note)


def seconds_of(seconds: dict[str, float], name: str, function: str) -> float | None:
    """Seconds per call of `function` in the runtime called `name` in NAMES; None if it was not measured.

    llama.cpp at its best is the faster of its variants with Q4_0.
    """
    found = [
        value
        for key, value in seconds.items()
        if key == f"{name} {function}"
        or (name == BEST and key.startswith(f"{BEST}, ") and key.endswith(f" {function}"))
    ]
    return min(found, default=None)


def shown(name: str) -> Shown:
    """One of TABLES from its results file, for a page. The perplexity has a command of its own."""
    if name == "perplexity":
        from chapters.ch11_a_real_model import perplexity

        return perplexity.shown()
    return shown_as(load("ch11_chat"), 11, lambda measured: tables(measured)[name])


# --- the inputs of all peers ----------------------------------------------------------------------------


def write_inputs(folder: Path, models: dict[str, Path]) -> Path:
    """Write what the peers need to `folder`; returns the path of inputs.npz.

    models: the GGUF files of FILE and, if llama.cpp wrote one, of Q4_0. inputs.npz holds the facts and, for each of
    them, logits in float64 by NumPy: "file prefill" after the prefill, "file decode" after the decode step, "file
    first" after the tokens of `first_token`. weights.npz, beside it, holds the weights of FILE in float32.
    """
    from chapters.ch11_a_real_model.float_weights import FloatWeights, by_layer
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.losses import READING
    from chapters.kit.chat.tokenizer import Tokenizer
    from chapters.kit.chat.weights import read_config
    from chapters.kit.decoder import llama_reference as reference

    files = {kind: read_gguf(path) for kind, path in models.items()}
    config = read_config(files[FILE])
    after = {"prefill": PREFILL, "decode": CONTEXT + 1, "first": first_token.PROMPT}
    exact, tokenizer = {}, Tokenizer.from_gguf(files[FILE])
    tokens = tokenizer.encode((ROOT / "LICENSE").read_text("utf-8"))[:PREFILL]
    for kind, file in files.items():
        weights = by_layer(FloatWeights(file, config, lanes=1))
        logits = reference.verify(config, weights, tokens, reference.Cache(config))
        exact |= {f"{kind} {name}": logits[count - 1] for name, count in after.items()}
        if kind == FILE:
            np.savez(folder / "weights.npz", **weights)
    facts = {
        "models": {kind: str(path) for kind, path in models.items()},
        "bytes": weight_bytes(files),
        "config": asdict(config),
        "tokens": [int(token) for token in tokens],
        "reading": tokenizer.encode(READING.read_text("utf-8")),
        "folder": str(folder),
    }
    np.savez(folder / "inputs.npz", facts=json.dumps(facts), **exact)
    return folder / "inputs.npz"


def weight_bytes(files: dict) -> dict[str, int]:
    """The bytes of all tensors of each GGUF, and of FILE's in PyTorch's formats; a decode step reads each weight once.

    That holds if the head uses the embedding's matrix, as in the model measured here.
    """
    found = {kind: sum(one.nbytes for one in file.tensors.values()) for kind, file in files.items()}
    shapes = [one.shape for one in files[FILE].tensors.values()]
    count = sum(map(math.prod, shapes))
    # in 8 bits, a matrix has a bfloat16 scale per row; vectors stay in bfloat16
    eighths = sum(math.prod(s) + 2 * s[0] if len(s) == 2 else 2 * s[0] for s in shapes)
    return {**found, FLOATS: 4 * count, BFLOATS: 2 * count, INT8: eighths}


def stored_as_q4_0(model: Path, folder: Path) -> Path | None:
    """The weights of `model` in a file that llama.cpp wrote into `folder`; None without llama.cpp."""
    target = folder / "Q4_0.gguf"
    asked = [peer_python(), "-m", LLAMA_CPP_PEER, str(model), str(target)]
    with contextlib.suppress(OSError):  # that interpreter is not there: a peer will say so
        subprocess.run(asked, cwd=ROOT, capture_output=True, check=False)
    return target if target.exists() else None


def read_facts(path: str) -> dict:
    """The facts that `write_inputs` wrote: models, their bytes, config, tokens, the reading's tokens, folder."""
    with np.load(path) as file:
        return json.loads(str(file["facts"]))


def read_weights(path: str) -> dict[str, np.ndarray]:
    """The weights in float32, by the names of `chapters.kit.decoder.llama`."""
    with np.load(Path(path).with_name("weights.npz")) as file:
        return dict(file)


def checked(logits: np.ndarray, path: str, name: str, limit: float) -> float:
    """The largest error relative to the largest logit; ValueError if it is above `limit`.

    name: of the reference in the inputs, such as "file prefill".
    """
    with np.load(path) as file:
        exact = file[name]
    error = float(np.abs(logits.reshape(-1) - exact).max() / np.abs(exact).max())
    if not error < limit:  # also true for NaN
        raise ValueError(f"wrong numbers: relative error {error:.1e}, at most {limit:.1e} is right")
    return error


# --- peers: each runs in its own process ----------------------------------------------------------------


def chat_model(path: str, exact: bool, weights: str = FILE):
    """The compiled decoder as a ChatModel; it is compiled once, and kept in the folder of the inputs.

    weights: FILE or Q4_0. exact: with activations and the cache in float32 in place of 8 bits and float16.
    """
    from chapters.ch11_a_real_model import passes
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.weights import read_config

    facts = read_facts(path)
    os.environ["FUSION_CACHE"] = facts["folder"]
    file = read_gguf(facts["models"][weights])
    return passes.chat_model(file, read_config(file), exact)[0]


def calls_of(model, tokens: list[int]) -> dict[str, Callable[[], np.ndarray]]:
    """Prefill and decode step of a ChatModel, each of which gives logits, and leaves the other as it is.

    Both write the same tokens to the same places of the cache, so the step finds its context after either.
    """

    def fed(length: int, new: list[int]) -> np.ndarray:
        model.length = length
        return model.feed(new)

    return {
        "prefill": lambda: fed(0, tokens),
        "decode": lambda: fed(CONTEXT, tokens[CONTEXT : CONTEXT + 1]),
    }


def ours(name: str, path: str) -> dict:
    """One of OUR_VARIANTS, compiled by the course's passes: the learner's where they pass their checks."""
    weights, exact = OUR_VARIANTS[name]
    limit = EXACT_LIMIT if exact else ROUNDED_LIMIT
    calls = calls_of(chat_model(path, exact, weights), read_facts(path)["tokens"])
    return {
        f"{name} {function}": (call, checked(call(), path, f"{weights} {function}", limit))
        for function, call in calls.items()
    }


def reading(path: str) -> dict:
    """A kernel that reads as many bytes as the weights have, and does next to nothing with them."""
    from chapters.kit.bench.cpu_bounds import reader
    from chapters.kit.machine import llvm_host

    return {"reading": (reader(read_facts(path)["bytes"][FILE], llvm_host()["target"]), None)}
