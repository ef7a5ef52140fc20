"""Measures attention on this CPU, unfused and fused: `python -m chapters bench 13`.

One thread, float32. Every result is compared with NumPy in float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from chapters.kit.bench.cases import duration, list_candidates, ratio
from chapters.kit.bench.operands import compile_here, draw_arrays, in_numpy_memory
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import bind_torch, measure_cases
from chapters.kit.draw.table import Table, tabulate

WIDTH = 64  # of a query, a key and a value
SIZES = ((64, 64), (64, 256), (64, 1024), (64, 4096), (64, 16384))
CANDIDATES = ("ours", "chat_baseline", "torch_baseline")
NAMES = ("unfused", "unfused, row by row", "fused", "the chat's kernel", "PyTorch")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: the cases}."""
    rounds, sizes = (3, SIZES[:2]) if quick else (11, SIZES)
    cases = [{"rows": rows, "keys": keys, "width": WIDTH} for rows, keys in sizes]
    return {"ch13_attention": measure_cases(__name__, CANDIDATES, cases, rounds=rounds, say=say)}


def time_table(measured: dict) -> Table:
    """Milliseconds of each program that was measured, and how many times faster than unfused the fused one is."""
    write, found = lambda seconds: f"{1e3 * seconds:.3g}", set(list_candidates(measured["cases"]))
    columns = {
        "queries": "rows",
        "keys": "keys",
        **{f"{name}, ms": duration(name, write) for name in NAMES if name in found},
        "unfused / fused": ratio("unfused", "fused", "{:.2f}"),
    }
    return tabulate(measured["cases"], columns)


TABLES = {"ch13_attention": time_table}
show_results = partial(show_one, TABLES)


# --- candidates: each runs in its own process -----------------------------------------------------


def _check_attention(out: np.ndarray, arrays: tuple[np.ndarray, ...], **how) -> float:
    """The largest error; ValueError if it is no rounding."""
    from chapters.ch13_fuse_reductions.attention import compute_exact

    error = float(np.abs(out - compute_exact(*arrays, **how)).max())
    if not error < 1e-4:
        raise ValueError(f"wrong numbers: off by {error}")
    return error


def ours(rows, keys, width, seed):
    """The five blocks, and the fused loop; the primitive is the learner's if it passes its checks."""
    from chapters.ch13_fuse_reductions.attention import draw_inputs, fuse_attention, unfused
    from chapters.runner.earlier import earlier

    sizes = rows, keys, width, width
    arrays = draw_inputs(*sizes, seed)
    inputs = [in_numpy_memory(array) for array in arrays]
    found = {}
    programs = {
        "unfused": unfused(*sizes),
        "unfused, row by row": unfused(*sizes, by_rows=True),
        "fused": fuse_attention(*sizes, earlier(13)),
    }
    for name, sch in programs.items():
        kernel = compile_here(sch.mod)
        out = in_numpy_memory(np.full((rows, width), 77, "float32"))
        kernel(*inputs, out)
        error = _check_attention(out.numpy(), arrays)
        found[name] = (lambda kernel=kernel, out=out: kernel(*inputs, out), error)
    return found


def chat_baseline(rows, keys, width, seed):
    """The chat's prefill kernel, for one head and the last `rows` of `keys` tokens; each sees those before it."""
    import tvm
    from tvm import tirx

    from chapters.ch13_fuse_reductions.attention import draw_inputs
    from chapters.kit.chat.attention import attention_kernel
    from chapters.kit.chat.cache_layout import LANES
    from chapters.kit.decoder.llama_config import LlamaConfig

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=width,
        vocab_size=1,
        context_window_size=keys,
    )
    func = attention_kernel(config, tirx.Var("s", "int64"))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    kernel = compile_here(mod)

    q, k, v = draw_inputs(rows, keys, width, width, seed)
    values = v.reshape(keys // LANES, LANES, width)
    lanes_last = k.T.reshape(keys // LANES, LANES, width).transpose(0, 2, 1)
    cache = np.stack([part.reshape(-1, 1, LANES * width) for part in (lanes_last, values)], axis=1)
    qkv = np.zeros((1, rows, 3 * width), "float32")
    qkv[0, :, :width] = q * np.sqrt(np.float32(width))  # the kernel divides by this
    unrotated = np.stack([np.ones((keys, width // 2)), np.zeros((keys, width // 2))], axis=1)
    arrays = (cache[:, None], qkv, unrotated.astype("float32"), np.array([keys - rows], "int32"))
    inputs = [in_numpy_memory(np.ascontiguousarray(array)) for array in arrays]
    out = in_numpy_memory(np.full((1, rows, width), 77, "float32"))

    def call():
        kernel(*inputs, 0, out)

    call()
    return {"the chat's kernel": (call, _check_attention(out.numpy()[0], (q, k, v), causal=True))}


def torch_baseline(rows, keys, width, seed):
    """PyTorch's attention; the numbers are drawn with NumPy alone, as its interpreter may have no TVM."""
    import torch

    arrays = draw_arrays(seed, (rows, width), (keys, width), (keys, width))
    q, k, v = (torch.from_numpy(array)[None, None] for array in arrays)

    call, out = bind_torch(torch.nn.functional.scaled_dot_product_attention, q, k, v, threads=1)
    scores = arrays[0].astype("float64") @ arrays[1].T.astype("float64") / np.sqrt(width)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    right = weights @ arrays[2] / weights.sum(axis=1, keepdims=True)
    return {"PyTorch": (call, float(np.abs(out[0, 0].numpy() - right).max()))}
