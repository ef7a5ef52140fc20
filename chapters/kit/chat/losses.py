"""How well a model predicts a text: the loss of each token, and the perplexity. It needs NumPy alone.

The perplexity is the exponential of the mean loss per token; the loss is the negative logarithm of the probability that
the model gave to the token that came next. A perplexity of 30 is that of a model that wavers between 30 equally likely
tokens. Storing weights in fewer bits raises it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

READING = Path(__file__).with_name("reading.txt")  # M. Faraday, The Chemical History of a Candle
WINDOW = 512  # tokens of a conversation; a multiple of the lanes of the cache
# gives the logits after each of the tokens of a new conversation: float32 (len(tokens), vocab_size)
Model = Callable[[Sequence[int]], np.ndarray]


def loss(logits: np.ndarray, token: int) -> float:
    """The negative natural logarithm of the probability of `token`, in float64. logits: (vocab_size,)."""
    shifted = logits.astype("float64") - logits.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])


def losses(model: Model, tokens: Sequence[int], window: int = WINDOW) -> np.ndarray:
    """The loss of each token that is scored, float64, in the order of the text.

    The text is cut into pieces of `window` tokens; the last may be shorter. Each piece starts a new conversation with
    an empty cache and without a token for the beginning. Its first token is not scored, since the model has seen
    nothing yet. Every other token is scored once, given the tokens before it in its piece. `llama-perplexity` of
    llama.cpp cuts the text in the same way, but scores only the second half of each piece, and leaves out a shorter
    last one, so its numbers are lower. Raises ValueError if no token is scored.
    """
    if window < 2 or len(tokens) < 2:
        raise ValueError(
            f"No token of {len(tokens)} can be scored in windows of {window}; give at least two tokens, and a window "
            "of at least two."
        )
    found = []
    for at in range(0, len(tokens), window):
        piece = tokens[at : at + window]
        if len(piece) > 1:
            logits = model(piece)
            found += [loss(row, token) for row, token in zip(logits[:-1], piece[1:], strict=True)]
    return np.array(found)


def perplexity(model: Model, tokens: Sequence[int], window: int = WINDOW) -> float:
    """The exponential of the mean of `losses`."""
    return math.exp(losses(model, tokens, window).mean())
