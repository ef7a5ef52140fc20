"""A Llama's forward pass in NumPy, float64, from what a GGUF file says: the reference for compiled models.

It shares no code with the course, and follows llama.cpp's conventions: the `gguf` package reads the file and unpacks
the weights, and neighbouring elements of a head are the pairs that are rotated.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


class Reference:
    """The forward pass of the Llama in the GGUF file at `path`, with the keys and values of a conversation.

    rounds: whether x is rounded to 8 bits before a quantized matrix multiplies it, and keys and values to float16.
    """

    def __init__(self, path: Path, rounds: bool = False):
        self.rounds, self.gguf = rounds, pytest.importorskip("gguf")
        reader = self.gguf.GGUFReader(path)
        names = [name for name in reader.fields if name.startswith("llama.")]
        fields = {name.removeprefix("llama."): reader.fields[name].contents() for name in names}
        self.tensors = {one.name.removesuffix(".weight"): one for one in reader.tensors}
        self.tensors.setdefault("output", self.tensors["token_embd"])
        self.layers, self.heads = fields["block_count"], fields["attention.head_count"]
        self.kv_heads = fields["attention.head_count_kv"]
        self.epsilon = fields["attention.layer_norm_rms_epsilon"]
        self.d = d = fields["embedding_length"] // self.heads
        self.rates = fields["rope.freq_base"] ** (-np.arange(0, d, 2) / d)
        if "rope_freqs" in self.tensors:
            self.rates = self.rates / self.floats("rope_freqs")
        if fields.get("rope.scaling.type") == "linear":
            self.rates = self.rates / fields["rope.scaling.factor"]
        empty = np.empty((0, self.kv_heads, d))
        self.keys, self.values = [empty] * self.layers, [empty] * self.layers

    def floats(self, name: str, rows=slice(None)) -> np.ndarray:
        """A tensor, or some of its rows, in float64; the names of tensors are without ".weight"."""
        found = self.tensors[name]
        return self.gguf.dequantize(found.data[rows], found.tensor_type).astype("float64")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        root = np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon)
        return x / root * self.floats(name)

    def product(self, x: np.ndarray, name: str) -> np.ndarray:
        """x times a matrix of the file, transposed."""
        kind = self.tensors[name].tensor_type.name
        if self.rounds and kind.startswith("Q"):
            groups = x.reshape(*x.shape[:-1], -1, 16 if kind == "Q6_K" else 32)
            step = np.abs(groups).max(-1, keepdims=True) / 127
            x = (np.rint(groups / step) * step).reshape(x.shape)
        return x @ self.floats(name).T

    def rotated(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """(s, heads, d): elements 2 i and 2 i + 1 are a complex number, which is rotated."""
        pairs = x[..., ::2] + 1j * x[..., 1::2]
        pairs = pairs * np.exp(1j * positions[:, None, None] * self.rates)
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        name, s = f"blk.{layer}.attn_", len(x)
        q, k, v = (self.product(x, name + one).reshape(s, -1, self.d) for one in "qkv")
        positions = len(self.keys[layer]) + np.arange(s)
        for held, new in ((self.keys, self.rotated(k, positions)), (self.values, v)):
            if self.rounds:
                new = new.astype("float16").astype("float64")
            held[layer] = np.concatenate([held[layer], new])
        q, keys, values = self.rotated(q, positions), self.keys[layer], self.values[layer]
        out = np.empty((s, self.heads, self.d))
        for head in range(self.heads):
            of_head = head // (self.heads // self.kv_heads)
            scores = q[:, head] @ keys[:, of_head].T / np.sqrt(self.d)
            scores[np.arange(len(keys)) > positions[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ values[:, of_head]
        return self.product(out.reshape(s, -1), name + "output")

    def feed(self, tokens: list[int]) -> np.ndarray:
        """The logits after each of `tokens`, which extend the conversation: (len(tokens), vocab_size)."""
        x = self.floats("token_embd", tokens)
        for layer in range(self.layers):
            name = f"blk.{layer}."
            x = x + self.attention(self.norm(x, name + "attn_norm"), layer)
            h = self.norm(x, name + "ffn_norm")
            gate, up = (self.product(h, f"{name}ffn_{one}") for one in ("gate", "up"))
            x = x + self.product(gate / (1 + np.exp(-gate)) * up, name + "ffn_down")
        return self.product(self.norm(x, "output_norm"), "output")


def logits_of(path: Path, ids: list[int]) -> np.ndarray:
    """The logits after each of the tokens `ids`: float64 (len(ids), vocab_size)."""
    return Reference(path).feed(ids)
