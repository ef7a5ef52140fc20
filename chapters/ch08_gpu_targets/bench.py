"""`python -m chapters bench 8`: chapter 8's kernels on an NVIDIA GPU, beside the machine's limits and its libraries.

It needs a GPU, PyTorch and TVM; other libraries take part if they are installed. There are four results files: add
and RMSNorm, linear layers, linear layers with GELU, and the gain of each step of a schedule. A kernel with wrong
numbers is not timed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from chapters.kit.bench import gpu_linear_bench as linear
from chapters.kit.bench import gpu_tables
from chapters.kit.bench.gpu_ceilings import measure_plan
from chapters.kit.bench.gpu_clock import NoGpuError, Run, explain_no_gpu, shared_bytes
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.bench.results import show_one
from chapters.kit.draw.table import Table

# out x in of Llama-3-8B's linear layers: query, key and value; output; gate and up; down
LLAMA = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
PREFILL_ROWS = 2048
SQUARES = (4096, 8192)
STEPS = Layer(4096, 4096, 4096, "float16")
LONGEST = 480.0  # seconds after which no new case is begun
DEVICE = "cuda"


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of a results file: what was measured}; what there is, if it is stopped. Raises NoGpuError without a GPU."""
    if explain_no_gpu():
        raise NoGpuError(
            f"Nothing was measured: {explain_no_gpu()}. This bench is for a machine with an NVIDIA GPU; "
            "chapter 8's checks run the same kernels without one."
        )
    from chapters.ch04_add_rms_norm import gpu_norms

    _sum_in_float32()
    about = Run(quick, say, DEVICE)
    cases = {"ch08_norm": gpu_norms.plan(about)}
    for name, layers in plan(quick).items():
        cases[name] = {
            f"{one.dtype}, {one.m} × {one.n} × {one.k}": functools.partial(
                measure_layer, name, one, about
            )
            for one in layers
        }
    return measure_plan(cases, about, 60.0 if quick else LONGEST)


def _sum_in_float32() -> None:
    """Let PyTorch's products use float32 sums throughout, as the chapter's kernels do."""
    import torch

    matmul = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False


def plan(quick: bool) -> dict[str, list[Layer]]:
    """{name of a results file: its layers}, the most important first. quick: only one or two small ones of each."""
    if quick:
        small = Layer(256, 256, 256, "float16")
        return {
            "ch08_linear": [small, Layer(1, 512, 512, "bfloat16")],
            "ch08_steps": [small],
            "ch08_gelu": [small],
        }
    layers = [Layer(m, n, k, "bfloat16") for m in (PREFILL_ROWS, 1) for n, k in LLAMA]
    layers += [Layer(side, side, side, "bfloat16") for side in SQUARES]
    layers += [Layer(m, *LLAMA[0], "float16") for m in (PREFILL_ROWS, 1)]
    dtypes = ("bfloat16", "float16")
    return {
        "ch08_steps": [STEPS],
        "ch08_gelu": [Layer(PREFILL_ROWS, 4096, 4096, dtype) for dtype in dtypes],
        "ch08_linear": layers,
    }


def measure_layer(name: str, layer: Layer, about: Run) -> dict:
    """A case of the results file `name`."""
    if name == "ch08_gelu":
        from torch.nn import functional

        from chapters.ch08_gpu_targets import gelu_layers

        return linear.measure_ways(layer, gelu_layers.IMPLEMENTATIONS, about, functional.gelu)
    if name == "ch08_steps":
        return linear.measure(layer, steps(layer), about)
    kernels = kernels_for(layer)
    separately = [one for one in kernels if one in gpu_tables.LINEAR_OURS]
    return linear.measure(layer, kernels, about, separately)


# --- the chapter's kernels ------------------------------------------------------------------------


def steps(layer: Layer) -> dict[str, Callable]:
    """The chapter's schedules of one layer, in the order of the lesson: name -> function that makes the PrimFunc."""
    from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile
    from chapters.ch08_gpu_targets.thread_schedule import naive_matmul, shared_matmul
    from chapters.kit.cases.example_programs import linear_bias
    from chapters.kit.gpu import mma, wgmma
    from chapters.runner.earlier import earlier

    chapter = earlier(8)
    sizes = layer.m, layer.n, layer.k, layer.dtype

    func = functools.partial(linear_bias, *sizes)

    def shared(*tile: int, padding: int | None = None):
        return shared_matmul(func(), ThreadTile(*tile), padding)

    def cores(*tile: int, overlap: bool = False):
        return chapter.tensor_core_matmul(func(), WarpTile(*tile), overlap)

    return {
        "one element per thread": lambda: naive_matmul(func(), ThreadTile(16, 16, 16, 1, 1)),
        "shared memory": lambda: shared(32, 32, 32, 1, 1, padding=0),
        "4 × 4 in registers": lambda: shared(64, 64, 16, 4, 4, padding=0),
        "rows padded": lambda: shared(64, 64, 16, 4, 4),
        "loads of 16 bytes": lambda: shared(64, 64, 32, 4, 4, 8),
        "8 × 8 in registers": lambda: shared(128, 128, 16, 8, 8, 8),
        "tensor cores, 64 × 64": cores,
        "tensor cores, 128 × 128": lambda: cores(128, 128, 32, 64, 64),
        "tensor cores, copies in flight": lambda: cores(128, 128, 32, 64, 32, overlap=True),
        "mma.sync": lambda: mma.mma_matmul(
            *sizes, layer.dtype, mma.choose_tile(*sizes[:3], shared_bytes(mma.SHARED_BYTES))
        ),
        # it runs on Hopper GPUs only; on others the results file says that it failed
        "wgmma": lambda: wgmma.wgmma_matmul(
            *sizes, out_dtype=layer.dtype, multiprocessors=_multiprocessors()
        ),
    }


def _multiprocessors() -> int:
    """The number of multiprocessors of this GPU; without one, of the GPU that the kernel is written for."""
    import tvm

    from chapters.kit.gpu.wgmma_tile import MULTIPROCESSORS

    return tvm.cuda(0).multi_processor_count if tvm.cuda(0).exist else MULTIPROCESSORS


def kernels_for(layer: Layer) -> dict[str, Callable]:
    """The kernels that are measured on a layer: the chapter's best, and for float16 what TVM's rules schedule."""
    from chapters.runner.earlier import earlier

    if layer.m == 1:
        ours = {"decode": lambda: earlier(8).decode_matmul(layer.n, layer.k, layer.dtype)}
    else:
        made = steps(layer)
        ours = {name: made[name] for name in made if name in gpu_tables.LINEAR_OURS}
    if layer.dtype != "float16":  # TVM's rule for tensor cores supports no other dtype
        return ours
    return {**ours, "dlight": lambda: by_dlight(layer)}


def by_dlight(layer: Layer):
    """The layer's PrimFunc as TVM's own rules schedule it, unfused."""
    import tvm
    from tvm.s_tir import dlight

    from chapters.kit.cases.example_programs import linear_bias

    func = linear_bias(layer.m, layer.n, layer.k, layer.dtype)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    if tvm.cuda(0).exist:
        target = tvm.target.Target.from_device(tvm.cuda(0))
    rules = dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.Fallback()
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))
    return scheduled["main"]


# --- pages ----------------------------------------------------------------------------------------


def show_roofline(*measured: dict) -> Table:
    return gpu_tables.roofline_table(*gpu_tables.read_roofline(*measured))


TABLES = {
    "roofline": (show_roofline, "ch08_norm", "ch08_linear"),
    "ch08_norm": gpu_tables.norm_tables,
    "ch08_linear": gpu_tables.linear_tables,
    "ch08_steps": lambda measured: gpu_tables.steps_table(measured["cases"]),
    "ch08_gelu": lambda found: gpu_tables.linear_table(found["cases"], gpu_tables.EAGER_GELU),
}
show_results = functools.partial(show_one, TABLES)
