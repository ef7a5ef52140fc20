"""Measures NT_matmul on this CPU: scheduled, beside NumPy and, where it is installed, PyTorch; and unscheduled.

Two effects are kept apart: what the pass gains by not materialising the transpose, without any schedule; and what the
schedule gains on top of that. The bounds, how fast w can be read and how fast registers can multiply and add, are
measured in the same rounds. A decode step of a small decoder shows both effects in their place.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from chapters.toolkit.bench.cpu_bounds import (
    MULTIPLY_ADDS,
    multiply_add,
    multiply_tile,
    read_matrix,
)
from chapters.toolkit.bench.results import Shown, load, shown_as
from chapters.toolkit.bench.timing import MissingPeer, Peer, compare
from chapters.toolkit.decoder.llama_config import LlamaConfig
from chapters.toolkit.table import Table, duration

N = K = 4096
ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
AMX_ROWS = (32, 64, 128, 256)
PASS_ROWS = (1, 16)  # unscheduled, more rows take minutes
TOLERANCE = 1e-5  # of the largest result, in float32
HERE = __name__
KERNELS = ("ours", "numpy_peer", "torch_peer", "bounds")
# two layers of an ordinary shape, small enough to fill with numbers
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
    """Everything: {name of a results file: seconds a call}, with the tables told to `say` as they come."""
    n, k = (512, 512) if quick else (N, K)
    rounds = 3 if quick else 15
    counts = (1, 64) if quick else ROWS
    threads = {
        str(number): {
            str(rows): _measure(KERNELS, rows, n, k, number, rounds, say) for rows in counts
        }
        for number in (1, 2)[: os.cpu_count()]
    }
    kernels = {"n": n, "k": k, "threads": threads}
    say(f"\n{kernel_table(kernels)}\n")
    plain = {str(r): _measure(("unscheduled",), r, n, k, 1, 3, say) for r in PASS_ROWS}
    alone = {"n": n, "k": k, "rows": plain}
    say(f"\n{pass_table(alone)}\n")
    amx = {
        str(rows): _measure(("amx_peer", "torch_bfloat16"), rows, n, k, 1, rounds, say)
        for rows in ((64,) if quick else AMX_ROWS)
    }
    say(f"\n{amx_table({'n': n, 'k': k, 'rows': amx})}\n")
    step = _measure(("decode_step",), 1, n, k, 1, rounds, say)
    say(f"\n{decode_table(step)}\n")
    return {
        "ch03_kernels": kernels,
        "ch03_pass": alone,
        "ch03_amx": {"n": n, "k": k, "rows": amx},
        "ch03_decode": step,
    }


def _measure(functions, rows, n, k, threads, rounds, say) -> dict[str, float]:
    seed = int.from_bytes(np.random.bytes(4), "little")  # fresh numbers, the same for all peers
    arguments = {"rows": rows, "n": n, "k": k, "threads": threads, "seed": seed}
    peers = [Peer(HERE, function, arguments) for function in functions]
    timings, missing = compare(peers, threads=threads, rounds=rounds)
    told = ", ".join(f"{name} {1e3 * t.seconds:.3g} ms" for name, t in timings.items())
    say(f"{threads} thread(s), {rows} row(s): {told}" + "".join(f"; {m}" for m in missing))
    return {name: timing.seconds for name, timing in timings.items()}


def peak(seconds: dict[str, float], threads: int, bound: str = "multiply-add") -> float:
    """Floating-point operations a second that the registers, or the tile alone, reached in the same rounds."""
    return 2 * MULTIPLY_ADDS * threads / seconds[bound]


# --- peers: each runs in a process of its own ---------------------------------------------------------


def numbers(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x (rows, k) and w (n, k), float32."""
    random = np.random.default_rng(seed)
    shapes = (rows, k), (n, k)
    return tuple(random.standard_normal(shape, dtype="float32") for shape in shapes)


def checked(
    result: np.ndarray, x: np.ndarray, w: np.ndarray, tolerance: float = TOLERANCE
) -> float:
    """The largest error against float64, relative to the largest result; ValueError where it is too large."""
    some = np.unique(np.linspace(0, len(x) - 1, 6).astype(int))
    expected = x[some].astype("float64") @ w.astype("float64").T
    error = float(
        np.abs(result.reshape(len(x), -1)[some] - expected).max() / np.abs(expected).max()
    )
    if not error < tolerance:  # NaN is no small error
        raise ValueError(f"wrong numbers: the relative error is {error:.1e}")
    return error


def _tensors(rows, n, k, seed):
    from chapters.toolkit.bench.operands import in_numpy_memory

    x, w = numbers(rows, n, k, seed)
    out = np.full((rows, n), np.nan, "float32")
    return x, w, [in_numpy_memory(array) for array in (w, x, out)]


def _kernel(rows: int, n: int, k: int):
    """NT_matmul as the pass makes it."""
    from tvm import te

    from chapters.toolkit.earlier import earlier

    x = te.placeholder((rows, k), "float32", name="x")
    w = te.placeholder((n, k), "float32", name="w")
    return te.create_prim_func([w, x, earlier(3).nt_matmul(w, x, "float32")], "int64")


def ours(rows, n, k, threads, seed):
    """The scheduled kernel: the learner's where it passes its checks, else the reference's."""
    import tvm

    from chapters.toolkit.earlier import earlier
    from chapters.toolkit.machine import llvm_host

    target = llvm_host()["target"]
    kernel = tvm.compile(earlier(3).schedule(_kernel(rows, n, k), target), target=target)["main"]
    x, w, tensors = _tensors(rows, n, k, seed)
    kernel(*tensors)
    return {"ours": (lambda: kernel(*tensors), checked(tensors[-1].numpy(), x, w))}


def numpy_peer(rows, n, k, threads, seed):
    x, w = numbers(rows, n, k, seed)
    out = np.empty((rows, n), "float32")
    np.matmul(x, w.T, out=out)
    return {"NumPy": (lambda: np.matmul(x, w.T, out=out), checked(out, x, w))}


def torch_peer(rows, n, k, threads, seed):
    try:
        import torch
    except ImportError:
        raise MissingPeer("PyTorch is not installed") from None
    torch.set_num_threads(threads)
    x, w = (torch.from_numpy(array) for array in numbers(rows, n, k, seed))
    linear = torch.nn.functional.linear

    def call():
        with torch.inference_mode():
            return linear(x, w)

    return {"PyTorch": (call, checked(call().numpy(), x.numpy(), w.numpy()))}


def amx_peer(rows, n, k, threads, seed):
    """bfloat16 on the matrix unit, sums and result in float32."""
    from chapters.toolkit.bench.operands import in_numpy_memory
    from chapters.toolkit.cpu import amx
    from chapters.toolkit.cpu.amx_matmul import build_amx_matmul, runs_here

    if not runs_here():
        raise MissingPeer("this processor has no AMX")
    x, w = rounded(rows, n, k, seed)
    out = np.full((rows, n), np.nan, "float32")
    arrays = w.view("uint16"), x.view("uint16"), amx.configuration(), out
    tensors = [in_numpy_memory(array) for array in arrays]
    kernel = build_amx_matmul(rows, n, k)
    kernel(*tensors)
    error = checked(tensors[-1].numpy(), x.astype("float32"), w.astype("float32"))
    return {"AMX": (lambda: kernel(*tensors), error)}


def torch_bfloat16(rows, n, k, threads, seed):
    """PyTorch in bfloat16, which oneDNN runs on AMX where there is one; its result is bfloat16."""
    try:
        import torch
    except ImportError:
        raise MissingPeer("PyTorch is not installed") from None
    torch.set_num_threads(threads)
    arrays = [array.astype("float32") for array in rounded(rows, n, k, seed)]
    x, w = (torch.from_numpy(array).to(torch.bfloat16) for array in arrays)
    linear = torch.nn.functional.linear

    def call():
        with torch.inference_mode():
            return linear(x, w)

    error = checked(call().float().numpy(), *arrays, tolerance=1e-2)
    return {"PyTorch": (call, error)}


def rounded(rows: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x and w in bfloat16."""
    import ml_dtypes

    return tuple(array.astype(ml_dtypes.bfloat16) for array in numbers(rows, n, k, seed))


def bounds(rows, n, k, threads, seed):
    """Kernels that do only a part of the work: read w; multiply and add in registers; the tile alone, if it has one."""
    from chapters.toolkit.bench.operands import in_numpy_memory
    from chapters.toolkit.cpu.matmul_tile import has_few_rows, matmul_tile
    from chapters.toolkit.machine import llvm_host

    target = llvm_host()["target"]
    reader, sums_shape = read_matrix(n, k, target)
    worker, operands_shape, chains_shape = multiply_add(threads, target)
    w, sums, operands, chains = (
        in_numpy_memory(np.full(shape, 0.5, "float32"))
        for shape in ((n, k), sums_shape, operands_shape, chains_shape)
    )
    calls = {
        "read w": (lambda: reader(w, sums), None),
        "multiply-add": (lambda: worker(operands, chains), None),
    }
    kernel = _kernel(rows, n, k)
    if not has_few_rows(kernel, target):
        tile = matmul_tile(kernel, target)
        tiles, shapes = multiply_tile(tile.vectors, tile.columns, threads, target)
        near = [in_numpy_memory(np.full(shape, 0.5, "float32")) for shape in shapes]
        calls["tile"] = (lambda: tiles(*near), None)
    return calls


def unscheduled(rows, n, k, threads, seed):
    """The module before and after the pass, both through TVM's default pipeline and without any schedule."""
    import tvm
    from tvm import relax

    from chapters.toolkit.earlier import earlier
    from chapters.toolkit.machine import llvm_host

    target = llvm_host()["target"]
    x, w, tensors = _tensors(rows, n, k, seed)
    before = linear_layer(rows, n, k)
    calls = {}
    for name, mod in {
        "transposed": before,
        "fused": earlier(3).FuseTransposeMatmul()(before),
    }.items():
        machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
        call = _one_call(machine["main"], tensors)
        calls[name] = (call, checked(call().numpy(), x, w))
    return calls


def _one_call(main, tensors):
    w, x, _ = tensors
    return lambda: main(x, w)


def linear_layer(rows: int, n: int, k: int):
    """main(x, w) = matmul(x, permute_dims(w)), the module of a linear layer."""
    from tvm import relax

    x = relax.Var("x", relax.TensorType((rows, k), "float32"))
    w = relax.Var("w", relax.TensorType((n, k), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    return builder.get()


def decode_step(rows, n, k, threads, seed):
    """One token through a small decoder: as exported, after the pass, and with the kernels scheduled."""
    import tvm
    from tvm import relax

    from chapters.toolkit.decoder.llama import decoder
    from chapters.toolkit.decoder.llama_generator import Generator, random_weights
    from chapters.toolkit.earlier import earlier
    from chapters.toolkit.machine import llvm_host

    target = llvm_host()["target"]
    weights = random_weights(DECODER, seed=seed)
    exported, _ = decoder(DECODER, functions=Generator.SINGLE)
    # a symbolic vocabulary would leave the head's kernel without a schedule
    exported = relax.transform.BindSymbolicVars({"vocab_size": DECODER.vocab_size})(exported)
    fused = earlier(3).FuseTransposeMatmul()(exported)
    variants = {
        "as exported": exported,
        "fused": fused,
        "fused and scheduled": earlier(3).schedule_kernels(fused, target),
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
    """Speed by number of rows: GFLOP/s, times a peer's, and the shares of the nearer bound and of the tile alone."""
    rows = []
    size = measured["n"] * measured["k"]
    for threads, by_rows in measured["threads"].items():
        for count, seconds in by_rows.items():
            work = 2 * int(count) * size
            mine = seconds["ours"]
            bound = max(seconds["read w"], work / peak(seconds, int(threads)))
            torch = seconds.get("PyTorch")
            speed = work / mine
            tile = peak(seconds, int(threads), "tile") if "tile" in seconds else None
            rows.append(
                (
                    threads,
                    count,
                    f"{speed / 1e9:.0f}",
                    f"{seconds['NumPy'] / mine:.2f}×",
                    f"{torch / mine:.2f}×" if torch else "–",
                    f"{bound / mine:.0%} of {'reading w' if bound == seconds['read w'] else 'arithmetic'}",
                    f"{speed / tile:.0%}" if tile else "–",
                )
            )
    header = (
        "threads",
        "rows of x",
        "GFLOP/s",
        "NumPy's time",
        "PyTorch's time",
        "share of the bound",
        "of its tile alone",
    )
    return Table(header, rows)


def pass_table(measured: dict) -> Table:
    """The pass alone: transpose materialised against fused, both unscheduled."""
    rows = [
        (
            count,
            duration(seconds["transposed"]),
            duration(seconds["fused"]),
            f"{seconds['transposed'] / seconds['fused']:.1f}×",
        )
        for count, seconds in measured["rows"].items()
    ]
    return Table(("rows of x", "transpose and matmul", "NT_matmul", "gain of the pass"), rows)


def amx_table(measured: dict) -> Table:
    """bfloat16 on AMX; empty where the processor has none."""
    size = measured["n"] * measured["k"]
    rows = []
    for count, seconds in measured["rows"].items():
        if "AMX" in seconds:
            torch = seconds.get("PyTorch")
            speed = f"{2 * int(count) * size / seconds['AMX'] / 1e9:.0f}"
            rows.append((count, speed, f"{torch / seconds['AMX']:.2f}×" if torch else "–"))
    return Table(("rows of x", "GFLOP/s", "PyTorch's time"), rows)


def decode_table(seconds: dict) -> Table:
    """One decode step, and how much of the exported module's time is left."""
    whole = seconds["as exported"]
    rows = [(name, duration(s), f"{s / whole:.0%}") for name, s in seconds.items()]
    return Table(("the decoder", "one decode step", "of the time as exported"), rows)


TABLES = {
    "ch03_kernels": kernel_table,
    "ch03_pass": pass_table,
    "ch03_amx": amx_table,
    "ch03_decode": decode_table,
}


def shown(name: str) -> Shown:
    """The table of a results file with its source, or the sentence that nothing was measured yet."""
    return shown_as(load(name), 3, TABLES[name])
