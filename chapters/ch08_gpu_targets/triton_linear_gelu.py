"""A linear layer with bias and GELU as one Triton kernel: a baseline of `bench 8`, and shown in other-compilers.md."""

import torch
import triton
import triton.language as tl


@triton.jit
def _linear_gelu(
    x, w, bias, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr
):
    # programs that run together share columns of x and rows of w, so that the second-level cache serves them
    wide = GROUP * tl.cdiv(n, N)
    first = tl.program_id(0) // wide * GROUP
    high = min(tl.cdiv(m, M) - first, GROUP)
    row = (first + tl.program_id(0) % wide % high) * M + tl.arange(0, M)
    column = tl.program_id(0) % wide // high * N + tl.arange(0, N)
    step = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for at in range(0, k, K):
        inside = at + step < k
        left = row[:, None].to(tl.int64) * k + at + step[None, :]
        right = column[None, :].to(tl.int64) * k + at + step[:, None]
        a = tl.load(x + left, (row < m)[:, None] & inside[None, :], 0.0)
        b = tl.load(w + right, (column < n)[None, :] & inside[:, None], 0.0)
        total = tl.dot(a, b, total)
    total += tl.load(bias + column, column < n, 0.0).to(tl.float32)[None, :]
    total = total * (0.5 + 0.5 * tl.erf(total * 0.7071067811865476))
    place = row[:, None].to(tl.int64) * n + column[None, :]
    tl.store(
        out + place, total.to(out.dtype.element_ty), (row < m)[:, None] & (column < n)[None, :]
    )


# M, N, K, warps, stages: what Triton chooses from by measuring, once per size of a layer
TILES = (
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (128, 128, 32, 4, 4),
    (64, 128, 64, 4, 4),
    (16, 128, 128, 4, 4),
)
FIRST_TILE = {"M": 128, "N": 128, "K": 64, "GROUP": 8}  # of the one kernel that tests compile

_measured = triton.autotune(
    [
        triton.Config({"M": m, "N": n, "K": k, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in TILES
    ],
    key=["m", "n", "k"],
)(_linear_gelu)


def linear_gelu(x, w, bias, tile: dict | None = None):
    """gelu(x @ w.T + bias) for x (m, k), w (n, k), bias (n,), contiguous, of one dtype; sums in float32.

    tile: values of M, N, K and GROUP; by default Triton measures TILES at the first call for a size.
    """
    (m, k), n = x.shape, len(w)
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)

    def grid(tile: dict) -> tuple[int]:
        return (triton.cdiv(m, tile["M"]) * triton.cdiv(n, tile["N"]),)

    kernel, given = (_linear_gelu, tile) if tile else (_measured, {})
    kernel[grid](x, w, bias, out, m, n, k, **given)
    return out
