"""The real input of the course: a Llama-style decoder, written with `tvm.relax.frontend.nn`.

`decoder()` exports it as an IRModule; `llama_generator.py` fills its parameters and runs it,
`llama_attention.py` holds the kernels of its attention. Function and parameter names follow
MLC-LLM's `model/llama/llama_model.py`, because its passes look functions up by name.

Attention uses plain tensors, no opaque cache object:

* `kv_cache`, `(num_layers, 2, batch_size, context_window, num_kv_heads, head_dim)`, holds the keys (0) and values (1)
  of every layer. Every function updates it in place and returns it.
* `positions`, `(batch_size,)` int32, is the number of tokens that each sequence already has in the cache. Token `s` of
  this call goes to position `positions[b] + s` and attends to all positions up to its own.

Keys and values are neither repeated nor transposed: each `permute_dims` in the module belongs to an `nn.Linear`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from chapters.kit.decoder.llama_attention import (
    append_to_cache,
    attention_scores,
    attention_values,
    rotate_queries,
)
from chapters.kit.decoder.llama_config import CONFIGS, DTYPES, LlamaConfig, find_config

# --- the model ------------------------------------------------------------------------------------


class LlamaAttention(nn.Module):
    """Grouped-query attention with a fused q, k, v projection."""

    def __init__(self, config: LlamaConfig):
        self.config = config
        hidden, d = config.hidden_size, config.head_dim
        self.qkv_proj = nn.Linear(hidden, config.qkv_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * d, hidden, bias=False)

    def forward(self, hidden_states: Tensor, positions: Tensor, kv_cache: Tensor, layer_id: int):
        """(b, s, hidden) -> (b, s, hidden), and the cache with this layer's part extended."""
        config = self.config
        b, s, _ = hidden_states.shape
        qkv = op.reshape(self.qkv_proj(hidden_states), (b, s, config.qkv_heads, config.head_dim))
        q = rotate_queries(qkv, positions, config)
        kv_cache = append_to_cache(kv_cache, qkv, positions, layer_id, config)
        scores = attention_scores(q, kv_cache, positions, layer_id, config)
        probabilities = op.softmax(scores, axis=-1)
        output = attention_values(probabilities, kv_cache, positions, layer_id, config)
        output = op.reshape(output, (b, s, config.num_attention_heads * config.head_dim))
        return self.o_proj(output), kv_cache


class LlamaFFN(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up fused in one projection."""

    def __init__(self, config: LlamaConfig):
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor):
        """(b, s, hidden) -> (b, s, hidden)."""
        gate, up = op.split(self.gate_up_proj(x), 2, axis=-1)
        return self.down_proj(op.silu(gate) * up)


class LlamaDecoderLayer(nn.Module):
    """Attention, then feed-forward, each normalized before and added to the residual after."""

    def __init__(self, config: LlamaConfig):
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config)
        self.mlp = LlamaFFN(config)
        self.input_layernorm = nn.RMSNorm(hidden, -1, eps, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(hidden, -1, eps, bias=False)

    def forward(self, hidden_states: Tensor, positions: Tensor, kv_cache: Tensor, layer_id: int):
        """(b, s, hidden) -> (b, s, hidden), and the extended cache."""
        normed = self.input_layernorm(hidden_states)
        out, kv_cache = self.self_attn(normed, positions, kv_cache, layer_id)
        hidden_states = out + hidden_states
        out = self.mlp(self.post_attention_layernorm(hidden_states))
        return out + hidden_states, kv_cache


class LlamaEmbedding(nn.Embedding):
    """`nn.Embedding` that clips token numbers to the vocabulary instead of reading beyond it."""

    def forward(self, x: Tensor):
        """(s,) int32 -> (s, hidden)."""
        row = relax.op.take(self.weight._expr, x._expr, axis=0, mode="clip")
        return nn.op.wrap_nested(row, "embedding")


class LlamaModel(nn.Module):
    """Embedding, layers and final norm; the language-model head is not part of it."""

    def __init__(self, config: LlamaConfig):
        self.embed_tokens = LlamaEmbedding("vocab_size", config.hidden_size)
        layers = [LlamaDecoderLayer(config) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(config.hidden_size, -1, config.rms_norm_eps, bias=False)

    def forward(self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor):
        """(b, s, hidden) -> normalized hidden states (b, s, hidden), and the extended cache."""
        hidden_states = input_embed
        for layer_id, layer in enumerate(self.layers):
            hidden_states, kv_cache = layer(hidden_states, positions, kv_cache, layer_id)
        return self.norm(hidden_states), kv_cache


def _take_last_token(hidden_states: Tensor) -> Tensor:
    """(b, s, hidden) -> (b, 1, hidden): the last token of each sequence."""

    def compute(x: te.Tensor):
        b, s, hidden = x.shape
        return te.compute((b, 1, hidden), lambda i, _, k: x[i, s - 1, k], name="last")

    return op.tensor_expr_op(compute, "last_token", [hidden_states])


class LlamaForCausalLM(nn.Module):
    """The decoder with its head, and the functions that a serving engine calls."""

    def __init__(self, config: LlamaConfig, dtype: str):
        self.config = config
        self.dtype = dtype
        self.model = LlamaModel(config)
        # The head accumulates in float32: near-equal logits of a float16 model would tie.
        self.lm_head = nn.Linear(config.hidden_size, "vocab_size", bias=False, out_dtype="float32")

    def embed(self, input_ids: Tensor):
        """(seq_len,) int32 -> (seq_len, hidden)."""
        return self.model.embed_tokens(input_ids)

    def get_logits(self, hidden_states: Tensor):
        """(..., hidden) -> (..., vocab_size) float32."""
        return self.lm_head(hidden_states)

    def batch_select_last_hidden_states(self, hidden_states: Tensor, logit_positions: Tensor):
        """Token `logit_positions[b]` of each row b: (b, s, hidden) -> (b, hidden)."""

        def compute(x: te.Tensor, logit_positions: te.Tensor):
            b, _, hidden = x.shape
            return te.compute((b, hidden), lambda i, k: x[i, logit_positions[i], k], name="chosen")

        return op.tensor_expr_op(compute, "select_tokens", [hidden_states, logit_positions])

    def prefill(self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor):
        """One sequence, any length; logits (1, 1, vocab_size) of its last token."""
        hidden_states, kv_cache = self.model(input_embed, positions, kv_cache)
        return self.get_logits(_take_last_token(hidden_states)), kv_cache

    def decode(self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor):
        """One sequence, one token; logits (1, 1, vocab_size)."""
        return self.batch_verify(input_embed, positions, kv_cache)

    def batch_prefill(
        self, input_embeds: Tensor, logit_positions: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """Right-padded sequences; logits (b, 1, vocab_size) of token `logit_positions[b]`.

        Padding writes to positions after its sequence. No token attends to them before the tokens
        decoded later overwrite them.
        """
        hidden_states, kv_cache = self.model(input_embeds, positions, kv_cache)
        chosen = self.batch_select_last_hidden_states(hidden_states, logit_positions)
        b, hidden = chosen.shape
        return self.get_logits(op.reshape(chosen, (b, 1, hidden))), kv_cache

    def batch_verify(self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor):
        """Several tokens of each sequence; logits (b, s, vocab_size) of every token."""
        hidden_states, kv_cache = self.model(input_embeds, positions, kv_cache)
        return self.get_logits(hidden_states), kv_cache

    batch_decode = batch_verify  # one token of each sequence; logits (b, 1, vocab_size)

    def create_kv_cache(self, batch_size: tirx.Var, context_window: tirx.Var):
        """An empty cache for `batch_size` sequences of at most `context_window` tokens."""
        config = self.config
        heads = (config.num_key_value_heads, config.head_dim)
        shape = (config.num_hidden_layers, 2, batch_size, context_window, *heads)
        return op.zeros(shape, self.dtype)


# --- export ---------------------------------------------------------------------------------------


def _describe_arguments(config: LlamaConfig, dtype: str) -> dict[str, dict]:
    """The arguments of each exported function, by its name, in the form that `nn.Module.export_tvm` takes."""
    hidden = config.hidden_size
    heads = (config.num_key_value_heads, config.head_dim)
    logit_positions = {"logit_positions": nn.spec.Tensor(["batch_size"], "int32")}

    def forward(name: str) -> dict:
        batched = name.startswith("batch")
        batch, seq = "batch_size" if batched else 1, 1 if "decode" in name else "seq_len"
        cache_shape = [config.num_hidden_layers, 2, batch, "context_window", *heads]
        return {
            "input_embeds" if batched else "input_embed": nn.spec.Tensor(
                [batch, seq, hidden], dtype
            ),
            **(logit_positions if name == "batch_prefill" else {}),
            "positions": nn.spec.Tensor([batch], "int32"),
            "kv_cache": nn.spec.Tensor(cache_shape, dtype),
        }

    names = ("prefill", "decode", "batch_prefill", "batch_decode", "batch_verify")
    with_weights = {
        "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32")},
        "get_logits": {"hidden_states": nn.spec.Tensor(["seq_len", hidden], dtype)},
        **{name: forward(name) for name in names},
    }
    without_weights = {"create_kv_cache": {"batch_size": int, "context_window": int}}
    modes = {"packed": with_weights, "none": without_weights}
    return {
        name: {**arguments, "$": {"param_mode": mode, "effect_mode": "none"}}
        for mode, specs in modes.items()
        for name, arguments in specs.items()
    }


FUNCTIONS = tuple(_describe_arguments(CONFIGS["tiny"], "float32"))


def decoder(
    config: str | LlamaConfig = "tiny",
    dtype: str = "float32",
    functions: Iterable[str] | None = None,
) -> tuple[tvm.IRModule, list[tuple[str, tuple[int, ...], str]]]:
    """The decoder as an IRModule, and `(name, shape, dtype)` of each weight in argument order.

    `functions` names what to export (see `FUNCTIONS`); None exports all. The functions that need
    weights take them as one tuple, the last argument. In the module `batch_size`, `seq_len`,
    `context_window` and `vocab_size` are symbolic; the returned shapes have the configuration's
    vocabulary. Raises ValueError for an unknown configuration, dtype or function.
    """
    config = find_config(config)
    if dtype not in DTYPES:
        raise ValueError(f"The decoder has no dtype {dtype!r}: choose one of {', '.join(DTYPES)}.")
    names = FUNCTIONS if functions is None else tuple(functions)
    unknown = [name for name in names if name not in FUNCTIONS]
    if unknown:
        raise ValueError(
            f"The decoder has no function {', '.join(map(repr, unknown))}: "
            f"choose among {', '.join(FUNCTIONS)}."
        )
    mod, weights = _export(config, dtype, names)
    return mod.clone(), [*weights]


@cache
def _export(
    config: LlamaConfig, dtype: str, names: tuple[str, ...]
) -> tuple[tvm.IRModule, list[tuple[str, tuple[int, ...], str]]]:
    """What `decoder` returns for arguments that are right; an export of all functions takes a second."""
    model = LlamaForCausalLM(config, dtype)
    model.to(dtype)
    specs = _describe_arguments(config, dtype)
    mod, parameters = model.export_tvm(spec={name: specs[name] for name in names})
    weights = [
        (name, tuple(n if isinstance(n, int) else config.vocab_size for n in weight.shape), dtype)
        for name, weight in parameters
    ]
    return mod, weights
