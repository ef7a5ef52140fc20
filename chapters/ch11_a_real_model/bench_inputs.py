"""What `bench 11` compares, and on which numbers: the runtimes, the inputs that all get, and the check of their logits.

Candidates import this in interpreters without TVM, so TVM is imported only by the functions that need it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from chapters.child import ROOT
from chapters.kit.bench.operands import check_error

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
FIRST_PROMPT = 32  # tokens before the first one that is timed
# Errors relative to the largest logit. float32 through 30 layers loses about 2e-6. Activations of 8 bits cost 0.02 to
# 0.05, here and in llama.cpp, which round at the same places and not in the same way. A position that is off by one
# costs 0.4. Weights that are stored anew as Q4_0 are other weights, so they have a reference of their own.
EXACT_LIMIT, ROUNDED_LIMIT = 1e-4, 0.1


def needs_of(name: str) -> tuple[str, ...]:
    """The modules of other libraries that the runtime `name` of NAMES needs."""
    if name in OUR_VARIANTS:
        return ()
    if name in TORCH_NAMES:
        return ("torch", "transformers", *(["torchao"] if NAMES[name] == INT8 else []))
    return ("llama_cpp",)


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


def write_inputs(folder: Path, models: dict[str, Path]) -> Path:
    """Write what the candidates need to `folder`; returns the path of inputs.npz.

    models: the GGUF files of FILE and, if llama.cpp wrote one, of Q4_0. inputs.npz holds the facts and, for each of
    them, logits in float64 by NumPy: "file prefill" after the prefill, "file decode" after the decode step, "file
    first" after FIRST_PROMPT tokens. weights.npz, beside it, holds the weights of FILE in float32.
    """
    from chapters.ch11_a_real_model.float_weights import FloatWeights, by_layer
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.losses import READING
    from chapters.kit.chat.tokenizer import Tokenizer
    from chapters.kit.chat.weights import read_config
    from chapters.kit.decoder import llama_reference as reference

    files = {kind: read_gguf(path) for kind, path in models.items()}
    config = read_config(files[FILE])
    after = {"prefill": PREFILL, "decode": CONTEXT + 1, "first": FIRST_PROMPT}
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


def read_facts(path: str) -> dict:
    """The facts that `write_inputs` wrote: models, their bytes, config, tokens, the reading's tokens, folder."""
    with np.load(path) as file:
        return json.loads(str(file["facts"]))


def read_weights(path: str) -> dict[str, np.ndarray]:
    """The weights in float32, by the names of `chapters.kit.decoder.llama`."""
    with np.load(Path(path).with_name("weights.npz")) as file:
        return dict(file)


def check_logits(logits: np.ndarray, path: str, name: str, limit: float) -> float:
    """The largest error relative to the largest logit; ValueError if it is above `limit`.

    name: of the reference in the inputs, such as "file prefill".
    """
    with np.load(path) as file:
        exact = file[name]
    return check_error(logits.reshape(-1), exact, limit, "the logits")


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


def make_calls(model, tokens: list[int]) -> dict[str, Callable[[], np.ndarray]]:
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


def reading(path: str) -> dict:
    """A kernel that reads as many bytes as the weights have, and does next to nothing with them."""
    from chapters.kit.bench.cpu_bounds import make_reader
    from chapters.kit.machine import llvm_host

    return {"reading": (make_reader(read_facts(path)["bytes"][FILE], llvm_host()["target"]), None)}
