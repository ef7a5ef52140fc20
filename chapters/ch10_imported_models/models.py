"""Two small language models of Transformers' own classes with random weights, as a file for `compile` defines them.

`python -m chapters compile chapters.ch10_imported_models.models` compiles the first one.
"""

from __future__ import annotations

import torch
import transformers

TOKENS, LENGTH = 96, 7
SIZES = {
    "vocab_size": TOKENS,
    "attn_implementation": "eager",  # attention written in PyTorch's own operators
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


class Logits(torch.nn.Module):
    """A language model that takes tensors alone, and returns one tensor: the logits of every token."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


def gpt2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """One block of GPT-2: LayerNorm, biases, GELU, weights stored (k, n), a head tied to the embedding."""
    config = transformers.GPT2Config(n_embd=48, n_layer=1, n_head=4, n_positions=64, **SIZES)
    return random_model(transformers.GPT2LMHeadModel, config)


def qwen2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """One block of Qwen2: RMSNorm, a bias in queries, keys and values, rotation, a gated feed-forward layer."""
    config = transformers.Qwen2Config(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **SIZES,
    )
    return random_model(transformers.Qwen2ForCausalLM, config)


def random_model(kind: type, config: object) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """(a model with random weights, random tokens and the mask that hides later tokens)."""
    torch.manual_seed(0)
    made = kind(config).eval()
    for parameter in made.parameters():  # norms and biases too, which begin as ones and zeros
        torch.nn.init.normal_(parameter, std=0.2)
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    return Logits(made).eval(), (torch.randint(TOKENS, (1, LENGTH)), mask)


model = gpt2  # the name that `compile` looks for
