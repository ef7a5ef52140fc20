"""Runs the decoder: random weights, and a Generator that prefills and then decodes greedily."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax

from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig, find_config

# More parameters than this are shapes to compile, not a model to fill and run.
MAX_RANDOM_PARAMETERS = 50_000_000


def random_weights(
    config: str | LlamaConfig = "tiny", dtype: str = "float32", seed: int = 0
) -> dict[str, np.ndarray]:
    """Random weights by name, drawn in float32 and rounded to `dtype`.

    Scaled so that hidden states stay of order one through every layer and logits spread with a
    standard deviation of about four. Raises ValueError for a configuration too large to fill.
    """
    config = find_config(config)
    _, weights = decoder(config, dtype, ["embed"])
    count = sum(math.prod(shape) for _, shape, _ in weights)
    if count > MAX_RANDOM_PARAMETERS:
        raise ValueError(
            f"This configuration has {count:,} parameters and random_weights fills at most "
            f"{MAX_RANDOM_PARAMETERS:,}: large configurations are only for compiling and counting; "
            "use 'tiny' to run."
        )
    rng = np.random.default_rng(seed)
    return {name: _draw(name, shape, config, rng).astype(dtype) for name, shape, _ in weights}


def _draw(
    name: str, shape: tuple[int, ...], config: LlamaConfig, rng: np.random.Generator
) -> np.ndarray:
    noise = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1 + noise / 8
    if "embed_tokens" in name:
        return noise
    fan_in = shape[1]  # a Linear stores (out_features, in_features)
    if "lm_head" in name:
        return noise * 4 / math.sqrt(fan_in)
    if "o_proj" in name or "down_proj" in name:  # each layer adds two terms to the residual
        return noise / math.sqrt(2 * config.num_hidden_layers * fan_in)
    return noise / math.sqrt(fan_in)


class Generation(NamedTuple):
    """What greedy decoding produced, one entry per step (with a leading batch axis if batched)."""

    tokens: np.ndarray  # int32 (steps,) or (batch, steps)
    logits: np.ndarray  # float32 (steps, vocab_size) or (batch, steps, vocab_size)


class Generator:
    """Compile a decoder for a target and run it: prefill, then greedy decoding.

    `module` replaces the exported decoder, for instance by one that passes have rewritten; it must contain `functions`
    and take the weights in the same order. `weights` defaults to `random_weights(config, dtype, seed)`.
    """

    SINGLE = ("create_kv_cache", "embed", "prefill", "decode")
    BATCHED = ("create_kv_cache", "embed", "batch_prefill", "batch_decode")

    def __init__(
        self,
        config: str | LlamaConfig = "tiny",
        dtype: str = "float32",
        *,
        module: tvm.IRModule | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
        target: str | dict | tvm.target.Target = "llvm",
        relax_pipeline="default",
        functions: Iterable[str] = SINGLE,
        context_window: int | None = None,
        seed: int = 0,
    ):
        self.config = find_config(config)
        self.functions = tuple(functions)
        self.context_window = context_window or self.config.context_window_size
        exported, parameters = decoder(self.config, dtype, self.functions)
        weights = random_weights(self.config, dtype, seed) if weights is None else weights
        module = exported if module is None else module
        target = tvm.target.Target(target)
        self.device = tvm.device("cpu" if target.kind.name == "llvm" else target.kind.name)
        self.executable = tvm.compile(module, target, relax_pipeline=relax_pipeline)
        self.vm = relax.VirtualMachine(self.executable, self.device)
        self.weights = [self.to_device(weights[name]) for name, _, _ in parameters]

    def to_device(self, array: np.ndarray) -> tvm.runtime.Tensor:
        """A copy of `array` on the device, aligned as compiled code expects (a NumPy array may not be)."""
        return tvm.runtime.tensor(np.ascontiguousarray(array), self.device)

    def create_kv_cache(self, batch_size: int = 1) -> tvm.runtime.Tensor:
        """An empty cache for `batch_size` sequences of `context_window` tokens."""
        shape = tvm.runtime.ShapeTuple
        return self.vm["create_kv_cache"](shape([batch_size]), shape([self.context_window]))

    def embed(self, tokens: np.ndarray) -> tvm.runtime.Tensor:
        """Token numbers (batch, seq) -> embeddings (batch, seq, hidden), on the device."""
        tokens = np.asarray(tokens, dtype="int32")
        rows = self.vm["embed"](self.to_device(tokens.reshape(-1)), self.weights)
        return rows._create_view((*tokens.shape, self.config.hidden_size))

    def forward(
        self,
        name: str,
        tokens: np.ndarray,
        positions: np.ndarray,
        kv_cache: tvm.runtime.Tensor,
        logit_positions: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tvm.runtime.Tensor]:
        """Run function `name` on tokens (batch, seq): its first result, and the updated cache.

        Raises ValueError for a function that was not compiled, a token outside the vocabulary, `positions` that are
        negative or leave too little room in the cache, and `logit_positions` that are not in `tokens`.
        """
        tokens, positions = np.asarray(tokens), np.asarray(positions, dtype="int32")
        self._check(name, tokens, positions, kv_cache.shape[3])
        extra = [] if logit_positions is None else [logit_positions]
        if any(at < 0 or at >= tokens.shape[1] for at in np.ravel(extra)):
            raise ValueError(
                f"logit_positions are {np.ravel(extra)} and each sequence has {tokens.shape[1]} "
                "tokens, numbered from 0: choose one of these, and give no empty prompt."
            )
        arguments = [self.to_device(np.asarray(a, dtype="int32")) for a in (*extra, positions)]
        out, kv_cache = self.vm[name](self.embed(tokens), *arguments, kv_cache, self.weights)
        return out.numpy(), kv_cache

    def _check(
        self, name: str, tokens: np.ndarray, positions: np.ndarray, context_window: int
    ) -> None:
        if name not in self.functions:
            raise ValueError(
                f"{name} was not compiled, only {', '.join(self.functions)}: name it in the "
                "`functions` of the Generator."
            )
        if tokens.size == 0:
            raise ValueError("There are no tokens to run on: give at least one per sequence.")
        vocab_size = self.config.vocab_size
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(
                f"Tokens run from {tokens.min()} to {tokens.max()} and the vocabulary from 0 to "
                f"{vocab_size - 1}: keep them inside."
            )
        if positions.min() < 0:
            raise ValueError(
                f"positions are {positions}: each is a number of cached tokens, so make it 0 or more."
            )
        needed = int(positions.max()) + tokens.shape[1]
        if needed > context_window:
            raise ValueError(
                f"{needed} positions are needed and the cache has {context_window}: shorten "
                "the prompt or the generation, or create a Generator with a larger context_window."
            )

    def generate(self, prompt: Sequence[int], steps: int) -> Generation:
        """`steps` (at least 1) greedy tokens after `prompt`, with `prefill` and `decode`."""
        tokens = np.asarray([prompt], dtype="int32")
        logits, kv_cache = self.forward("prefill", tokens, [0], self.create_kv_cache())
        batch = self._decode("decode", logits, kv_cache, np.asarray([len(prompt)]), steps)
        return Generation(batch.tokens[0], batch.logits[0])

    def generate_batch(self, prompts: Sequence[Sequence[int]], steps: int) -> Generation:
        """`steps` (at least 1) greedy tokens after each prompt, with `batch_prefill` and `batch_decode`.

        Prompts may differ in length, but none is empty; the shorter ones are padded on the right.
        """
        lengths = np.asarray([len(prompt) for prompt in prompts])
        tokens = np.zeros((len(prompts), lengths.max()), dtype="int32")
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        kv_cache = self.create_kv_cache(len(prompts))
        begin, last = np.zeros_like(lengths), lengths - 1
        logits, kv_cache = self.forward("batch_prefill", tokens, begin, kv_cache, last)
        return self._decode("batch_decode", logits, kv_cache, lengths, steps)

    def _decode(self, name: str, logits: np.ndarray, kv_cache, lengths, steps: int) -> Generation:
        """Continue greedily from the prefill's `logits` (batch, 1, vocab_size)."""
        history = [logits]
        for step in range(steps - 1):
            token = history[-1].argmax(axis=-1)
            logits, kv_cache = self.forward(name, token, lengths + step, kv_cache)
            history.append(logits)
        logits = np.concatenate(history, axis=1)
        return Generation(logits.argmax(axis=-1).astype("int32"), logits)
