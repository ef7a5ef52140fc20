"""Measures NT_matmul on this CPU: scheduled, beside NumPy and, if it is installed, PyTorch.

The same rounds measure the bounds: how fast w can be read, and how fast registers can multiply and add. A decode step
of a small decoder shows what the schedules gain on top of chapter 3's pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from chapters.kit.bench.operands import check_product, draw_arrays, draw_tensors, in_numpy_memory
from chapters.kit.bench.results import SourcedTable, load, sourced_table
from chapters.kit.bench.timing import measure
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.draw.table import Table, format_duration

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
    """Measure everything: {name of a results file: seconds per call}; also passes each table to `say`."""
    n, k = (512, 512) if quick else (N, K)
    rounds = 3 if quick else 15

    def taken(functions: tuple[str, ...], rows: int, threads: int = 1) -> dict[str, float]:
        arguments = {"rows": rows, "n": n, "k": k, "threads": threads}
        return measure(__name__, functions, arguments, rounds=rounds, say=say)

    counts = (1, 64) if quick else ROWS
    threads = {
        str(number): {str(rows): taken(KERNELS, rows, number) for rows in counts}
        for number in (1, 2)[: os.cpu_count()]
    }
    kernels = {"n": n, "k": k, "threads": threads}
    say(f"\n{kernel_table(kernels)}\n")
    step = taken(("decode_step",), 1)
    say(f"\n{decode_table(step)}\n")
    return {"ch05_kernels": kernels, "ch05_decode": step}


def peak(seconds: dict[str, float], threads: int, bound: str = "multiply-add") -> float:
    """Floating-point operations per second that the registers, or the tile alone, reached in the same rounds."""
    from chapters.kit.bench.cpu_bounds import MULTIPLY_ADDS

    return 2 * MULTIPLY_ADDS * threads / seconds[bound]


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
    import tvm

    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    target = llvm_host()["target"]
    kernel = tvm.compile(earlier(5).schedule(_kernel(rows, n, k), target), target=target)["main"]
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

    torch.set_num_threads(threads)
    x, w = map(torch.from_numpy, draw_arrays(seed, (rows, k), (n, k)))
    linear = torch.nn.functional.linear

    def call():
        with torch.inference_mode():
            return linear(x, w)

    return {"PyTorch": (call, check_product(call().numpy(), x.numpy(), w.numpy()))}


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


def decode_step(rows, n, k, threads, seed):
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
    rows = []
    size = measured["n"] * measured["k"]
    for threads, by_rows in measured["threads"].items():
        for count, seconds in by_rows.items():
            work = 2 * int(count) * size
            ours = seconds["ours"]
            bound = max(seconds["read w"], work / peak(seconds, int(threads)))
            torch = seconds.get("PyTorch")
            speed = work / ours
            tile = peak(seconds, int(threads), "tile") if "tile" in seconds else None
            times = f"{seconds['NumPy'] / ours:.2f}×", f"{torch / ours:.2f}×" if torch else "–"
            nearer = "reading w" if bound == seconds["read w"] else "arithmetic"
            shares = f"{bound / ours:.0%} of {nearer}", f"{speed / tile:.0%}" if tile else "–"
            rows.append((threads, count, f"{speed / 1e9:.0f}", *times, *shares))
    times = "NumPy's time", "PyTorch's time"
    shares = "share of the bound", "of its tile alone"
    return Table(("threads", "rows of x", "GFLOP/s", *times, *shares), rows)


def decode_table(seconds: dict) -> Table:
    """The time of one decode step, and its share of the time of the exported module."""
    whole = seconds["as exported"]
    rows = [(name, format_duration(s), f"{s / whole:.0%}") for name, s in seconds.items()]
    return Table(("the decoder", "one decode step", "of the time as exported"), rows)


TABLES = {"ch05_kernels": kernel_table, "ch05_decode": decode_table}


def show_results(name: str) -> SourcedTable:
    """The table of a results file with its source, or a sentence that says that it was not measured yet."""
    return sourced_table(load(name), 5, TABLES[name])
