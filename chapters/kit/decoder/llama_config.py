"""The sizes of the decoders: `tiny`, which runs in seconds, and `llama3-8b`, with the true shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a decoder. `head_dim` is free: `q` may be wider or narrower than hidden."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    context_window_size: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    def __post_init__(self):
        if self.num_attention_heads % self.num_key_value_heads != 0:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, which is no multiple of "
                f"num_key_value_heads = {self.num_key_value_heads}: each key-value head must "
                "serve the same number of query heads."
            )
        if self.head_dim % 2 != 0:
            raise ValueError(f"head_dim is {self.head_dim}; pairs are rotated, so make it even.")

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def qkv_heads(self) -> int:
        """Heads in the fused projection: all of q, then all of k, then all of v."""
        return self.num_attention_heads + 2 * self.num_key_value_heads


CONFIGS: Mapping[str, LlamaConfig] = {
    # No two tensor dimensions are equal by accident, so a transposed weight or a swapped axis is
    # a shape error or a wrong number, never a coincidence. (Hence 12 * 16 != hidden_size.)
    "tiny": LlamaConfig(
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=16,
        vocab_size=500,
        context_window_size=64,
    ),
    # The true shapes of Llama 3 8B, with two of its 32 layers: enough to compile and count.
    "llama3-8b": LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        context_window_size=8192,
        rope_theta=500000.0,
    ),
}


def find_config(config: str | LlamaConfig) -> LlamaConfig:
    """The configuration of that name; a `LlamaConfig` is returned unchanged. Raises ValueError for an unknown name."""
    if isinstance(config, LlamaConfig):
        return config
    if config not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise ValueError(f"There is no configuration {config!r}: choose one of {known}.")
    return CONFIGS[config]
