"""What a GPU can do at most, measured where the kernels are: copying memory, and multiplying matrices.

Datasheets give rates that no program reaches. Shares on a page are shares of these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from chapters.kit.bench.gpu_clock import Clock, Contender, interleaved

COPIED_BYTES = 1 << 31
MATRIX = 8192


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second, read and written counted, of a large copy; operations a second of a large bfloat16 product."""

    copy_rate: float
    matrix_rate: float

    def floor(self, moved_bytes: float, operations: float) -> float:
        """The seconds that a kernel cannot beat: the larger of its two times at these rates."""
        return max(moved_bytes / self.copy_rate, operations / self.matrix_rate)

    @property
    def ridge(self) -> float:
        """Operations a byte at which the two are equal: below it a kernel waits for memory."""
        return self.matrix_rate / self.copy_rate

    def json(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """A kernel on a case: operations and bytes it cannot do without, and the seconds it took.

    group: whose it is, which gives it its mark. name: its own, for the table.
    """

    group: str
    name: str
    case: str
    operations: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    def share(self, ceilings: Ceilings) -> float:
        """Of the speed that the ceilings allow at this intensity."""
        return ceilings.floor(self.bytes, self.operations) / self.seconds


def best_of(seconds: dict[str, dict], names: Sequence[str]) -> tuple[str, float] | None:
    """The fastest of those of `names` that were measured, and its median; None if none was."""
    found = [(seconds[name]["median"], name) for name in names if name in seconds]
    if not found:
        return None
    median, name = min(found)
    return name, median


def measured(clock: Clock, quick: bool = False, device: str = "cuda") -> Ceilings:
    """Measure both. The matrices are random: zeros would need less power, and be multiplied faster."""
    import torch

    size = COPIED_BYTES // (64 if quick else 1)
    side = MATRIX // (16 if quick else 1)
    source = torch.randint(-100, 100, (size // 2,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).bfloat16() for _ in "ab")
    product = torch.empty_like(a)
    times = interleaved(
        {
            "copy": Contender(lambda: target.copy_(source)),
            "matrix": Contender(lambda: torch.matmul(a, b, out=product)),
        },
        clock,
        rounds=5 if quick else 30,
    )
    return Ceilings(size / times["copy"].median, 2 * side**3 / times["matrix"].median)
