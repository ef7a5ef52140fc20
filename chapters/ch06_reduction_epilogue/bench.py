"""Measures what starting from the bias is worth on this CPU: `python -m chapters bench 6`.

One int8 product with a bias, as three schedules of one program on `vpdpbusd` and, if the processor has AMX, as kernels
on its tiles. The same rounds measure how fast memory takes a pass over the output, so that the chapter's prediction
(`predicted_speedup`) can be compared with the clock. Every result is checked to be exact before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.bench.results import Parts, SourcedTable, describe_missing, load, sourced_table
from chapters.kit.bench.timing import Unavailable, measure
from chapters.kit.cpu.int8_numbers import expected, numbers
from chapters.kit.draw.table import Table

M, N = 512, 4096
STEPS = (64, 256, 1024, 4096)
TALL = 2048  # rows of a second, larger output, with the shortest sums: there the bias counts most
# those of PyTorch may run in an interpreter without TVM
CANDIDATES = ("vnni", "amx", "traffic", "torch_baseline", "torch_packed")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: seconds per call}; also passes the tables to `say`."""
    m, n = (64, 512) if quick else (M, N)
    rounds = 3 if quick else 11

    def taken(m: int, k: int) -> dict[str, float]:
        sizes = {"m": m, "n": n, "k": k}
        return measure(__name__, CANDIDATES, sizes, rounds=rounds, say=say)

    steps = {str(k): taken(m, k) for k in (STEPS[:2] if quick else STEPS)}
    tall = {"m": 2 * m if quick else TALL, "k": STEPS[0]}
    tall["seconds"] = taken(tall["m"], tall["k"])
    measured = {"m": m, "n": n, "steps": steps, "tall": tall}
    say(f"\n{speedups(measured)}\n\n{beside_torch(measured)}\n")
    return {"ch06_int8": measured}


def speedups(measured: dict) -> Table:
    """How many times faster than with a separate bias pass, as measured and as `predicted_speedup` says."""
    cases = [(measured["m"], int(k), seconds) for k, seconds in measured["steps"].items()]
    tall = measured["tall"]
    cases.append((tall["m"], tall["k"], tall["seconds"]))
    rows = [
        _row(measured, m, k, unit, seconds)
        for m, k, seconds in cases
        for unit in ("vpdpbusd", "AMX")
        if f"{unit}, fused" in seconds
    ]
    return Table(("M", "K", "unit", "fused", "predicted", "at the tile", "10⁹ operations/s"), rows)


def beside_torch(measured: dict) -> Table:
    """What the bias costs if tiles are loaded from it, and PyTorch's times relative to that of the tiles."""
    rows = []
    for k, seconds in measured["steps"].items():
        if (tiles := seconds.get("AMX, fused")) is None:
            continue
        bare = seconds.get("AMX, without bias")
        baselines = (seconds.get(name) for name in ("PyTorch", "PyTorch, packed ahead"))
        times = (f"{time / tiles:.2f}×" if time else "–" for time in baselines)
        rows.append((int(k), f"{tiles / bare - 1:+.1%}" if bare else "–", *times))
    header = ("K", "the bias costs", "PyTorch takes", "PyTorch with packed weights takes")
    return Table(header, rows)


def _row(measured: dict, m: int, k: int, unit: str, seconds: dict[str, float]) -> tuple:
    fused, separate = seconds[f"{unit}, fused"], seconds[f"{unit}, separate"]
    tile = seconds.get(f"{unit}, at the tile")
    operations = 2 * m * measured["n"] * k
    predicted = _predict(m * measured["n"], k, fused, seconds["bias pass alone"])
    at_the_tile = f"{separate / tile:.2f}" if tile else ""
    times = f"{separate / fused:.2f}", f"{predicted:.2f}", at_the_tile
    return m, k, unit, *times, f"{operations / fused / 1e9:.0f}"


def _predict(elements: int, k: int, fused: float, bias_pass: float) -> float:
    """The chapter's prediction of the speedup, from the seconds of the fused kernel and of the bias pass alone.

    The bias pass moves 12 bytes per element, which gives the bytes per second. The fused kernel's operations, divided
    by the time that its stores leave, give the operations per second.
    """
    traffic = 12 * elements / bias_pass
    arithmetic = max(fused - 8 * elements / traffic, 1e-9)
    return predicted_speedup(k, 2 * elements * k / arithmetic, traffic)


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    """The speedup of a fused int8 matmul over the same matmul followed by a pass that adds the bias.

    k: length of the sums. Per output element the fused one needs `2 * k` operations and one 4-byte store. The separate
    pass adds a 4-byte load of the sum and another store. A store moves 8 bytes, because the processor reads the cache
    line before it changes it. The times of operations and traffic add up. The bias itself stays in the cache.
    """
    fused = 2 * k / operations_per_second + 8 / bytes_per_second
    separate_pass = (4 + 8) / bytes_per_second
    return (fused + separate_pass) / fused


def show_results() -> SourcedTable | Parts:
    """The tables of the results file with their source, or a sentence that says that it was not measured yet."""
    found = load("ch06_int8")
    if found is None:
        return describe_missing(6)
    return Parts([sourced_table(found, 6, speedups), beside_torch(found["measured"])])


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
    import tvm
    from tvm import s_tir, te

    from chapters.kit.machine import llvm_host

    sums = te.placeholder((m, n), "int32", "sums")
    bias = te.placeholder((n,), "int32", "bias")
    out = te.compute((m, n), lambda i, j: sums[i, j] + bias[j], "out")
    sch = s_tir.Schedule(te.create_prim_func([sums, bias, out]))
    sch.vectorize(sch.split(sch.get_loops("out")[1], [None, 16])[1])
    kernel = tvm.compile(sch.mod, target=llvm_host()["target"])["main"]
    arrays = [np.ones((m, n), np.int32), np.ones(n, np.int32), np.zeros((m, n), np.int32)]
    tensors = [in_numpy_memory(array) for array in arrays]
    return {"bias pass alone": (lambda: kernel(*tensors), None)}


def torch_baseline(m, n, k, seed):
    """PyTorch's int8 product and then the bias. It packs the weights at each call; ours are packed beforehand."""
    import torch

    torch.set_num_threads(1)
    a, w, c = numbers(m, n, k, seed)
    a = (a >> 1).astype(np.int8)  # its product takes signed bytes on both sides
    x, wt, bias = torch.from_numpy(a), torch.from_numpy(w).t(), torch.from_numpy(c)

    def call():
        with torch.inference_mode():
            return torch._int_mm(x, wt).add_(bias)

    return {"PyTorch": (call, _check_exact(call().numpy(), a, w, c))}


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
    torch.set_num_threads(1)
    a, w, c = numbers(m, n, k, seed)
    if not (np.abs(expected(a, w, c)) < 2**24).all():
        raise Unavailable(f"K = {k} gives sums that are not exact in float32")
    packed = pack(torch.from_numpy(w), [m, k])
    weights = packed, torch.ones(n), torch.zeros(n, dtype=torch.int64)
    x, bias = torch.from_numpy(a), torch.from_numpy(c).float()

    def call():
        with torch.inference_mode():
            scale, zero = 1.0, 0
            out = (1.0, 0, torch.float32)
            return linear(x, scale, zero, *weights, bias, *out, "none", [], "")

    return {"PyTorch, packed ahead": (call, _check_exact(call().numpy(), a, w, c))}
