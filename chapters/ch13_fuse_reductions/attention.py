"""Attention as five blocks: scores, their maximum, the sum of the weights, the weighted sum of the values, a division.

scores[i, k] = sum over d of Q[i, d] * K[d, k]
M[i]         = max over k of scores[i, k]
S[i]         = sum over k of exp(scores[i, k] - M[i])
W[i, j]      = sum over k of exp(scores[i, k] - M[i]) * V[k, j]
Out[i, j]    = W[i, j] / S[i]
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from chapters.kit.gpu.kernel_report import bytes_of
from chapters.kit.ir.tensor_ir import nodes

SUMS = ("total", "weighted")
TILE = 64  # scores that are made at once


def two_reductions(rows: int, length: int) -> tirx.PrimFunc:
    """The largest element of each row of X, and the sum of exp(x - largest)."""

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer((rows, length), "float32"),
        M: T.Buffer((rows,), "float32"),
        S: T.Buffer((rows,), "float32"),
    ):
        for i, k in T.grid(rows, length):
            with T.sblock("maximum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    M[vi] = -T.infinity("float32")
                M[vi] = T.max(M[vi], X[vi, vk])
        for i, k in T.grid(rows, length):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + T.exp(X[vi, vk] - M[vi])

    return main


def attention(rows: int, keys: int, depth: int, width: int) -> tirx.PrimFunc:
    """The five blocks in float32, on Q (rows, depth), K (depth, keys), V (keys, width) and Out (rows, width).

    The scores are not divided by the square root of `depth`; Q may be.
    """

    @T.prim_func(s_tir=True)
    def main(
        Q: T.Buffer((rows, depth), "float32"),
        K: T.Buffer((depth, keys), "float32"),
        V: T.Buffer((keys, width), "float32"),
        Out: T.Buffer((rows, width), "float32"),
    ):
        scores = T.sblock_alloc_buffer((rows, keys), "float32")
        M = T.sblock_alloc_buffer((rows,), "float32")
        S = T.sblock_alloc_buffer((rows,), "float32")
        W = T.sblock_alloc_buffer((rows, width), "float32")
        for i, k, d in T.grid(rows, keys, depth):
            with T.sblock("scores"):
                vi, vk, vd = T.axis.remap("SSR", [i, k, d])
                with T.init():
                    scores[vi, vk] = T.float32(0)
                scores[vi, vk] = scores[vi, vk] + Q[vi, vd] * K[vd, vk]
        for i, k in T.grid(rows, keys):
            with T.sblock("maximum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    M[vi] = -T.infinity("float32")
                M[vi] = T.max(M[vi], scores[vi, vk])
        for i, k in T.grid(rows, keys):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = T.float32(0)
                S[vi] = S[vi] + T.exp(scores[vi, vk] - M[vi])
        for i, j, k in T.grid(rows, width, keys):
            with T.sblock("weighted"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    W[vi, vj] = T.float32(0)
                W[vi, vj] = W[vi, vj] + T.exp(scores[vi, vk] - M[vi]) * V[vk, vj]
        for i, j in T.grid(rows, width):
            with T.sblock("divide"):
                vi, vj = T.axis.remap("SS", [i, j])
                Out[vi, vj] = W[vi, vj] / S[vi]

    return main


def unfused(
    rows: int, keys: int, depth: int, width: int, *, by_rows: bool = False
) -> s_tir.Schedule:
    """The five blocks, in loops as good as those of `fuse_attention`. by_rows: all five for one row after the other."""
    sch = s_tir.Schedule(attention(rows, keys, depth, width))
    if by_rows:
        row = sch.get_loops("divide")[0]
        for block in (*reversed(SUMS), "maximum", "scores"):
            sch.compute_at(block, row)
    *_, j, k = sch.get_loops("weighted")
    sch.reorder(k, j)  # a weight is used for all columns
    if keys % TILE == 0:
        *_, k, _ = sch.get_loops("scores")
        sch.split(k, [None, TILE])
        _vectorize_scores(sch)
    return sch


def fuse_attention(
    rows: int, keys: int, depth: int, width: int, answer: ModuleType
) -> s_tir.Schedule:
    """The two sums in the loop of the maximum, by `answer.fuse_reductions`, and each score made where it is used.

    TILE scores are made at once if TILE divides `keys`, else one.
    """
    sch = s_tir.Schedule(attention(rows, keys, depth, width))
    for block in SUMS:
        answer.fuse_reductions(sch, "maximum", block)
    i, k = sch.get_loops("maximum")
    if keys % TILE == 0:
        outer, _ = sch.split(k, [None, TILE])
        sch.compute_at("scores", outer)
        _vectorize_scores(sch)
    else:
        sch.compute_at("scores", k)
    sch.reverse_compute_at("divide", i)
    return sch


def _vectorize_scores(sch: s_tir.Schedule) -> None:
    """Make TILE scores in the lanes of vectors, one step of all sums after the other."""
    *_, lanes, d = sch.get_loops("scores")
    sch.reorder(d, lanes)
    sch.vectorize(lanes)
    sch.decompose_reduction("scores", d)


def allocated(sch: s_tir.Schedule) -> int:
    """The bytes of all buffers between the blocks, after TVM has made each as small as its use allows."""
    passes = s_tir.transform
    compact = (
        passes.LowerInitBlock(),
        passes.PlanAndUpdateBufferAllocationLocation(),
        passes.ConvertBlocksToOpaque(),
        passes.CompactBufferAllocation(),
    )
    mod = tvm.transform.Sequential(compact)(sch.mod)
    blocks = nodes(mod["main"].body, s_tir.SBlock)
    return sum(bytes_of(buffer) for block in blocks for buffer in block.alloc_buffers)


def draw_inputs(rows: int, keys: int, depth: int, width: int, seed: int) -> tuple[np.ndarray, ...]:
    """Random Q, K and V in float32, Q divided by the square root of `depth`."""
    random = np.random.default_rng(seed)
    q, k, v = (
        random.normal(size=shape).astype("float32")
        for shape in ((rows, depth), (depth, keys), (keys, width))
    )
    return (q / np.sqrt(np.float32(depth))).astype("float32"), k, v


def compute_exact(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False
) -> np.ndarray:
    """Attention by NumPy in float64. causal: Q belongs to the last keys, and a row sees no key after its own."""
    q, k, v = (array.astype("float64") for array in (q, k, v))
    scores = q @ k
    if causal:
        rows, keys = scores.shape
        scores[np.triu_indices(rows, keys - rows + 1, keys)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)
