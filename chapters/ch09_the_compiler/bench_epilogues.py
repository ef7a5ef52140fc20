"""Measures linear layers with what follows them: the product alone, and with eight epilogues, beside torch.compile.

x is (rows, 960) and w (1056, 960), in float32: sizes that are no powers of two. This chapter's pipeline compiles each
layer. Only functions that need TVM or PyTorch import it, because a candidate's interpreter may have only one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from chapters.kit.bench.cases import duration, ratio
from chapters.kit.bench.operands import check_error, compile_here, draw_arrays, in_numpy_memory
from chapters.kit.bench.timing import bind_torch, measure_cases
from chapters.kit.draw.table import Table, count_noun, fill_cell

N, K = 1056, 960
ROWS = (1, 4, 16, 64, 512)
ALONE = "product alone"

# name -> the layer in Relax: y is the product, b (N,) the bias, r (rows, N) a second tensor
LAYERS = {
    ALONE: "y",
    "bias": "R.add(y, b)",
    "bias, relu": "R.nn.relu(R.add(y, b))",
    "bias, gelu": "R.nn.gelu(R.add(y, b))",
    "bias, silu": "R.nn.silu(R.add(y, b))",
    "bias, residual": "R.add(R.add(y, b), r)",
    "scale, clip": 'R.clip(R.multiply(y, R.const(0.5, "float32")), -20.0, 20.0)',
    "gate": "R.multiply(R.nn.silu(y), r)",
    "softcap": 'R.multiply(R.tanh(R.divide(y, R.const(30.0, "float32"))), R.const(30.0, "float32"))',
}


def compute_expected(name: str, y: np.ndarray, b: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The layer called `name` in NumPy, in the dtype of y."""

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    def gelu(a):
        return a * (1 + np.vectorize(math.erf)(a / math.sqrt(2))) / 2

    made = {
        ALONE: lambda: y,
        "bias": lambda: y + b,
        "bias, relu": lambda: np.maximum(y + b, 0),
        "bias, gelu": lambda: gelu(y + b),
        "bias, silu": lambda: (y + b) * sigmoid(y + b),
        "bias, residual": lambda: y + b + r,
        "scale, clip": lambda: np.clip(y * 0.5, -20, 20),
        "gate": lambda: y * sigmoid(y) * r,
        "softcap": lambda: 30 * np.tanh(y / 30),
    }
    return made[name]()


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: the cases}."""
    rows, rounds = ((4, 64), 3) if quick else (ROWS, 15)
    cases = [{"rows": count, "n": N, "k": K, "threads": 1} for count in rows]
    functions = ("ours", "torch_compile")
    return {"ch09_epilogues": measure_cases(__name__, functions, cases, rounds=rounds, say=say)}


def make_table(measured: dict) -> Table:
    """One row per layer: for each number of rows our time, its ratio to the product alone, and torch.compile's time."""
    header, table = ["layer"], [[name] for name in LAYERS]
    for case in measured["cases"]:
        header += [count_noun(case["rows"], "row"), "of the product", "torch.compile"]
        columns = [
            lambda name: duration(f"fusion_by_hand, {name}"),
            lambda name: ratio(f"fusion_by_hand, {name}", f"fusion_by_hand, {ALONE}", "{:.2f}"),
            lambda name: duration(f"torch.compile, {name}"),
        ]
        for cells in table:
            cells += [fill_cell(case, column(cells[0])) for column in columns]
    note = (
        "Times on one thread. “of the product”: our time, divided by our time of the product alone."
    )
    return Table(header, table, note)


# --- candidates: each runs in its own process -----------------------------------------------------


def draw_operands(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, ...]:
    """Random x (rows, k), w (n, k), b (n,) and r (rows, n), float32."""
    return draw_arrays(seed, (rows, k), (n, k), (n,), (rows, n))


def check_layer(name: str, out: np.ndarray, arrays: tuple[np.ndarray, ...]) -> float:
    """`check_error` of the layer called `name` on these operands."""
    x, w, b, r = (array.astype("float64") for array in arrays)
    return check_error(out, compute_expected(name, x @ w.T, b, r), what=f"“{name}”")


def ours(rows, n, k, threads, seed) -> dict:
    """The layers, compiled by the pipeline: the learner's if it passes its checks, else the reference's."""
    from chapters.kit.cases.relax_text import relax_module
    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    target, arrays = llvm_host()["target"], draw_operands(rows, n, k, seed)
    tensors, found = [in_numpy_memory(array) for array in arrays], {}
    for name, formula in LAYERS.items():
        text = f"def main(x: ({rows}, {k}), w: ({n}, {k}), b: ({n},), r: ({rows}, {n})):\n"
        mod = relax_module(f"{text}    y = R.matmul(x, R.permute_dims(w))\n    out = {formula}\n")
        layer = compile_here(mod, relax_pipeline=earlier(9).fusion_pipeline(target))

        def call(layer=layer):
            return layer(*tensors)

        found[f"fusion_by_hand, {name}"] = (call, check_layer(name, call().numpy(), arrays))
    return found


def torch_compile(rows, n, k, threads, seed) -> dict:
    """The layers through torch.compile, which needs a C++ compiler."""
    import torch
    from torch.nn import functional

    arrays = draw_operands(rows, n, k, seed)
    tensors, found = [torch.from_numpy(array) for array in arrays], {}
    linear = functional.linear
    layers = {
        ALONE: lambda x, w, b, r: linear(x, w),
        "bias": lambda x, w, b, r: linear(x, w, b),
        "bias, relu": lambda x, w, b, r: functional.relu(linear(x, w, b)),
        "bias, gelu": lambda x, w, b, r: functional.gelu(linear(x, w, b)),
        "bias, silu": lambda x, w, b, r: functional.silu(linear(x, w, b)),
        "bias, residual": lambda x, w, b, r: linear(x, w, b) + r,
        "scale, clip": lambda x, w, b, r: (linear(x, w) * 0.5).clamp(-20.0, 20.0),
        "gate": lambda x, w, b, r: functional.silu(linear(x, w)) * r,
        "softcap": lambda x, w, b, r: torch.tanh(linear(x, w) / 30.0) * 30.0,
    }
    for name, layer in layers.items():
        call, out = bind_torch(layer, *tensors, threads=threads, compiled=True)
        found[f"torch.compile, {name}"] = (call, check_layer(name, out.numpy(), arrays))
    return found
