"""Measures what starting from the bias is worth on this CPU: `python -m chapters bench 6`.

One int8 product with a bias, as three schedules of one program on `vpdpbusd` and, if the processor has AMX, as kernels
on its tiles. The same rounds measure how fast memory takes a pass over the output, so that the chapter's prediction
(`predicted_speedup`) can be compared with the clock. Every result is checked to be exact before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from chapters.kit.bench.cases import divide, ratio
from chapters.kit.bench.operands import compile_here, in_numpy_memory
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import Unavailable, bind_torch, measure_cases
from chapters.kit.cpu.int8_numbers import expected, numbers
from chapters.kit.draw.table import Table, fill_cell, tabulate

M, N = 512, 4096
STEPS = (64, 256, 1024, 4096)
TALL = 2048  # rows of a second, larger output, with the shortest sums: there the bias counts most
# those of PyTorch may run in an interpreter without TVM
CANDIDATES = ("vnni", "amx", "traffic", "torch_baseline", "torch_packed")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: the cases}."""
    m, n = (64, 512) if quick else (M, N)
    cases = [{"m": m, "n": n, "k": k} for k in (STEPS[:2] if quick else STEPS)]
    cases.append({"m": 2 * m if quick else TALL, "n": n, "k": STEPS[0]})
    rounds = 3 if quick else 11
    return {"ch06_int8": measure_cases(__name__, CANDIDATES, cases, rounds=rounds, say=say)}


def speedups(measured: dict) -> Table:
    """How many times faster than with a separate bias pass, as measured and as `predicted_speedup` says."""
    rows = []
    for case in measured["cases"]:
        for unit in (unit for unit in ("vpdpbusd", "AMX") if f"{unit}, fused" in case["seconds"]):
            fused, predicted = compute_speedup(unit, case, "fused"), predict(unit, case)
            tile = fill_cell(case, ratio(f"{unit}, separate", f"{unit}, at the tile", "{:.2f}"))
            speed = count_operations(case) / case["seconds"][f"{unit}, fused"]
            times = f"{fused:.2f}", f"{predicted:.2f}", tile
            rows.append((case["m"], case["k"], unit, *times, f"{speed / 1e9:.0f}"))
    return Table(("M", "K", "unit", "fused", "predicted", "at the tile", "10⁹ operations/s"), rows)


def compute_speedup(unit: str, case: dict, way: str) -> float:
    """How many times faster than with a separate bias pass the product is that adds the bias in this way."""
    return divide(case, f"{unit}, separate", f"{unit}, {way}")


def count_operations(case: dict) -> int:
    return 2 * case["m"] * case["n"] * case["k"]


def beside_torch(measured: dict) -> Table:
    """What the bias costs if tiles are loaded from it, and PyTorch's times relative to that of the tiles."""
    m = measured["cases"][0]["m"]
    cases = [one for one in measured["cases"] if one["m"] == m and "AMX, fused" in one["seconds"]]
    columns = {
        "K": "k",
        "the bias costs": lambda one: f"{divide(one, 'AMX, fused', 'AMX, without bias') - 1:+.1%}",
        "PyTorch takes": ratio("PyTorch", "AMX, fused"),
        "PyTorch with packed weights takes": ratio("PyTorch, packed ahead", "AMX, fused"),
    }
    return tabulate(cases, columns)


def predict(unit: str, case: dict) -> float:
    """The chapter's prediction of the speedup, from the seconds of the fused kernel and of the bias pass alone.

    The bias pass moves 12 bytes per element, which gives the bytes per second. The fused kernel's operations, divided
    by the time that its stores leave, give the operations per second.
    """
    elements = case["m"] * case["n"]
    traffic = 12 * elements / case["seconds"]["bias pass alone"]
    arithmetic = max(case["seconds"][f"{unit}, fused"] - 8 * elements / traffic, 1e-9)
    return predicted_speedup(case["k"], count_operations(case) / arithmetic, traffic)


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    """The speedup of a fused int8 matmul over the same matmul followed by a pass that adds the bias.

    k: length of the sums. Per output element the fused one needs `2 * k` operations and one 4-byte store. The separate
    pass adds a 4-byte load of the sum and another store. A store moves 8 bytes, because the processor reads the cache
    line before it changes it. The times of operations and traffic add up. The bias itself stays in the cache.
    """
    fused = 2 * k / operations_per_second + 8 / bytes_per_second
    separate_pass = (4 + 8) / bytes_per_second
    return (fused + separate_pass) / fused


TABLES = {"ch06_int8": lambda measured: [speedups(measured), beside_torch(measured)]}
show_results = partial(show_one, TABLES)


# --- candidates: each runs in its own process -----------------------------------------------------


def _check_exact(out: np.ndarray, a: np.ndarray, w: np.ndarray, c: np.ndarray) -> float:
    """0.0, the error of an exact result; ValueError if some of eight rows is not exact."""
    some = np.unique(np.linspace(0, len(a) - 1, 8).astype(int))
    if not (out[some] == expected(a[some], w, c)).all():
        raise ValueError("wrong numbers")
    return 0.0


def vnni(m, n, k, seed):
    """The three schedules; the primitive is the learner's if it passes its checks."""
    import tvm

    from chapters.kit.cpu import vnni as unit
    from chapters.kit.cpu.int8_matmul import WAYS, pack, schedule
    from chapters.runner.earlier import earlier

    if not unit.runs_here():
        raise Unavailable("this processor has no vpdpbusd")
    a, w, c = numbers(m, n, k, seed)
    inputs = [in_numpy_memory(x) for x in (a, pack(w), c)]
    found = {}
    for way in WAYS:
        kernel = tvm.compile(schedule(m, n, k, way, earlier(6)).mod, target=unit.target())["main"]
        out = in_numpy_memory(np.full((m, n), -7, np.int32))
        kernel(*inputs, out)
        error = _check_exact(out.numpy(), a, w, c)
        found[f"vpdpbusd, {way}"] = (lambda kernel=kernel, out=out: kernel(*inputs, out), error)
    return found


def amx(m, n, k, seed):
    """The kernels on tiles: both ways of adding the bias, and none."""
    import tvm

    from chapters.kit.cpu import amx as unit

    if not unit.runs_here():
        raise Unavailable("there are no AMX tiles here")
    a, w, c = numbers(m, n, k, seed)
    inputs = [in_numpy_memory(x) for x in (a, unit.pack(w), c)]
    more = [in_numpy_memory(x) for x in (unit.configuration(), np.full((m, n), -7, np.int32))]
    found = {}
    for way in unit.WAYS:
        kernel = tvm.compile(unit.product(m, n, k, way), target=unit.target())["main"]
        out = in_numpy_memory(np.full((m, n), -7, np.int32))
        kernel(*inputs, out, *more)
        error = _check_exact(out.numpy(), a, w, np.zeros_like(c) if way == "without bias" else c)
        found[f"AMX, {way}"] = (lambda kernel=kernel, out=out: kernel(*inputs, out, *more), error)
    return found


def traffic(m, n, k, seed):
    """The bias pass alone, which is limited by its reads and writes."""
    from tvm import s_tir, te

    sums = te.placeholder((m, n), "int32", "sums")
    bias = te.placeholder((n,), "int32", "bias")
    out = te.compute((m, n), lambda i, j: sums[i, j] + bias[j], "out")
    sch = s_tir.Schedule(te.create_prim_func([sums, bias, out]))
    sch.vectorize(sch.split(sch.get_loops("out")[1], [None, 16])[1])
    kernel = compile_here(sch.mod)
    arrays = [np.ones((m, n), np.int32), np.ones(n, np.int32), np.zeros((m, n), np.int32)]
    tensors = [in_numpy_memory(array) for array in arrays]
    return {"bias pass alone": (lambda: kernel(*tensors), None)}


def torch_baseline(m, n, k, seed):
    """PyTorch's int8 product and then the bias. It packs the weights at each call; ours are packed beforehand."""
    import torch

    a, w, c = numbers(m, n, k, seed)
    a = (a >> 1).astype(np.int8)  # its product takes signed bytes on both sides
    x, wt, bias = torch.from_numpy(a), torch.from_numpy(w).t(), torch.from_numpy(c)

    call, out = bind_torch(lambda: torch._int_mm(x, wt).add_(bias), threads=1)
    return {"PyTorch": (call, _check_exact(out.numpy(), a, w, c))}


def torch_packed(m, n, k, seed):
    """PyTorch's quantized linear layer with weights packed ahead of time and the bias inside; float32 results.

    Its product is oneDNN's, on the same operands as ours; all scales are 1. A sum below 2²⁴ is exact in float32.
    """
    import torch

    try:
        pack, linear = torch.ops.onednn.qlinear_prepack, torch.ops.onednn.qlinear_pointwise
    except AttributeError:
        raise Unavailable("this PyTorch has no quantized operators of oneDNN") from None
    if not torch.cpu._is_vnni_supported():
        raise Unavailable("without VNNI oneDNN adds pairs of products in 16 bits, which overflow")
    a, w, c = numbers(m, n, k, seed)
    if not (np.abs(expected(a, w, c)) < 2**24).all():
        raise Unavailable(f"K = {k} gives sums that are not exact in float32")
    packed = pack(torch.from_numpy(w), [m, k])
    weights = packed, torch.ones(n), torch.zeros(n, dtype=torch.int64)
    x, bias = torch.from_numpy(a), torch.from_numpy(c).float()

    scale, zero = 1.0, 0
    result = 1.0, 0, torch.float32
    operands = (x, scale, zero, *weights, bias, *result, "none", [], "")
    call, out = bind_torch(linear, *operands, threads=1)
    return {"PyTorch, packed ahead": (call, _check_exact(out.numpy(), a, w, c))}
