"""How the cache of a conversation is laid out: for the kernels that are compiled, and for the process that runs them.

`kv_cache`, float32 or float16 (context_window / LANES, num_layers, 2, num_kv_heads, LANES * head_dim), holds the keys
(0) and the values (1) of one sequence. LANES neighbouring tokens form a block, and all that a block holds for all
layers lies together: a short conversation touches little memory. A block of values is (token, element). A block of keys
is (element, token), so that a vector register takes the same element of LANES keys, and the scores of LANES tokens are
summed side by side. Both are computed with in float32.

`rope`, float32 (context_window, 2, head_dim / 2), holds the cosine (0) and the sine (1) by which each pair of elements
is rotated at each position.
"""

from __future__ import annotations

import numpy as np

from chapters.kit.decoder.llama_config import LlamaConfig

LANES = 16  # tokens in a block of the cache


def rope_table(config: LlamaConfig, factors: np.ndarray | None = None) -> np.ndarray:
    """`rope` for a configuration. factors: what each pair's frequency is divided by, (head_dim / 2,); None for 1."""
    half = config.head_dim // 2
    rates = config.rope_theta ** (-np.arange(half) / half)
    if factors is not None:
        rates = rates / factors
    angles = np.arange(config.context_window_size)[:, None] * rates
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")


def cache_shape(config: LlamaConfig) -> tuple[int, ...]:
    """The shape of `kv_cache`; the configuration's context window is a multiple of LANES."""
    heads, blocks = config.num_key_value_heads, config.context_window_size // LANES
    return blocks, config.num_hidden_layers, 2, heads, LANES * config.head_dim
