"""Add and RMSNorm on a GPU: chapter 4's kernels and those of libraries, for `bench 4` and `bench 8`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tvm import tirx

from chapters.kit.bench import gpu_norm_bench
from chapters.kit.bench.gpu_clock import Run, keep_result
from chapters.kit.bench.gpu_norm_bench import EPSILON, Norm
from chapters.kit.ir.row_index import row_dimensions
from chapters.runner.earlier import earlier


def kernels(shape: tuple[int, ...], dtype: str, limit: int = 1024) -> dict[str, tirx.PrimFunc]:
    """Chapter 4's two kernels for tensors of `shape`, by name, with the thread counts that the pass would choose.

    They are the learner's if those pass their checks, else the reference's.
    """
    chapter = earlier(4)
    dims = row_dimensions([tirx.IntImm("int64", n) for n in shape])
    facts = dims, shape[-1], dtype, EPSILON
    return {
        "wide_kernel": chapter.wide_kernel(*facts, chapter.plan_threads(shape[-1], dtype, limit)),
        "row_kernel": chapter.row_kernel(*facts, chapter.fit_threads(shape[-1], limit)),
    }


def by_triton(x1, x2, weight) -> Norm:
    """The kernel of triton_add_norm.py."""
    from chapters.ch04_add_rms_norm.triton_add_norm import add_norm

    return keep_result(add_norm, x1, x2, weight, EPSILON)


IMPLEMENTATIONS = {
    "wide_kernel": gpu_norm_bench.bind_kernel(lambda *case: kernels(*case)["wide_kernel"]),
    "row_kernel": gpu_norm_bench.bind_kernel(lambda *case: kernels(*case)["row_kernel"]),
    "Triton": by_triton,
    **gpu_norm_bench.LIBRARIES,
}


def plan(about: Run) -> dict[str, Callable[[], dict]]:
    """{title of a case: the function that measures it} of the results file ch08_norm."""
    shapes = gpu_norm_bench.SHAPES
    cases = [*((shape, "bfloat16") for shape in shapes), (shapes[-1], "float16")]
    return {
        f"{dtype}, {shape}": partial(gpu_norm_bench.measure, shape, dtype, IMPLEMENTATIONS, about)
        for shape, dtype in (cases[1:2] if about.quick else cases)
    }
