"""The kernels of the decoder's attention: rotary embedding, the cache's update, scores and values.

Each works on plain tensors in the layout (batch, sequence, head, head_dim). Scores and weighted values index head `h //
group` of the cache directly, so keys and values are neither repeated nor transposed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import tvm
from tvm import te, tirx
from tvm.relax.frontend.nn import Tensor, op
from tvm.script import tirx as T

from chapters.kit.decoder.llama_config import LlamaConfig


def _slot(positions, b, s):
    """The position of token `s` of this call in sequence `b`: an int64 index into the cache."""
    return positions[b].astype("int64") + s


def _select_head(qkv, b, s, h) -> Callable:
    """Head `h` of token (b, s): a function from the index within the head to a float32 value."""
    return lambda i: qkv[b, s, h, i].astype("float32")


def _rotate(head: Callable, slot, i, config: LlamaConfig):
    """Element `i` of `head` (index -> float32) under rotary embedding at position `slot`.

    Elements `i` and `i + head_dim / 2` are the two coordinates of one pair, as in Hugging Face's
    layout of the weights; pair `i` is rotated by `slot * theta ** (-2 i / head_dim)`.
    """
    half = config.head_dim // 2
    rate = -2.0 * math.log(config.rope_theta) / config.head_dim
    exponent = (i % half).astype("float32") * tirx.const(rate, "float32")
    angle = slot.astype("float32") * tirx.exp(exponent)
    partner = tirx.if_then_else(i < half, -head(i + half), head(i - half))
    return head(i) * tirx.cos(angle) + partner * tirx.sin(angle)


def rotate_queries(qkv: Tensor, positions: Tensor, config: LlamaConfig) -> Tensor:
    """The query heads of `qkv`, rotated: (b, s, qkv_heads, d) -> (b, s, num_attention_heads, d)."""

    def compute(qkv: te.Tensor, positions: te.Tensor):
        def element(b, s, h, i):
            slot = _slot(positions, b, s)
            return _rotate(_select_head(qkv, b, s, h), slot, i, config).astype(qkv.dtype)

        b, s, _, d = qkv.shape
        return te.compute((b, s, config.num_attention_heads, d), element, name="rotated")

    return op.tensor_expr_op(compute, "rotate_queries", [qkv, positions])


@functools.cache  # each layer and function of a decoder takes the same one
def append_kernel(config: LlamaConfig, dtype: str) -> tirx.PrimFunc:
    """Rotate the new keys, then write keys and values into the cache, in place.

    A token beyond the end of the cache is dropped: it must not write to memory outside the cache.
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
        cache_shape = T.meta_var((layers, 2, batch_size, context_window, h_kv, d))
        kv_cache = T.match_buffer(cache_handle, cache_shape, dtype)
        qkv = T.match_buffer(qkv_handle, (batch_size, seq_len, config.qkv_heads, d), dtype)
        positions = T.match_buffer(positions_handle, (batch_size,), "int32")
        for b, s, h, i in T.grid(batch_size, seq_len, T.int64(h_kv), T.int64(d)):
            with T.sblock("append"):
                vb, vs, vh, vi = T.axis.remap("SSSS", [b, s, h, i])
                slot = T.meta_var(_slot(positions, vb, vs))
                key = T.meta_var(_select_head(qkv, vb, vs, first_key + vh))
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

    `tensor_expr_op` would compile the number in, which makes one kernel per layer. As an argument
    of the PrimFunc, all layers share one kernel.
    """
    symbols: dict[str, tirx.Var] = {}

    def own(extent):  # a PrimFunc needs its own symbolic variables, not its caller's
        if isinstance(extent, tvm.ir.Var):
            return symbols.setdefault(extent.name, tirx.Var(extent.name, "int64"))
        return extent

    inputs = [
        te.placeholder([own(extent) for extent in tensor.shape], tensor.dtype, name=argument)
        for argument, tensor in tensors.items()
    ]
    layer = tirx.Var("layer", "int64")
    arguments = [*inputs, layer, compute(*inputs, layer)]
    func = te.create_prim_func(arguments, index_dtype_override="int64")
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
    out = (b, s, h, config.head_dim), kv_cache.dtype
    return _emit_with_layer(compute, "attention_values", tensors, layer_id, *out)
