"""A Llama's forward pass in NumPy, float64, straight from a GGUF file: the reference for compiled models.

It shares no code with the course: the `gguf` package reads the file and unpacks the weights, and rotated pairs stay
neighbours, as the file has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def logits_of(path: Path, ids: list[int]) -> np.ndarray:
    """The logits after each of the tokens `ids`: float64 (len(ids), vocab_size)."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def weight(name: str) -> np.ndarray:
        tensor = tensors[f"{name}.weight"]
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype("float64")

    def field(name: str):
        return reader.fields[f"llama.{name}"].contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    d, epsilon = field("embedding_length") // heads, field("attention.layer_norm_rms_epsilon")
    rates = field("rope.freq_base") ** (-np.arange(0, d, 2) / d)
    if "rope_freqs.weight" in tensors:
        rates = rates / weight("rope_freqs")
    turn = np.exp(1j * np.arange(len(ids))[:, None, None] * rates)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight(name)

    def rotated(x: np.ndarray) -> np.ndarray:  # each pair of neighbours is a complex number
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def attended(h: np.ndarray, layer: str) -> np.ndarray:
        q, k, v = (
            (h @ weight(f"{layer}attn_{name}").T).reshape(len(ids), count, d)
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        k, v = (one.repeat(heads // kv_heads, axis=1) for one in (rotated(k), v))
        scores = np.einsum("qhd,khd->hqk", rotated(q), k) / np.sqrt(d)
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1)

    embeddings = weight("token_embd")
    x = embeddings[ids]
    for number in range(field("block_count")):
        layer = f"blk.{number}."
        h = norm(x, f"{layer}attn_norm")
        x = x + attended(h, layer) @ weight(f"{layer}attn_output").T
        h = norm(x, f"{layer}ffn_norm")
        gate = h @ weight(f"{layer}ffn_gate").T
        inner = gate / (1 + np.exp(-gate)) * (h @ weight(f"{layer}ffn_up").T)
        x = x + inner @ weight(f"{layer}ffn_down").T
    head = weight("output") if "output.weight" in tensors else embeddings
    return norm(x, "output_norm") @ head.T
