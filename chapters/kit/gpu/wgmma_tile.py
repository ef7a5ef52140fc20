"""How a linear layer is cut for Hopper's wgmma: tiles, the stages they pass through, and the best tile for a shape."""

from __future__ import annotations

from dataclasses import dataclass

from chapters.kit.gpu.limits import WARP

MULTIPROCESSORS = 132  # of an H100 SXM and an H200
SHARED_BYTES = 227 * 1024  # of one block, at most
WARPGROUP = 4 * WARP  # the threads that issue a wgmma together
ROWS, STEP = 64, 16  # of one wgmma: rows of A, and how far it goes along k
OPERAND_BYTES = 2  # of an element of A or B
BLOCK_K = 64  # elements: a row of a staged tile is 128 bytes, as wide as the widest swizzle
GROUP = 16  # tiles along m that are taken together, so that blocks that run at the same time share parts of A and B
BARRIER_BYTES = 8


@dataclass(frozen=True)
class WgmmaTile:
    """(block_m, block_n) sums per block, 64 rows of them per warpgroup; `stages` parts of A and B in the ring.

    Raises ValueError for sizes that no wgmma multiplies or that no block can hold.
    """

    block_m: int = 128
    block_n: int = 256
    stages: int = 4

    def __post_init__(self) -> None:
        if self.block_m not in (ROWS, 2 * ROWS):
            raise ValueError(f"block_m is {self.block_m}; a wgmma has 64 rows: take 64 or 128.")
        if self.block_n % STEP or not 0 < self.block_n <= 256:
            raise ValueError(f"block_n is {self.block_n}; take a multiple of 16 up to 256.")
        if self.stages < 2 or self.shared_bytes > SHARED_BYTES:
            raise ValueError(
                f"{self.stages} stages take {self.shared_bytes} bytes of shared memory; take two or more, "
                f"and {SHARED_BYTES} bytes at most."
            )

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.block_m // ROWS

    @property
    def threads(self) -> int:
        """Threads of a block: the consumers, and one warp that asks for copies."""
        return self.consumers * WARPGROUP + WARP

    @property
    def stage_bytes(self) -> int:
        """Bytes of a part of A and a part of B."""
        return (self.block_m + self.block_n) * BLOCK_K * OPERAND_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring, and of two mbarriers for each of its stages."""
        return self.stages * (self.stage_bytes + 2 * BARRIER_BYTES)

    def grid(self, m: int, n: int) -> tuple[int, int]:
        """How many tiles there are along m and along n."""
        return -(-m // self.block_m), -(-n // self.block_n)


TILES = (WgmmaTile(128, 256, 4), WgmmaTile(128, 128, 6), WgmmaTile(64, 128, 8))


def best_tile(m: int, n: int, multiprocessors: int = MULTIPROCESSORS) -> WgmmaTile:
    """The tile with which the busiest multiprocessor, which computes its tiles one after another, finishes first.

    Each step of k takes as long as its products or its traffic with shared memory, whichever is longer. Per cycle, a
    multiprocessor of Hopper multiplies 2048 pairs, and its shared memory moves 128 bytes. Copies write A and B once;
    each wgmma of 64 rows reads its A and all of B. So wide tiles win, unless few of them are left for the last round.
    """

    def busy(tile: WgmmaTile) -> float:
        rows, columns = tile.grid(m, n)
        rounds = -(-rows * columns // multiprocessors)
        products = tile.block_m * tile.block_n / 2048
        elements = 2 * tile.block_m + (1 + tile.consumers) * tile.block_n
        return rounds * max(products, elements * OPERAND_BYTES / 128)

    return min(TILES, key=busy)
