"""The inputs that all candidates of `bench 9` get, and the check of their logits.

Candidates import this in interpreters without TVM, so TVM is imported only by the functions that need it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from chapters.kit.bench.operands import check_error

if TYPE_CHECKING:
    from chapters.kit.decoder.llama_config import LlamaConfig


def write_inputs(folder: Path, config: LlamaConfig, prompt: int, threads: int) -> Path:
    """Write the facts and random weights to `folder`; returns their path. prompt: how many tokens it has."""
    from chapters.kit.decoder.llama_generator import random_weights

    tokens = np.random.default_rng(5).integers(0, config.vocab_size, prompt)
    facts = {
        "config": asdict(config),
        "prompt": tokens.tolist(),
        "threads": threads,
    }
    path = folder / "decoder.npz"
    np.savez(path, facts=json.dumps(facts), **random_weights(config))
    return path


def read_inputs(path: str) -> tuple[dict, dict[str, np.ndarray]]:
    """The facts that `write_inputs` wrote (config, prompt, threads), and the weights by name."""
    with np.load(path) as file:
        weights = dict(file)
    return json.loads(str(weights.pop("facts"))), weights


@functools.cache
def _compute_exact(path: str) -> dict[str, np.ndarray]:
    """Logits in float64 of the prefill, and of one step that repeats the last token."""
    from chapters.kit.decoder import llama_reference as reference

    facts, weights = read_inputs(path)
    config, prompt = SimpleNamespace(**facts["config"]), facts["prompt"]
    cache = reference.Cache(config)
    return {
        "prefill": reference.prefill(config, weights, prompt, cache),
        "decode": reference.decode(config, weights, prompt[-1], cache),
    }


def check_logits(logits: np.ndarray, path: str, function: str) -> float:
    """`check_error` of the logits after `function`, with the largest logit."""
    return check_error(logits.reshape(-1), _compute_exact(path)[function], 1e-4, "the logits")
