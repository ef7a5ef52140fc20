"""Goes further than asked: the bias is vectorized as well, and the init's rows are unrolled."""

from solutions.ch05_schedules_and_their_limits.schedules import *


def bias_at_the_tile(sch: Schedule) -> None:
    sch.reverse_compute_at("bias", sch.get_loops("matmul")[0])
    sch.vectorize(sch.get_loops("bias")[-1])


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    _row_tile, _column_tile, step, _row, _column = tile(sch, rows, columns)
    use_the_machine(sch)
    sch.decompose_reduction("matmul", step)
    sch.reverse_compute_at("bias", sch.get_loops("matmul_update")[0])
    sch.vectorize(sch.get_loops("bias")[-1])
    return sch


def reasons() -> dict[str, str]:
    return dict(zip(ATTEMPTS, REASONS, strict=False))
