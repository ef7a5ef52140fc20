"""The decoder that `chat` compiles: chapter 9's, with a file's matrices and attention over the tokens there are."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from chapters.kit.chat import attention, attention_on_gpu
from chapters.kit.chat.cache_layout import cache_shape
from chapters.kit.chat.weights import Weights
from chapters.kit.decoder.llama import LlamaForCausalLM
from chapters.kit.quantized.dequantize import int64
from chapters.kit.quantized.quantized_layers import (
    FloatMatrix,
    Matrix,
    MatrixEmbedding,
    MatrixLinear,
    QuantizedMatrix,
    TiedHead,
)

FUNCTIONS = ("prefill", "decode")


class ChatAttention(nn.Module):
    """Causal grouped-query attention of new tokens over themselves and the cached ones; q, k, v are one projection.

    model: has the table of rotations. on_gpu: with the kernels for a GPU.
    """

    def __init__(
        self,
        config,
        qkv_proj: MatrixLinear,
        o_proj: MatrixLinear,
        model: nn.Module,
        on_gpu: bool,
    ):
        self.config, self.qkv_proj, self.o_proj, self.on_gpu = config, qkv_proj, o_proj, on_gpu
        self._model = (model,)  # in a tuple, so that its parameters are listed once

    def forward(self, hidden_states: Tensor, positions: Tensor, kv_cache: Tensor, layer_id: int):
        """(1, s, hidden) -> (1, s, hidden), and the extended cache."""
        config, dtype, s = self.config, kv_cache.dtype, hidden_states.shape[1]
        kernels = attention_on_gpu if self.on_gpu else attention
        inputs = [self.qkv_proj(hidden_states), self._model[0].rope, positions, int64(layer_id)]
        kv_cache = op.tensor_ir_inplace_op(
            attention.append_kernel(config, s, dtype, self.on_gpu),
            "append_to_cache",
            [kv_cache, *inputs],
            inplace_indices=0,
            out=kv_cache,
        )
        shape = [1, s, config.num_attention_heads * config.head_dim]
        out = op.tensor_ir_op(
            kernels.attention_kernel(config, s, dtype),
            "attention",
            [kv_cache, *inputs],
            Tensor.placeholder(shape, "float32", "attended"),
        )
        return self.o_proj(out), kv_cache


class ChatDecoder(LlamaForCausalLM):
    """Chapter 9's decoder whose functions take the numbers of tokens, (s,) int32, so that a step is one call."""

    def prefill(self, input_ids: Tensor, positions: Tensor, kv_cache: Tensor):
        """Logits (1, 1, vocab_size) of the last token, and the extended cache."""
        return super().prefill(self._embed_batch(input_ids), positions, kv_cache)

    def decode(self, input_ids: Tensor, positions: Tensor, kv_cache: Tensor):
        """The same for one token."""
        return self.batch_verify(input_ids, positions, kv_cache)

    def batch_verify(self, input_ids: Tensor, positions: Tensor, kv_cache: Tensor):
        """Logits (1, s, vocab_size) of all tokens, and the extended cache."""
        return super().batch_verify(self._embed_batch(input_ids), positions, kv_cache)

    def _embed_batch(self, input_ids: Tensor) -> Tensor:
        rows = self.embed(input_ids)
        return op.reshape(rows, (1, *rows.shape))


def chat_decoder(
    weights: Weights,
    functions: Sequence[str] = FUNCTIONS,
    cache_dtype: str = "float32",
    on_gpu: bool = False,
) -> tuple[tvm.IRModule, list[str]]:
    """(the decoder as an IRModule, the names of its parameters in the order of the tuple that its functions take).

    functions: among those of ChatDecoder.
    cache_dtype: "float32" or "float16". One sequence; `seq_len` is symbolic, the context window and the vocabulary
    are not. on_gpu: with kernels of attention for a GPU; those for a CPU have no threads of a GPU.
    """
    config = weights.config

    def build_matrices(layer: str) -> list[Matrix]:
        return [
            QuantizedMatrix(spec.form, spec.n, spec.k) if spec.form else FloatMatrix(spec.n, spec.k)
            for spec in weights.specs(layer)
        ]

    def linear(layer: str) -> MatrixLinear:
        return MatrixLinear(build_matrices(layer))

    whole = ChatDecoder(config, "float32")
    model = whole.model
    model.rope = nn.Parameter((config.context_window_size, 2, config.head_dim // 2), "float32")
    model.embed_tokens = MatrixEmbedding(*build_matrices("model.embed_tokens.matrix"))
    whole.lm_head = TiedHead(model.embed_tokens) if weights.tied else linear("lm_head")
    for at, layer in enumerate(model.layers):
        name = f"model.layers.{at}."
        projections = (linear(f"{name}self_attn.{part}") for part in ("qkv_proj", "o_proj"))
        layer.self_attn = ChatAttention(config, *projections, model, on_gpu)
        layer.mlp.gate_up_proj = linear(f"{name}mlp.gate_up_proj")
        layer.mlp.down_proj = linear(f"{name}mlp.down_proj")
    spec = {
        name: {
            "input_ids": nn.spec.Tensor([1 if name == "decode" else "seq_len"], "int32"),
            "positions": nn.spec.Tensor([1], "int32"),
            "kv_cache": nn.spec.Tensor(list(cache_shape(config)), cache_dtype),
            "$": {"param_mode": "packed", "effect_mode": "none"},
        }
        for name in functions
    }
    mod, parameters = whole.export_tvm(spec=spec)
    return mod, [name for name, _ in parameters]
