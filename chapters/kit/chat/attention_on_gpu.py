"""The attention kernel of attention.py for a GPU: the same parameters, the same cache, the same results.

It needs at most 256 threads per block for heads of up to 256 elements, a few kilobytes of shared memory, and no
instruction of a warp, so that one text serves CUDA, Metal, Vulkan and OpenCL.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.chat.attention import THREADS, list_shapes, rotate_pair
from chapters.kit.chat.cache_layout import LANES
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.quantized.dequantize import int64s


def attention_kernel(config: LlamaConfig, s: Expr | int, dtype: str = "float32") -> tirx.PrimFunc:
    """softmax(q k / sqrt(d)) v for the tokens up to each new one: (cache, qkv, rope, positions, layer, result).

    A block of threads computes one head of one new token. It goes through the cached tokens in tiles, one token per
    thread: each thread computes a score, then the threads share the elements of the values and the tokens of the tile.
    The largest score so far is subtracted before exp, and the sums are scaled when a tile has a larger one.
    """
    d, half, window = config.head_dim, config.head_dim // 2, config.context_window_size
    heads, group = config.num_attention_heads, config.group_size
    parts = max(1, THREADS // d)  # threads that share an element, each with tokens of its own
    threads = parts * d
    scale, least = T.float32(d**-0.5), tirx.min_value("float32")
    cache_dims, qkv_dims, rope_dims, positions_dims = list_shapes(config, s)
    result_dims = tuple(int64s((1, s, heads * d)))

    @T.prim_func(private=True, s_tir=True)
    def attention(
        p_cache: T.handle,
        p_qkv: T.handle,
        p_rope: T.handle,
        p_positions: T.handle,
        layer: T.int64,
        p_attended: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        kv_cache = T.match_buffer(p_cache, cache_dims, dtype)
        qkv = T.match_buffer(p_qkv, qkv_dims, "float32")
        rope = T.match_buffer(p_rope, rope_dims, "float32")
        positions = T.match_buffer(p_positions, positions_dims, "int32")
        attended = T.match_buffer(p_attended, result_dims, "float32")
        query = T.sblock_alloc_buffer((d,), "float32", scope="shared")
        scores = T.sblock_alloc_buffer((threads,), "float32", scope="shared")
        sums = T.sblock_alloc_buffer((parts, d), "float32", scope="shared")
        totals = T.sblock_alloc_buffer((parts,), "float32", scope="shared")
        # in registers: a score; the largest score; weights and weighted values of this thread's tokens, added up
        score = T.sblock_alloc_buffer((1,), "float32", scope="local")
        largest = T.sblock_alloc_buffer((1,), "float32", scope="local")
        total = T.sblock_alloc_buffer((1,), "float32", scope="local")
        value = T.sblock_alloc_buffer((1,), "float32", scope="local")
        factor = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for token in T.thread_binding(s, thread="blockIdx.x"):
            for head in T.thread_binding(heads, thread="blockIdx.y"):
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    # a token beyond the window, which the host should refuse, reads the last row of the table
                    slot: T.let = T.min(positions[0] + T.cast(token, "int32"), window - 1)
                    part: T.let = thread // d
                    element: T.let = thread % d
                    if thread < half:
                        pair = T.meta_var(rotate_pair(qkv, rope, token, slot, head * d, thread))
                        query[thread] = pair[0] * scale
                        query[half + thread] = pair[1] * scale
                    largest[0] = least
                    total[0] = T.float32(0)
                    value[0] = T.float32(0)
                    for tile in T.serial(slot // threads + 1):
                        first: T.let = tile * threads
                        count: T.let = T.min(slot + 1 - first, threads)
                        if thread < count:
                            key: T.let = first + thread
                            score[0] = T.float32(0)
                            for i in T.serial(d):
                                score[0] += query[i] * T.cast(
                                    kv_cache[
                                        key // LANES,
                                        layer,
                                        0,
                                        head // group,
                                        i * LANES + key % LANES,
                                    ],
                                    "float32",
                                )
                            scores[thread] = score[0]
                        factor[0] = largest[0]
                        for i in T.serial(count):
                            largest[0] = T.max(largest[0], scores[i])
                        factor[0] = T.exp(factor[0] - largest[0])
                        total[0] = total[0] * factor[0]
                        value[0] = value[0] * factor[0]
                        for i in T.serial((count - part + parts - 1) // parts):
                            at: T.let = first + i * parts + part
                            score[0] = T.exp(scores[i * parts + part] - largest[0])
                            total[0] += score[0]
                            value[0] += score[0] * T.cast(
                                kv_cache[
                                    at // LANES, layer, 1, head // group, at % LANES * d + element
                                ],
                                "float32",
                            )
                    sums[part, element] = value[0]
                    if element == 0:
                        totals[part] = total[0]
                    if thread < d:
                        value[0] = T.float32(0)
                        total[0] = T.float32(0)
                        for i in T.serial(parts):
                            value[0] += sums[i, thread]
                            total[0] += totals[i]
                        attended[0, token, head * d + thread] = value[0] / total[0]

    return attention
