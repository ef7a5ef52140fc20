"""The real input of the course: a Llama-style decoder, written with `tvm.relax.frontend.nn`.

`decoder()` exports it as an IRModule, `random_weights()` fills its parameters and `Generator`
compiles and runs it. Function and parameter names follow MLC-LLM's `model/llama/llama_model.py`,
so that its passes find what they look for.

Attention is in plain view: no opaque cache object, only tensors.

* `kv_cache`, `(num_layers, 2, batch_size, context_window, num_kv_heads, head_dim)`, holds the keys
  (0) and values (1) of every layer. Every function updates it in place and returns it.
* `positions`, `(batch_size,)` int32, is the number of tokens each sequence has in the cache
  already: token `s` of this call goes to position `positions[b] + s` and sees all up to itself.

Scores and weighted values index head `h // group` of the cache directly, so keys and values are
neither repeated nor transposed: each `permute_dims` in the module belongs to an `nn.Linear`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T

DTYPES = ("float32", "float16")

# More parameters than this are shapes to compile, not a model to fill and run.
MAX_RANDOM_PARAMETERS = 50_000_000


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
            raise ValueError(
                f"head_dim is {self.head_dim}; rotary embedding turns pairs, so make it even."
            )

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


# --- kernels of attention -------------------------------------------------------------------------


def _slot(positions, b, s):
    """Where token `s` of this call stands in sequence `b`: an int64 index into the cache."""
    return positions[b].astype("int64") + s


def _head(qkv, b, s, h) -> Callable:
    """Head `h` of token (b, s): a function from the index within the head to a float32 value."""
    return lambda i: qkv[b, s, h, i].astype("float32")


def _rotate(head: Callable, slot, i, config: LlamaConfig):
    """Element `i` of `head` (index -> float32) under rotary embedding at position `slot`.

    Elements `i` and `i + head_dim / 2` are the two coordinates of one pair, as in Hugging Face's
    layout of the weights; pair `i` turns by `slot * theta ** (-2 i / head_dim)`.
    """
    half = config.head_dim // 2
    exponent = (i % half).astype("float32") * tirx.const(
        -2.0 * math.log(config.rope_theta) / config.head_dim, "float32"
    )
    angle = slot.astype("float32") * tirx.exp(exponent)
    partner = tirx.if_then_else(i < half, -head(i + half), head(i - half))
    return head(i) * tirx.cos(angle) + partner * tirx.sin(angle)


def rotate_queries(qkv: Tensor, positions: Tensor, config: LlamaConfig) -> Tensor:
    """The query heads of `qkv`, rotated: (b, s, qkv_heads, d) -> (b, s, num_attention_heads, d)."""

    def compute(qkv: te.Tensor, positions: te.Tensor):
        def element(b, s, h, i):
            slot = _slot(positions, b, s)
            return _rotate(_head(qkv, b, s, h), slot, i, config).astype(qkv.dtype)

        b, s, _, d = qkv.shape
        return te.compute((b, s, config.num_attention_heads, d), element, name="rotated")

    return op.tensor_expr_op(compute, "rotate_queries", [qkv, positions])


def append_kernel(config: LlamaConfig, dtype: str) -> tirx.PrimFunc:
    """Rotate the new keys, then write keys and values into the cache, in place.

    A token beyond the end of the cache is dropped: it must not write over foreign memory.
    """
    layers, h_kv, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    first_key = config.num_attention_heads
    first_value = first_key + h_kv

    @T.prim_func(private=True, s_tir=True)
    def append(
        cache_handle: T.handle, qkv_handle: T.handle, positions_handle: T.handle, layer: T.int64
    ):
        T.func_attr({"tirx.noalias": True})
        batch_size, seq_len, context_window = T.int64(), T.int64(), T.int64()
        kv_cache = T.match_buffer(
            cache_handle, (layers, 2, batch_size, context_window, h_kv, d), dtype
        )
        qkv = T.match_buffer(qkv_handle, (batch_size, seq_len, config.qkv_heads, d), dtype)
        positions = T.match_buffer(positions_handle, (batch_size,), "int32")
        for b, s, h, i in T.grid(batch_size, seq_len, T.int64(h_kv), T.int64(d)):
            with T.sblock("append"):
                vb, vs, vh, vi = T.axis.remap("SSSS", [b, s, h, i])
                slot = T.meta_var(_slot(positions, vb, vs))
                key = T.meta_var(_head(qkv, vb, vs, first_key + vh))
                rotated = T.meta_var(_rotate(key, slot, vi, config))
                if slot < context_window:
                    kv_cache[layer, 0, vb, slot, vh, vi] = T.Cast(dtype, rotated)
                    kv_cache[layer, 1, vb, slot, vh, vi] = qkv[vb, vs, first_value + vh, vi]

    return append


def append_to_cache(
    kv_cache: Tensor, qkv: Tensor, positions: Tensor, layer_id: int, config: LlamaConfig
) -> Tensor:
    """`kv_cache` with the keys and values of `qkv` (b, s, qkv_heads, d) written at `positions`."""
    return op.tensor_ir_inplace_op(
        append_kernel(config, kv_cache.dtype),
        "append_to_cache",
        [kv_cache, qkv, positions, tirx.IntImm("int64", layer_id)],
        inplace_indices=0,
        out=kv_cache,
    )


def _emit_with_layer(
    compute: Callable,
    name: str,
    tensors: dict[str, Tensor],
    layer_id: int,
    out_shape: Sequence,
    out_dtype: str,
) -> Tensor:
    """`op.tensor_expr_op` for a `compute` that also takes the layer number, at run time.

    `tensor_expr_op` would bake the number in and so make one kernel a layer; as an argument of
    the PrimFunc it leaves one kernel for all of them.
    """
    symbols: dict[str, tirx.Var] = {}

    def own(extent):  # a PrimFunc has symbolic variables of its own, never its caller's
        if isinstance(extent, tvm.ir.Var):
            return symbols.setdefault(extent.name, tirx.Var(extent.name, "int64"))
        return extent

    inputs = [
        te.placeholder([own(extent) for extent in tensor.shape], tensor.dtype, name=argument)
        for argument, tensor in tensors.items()
    ]
    layer = tirx.Var("layer", "int64")
    func = te.create_prim_func(
        [*inputs, layer, compute(*inputs, layer)], index_dtype_override="int64"
    )
    return op.tensor_ir_op(
        func.without_attr("global_symbol"),  # the module names it
        name,
        [*tensors.values(), tirx.IntImm("int64", layer_id)],
        Tensor.placeholder(list(out_shape), out_dtype, name),
    )


def attention_scores(
    q: Tensor, kv_cache: Tensor, positions: Tensor, layer_id: int, config: LlamaConfig
) -> Tensor:
    """Scaled, causally masked q . k in float32: (b, s, h, d) -> (b, s, h, context_window)."""

    def compute(q, kv_cache, positions, layer):
        b, s, h, d = q.shape
        context_window = kv_cache.shape[3]
        k = te.reduce_axis((0, d), name="k")

        def dot(b, s, h, j):
            key = kv_cache[layer, 0, b, j, h // config.group_size, k].astype("float32")
            return te.sum(q[b, s, h, k].astype("float32") * key, axis=k)

        def masked(b, s, h, j):
            scaled = products[b, s, h, j] * tirx.const(config.head_dim**-0.5, "float32")
            visible = j <= _slot(positions, b, s)
            return tirx.if_then_else(visible, scaled, tirx.min_value("float32"))

        products = te.compute((b, s, h, context_window), dot, name="products")
        return te.compute((b, s, h, context_window), masked, name="scores")

    b, s, h, _ = q.shape
    tensors = {"q": q, "kv_cache": kv_cache, "positions": positions}
    out_shape = (b, s, h, kv_cache.shape[3])
    return _emit_with_layer(compute, "attention_scores", tensors, layer_id, out_shape, "float32")


def attention_values(
    probabilities: Tensor, kv_cache: Tensor, positions: Tensor, layer_id: int, config: LlamaConfig
) -> Tensor:
    """Cached values weighted by `probabilities` (b, s, h, context_window): -> (b, s, h, d).

    Positions after the token itself are skipped, not multiplied by their zero probability: the
    cache may hold anything there, and zero times NaN is NaN.
    """

    def compute(probabilities, kv_cache, positions, layer):
        b, s, h, context_window = probabilities.shape
        j = te.reduce_axis((0, context_window), name="j")

        def weighted(b, s, h, i):
            value = kv_cache[layer, 1, b, j, h // config.group_size, i].astype("float32")
            visible = j <= _slot(positions, b, s)
            product = probabilities[b, s, h, j] * value
            return te.sum(tirx.if_then_else(visible, product, tirx.const(0, "float32")), axis=j)

        shape = (b, s, h, config.head_dim)
        total = te.compute(shape, weighted, name="weighted")
        if kv_cache.dtype == "float32":
            return total
        return te.compute(shape, lambda *i: total(*i).astype(kv_cache.dtype), name="rounded")

    b, s, h, _ = probabilities.shape
    tensors = {"probabilities": probabilities, "kv_cache": kv_cache, "positions": positions}
    out_shape = (b, s, h, config.head_dim)
    return _emit_with_layer(
        compute, "attention_values", tensors, layer_id, out_shape, kv_cache.dtype
    )


# --- the model ------------------------------------------------------------------------------------


class LlamaAttention(nn.Module):
    """Grouped-query attention with a fused q, k, v projection."""

    def __init__(self, config: LlamaConfig):
        self.config = config
        self.qkv_proj = nn.Linear(
            config.hidden_size, config.qkv_heads * config.head_dim, bias=False
        )
        self.o_proj = nn.Linear(
            config.num_attention_heads * config.head_dim, config.hidden_size, bias=False
        )

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
    """Attention, then feed-forward, each normalised before and added to the residual after."""

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
        self.layers = nn.ModuleList(
            [LlamaDecoderLayer(config) for _ in range(config.num_hidden_layers)]
        )
        self.norm = nn.RMSNorm(config.hidden_size, -1, config.rms_norm_eps, bias=False)

    def forward(self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor):
        """(b, s, hidden) -> normalised hidden states (b, s, hidden), and the extended cache."""
        hidden_states = input_embed
        for layer_id, layer in enumerate(self.layers):
            hidden_states, kv_cache = layer(hidden_states, positions, kv_cache, layer_id)
        return self.norm(hidden_states), kv_cache


def _last_token(hidden_states: Tensor) -> Tensor:
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
        return self.get_logits(_last_token(hidden_states)), kv_cache

    def decode(self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor):
        """One sequence, one token; logits (1, 1, vocab_size)."""
        return self._all_logits(input_embed, positions, kv_cache)

    def batch_prefill(
        self, input_embeds: Tensor, logit_positions: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """Right-padded sequences; logits (b, 1, vocab_size) of token `logit_positions[b]`.

        What padding writes lies behind its sequence, where no token looks, until the tokens
        decoded later overwrite it.
        """
        hidden_states, kv_cache = self.model(input_embeds, positions, kv_cache)
        chosen = self.batch_select_last_hidden_states(hidden_states, logit_positions)
        b, hidden = chosen.shape
        return self.get_logits(op.reshape(chosen, (b, 1, hidden))), kv_cache

    def batch_decode(self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor):
        """One token of each sequence; logits (b, 1, vocab_size)."""
        return self._all_logits(input_embeds, positions, kv_cache)

    def batch_verify(self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor):
        """Several tokens of each sequence; logits (b, s, vocab_size) of all of them."""
        return self._all_logits(input_embeds, positions, kv_cache)

    def _all_logits(self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor):
        hidden_states, kv_cache = self.model(input_embeds, positions, kv_cache)
        return self.get_logits(hidden_states), kv_cache

    def prefill_to_last_hidden_states(
        self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """As `prefill`, but the hidden states (1, s, hidden) of all tokens, without the head."""
        return self.model(input_embed, positions, kv_cache)

    def decode_to_last_hidden_states(
        self, input_embed: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """As `decode`, without the head."""
        return self.model(input_embed, positions, kv_cache)

    def batch_prefill_to_last_hidden_states(
        self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """As `batch_prefill`, without selection and head."""
        return self.model(input_embeds, positions, kv_cache)

    def batch_decode_to_last_hidden_states(
        self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """As `batch_decode`, without the head."""
        return self.model(input_embeds, positions, kv_cache)

    def batch_verify_to_last_hidden_states(
        self, input_embeds: Tensor, positions: Tensor, kv_cache: Tensor
    ):
        """As `batch_verify`, without the head."""
        return self.model(input_embeds, positions, kv_cache)

    def create_kv_cache(self, batch_size: tirx.Var, context_window: tirx.Var):
        """An empty cache for `batch_size` sequences of at most `context_window` tokens."""
        config = self.config
        heads = (config.num_key_value_heads, config.head_dim)
        shape = (config.num_hidden_layers, 2, batch_size, context_window, *heads)
        return op.zeros(shape, self.dtype)


# --- export ---------------------------------------------------------------------------------------


def _specs(config: LlamaConfig, dtype: str) -> dict[str, dict]:
    """What each exported function takes, by name, in the form `nn.Module.export_tvm` wants."""
    hidden = config.hidden_size
    heads = (config.num_key_value_heads, config.head_dim)
    logit_positions = {"logit_positions": nn.spec.Tensor(["batch_size"], "int32")}

    def forward(embed: str, batch, seq, extra: dict | None = None) -> dict:
        cache_shape = [config.num_hidden_layers, 2, batch, "context_window", *heads]
        return {
            embed: nn.spec.Tensor([batch, seq, hidden], dtype),
            **(extra or {}),
            "positions": nn.spec.Tensor([batch], "int32"),
            "kv_cache": nn.spec.Tensor(cache_shape, dtype),
        }

    prefill = forward("input_embed", 1, "seq_len")
    decode = forward("input_embed", 1, 1)
    batch_prefill = forward("input_embeds", "batch_size", "seq_len")
    batch_decode = forward("input_embeds", "batch_size", 1)
    with_weights = {
        "embed": {"input_ids": nn.spec.Tensor(["seq_len"], "int32")},
        "get_logits": {"hidden_states": nn.spec.Tensor(["seq_len", hidden], dtype)},
        "prefill": prefill,
        "decode": decode,
        "batch_prefill": forward("input_embeds", "batch_size", "seq_len", logit_positions),
        "batch_decode": batch_decode,
        "batch_verify": batch_prefill,
        "prefill_to_last_hidden_states": prefill,
        "decode_to_last_hidden_states": decode,
        "batch_prefill_to_last_hidden_states": batch_prefill,
        "batch_decode_to_last_hidden_states": batch_decode,
        "batch_verify_to_last_hidden_states": batch_prefill,
    }
    without_weights = {
        "batch_select_last_hidden_states": {
            "hidden_states": nn.spec.Tensor(["batch_size", "seq_len", hidden], dtype),
            **logit_positions,
        },
        "create_kv_cache": {"batch_size": int, "context_window": int},
    }
    modes = {"packed": with_weights, "none": without_weights}
    return {
        name: {**arguments, "$": {"param_mode": mode, "effect_mode": "none"}}
        for mode, specs in modes.items()
        for name, arguments in specs.items()
    }


FUNCTIONS = tuple(_specs(CONFIGS["tiny"], "float32"))


def find_config(config: str | LlamaConfig) -> LlamaConfig:
    """The configuration of that name; a `LlamaConfig` is returned as it is."""
    if isinstance(config, LlamaConfig):
        return config
    if config not in CONFIGS:
        known = ", ".join(CONFIGS)
        raise ValueError(f"There is no configuration {config!r}: choose one of {known}.")
    return CONFIGS[config]


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"The decoder has no dtype {dtype!r}: choose one of {', '.join(DTYPES)}.")


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
    _check_dtype(dtype)
    specs = _specs(config, dtype)
    names = FUNCTIONS if functions is None else tuple(functions)
    unknown = [name for name in names if name not in specs]
    if unknown:
        raise ValueError(
            f"The decoder has no function {', '.join(map(repr, unknown))}: "
            f"choose among {', '.join(FUNCTIONS)}."
        )
    model = LlamaForCausalLM(config, dtype)
    model.to(dtype)
    mod, parameters = model.export_tvm(spec={name: specs[name] for name in names})
    weights = [
        (name, tuple(_concrete(extent, config) for extent in parameter.shape), dtype)
        for name, parameter in parameters
    ]
    return mod, weights


def _concrete(extent, config: LlamaConfig) -> int:
    return extent if isinstance(extent, int) else config.vocab_size


# --- weights and a driver -------------------------------------------------------------------------


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
            f"{MAX_RANDOM_PARAMETERS:,}: large configurations are there to compile and count, "
            "use 'tiny' to run."
        )
    rng = np.random.default_rng(seed)
    return {
        name: _random_weight(name, shape, config, rng).astype(dtype) for name, shape, _ in weights
    }


def _random_weight(
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
    if "o_proj" in name or "down_proj" in name:  # two summands a layer enter the residual
        return noise / math.sqrt(2 * config.num_hidden_layers * fan_in)
    return noise / math.sqrt(fan_in)


class Generation(NamedTuple):
    """What greedy decoding produced, one entry a step (a leading batch axis if batched)."""

    tokens: np.ndarray  # int32 (steps,) or (batch, steps)
    logits: np.ndarray  # float32 (steps, vocab_size) or (batch, steps, vocab_size)


class Generator:
    """Compile a decoder for a target and run it: prefill, then greedy decoding.

    `module` replaces the exported decoder, for instance by one that passes have rewritten; it must
    have the `functions` named and take the weights in the same order. `weights` defaults to
    `random_weights(config, dtype, seed)`.
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
        """A copy of `array` on the device, aligned as compiled code expects (NumPy need not be)."""
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

        Raises ValueError for a function that was not compiled, a token outside the vocabulary, or
        tokens that do not fit into the cache behind `positions`.
        """
        tokens, positions = np.asarray(tokens), np.asarray(positions, dtype="int32")
        self._check(name, tokens, positions, kv_cache.shape[3])
        extra = [] if logit_positions is None else [logit_positions]
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
            raise ValueError("There are no tokens to run on: give at least one a sequence.")
        vocab_size = self.config.vocab_size
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(
                f"Tokens run from {tokens.min()} to {tokens.max()} and the vocabulary from 0 to "
                f"{vocab_size - 1}: keep them inside."
            )
        needed = int(positions.max()) + tokens.shape[1]
        if needed > context_window:
            raise ValueError(
                f"{needed} positions are needed and the cache has {context_window}: shorten "
                "the prompt or the generation, or create a Generator with a larger context_window."
            )

    def generate(self, prompt: Sequence[int], steps: int) -> Generation:
        """`steps` greedy tokens after `prompt`, with `prefill` and `decode`."""
        tokens = np.asarray([prompt], dtype="int32")
        logits, kv_cache = self.forward("prefill", tokens, [0], self.create_kv_cache())
        batch = self._decode("decode", logits, kv_cache, np.asarray([len(prompt)]), steps)
        return Generation(batch.tokens[0], batch.logits[0])

    def generate_batch(self, prompts: Sequence[Sequence[int]], steps: int) -> Generation:
        """`steps` greedy tokens after each prompt, with `batch_prefill` and `batch_decode`.

        Prompts may differ in length; the shorter ones are padded on the right.
        """
        lengths = np.asarray([len(prompt) for prompt in prompts])
        tokens = np.zeros((len(prompts), lengths.max()), dtype="int32")
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        kv_cache = self.create_kv_cache(len(prompts))
        logits, kv_cache = self.forward(
            "batch_prefill", tokens, np.zeros_like(lengths), kv_cache, lengths - 1
        )
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
