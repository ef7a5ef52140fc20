"""Attention over the tokens that there are: one kernel for scores, softmax and values, on cache_layout.py's cache.

`attention_kernel` is for a CPU; attention_on_gpu.py has the one for a GPU.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as I

from chapters.kit.chat.cache_layout import LANES, cache_shape
from chapters.kit.cpu.cache_control import CACHE_LINE, prefetch
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.quantized.dequantize import int64, int64s

THREADS = 256  # per block of a GPU, at most: every GPU with WebGPU has as many
ROWS = 12  # vectors of sums that a kernel holds at a time, in as many registers
NEAR = 32  # blocks whose values are fetched early: more would not stay in the nearest caches
PARALLEL = 1 << 15  # tokens times elements of a head from which several threads share a decode step


def list_shapes(config: LlamaConfig, s: Expr | int) -> list[tuple]:
    """The shapes of the cache, qkv, rope and positions for `s` new tokens."""
    window, d = config.context_window_size, config.head_dim
    shapes = cache_shape(config), (1, s, config.qkv_heads * d), (window, 2, d // 2), (1,)
    return [tuple(int64s(shape)) for shape in shapes]


def rotate_pair(qkv, rope, token: Expr, slot: Expr, first: Expr, pair: Expr) -> tuple[Expr, Expr]:
    """Both elements of a pair, or of several neighbouring ones, rotated for position `slot`.

    first: where the head of the pair begins in qkv.
    """
    half = rope.shape[-1]
    one, two = qkv[0, token, first + pair], qkv[0, token, first + half + pair]
    cosine, sine = rope[slot, 0, pair], rope[slot, 1, pair]
    return one * cosine - two * sine, two * cosine + one * sine


def append_kernel(
    config: LlamaConfig, s: Expr | int, dtype: str = "float32", on_gpu: bool = False
) -> tirx.PrimFunc:
    """Rotate the new keys, then write keys and values into the cache, in place: (cache, qkv, rope, positions, layer).

    dtype: the cache's. A token beyond the end of the cache is dropped. Each iteration, or thread of a GPU, writes one
    pair of elements of a key and the two elements of the value at the same places.
    """
    d, half, window = config.head_dim, config.head_dim // 2, config.context_window_size
    heads, first_key = config.num_key_value_heads, config.num_attention_heads
    threads = min(THREADS, heads * half)
    blocks = math.ceil(heads * half / threads)
    cache_dims, qkv_dims, rope_dims, positions_dims = list_shapes(config, s)
    loops = [T.serial if isinstance(s, int) else T.parallel, T.serial, T.serial]
    if on_gpu:
        axes = "blockIdx.x", "blockIdx.y", "threadIdx.x"
        loops = [partial(T.thread_binding, thread=axis) for axis in axes]
    tokens_in, blocks_in, threads_in = loops

    @T.prim_func(private=True, s_tir=True)
    def append_to_cache(
        p_cache: T.handle, p_qkv: T.handle, p_rope: T.handle, p_positions: T.handle, layer: T.int64
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        kv_cache = T.match_buffer(p_cache, cache_dims, dtype)
        qkv = T.match_buffer(p_qkv, qkv_dims, "float32")
        rope = T.match_buffer(p_rope, rope_dims, "float32")
        positions = T.match_buffer(p_positions, positions_dims, "int32")
        for token in tokens_in(s):
            for block in blocks_in(blocks):
                for thread in threads_in(threads):
                    slot: T.let = positions[0] + T.cast(token, "int32")
                    head: T.let = (block * threads + thread) // half
                    pair: T.let = (block * threads + thread) % half
                    if head < heads and slot < window:
                        key = T.meta_var(
                            rotate_pair(qkv, rope, token, slot, (first_key + head) * d, pair)
                        )
                        for part in T.unroll(2):
                            at: T.let = part * half + pair
                            kv_cache[slot // LANES, layer, 0, head, at * LANES + slot % LANES] = (
                                T.cast(T.Select(part == 0, key[0], key[1]), dtype)
                            )
                            kv_cache[slot // LANES, layer, 1, head, slot % LANES * d + at] = T.cast(
                                qkv[0, token, (first_key + heads + head) * d + at], dtype
                            )

    return append_to_cache


def attention_kernel(config: LlamaConfig, s: Expr | int, dtype: str = "float32") -> tirx.PrimFunc:
    """softmax(q k / sqrt(d)) v for the tokens up to each new one: (cache, qkv, rope, positions, layer, result)."""
    heads, group = config.num_key_value_heads, config.group_size
    with IRBuilder() as builder, I.prim_func(s_tir=True, private=True):
        I.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        dtypes = {"kv_cache": dtype, "qkv": "float32", "rope": "float32", "positions": "int32"}
        cache, qkv, rope, positions = (
            I.arg(name, I.Buffer(shape, dtypes[name]))
            for name, shape in zip(dtypes, list_shapes(config, s), strict=True)
        )
        layer = I.arg("layer", tirx.Var("layer", "int64"))
        shape = (1, s, config.num_attention_heads * config.head_dim)
        out = I.arg("attended", I.Buffer(int64s(shape), "float32"))
        tokens = 1 if isinstance(s, int) else max(1, ROWS // group)
        with I.sblock("root"):
            work = _Attention(config, (cache, qkv, rope, positions, layer, out), s, tokens)
            if isinstance(s, int):
                long = positions[0] * (group * config.head_dim) > PARALLEL
                with I.If(long):
                    with I.Then(), I.parallel(*int64s((0, heads))) as head:
                        work.emit(head, int64(0))
                    with I.Else(), I.serial(*int64s((0, heads))) as head:
                        work.emit(head, int64(0))
            else:
                tiles = (s + tokens - 1) // tokens
                with I.parallel(*int64s((0, heads * tiles))) as task:
                    work.emit(task % heads, task // heads * tokens)
    return builder.get()


class _Attention:
    """Writes the code for one key-value head and `tokens` new tokens, with the query heads that share that head."""

    def __init__(self, config: LlamaConfig, buffers, s: Expr | int, tokens: int):
        self.config, self.s, self.tokens = config, s, tokens
        self.cache, self.qkv, self.rope, self.positions, self.layer, self.out = buffers
        self.rows = tokens * config.group_size
        self.width = next(width for width in (16, 8, 4, 2) if config.head_dim % (2 * width) == 0)

    def emit(self, head: Expr, first: Expr) -> None:
        """The code for the tokens from number `first` on; those beyond the last repeat the last and are not stored."""
        config, rows, window = self.config, self.rows, self.config.context_window_size
        known = [tirx.min(first + one, self.s - 1) for one in range(self.tokens)]
        self.token = [known[row // config.group_size] for row in range(rows)]
        self.head = [head * config.group_size + row % config.group_size for row in range(rows)]
        # a token beyond the window, which the host should refuse, reads the last row of the table
        self.slot = [
            tirx.min(self.positions[0].astype("int64") + token, window - 1) for token in self.token
        ]
        queries = I.alloc_buffer([rows, config.head_dim], "float32", layout=None)
        scores = I.alloc_buffer([rows, window], "float32", layout=None)
        total = I.alloc_buffer([rows, LANES], "float32", layout=None)
        self._rotate(queries)
        length = tirx.min(self.slot[-1] + 1, window)
        blocks = (length + LANES - 1) // LANES
        self._score(queries, scores, total, head, blocks)
        self._exponentiate(scores, total, blocks)
        self._weight_values(scores, total, head, length, first)

    def _rotate(self, queries) -> None:
        half, width = self.config.head_dim // 2, self.width
        scale = T.broadcast(T.float32(self.config.head_dim**-0.5), width)
        for row in range(self.rows):
            place = self.token[row], self.slot[row], self.head[row] * self.config.head_dim
            for at in range(0, half, width):
                both = rotate_pair(self.qkv, self.rope, *place, I.ramp(int64(at), 1, width))
                for values, first in zip(both, (at, half + at), strict=True):
                    I.buffer_store(queries, values * scale, [row, I.ramp(first, 1, width)])

    def _score(self, queries, scores, largest, head: Expr, blocks: Expr) -> None:
        """scores: q . k, LANES tokens at a time; -inf for tokens after the row's own. largest: per lane.

        A decode step meanwhile asks for the keys of the next block, and for the values of the first blocks.
        """
        rows, lanes, d = self.rows, I.ramp(0, 1, LANES), self.config.head_dim
        least = T.broadcast(tirx.min_value("float32"), LANES)
        parts = _count_sums(rows, d)  # neighbouring elements, each with sums of its own
        sums = I.alloc_buffer([rows * parts, LANES], "float32", layout=None)
        for row in range(rows):
            I.buffer_store(largest, least, [row, lanes])
        with I.serial(*int64s((0, blocks))) as block:
            for at in range(rows * parts):
                I.buffer_store(sums, T.broadcast(T.float32(0), LANES), [at, lanes])
            with I.serial(0, d // parts) as step:
                for part in range(parts):
                    element = step * parts + part
                    if self._prefetches(part * LANES):
                        near = ((0, tirx.min(block + 1, blocks - 1)), (1, tirx.min(block, NEAR)))
                        for kind, other in near:
                            prefetch(self._load_cached(kind, other, head, element * LANES))
                    place = I.ramp(element * LANES, 1, LANES)
                    keys = _cast(self._load_cached(0, block, head, place), "float32")
                    for row in range(rows):
                        query, at = T.broadcast(queries[row, element], LANES), row * parts + part
                        I.buffer_store(sums, sums[at, lanes] + query * keys, [at, lanes])
            for row in range(rows):
                token = I.ramp(tirx.Cast("int32", block) * LANES, 1, LANES)
                last = T.broadcast(tirx.Cast("int32", self.slot[row]), LANES)
                total = sums[row * parts, lanes]
                for part in range(1, parts):
                    total = total + sums[row * parts + part, lanes]
                score = tirx.Select(token <= last, total, least)
                I.buffer_store(scores, score, [row, I.ramp(block * LANES, 1, LANES)])
                I.buffer_store(largest, tirx.max(largest[row, lanes], score), [row, lanes])

    def _prefetches(self, element: int) -> bool:
        """Whether a step that reads from `element` on asks for memory ahead: once for each line of a decode step."""
        nbytes = np.dtype(str(self.cache.dtype)).itemsize
        return self.tokens == 1 and element * nbytes % CACHE_LINE == 0

    def _load_cached(self, kind: int, block: Expr, head: Expr, at: Expr) -> Expr:
        """An element, or several, of a block of keys (kind 0) or values (1), as the cache holds them."""
        return self.cache[block, self.layer, kind, head, at]

    def _exponentiate(self, scores, total, blocks: Expr) -> None:
        """scores: exp(score - largest); total: their sum, in every lane."""
        lanes = I.ramp(0, 1, LANES)
        most = I.alloc_buffer([self.rows], "float32", layout=None)
        for row in range(self.rows):
            largest = T.call_llvm_pure_intrin(
                "float32", f"llvm.vector.reduce.fmax.v{LANES}f32", total[row, lanes]
            )
            I.buffer_store(most, largest, [row])
            I.buffer_store(total, T.broadcast(T.float32(0), LANES), [row, lanes])
        with I.serial(*int64s((0, blocks))) as block, I.serial(0, self.rows) as row:
            with I.vectorized(0, LANES) as lane:
                I.buffer_store(
                    scores,
                    T.exp(scores[row, block * LANES + lane] - most[row]),
                    [row, block * LANES + lane],
                )
            part = scores[row, I.ramp(block * LANES, 1, LANES)]
            I.buffer_store(total, total[row, lanes] + part, [row, lanes])
        for row in range(self.rows):
            add = T.call_llvm_pure_intrin(
                "float32", f"llvm.vector.reduce.fadd.v{LANES}f32", T.float32(0), total[row, lanes]
            )
            I.buffer_store(total, T.broadcast(add, LANES), [row, lanes])

    def _weight_values(self, weights, total, head: Expr, length: Expr, first: Expr) -> None:
        """The values weighted by the exponentials, divided by their sum.

        A decode step meanwhile asks for the keys of the next head.
        """
        after = tirx.min(head + 1, self.config.num_key_value_heads - 1)
        d, width, lanes = self.config.head_dim, self.width, I.ramp(0, 1, self.width)
        parts = _count_sums(self.rows, d // width)  # of a row of the result, each `width` elements
        sums = I.alloc_buffer([self.rows * parts, width], "float32", layout=None)
        with I.serial(0, d // width // parts) as outer:
            firsts = [(outer * parts + part) * width for part in range(parts)]
            for at in range(self.rows * parts):
                I.buffer_store(sums, T.broadcast(T.float32(0), width), [at, lanes])
            with I.serial(*int64s((0, length))) as token:
                for part, start in enumerate(firsts):
                    element = token % LANES * d + start
                    if self._prefetches(part * width):
                        prefetch(self._load_cached(0, token // LANES, after, element))
                    place = I.ramp(element, 1, width)
                    values = _cast(self._load_cached(1, token // LANES, head, place), "float32")
                    for row in range(self.rows):
                        weight, at = T.broadcast(weights[row, token], width), row * parts + part
                        I.buffer_store(sums, sums[at, lanes] + weight * values, [at, lanes])
            for row in range(self.rows):
                for part, start in enumerate(firsts):
                    value = sums[row * parts + part, lanes] / T.broadcast(total[row, 0], width)
                    self._store(value, row, I.ramp(self.head[row] * d + start, 1, width), first)

    def _store(self, value: Expr, row: int, at: Expr, first: Expr) -> None:
        """Store elements of a row of the result, unless they belong to a token beyond the last."""
        if self.tokens == 1:
            I.buffer_store(self.out, value, [0, self.token[row], at])
            return
        token = first + row // self.config.group_size
        with I.If(token < self.s), I.Then():
            I.buffer_store(self.out, value, [0, token, at])


def _cast(values: Expr, dtype: str) -> Expr:
    """A vector in another dtype."""
    return T.cast(values, f"{dtype}x{values.ty.dtype.lanes}")


def _count_sums(rows: int, parts: int) -> int:
    """How many of `parts` are summed side by side, so that an addition need not wait for the one before it."""
    return next(many for many in range(max(1, ROWS // rows), 0, -1) if parts % many == 0)
