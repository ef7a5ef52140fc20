"""The weights of a GGUF file in float32: what a compiler without passes for codes has to read."""

from __future__ import annotations

import re

import numpy as np

from chapters.kit.chat.weights import Spec, Weights
from chapters.kit.quantized.weight_blocks import QuantizedRows


class FloatWeights(Weights):
    """`Weights` whose matrices are unpacked, so that the decoder has ordinary linear layers."""

    def _spec(self, run: list[tuple[str, int, int]]) -> Spec:
        return Spec(None, sum(rows for _, rows, _ in run), run[0][2])

    def _read_rows(self, name: str, n: int, k: int) -> np.ndarray:
        found = super()._read_rows(name, n, k)
        return found.floats() if isinstance(found, QuantizedRows) else found


def by_layer(weights: FloatWeights) -> dict[str, np.ndarray]:
    """The weights under the names of `chapters.kit.decoder.llama`: a layer's parts are one matrix there."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, array in weights.arrays():
        name = re.sub(r"\.(matrix|parts\.\d+)\.weight$", ".weight", name)
        parts.setdefault(name, []).append(array)
    found = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    if weights.tied:
        found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found
