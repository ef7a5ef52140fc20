"""Measures the fused add and RMSNorm: on this CPU, and on an NVIDIA GPU if there is one.

In the same rounds it measures the unfused pair as TVM compiles it, NumPy, PyTorch if it is installed, and the bound: a
kernel that reads two tensors and writes two. Bytes are counted the same way for all: two reads and two writes of the
tensor, and the weight.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable

import numpy as np

from chapters.kit.bench.cases import ratio
from chapters.kit.bench.gpu_ceilings import measure_plan
from chapters.kit.bench.gpu_clock import Run, explain_no_gpu
from chapters.kit.bench.gpu_norm_bench import EPSILON, TOLERANCE
from chapters.kit.bench.gpu_norm_bench import bytes_moved as bytes_counted
from chapters.kit.bench.gpu_tables import norm_tables, register_table
from chapters.kit.bench.operands import check_error, compile_here, draw_arrays, in_numpy_memory
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import bind_torch, measure_cases
from chapters.kit.draw.table import Table, tabulate
from chapters.kit.gpu.limits import ITEM_BYTES

SHAPES = ((1, 1, 4096), (64, 1, 4096), (1, 512, 4096), (1, 4096, 8192))
DTYPES = ("float32", "float16", "bfloat16")
COPIES = ("plain stores", "streaming stores")
# those of PyTorch may run in an interpreter without TVM and ml_dtypes
CANDIDATES = ("ours", "unfused", "bounds", "numpy_baseline", "torch_baseline", "torch_compile")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of a results file: what was measured}."""
    from chapters.ch04_add_rms_norm import registers
    from chapters.kit.gpu.cuda_resources import missing

    settings = itertools.product(
        (1, 2)[: os.cpu_count()], ((64, 1, 512),) if quick else SHAPES, DTYPES
    )
    cases = [{"shape": shape, "dtype": dtype, "threads": n} for n, shape, dtype in settings]
    rounds = 3 if quick else 15
    found = {"ch04_cpu": measure_cases(__name__, CANDIDATES, cases, rounds=rounds, say=say)}
    if not missing():
        found[registers.NAME] = registers.count_registers()
    if explain_no_gpu():
        say(f"not measured on a GPU: {explain_no_gpu()}")
    else:
        from chapters.ch04_add_rms_norm import gpu_norms

        on_gpu = Run(quick, say)
        found |= measure_plan({"ch08_norm": gpu_norms.plan(on_gpu)}, on_gpu)
    return found


# --- numbers ------------------------------------------------------------------------------------------


def draw_rounded(shape, dtype: str, seed: int) -> list[np.ndarray]:
    """x1, x2 and a weight, rounded to `dtype`, still as float32."""
    return [round_to(array, dtype) for array in draw_arrays(seed, shape, shape, shape[-1:])]


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values`, float32, rounded to `dtype`, still as float32; bfloat16 too, without ml_dtypes."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype("float32")
    bits = values.view("uint32")
    to_nearest_even = bits + 0x7FFF + (bits >> 16 & 1)
    return (to_nearest_even & 0xFFFF0000).view("float32")


def draw_inputs(shape, dtype: str, seed: int) -> list[np.ndarray]:
    """The arrays of `draw_rounded` in `dtype`."""
    import ml_dtypes  # noqa: F401  so that NumPy knows bfloat16

    return [array.astype(dtype) for array in draw_rounded(shape, dtype, seed)]


def check_norm(norm, total, arrays, dtype: str = "") -> float:
    """The norm's largest error against float64, relative to its largest element; ValueError if it is too large.

    dtype: the dtype that the arrays were rounded to, if they are float32 arrays.
    """
    dtype = dtype or str(arrays[0].dtype)
    x1, x2, weight = (array.astype("float32") for array in arrays)
    sums = round_to(x1 + x2, dtype)
    exact = sums.astype("float64")
    exact /= np.sqrt(np.mean(exact * exact, axis=-1, keepdims=True) + EPSILON)
    exact *= weight.astype("float64")
    if not (total.astype("float32") == sums).all():
        raise ValueError("wrong numbers: the sum is not x1 + x2, rounded")
    return check_error(norm.astype("float64"), exact, TOLERANCE[dtype], "the norm")


# --- candidates: each runs in its own process -----------------------------------------------------


def ours(shape, dtype, threads, seed):
    """The kernel that the pass makes for LLVM, called directly."""
    from tvm import tirx

    from chapters.kit.cpu.add_norm_on_cpu import cpu_kernel
    from chapters.kit.ir.row_index import row_dimensions

    dims = row_dimensions([tirx.IntImm("int64", n) for n in shape])
    kernel = cpu_kernel(dims, shape[-1], dtype, EPSILON).with_attr("global_symbol", "main")
    call = compile_here(kernel)
    arrays = draw_inputs(shape, dtype, seed)
    outputs = [np.full_like(arrays[0], np.nan) for _ in range(2)]
    tensors = [in_numpy_memory(a) for a in (*arrays, *outputs)]
    call(*tensors)
    error = check_norm(tensors[3].numpy(), tensors[4].numpy(), arrays)
    return {"ours": (lambda: call(*tensors), error)}


def unfused(shape, dtype, threads, seed):
    """The pair as TVM's own pipeline compiles it: two kernels without a schedule."""
    from chapters.kit.cases.example_programs import unfused_add_norm

    arrays = draw_inputs(shape, dtype, seed)
    main = compile_here(unfused_add_norm(shape, dtype, EPSILON))
    tensors = [in_numpy_memory(a) for a in arrays]
    norm, total = main(*tensors)
    return {"unfused": (lambda: main(*tensors), check_norm(norm.numpy(), total.numpy(), arrays))}


def bounds(shape, dtype, threads, seed):
    """Two reads and two writes of the same number of bytes, with plain and with streaming stores."""
    from chapters.kit.bench.cpu_bounds import CHUNK, two_in_two_out
    from chapters.kit.machine import llvm_host

    chunks = max(1, int(np.prod(shape)) * ITEM_BYTES[dtype] // (4 * CHUNK))
    tensors = [in_numpy_memory(np.full((chunks, CHUNK), 0.5, "float32")) for _ in range(4)]
    target = llvm_host()["target"]
    plain, streaming = two_in_two_out(False, target), two_in_two_out(True, target)
    return {
        "plain stores": (lambda: plain(*tensors), None),
        "streaming stores": (lambda: streaming(*tensors), None),
    }


def numpy_baseline(shape, dtype, threads, seed):
    """Plain NumPy, which computes 16-bit dtypes in float32."""
    arrays = draw_inputs(shape, dtype, seed)
    x1, x2, weight = arrays
    scale = weight.astype("float32")

    def call():
        total = x1 + x2
        wide = total.astype("float32", copy=False)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        norm = wide * (1 / np.sqrt(mean + np.float32(EPSILON))) * scale
        return norm.astype(total.dtype, copy=False), total

    return {"NumPy": (call, check_norm(*call(), arrays))}


def torch_baseline(shape, dtype, threads, seed, name="PyTorch"):
    """PyTorch, operator by operator; with the name "torch.compile" through that."""
    import torch

    arrays = draw_rounded(shape, dtype, seed)
    tensors = [torch.from_numpy(array).to(getattr(torch, dtype)) for array in arrays]

    def eager(x1, x2, weight):
        total = x1 + x2
        return torch.nn.functional.rms_norm(total, (shape[-1],), weight, EPSILON), total

    call, results = bind_torch(eager, *tensors, threads=threads, compiled=name == "torch.compile")
    norm, total = (result.float().numpy() for result in results)
    return {name: (call, check_norm(norm, total, arrays, dtype))}


torch_compile = functools.partial(torch_baseline, name="torch.compile")


# --- tables -------------------------------------------------------------------------------------------


def copy_seconds(case: dict) -> float:
    """The bound: the faster of two ways to copy as many bytes."""
    return min(case["seconds"][name] for name in COPIES)


def cpu_table(measured: dict) -> Table:
    """Speed, share of the bounds, and the baselines' times relative to ours."""
    columns = {
        "threads": "threads",
        "dtype": "dtype",
        "shape": lambda case: str(tuple(case["shape"])),
        "speed": lambda case: f"{count_bytes(case) / case['seconds']['ours'] / 1e9:.1f} GB/s",
        "of plain copy": ratio("plain stores", "ours", "{:.0%}"),
        "of best copy": lambda case: f"{copy_seconds(case) / case['seconds']['ours']:.0%}",
    }
    baselines = ("unfused", "NumPy", "PyTorch", "torch.compile")
    columns |= {f"{name} takes": ratio(name, "ours", "{:.1f}×") for name in baselines}
    return tabulate(measured["cases"], columns)


def count_bytes(case: dict) -> int:
    return bytes_counted(case["shape"], case["dtype"])


TABLES = {"ch04_cpu": cpu_table, "ch08_norm": norm_tables, "ch04_registers": register_table}
show_results = functools.partial(show_one, TABLES)
