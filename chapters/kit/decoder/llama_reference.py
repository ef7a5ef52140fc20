"""The decoder of `llama.py` once more, in NumPy float64: the reference for every compiled decoder.

Written for a reader and independent of TVM: no shared code, one sequence at a time, one head at a
time, a cache that simply grows. Weights of any dtype are converted to float64, so any difference
from a compiled decoder is that decoder's rounding.

`config` is anything with the attributes of `llama.LlamaConfig`; `weights` maps the names of
`llama.decoder` to arrays, with each Linear stored as (out_features, in_features).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Weights = Mapping[str, np.ndarray]


class Cache:
    """Keys and values of one sequence: for each layer an array (length, num_kv_heads, head_dim)."""

    def __init__(self, config):
        empty = np.empty((0, config.num_key_value_heads, config.head_dim))
        self.keys = [empty] * config.num_hidden_layers
        self.values = [empty] * config.num_hidden_layers

    def __len__(self) -> int:
        """Tokens cached so far."""
        return len(self.keys[-1])

    def append(self, layer_id: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Add the keys and values (s, num_kv_heads, head_dim) of `s` more tokens."""
        self.keys[layer_id] = np.concatenate([self.keys[layer_id], keys])
        self.values[layer_id] = np.concatenate([self.values[layer_id], values])


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x W^T: (..., in_features) -> (..., out_features)."""
    return x @ weight.astype(np.float64).T


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last axis; one weight per element of it."""
    mean_square = np.mean(x**2, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + epsilon) * weight.astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """Rotary embedding of heads (s, heads, d) at `positions` (s,).

    Elements i and i + d/2 are one complex number, rotated by the angle positions * theta ** (-2 i / d).
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    rotation = np.exp(1j * positions[:, None, None] * frequencies)
    rotated = (x[..., :half] + 1j * x[..., half:]) * rotation
    return np.concatenate([rotated.real, rotated.imag], axis=-1)


def attention(config, weights: Weights, prefix: str, x: np.ndarray, cache: Cache, layer_id: int):
    """Causal grouped-query attention of `s` new tokens: (s, hidden) -> (s, hidden)."""
    qkv = linear(x, weights[f"{prefix}.qkv_proj.weight"])
    qkv = qkv.reshape(len(x), -1, config.head_dim)
    return linear(attend(config, qkv, cache, layer_id), weights[f"{prefix}.o_proj.weight"])


def attend(config, qkv: np.ndarray, cache: Cache, layer_id: int) -> np.ndarray:
    """Attention without the projections: (s, qkv heads, head_dim) -> (s, heads * head_dim). Extends `cache`."""
    h_q, h_kv, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q, k, v = np.split(qkv, [h_q, h_q + h_kv], axis=1)

    first = len(cache.keys[layer_id])
    positions = first + np.arange(len(qkv))
    cache.append(layer_id, rotate(k, positions, config.rope_theta), v)
    q = rotate(q, positions, config.rope_theta)
    keys, values = cache.keys[layer_id], cache.values[layer_id]

    visible = np.arange(len(keys)) <= positions[:, None]
    heads = []
    for h in range(h_q):
        shared = h // (h_q // h_kv)  # the key-value head that this query head reads
        scores = q[:, h] @ keys[:, shared].T / np.sqrt(d)
        heads.append(softmax(np.where(visible, scores, -np.inf)) @ values[:, shared])
    return np.concatenate(heads, axis=-1)


def feed_forward(weights: Weights, prefix: str, x: np.ndarray) -> np.ndarray:
    """SwiGLU: (s, hidden) -> (s, hidden)."""
    gate, up = np.split(linear(x, weights[f"{prefix}.gate_up_proj.weight"]), 2, axis=-1)
    return linear(silu(gate) * up, weights[f"{prefix}.down_proj.weight"])


def embed(weights: Weights, tokens: Sequence[int]) -> np.ndarray:
    """(s,) token numbers -> (s, hidden)."""
    return weights["model.embed_tokens.weight"][np.asarray(tokens)].astype(np.float64)


def last_hidden_states(config, weights: Weights, x: np.ndarray, cache: Cache) -> np.ndarray:
    """All layers and the final norm: (s, hidden) -> (s, hidden). Extends `cache`."""
    epsilon = config.rms_norm_eps
    for layer_id in range(config.num_hidden_layers):
        layer = f"model.layers.{layer_id}"
        normed = rms_norm(x, weights[f"{layer}.input_layernorm.weight"], epsilon)
        x = x + attention(config, weights, f"{layer}.self_attn", normed, cache, layer_id)
        normed = rms_norm(x, weights[f"{layer}.post_attention_layernorm.weight"], epsilon)
        x = x + feed_forward(weights, f"{layer}.mlp", normed)
    return rms_norm(x, weights["model.norm.weight"], epsilon)


def verify(config, weights: Weights, tokens: Sequence[int], cache: Cache) -> np.ndarray:
    """Logits (s, vocab_size) of all of `tokens`. Extends `cache`."""
    hidden = last_hidden_states(config, weights, embed(weights, tokens), cache)
    return linear(hidden, weights["lm_head.weight"])


def prefill(config, weights: Weights, tokens: Sequence[int], cache: Cache) -> np.ndarray:
    """Logits (vocab_size,) of the last of `tokens`. Extends `cache`."""
    return verify(config, weights, tokens, cache)[-1]


def decode(config, weights: Weights, token: int, cache: Cache) -> np.ndarray:
    """Logits (vocab_size,) of one more token. Extends `cache`."""
    return prefill(config, weights, [token], cache)


def generate(config, weights: Weights, prompt: Sequence[int], steps: int) -> tuple[np.ndarray, ...]:
    """`steps` (at least 1) greedy tokens (steps,) after `prompt`, and their logits (steps, vocab_size)."""
    cache = Cache(config)
    logits = [prefill(config, weights, prompt, cache)]
    for _ in range(steps - 1):
        logits.append(decode(config, weights, int(logits[-1].argmax()), cache))
    return np.argmax(logits, axis=-1), np.stack(logits)
