"""Measures NT_matmul on this CPU: scheduled, beside NumPy and, if it is installed, PyTorch.

The same rounds measure the bounds: how fast w can be read, and how fast registers can multiply and add. A decode step
of a small decoder shows what the schedules gain on top of chapter 3's pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from chapters.kit.bench.cases import compare_times, divide, ratio
from chapters.kit.bench.operands import (
    check_product,
    compile_here,
    draw_arrays,
    draw_tensors,
    in_numpy_memory,
)
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import bind_torch, measure_cases
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.draw.table import Table, tabulate

N = K = 4096
ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
KERNELS = ("ours", "numpy_baseline", "torch_baseline", "bounds")  # PyTorch: perhaps without TVM
# two layers of an ordinary shape, small enough to have random weights
DECODER = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=1000,
    context_window_size=64,
)


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of a results file: the cases}."""
    n, k = (512, 512) if quick else (N, K)
    rounds = 3 if quick else 15
    cases = [
        {"rows": rows, "n": n, "k": k, "threads": threads}
        for threads in (1, 2)[: os.cpu_count()]
        for rows in ((1, 64) if quick else ROWS)
    ]
    step = [{"threads": 1}]
    return {
        "ch05_kernels": measure_cases(__name__, KERNELS, cases, rounds=rounds, say=say),
        "ch05_decode": measure_cases(__name__, ("decode_step",), step, rounds=rounds, say=say),
    }


def peak(case: dict, bound: str = "multiply-add") -> float:
    """Floating-point operations per second that the registers, or the tile alone, reached in the rounds of a case."""
    from chapters.kit.bench.cpu_bounds import MULTIPLY_ADDS

    return 2 * MULTIPLY_ADDS * case["threads"] / case["seconds"][bound]


def speed(case: dict, name: str = "ours") -> float:
    """Floating-point operations per second of a candidate."""
    return 2 * case["rows"] * case["n"] * case["k"] / case["seconds"][name]


# --- candidates: each runs in its own process -----------------------------------------------------


def _kernel(rows: int, n: int, k: int):
    """NT_matmul as chapter 3's pass makes it."""
    from tvm import te

    from chapters.runner.earlier import earlier

    x = te.placeholder((rows, k), "float32", name="x")
    w = te.placeholder((n, k), "float32", name="w")
    return te.create_prim_func([w, x, earlier(3).nt_matmul(w, x, "float32")], "int64")


def ours(rows, n, k, threads, seed):
    """The scheduled kernel: the learner's if it passes its checks, else the reference's."""
    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    target = llvm_host()["target"]
    kernel = compile_here(earlier(5).schedule(_kernel(rows, n, k), target))
    x, w, tensors = draw_tensors(rows, n, k, seed)
    kernel(*tensors)
    return {"ours": (lambda: kernel(*tensors), check_product(tensors[-1].numpy(), x, w))}


def numpy_baseline(rows, n, k, threads, seed):
    x, w = draw_arrays(seed, (rows, k), (n, k))
    out = np.empty((rows, n), "float32")
    np.matmul(x, w.T, out=out)
    return {"NumPy": (lambda: np.matmul(x, w.T, out=out), check_product(out, x, w))}


def torch_baseline(rows, n, k, threads, seed):
    import torch

    x, w = draw_arrays(seed, (rows, k), (n, k))
    operands = map(torch.from_numpy, (x, w))
    call, out = bind_torch(torch.nn.functional.linear, *operands, threads=threads)
    return {"PyTorch": (call, check_product(out.numpy(), x, w))}


def bounds(rows, n, k, threads, seed):
    """Kernels that do a part of the work: read w; multiply and add in registers; compute the tile, if there is one."""
    from chapters.kit.bench.cpu_bounds import multiply_add, multiply_tile, read_matrix
    from chapters.kit.cpu.matmul_tile import has_few_rows, matmul_tile
    from chapters.kit.machine import llvm_host

    target = llvm_host()["target"]
    reader, sums_shape = read_matrix(n, k, target)
    worker, factors_shape, chains_shape = multiply_add(threads, target)
    w, sums, factors, chains = (
        in_numpy_memory(np.full(shape, 0.5, "float32"))
        for shape in ((n, k), sums_shape, factors_shape, chains_shape)
    )
    calls = {
        "read w": (lambda: reader(w, sums), None),
        "multiply-add": (lambda: worker(factors, chains), None),
    }
    kernel = _kernel(rows, n, k)
    if not has_few_rows(kernel, target):
        tile = matmul_tile(kernel, target)
        tiles, shapes = multiply_tile(tile.vectors, tile.columns, threads, target)
        near = [in_numpy_memory(np.full(shape, 0.5, "float32")) for shape in shapes]
        calls["tile"] = (lambda: tiles(*near), None)
    return calls


def decode_step(threads, seed):
    """One token through a small decoder: as exported, after chapter 3's pass, and with the kernels scheduled."""
    from tvm import relax

    from chapters.kit.decoder.llama import decoder
    from chapters.kit.decoder.llama_generator import Generator, random_weights
    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    target = llvm_host()["target"]
    weights = random_weights(DECODER, seed=seed)
    exported, _ = decoder(DECODER, functions=Generator.SINGLE)
    # a symbolic vocabulary would leave the head's kernel without a schedule
    exported = relax.transform.BindSymbolicVars({"vocab_size": DECODER.vocab_size})(exported)
    fused = earlier(3).FuseTransposeMatmul()(exported)
    variants = {
        "as exported": exported,
        "fused": fused,
        "fused and scheduled": earlier(5).schedule_kernels(fused, target),
    }
    calls, expected = {}, None
    for name, mod in variants.items():
        generator = Generator(DECODER, module=mod, weights=weights, target=target)
        call = _one_token(generator)
        logits = call()
        expected = logits if expected is None else expected
        if not np.allclose(logits, expected, rtol=1e-3, atol=1e-3):
            raise ValueError(f"the logits of the decoder {name} differ")
        calls[name] = (call, float(np.abs(logits - expected).max()))
    return calls


def _one_token(generator):
    cache = generator.create_kv_cache()
    _, cache = generator.forward("prefill", [[1, 2, 3, 4]], [0], cache)
    return lambda: generator.forward("decode", [[5]], [4], cache)[0]


# --- tables ------------------------------------------------------------------------------------------


def kernel_table(measured: dict) -> Table:
    """GFLOP/s by number of rows, the baselines' times over ours, and shares of the nearer bound and of the tile."""
    columns = {
        "threads": "threads",
        "rows of x": "rows",
        "GFLOP/s": lambda case: f"{speed(case) / 1e9:.0f}",
        "NumPy's time": ratio("NumPy", "ours"),
        "PyTorch's time": ratio("PyTorch", "ours"),
        "share of the bound": _describe_bound,
        "of its tile alone": lambda case: f"{speed(case) / peak(case, 'tile'):.0%}",
    }
    return tabulate(measured["cases"], columns)


def _describe_bound(case: dict) -> str:
    """Our share of the later of the two bounds."""
    arithmetic, reading = speed(case) / peak(case), divide(case, "read w", "ours")
    share, name = max((arithmetic, "arithmetic"), (reading, "reading w"))
    return f"{share:.0%} of {name}"


def decode_table(measured: dict) -> Table:
    """The time of one decode step, and its share of the time of the exported module."""
    (case,) = measured["cases"]
    header = ("the decoder", "one decode step", "of the time as exported")
    return compare_times(case["seconds"], "as exported", header, "{:.0%}")


TABLES = {"ch05_kernels": kernel_table, "ch05_decode": decode_table}
show_results = partial(show_one, TABLES)
