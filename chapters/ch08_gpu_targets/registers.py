"""Counts the registers, spilled bytes, shared memory and occupancy of the chapter's kernels, with NVIDIA's compiler.

`python -m chapters.ch08_gpu_targets.registers` does it for three architectures and writes
`docs/results/ch08_registers.json`, which the lesson shows. It needs no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from tvm import tirx

from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile
from chapters.ch08_gpu_targets.thread_schedule import (
    naive_matmul,
    pipelined_matmul,
    shared_matmul,
)
from chapters.kit.bench.kernel_counts import count_kernels, explain_missing
from chapters.kit.bench.results import Parts, measure_and_save, show_results
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.draw.table import Table
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.kernel_report import resources_of
from chapters.kit.gpu.mma import TILES, mma_matmul
from chapters.kit.gpu.wgmma import ARCH, wgmma_matmul
from chapters.kit.gpu.wgmma_tile import TILES as WGMMA_TILES
from chapters.runner.earlier import earlier

NAME = "ch08_registers"
COMMAND = "python -m chapters.ch08_gpu_targets.registers"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
SIZE = 256, 256, 256


def kernels(arch: str = ARCH) -> dict[str, Callable[[], tirx.PrimFunc]]:
    """name -> function that makes the PrimFunc, in the lesson's order; float32 unless the name gives another dtype.

    arch: kernels that only run on another architecture are left out.
    """
    chapter = earlier(8)

    def layer(dtype: str = "float32") -> tirx.PrimFunc:
        return linear_bias(*SIZE, dtype)

    def by_threads(kernel: Callable, *tile: int) -> Callable[[], tirx.PrimFunc]:
        return lambda: kernel(layer(), ThreadTile(*tile))

    def by_tiles(name: str, kernel: Callable, tiles) -> dict[str, Callable[[], tirx.PrimFunc]]:
        sizes = 256, 256, 4096, "bfloat16", "bfloat16"
        return {f"{name}, {t.block_m} × {t.block_n}": partial(kernel, *sizes, t) for t in tiles}

    return {
        "one element per thread": by_threads(naive_matmul, 16, 16, 16, 1, 1),
        "4 × 4 per thread": by_threads(shared_matmul, 64, 64, 16, 4, 4, 4),
        "8 × 8 per thread": by_threads(shared_matmul, 128, 128, 8, 8, 8, 4),
        "16 × 16 per thread": by_threads(shared_matmul, 128, 128, 4, 16, 16, 4),
        "4 × 4, copies in flight": by_threads(pipelined_matmul, 64, 64, 16, 4, 4, 4),
        "one row, float16": lambda: chapter.decode_matmul(256, 4096, "float16"),
        "tensor cores, float16": lambda: chapter.tensor_core_matmul(layer("float16")),
        "tensor cores, bfloat16": lambda: chapter.tensor_core_matmul(layer("bfloat16")),
        "tensor cores, copies in flight": lambda: chapter.tensor_core_matmul(
            layer("float16"), WarpTile(128, 128, 32, 64, 32), True
        ),
        **by_tiles("mma.sync", mma_matmul, (TILES[1], TILES[0])),
        **by_tiles("wgmma", wgmma_matmul, (WGMMA_TILES[1], WGMMA_TILES[0]) if arch == ARCH else ()),
    }


def count_registers() -> dict:
    """`count_kernels` of all kernels; it takes a minute."""
    return count_kernels(kernels, ARCHITECTURES)


def table(measured: dict) -> Table:
    """One row per architecture and kernel."""
    counted = []
    for arch, by_kernel in measured["kernels"].items():
        for name, c in by_kernel.items():
            used = Resources(c["registers"], 0, c["stored"], c["loaded"], c["shared"])
            counted.append((arch, name, used, c["threads"]))
    return resources_of(counted)


def show_registers(*architectures: str) -> Parts:
    """The results file's table for these architectures, or all of them."""

    def select(measured: dict) -> Table:
        wanted = architectures or measured["kernels"]
        return table({"kernels": {arch: measured["kernels"][arch] for arch in wanted}})

    return show_results(select, NAME, command=COMMAND)


if __name__ == "__main__":
    sys.exit(measure_and_save(NAME, count_registers, table, COMMAND, explain_missing()))
