"""The fused linear layer by hand, for tensor cores as PTX has them: `mma.sync`, `ldmatrix` and `cp.async`.

`wmma.py` hides which lane of a warp holds which number of a fragment. PTX documents it (PTX ISA, "Matrix fragments for
mma.m16n8k16 with floating point type"), so the sums are ordinary registers here, and their start from the bias is an
ordinary load. For one `mma.sync`, d (16, 8) = a (16, 16) @ b (16, 8) + c, lane l holds with g = l // 4 and t = l % 4

    a: rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9     b: the same rows of k, column g
    c, d: row g, columns 2t and 2t + 1; row g + 8, columns 2t and 2t + 1

Which column of the layer is "column c" of the j-th such product is ours to choose. Four products make 32 columns, and

    column c of product j  is  column 8 (c // 2) + 2 j + c % 2  of the 32,

so that lane l holds columns 8t to 8t + 7: eight biases are two loads, eight results are one store of 16 bytes. The rows
of w are dealt out so when they are copied to shared memory (`dealt`), which costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.toolkit.gpu.limits import WARP

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}
PIECE = 8  # elements of 2 bytes in the 16 bytes that ldmatrix and cp.async take at once
FULL = 128  # blocks: data-centre GPUs have 108 to 148 multiprocessors
# Of a block, at most, on sm_80; consumers' GPUs have 99 KiB, later data-centre GPUs more.
SHARED_BYTES = 163 * 1024
LARGEST = 2**31  # indices have 32 bits


@dataclass(frozen=True)
class MmaTile:
    """How the layer is cut: a block of threads has (block_m, block_n) of the result, a warp (warp_m, warp_n).

    stages: how many blocks of block_k columns of x and w shared memory holds: one in use, the others under way.
    """

    block_m: int
    block_n: int
    block_k: int
    warp_m: int
    warp_n: int
    stages: int

    @property
    def threads(self) -> int:
        return self.block_m // self.warp_m * (self.block_n // self.warp_n) * WARP

    @property
    def shared_bytes(self) -> int:
        return 2 * self.stages * (self.block_m + self.block_n) * self.block_k

    def check(self) -> None:
        """Raise ValueError where the threads cannot share the work evenly, or fewer than 3 stages are asked for."""
        if not (self._warps_fit() and self._copies_fit()):
            raise ValueError(
                f"{self} cannot be: warps have multiples of 16 × 32 of the block's elements, block_k is 32 or 64, all "
                "threads, 1024 at most, copy equally much of each operand, and stages is 3 or more."
            )

    def _warps_fit(self) -> bool:
        if min(self.warp_m, self.warp_n) < 1 or self.warp_m % 16 or self.warp_n % 32:
            return False
        whole = self.block_m % self.warp_m == self.block_n % self.warp_n == 0
        return whole and 0 < self.threads <= 1024

    def _copies_fit(self) -> bool:
        if self.block_k not in (32, 64) or self.stages < 3:
            return False
        rows = self.threads * PIECE // self.block_k  # that all threads copy at a time
        return self.block_m % rows == self.block_n % rows == 0


# from the one that loads least to the one that makes most blocks
TILES = (
    MmaTile(128, 256, 64, 64, 64, 3),
    MmaTile(128, 128, 32, 64, 64, 4),
    MmaTile(64, 128, 32, 32, 64, 4),
    MmaTile(64, 64, 32, 32, 32, 4),
)


def tile_for(m: int, n: int, k: int, shared_bytes: int = SHARED_BYTES) -> MmaTile:
    """The tile that loads least of those that keep a GPU's multiprocessors busy; the smallest where none does.

    n and k must be multiples of the tile's, m need not. shared_bytes: what a block may ask for. Raises ValueError where
    no tile serves.
    """
    fitting = [tile for tile in TILES if tile.shared_bytes <= shared_bytes]
    possible = [tile for tile in fitting if n % tile.block_n == 0 and k % tile.block_k == 0]
    if min(m, n, k) < 1 or not possible:
        smallest = TILES[-1]
        raise ValueError(
            f"A layer of {m} × {n} × {k} cannot be computed by mma_matmul: n must be a multiple of {smallest.block_n} "
            f"and k of {smallest.block_k}, m at least 1; use another kernel, or pad the weight with zeros."
        )
    busy = [t for t in possible if math.ceil(m / t.block_m) * (n // t.block_n) >= FULL]
    return (busy or possible[-1:])[0]


def dealt(row: Expr) -> Expr:
    """Which row of the block's part of w lies in row `row` of its copy: 8 j + c of each 32 is column c of product j."""
    return row // 32 * 32 + row % 8 // 2 * 8 + row // 8 % 4 * 2 + row % 2


def swizzled(row: Expr, piece: Expr, pieces: int) -> Expr:
    """Where piece `piece` of a row of `pieces` (4 or 8) pieces of 16 bytes lies in it.

    The same piece of eight neighbouring rows, which ldmatrix reads at once, lies in different banks.
    """
    return piece ^ (row // (PIECE // pieces) % pieces)


def mma_matmul(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str = "float32",
    tile: MmaTile | None = None,
) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) of `dtype`, C (n,) float32 and D (m, n) of `out_dtype`.

    dtype: "float16" or "bfloat16"; products are summed in float32. out_dtype: "float32" or `dtype`, rounded once.
    tile: `tile_for` of the sizes if not given. The last rows may fill a block only in part. Raises ValueError for what
    it does not serve.
    """
    if dtype not in PTX_TYPES or out_dtype not in ("float32", dtype):
        raise ValueError(
            f"mma_matmul multiplies float16 or bfloat16 into float32 or the same, not {dtype} into {out_dtype}."
        )
    if tile is None:
        tile = tile_for(m, n, k)
    tile.check()
    if m < 1 or n % tile.block_n or k % tile.block_k or n * k == 0:
        raise ValueError(
            f"A layer of {m} × {n} × {k} is not whole in tiles of {tile.block_n} columns and {tile.block_k} steps; "
            "m may be any number, n and k must be multiples of the tile's."
        )
    if max(m * k, n * k, m * n) >= LARGEST:
        raise ValueError(
            f"A layer of {m} × {n} × {k} has an array of 2**31 elements or more; split its rows."
        )
    return _kernel(m, n, k, dtype, out_dtype, tile)


def _kernel(m: int, n: int, k: int, dtype: str, out_dtype: str, tile: MmaTile) -> tirx.PrimFunc:
    block_m, block_n, block_k, stages = tile.block_m, tile.block_n, tile.block_k, tile.stages
    threads, warps_m = tile.threads, block_m // tile.warp_m
    pieces, steps = block_k // PIECE, k // block_k  # of a row in shared memory; of the loop
    rows = threads // pieces  # copied at a time
    tiles_m, groups_n = tile.warp_m // 16, tile.warp_n // 32  # of a warp
    inner = block_k // 16
    blocks_m, blocks_n = math.ceil(m / block_m), n // block_n
    side = math.gcd(blocks_m, 8)  # blocks that run together are `side` high: they share rows of w
    a_size, b_size = stages * block_m * block_k, stages * block_n * block_k
    wide = 4 if out_dtype == "float32" else 8  # elements of the result in a store of 16 bytes
    name = PTX_TYPES[dtype]
    multiply = f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32"
    ldmatrix = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
    copy = "cp.async.cg.shared.global"

    def place(copies, slot, row, piece):  # of 16 bytes in shared memory
        return copies.ptr_to([slot, row, swizzled(row, piece, pieces) * PIECE])

    def source(operand, row, step, piece):  # of 16 bytes in global memory
        return operand.ptr_to([row, step * block_k + piece * PIECE])

    @T.prim_func
    def main(
        A: T.Buffer((m, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((m, n), out_dtype),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        block = T.launch_thread("blockIdx.x", blocks_m * blocks_n)
        thread = T.launch_thread("threadIdx.x", threads)
        # one array, cut by hand: TVM would shorten each to what it sees an index of
        pool = T.alloc_buffer((a_size + b_size,), dtype, scope="shared.dyn")
        As = T.decl_buffer((stages, block_m, block_k), dtype, data=pool.data, scope="shared.dyn")
        Bs = T.decl_buffer(
            (stages, block_n, block_k),
            dtype,
            data=pool.data,
            elem_offset=a_size,
            scope="shared.dyn",
        )
        a = T.alloc_buffer((2, tiles_m, 4), "uint32", scope="local")
        b = T.alloc_buffer((2, groups_n, 4, 2), "uint32", scope="local")
        bias = T.alloc_buffer((groups_n, 8), "float32", scope="local")
        sums = T.alloc_buffer((tiles_m, groups_n, 2, 8), "float32", scope="local")
        out = T.alloc_buffer((8,), out_dtype, scope="local")

        lane: T.let = thread % 32
        first_row: T.let = (block // (side * blocks_n) * side + block % side) * block_m
        first_column: T.let = block % (side * blocks_n) // side * block_n
        warp_row: T.let = thread // 32 % warps_m * tile.warp_m
        warp_column: T.let = thread // 32 // warps_m * tile.warp_n
        copy_row: T.let = thread // pieces
        copy_piece: T.let = thread % pieces

        @T.inline
        def start_copies(slot, step):
            for i in T.unroll(block_m // rows):
                # past the last row the last is copied again: what becomes of it is not stored
                T.ptx[copy](
                    place(As, slot, i * rows + copy_row, copy_piece),
                    source(A, T.min(first_row + i * rows + copy_row, m - 1), step, copy_piece),
                    16,
                )
            for i in T.unroll(block_n // rows):
                T.ptx[copy](
                    place(Bs, slot, i * rows + copy_row, copy_piece),
                    source(B, first_column + dealt(i * rows + copy_row), step, copy_piece),
                    16,
                )

        @T.inline
        def load_fragments(half, slot, p):
            for i in T.unroll(tiles_m):
                T.ptx[ldmatrix](
                    a[half, i, 0],
                    a[half, i, 1],
                    a[half, i, 2],
                    a[half, i, 3],
                    place(As, slot, warp_row + i * 16 + lane % 16, p * 2 + lane // 16),
                )
            for j, two in T.grid(groups_n, 2):
                T.ptx[ldmatrix](
                    b[half, j, two * 2, 0],
                    b[half, j, two * 2, 1],
                    b[half, j, two * 2 + 1, 0],
                    b[half, j, two * 2 + 1, 1],
                    place(
                        Bs,
                        slot,
                        warp_column + j * 32 + two * 16 + lane // 16 * 8 + lane % 8,
                        p * 2 + lane // 8 % 2,
                    ),
                )

        for step in T.unroll(stages - 1):
            if step < steps:
                start_copies(step, step)
            T.ptx["cp.async.commit_group"]()

        # the start of all sums, while the first copies are under way
        for j in T.unroll(groups_n):
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    bias[j, half * 4 + e] = C[
                        first_column + warp_column + j * 32 + lane % 4 * 8 + half * 4 + e
                    ]
        for i, j, h, e in T.grid(tiles_m, groups_n, 2, 8):
            sums[i, j, h, e] = bias[j, e]

        T.ptx["cp.async.wait_group"](stages - 2)
        T.tvm_storage_sync("shared")
        load_fragments(0, 0, 0)
        for step in T.serial(steps):
            for p in T.unroll(inner):
                # while this part of the step is multiplied, the fragments of the next are loaded
                if p == inner - 1:
                    # the next step's copies are there, and this step's part of the pool is free once all have passed
                    T.ptx["cp.async.wait_group"](stages - 2)
                    T.tvm_storage_sync("shared")
                    load_fragments((p + 1) % 2, (step + 1) % stages, 0)
                else:
                    load_fragments((p + 1) % 2, step % stages, p + 1)
                if p == 0:
                    # into the part that was in use a step ago; an empty group keeps the count of groups
                    if step + stages - 1 < steps:
                        start_copies((step + stages - 1) % stages, step + stages - 1)
                    T.ptx["cp.async.commit_group"]()
                for i, j, q in T.grid(tiles_m, groups_n, 4):
                    T.ptx[multiply](
                        sums[i, j, 0, 2 * q],
                        sums[i, j, 0, 2 * q + 1],
                        sums[i, j, 1, 2 * q],
                        sums[i, j, 1, 2 * q + 1],
                        a[p % 2, i, 0],
                        a[p % 2, i, 1],
                        a[p % 2, i, 2],
                        a[p % 2, i, 3],
                        b[p % 2, j, q, 0],
                        b[p % 2, j, q, 1],
                        sums[i, j, 0, 2 * q],
                        sums[i, j, 0, 2 * q + 1],
                        sums[i, j, 1, 2 * q],
                        sums[i, j, 1, 2 * q + 1],
                    )

        for i, j, h in T.grid(tiles_m, groups_n, 2):
            row: T.let = first_row + warp_row + i * 16 + h * 8 + lane // 4
            for e in T.unroll(8):
                out[e] = T.cast(sums[i, j, h, e], out_dtype)
            if row < m:
                for part in T.unroll(8 // wide):
                    for e in T.vectorized(wide):
                        D[
                            row,
                            first_column + warp_column + j * 32 + lane % 4 * 8 + part * wide + e,
                        ] = out[part * wide + e]

    return main
