"""Measures the fused add and RMSNorm: on this CPU, and on an NVIDIA GPU where there is one.

Beside it, in the same rounds: the unfused pair as TVM compiles it, NumPy and PyTorch where they are installed, and the
bound, a kernel that reads two tensors and writes two. Bytes are counted the same way for all: two reads and two writes
of the tensor, and the weight.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from chapters.ch04_add_rms_norm import registers
from chapters.toolkit.table import Table

EPSILON = 1e-5
SHAPES = ((1, 1, 4096), (64, 1, 4096), (1, 512, 4096), (1, 4096, 8192))
DTYPES = ("float32", "float16", "bfloat16")
HERE = __name__
PEERS = ("ours", "unfused", "bounds", "numpy_peer", "torch_peer")


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """Everything: {name of a results file: seconds a call}, with the tables told to `say` as they come."""
    from chapters.toolkit.bench.gpu_clock import missing

    shapes = ((64, 1, 512),) if quick else SHAPES
    rounds = 3 if quick else 15
    cpu = {
        str(threads): {
            f"{dtype} {shape}": _measure(shape, dtype, threads, rounds, say)
            for shape in shapes
            for dtype in DTYPES
        }
        for threads in (1, 2)[: os.cpu_count()]
    }
    say(f"\n{cpu_table(cpu)}\n")
    found = {"ch04_cpu": cpu}
    if not registers.missing():
        found[registers.NAME] = registers.counted()
        say(f"\n{registers.table(found[registers.NAME])}\n")
    if missing():
        say(f"not measured on a GPU: {missing()}")
    else:
        from chapters.toolkit.bench.gpu_norm_bench import measure_all

        found["ch04_gpu"] = measure_all(quick, say)
    return found


def _measure(shape, dtype, threads, rounds, say) -> dict[str, float]:
    from chapters.toolkit.bench.timing import Peer, compare

    seed = int.from_bytes(np.random.bytes(4), "little")  # fresh numbers, the same for all peers
    arguments = {"shape": shape, "dtype": dtype, "threads": threads, "seed": seed}
    peers = [Peer(HERE, function, arguments) for function in PEERS]
    timings, missing = compare(peers, threads=threads, rounds=rounds)
    told = ", ".join(f"{name} {1e6 * t.seconds:.4g} µs" for name, t in timings.items())
    say(f"{threads} thread(s), {dtype} {shape}: {told}" + "".join(f"; {m}" for m in missing))
    return {name: timing.seconds for name, timing in timings.items()}


def bytes_counted(shape: tuple[int, ...], dtype: str) -> int:
    """Two tensors read, two written, and the weight."""
    item = 4 if dtype == "float32" else 2
    return item * (4 * int(np.prod(shape)) + shape[-1])


# --- numbers ------------------------------------------------------------------------------------------


def numbers(shape, dtype: str, seed: int) -> list[np.ndarray]:
    """x1, x2 and a weight, drawn in float32 and rounded to `dtype`."""
    import ml_dtypes

    random = np.random.default_rng(seed)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    sizes = shape, shape, shape[-1:]
    return [random.standard_normal(size, dtype="float32").astype(kind) for size in sizes]


TOLERANCE = {"float32": 2e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}


def checked(norm, total, arrays) -> float:
    """The norm's largest error against float64, relative to its largest element; ValueError where it is too large."""
    x1, x2, weight = arrays
    rounded = (x1.astype("float32") + x2.astype("float32")).astype(x1.dtype)
    exact = rounded.astype("float64")
    exact /= np.sqrt(np.mean(exact * exact, axis=-1, keepdims=True) + EPSILON)
    exact *= weight.astype("float64")
    error = float(np.abs(norm.astype("float64") - exact).max() / np.abs(exact).max())
    if not error < TOLERANCE[str(x1.dtype)] or not (total == rounded).all():
        raise ValueError(f"wrong numbers: the norm's relative error is {error:.1e}")
    return error


# --- peers: each runs in a process of its own ---------------------------------------------------------


def ours(shape, dtype, threads, seed):
    """The kernel that the pass makes for LLVM, called as it stands."""
    import tvm

    from chapters.toolkit.bench.operands import in_numpy_memory
    from chapters.toolkit.cpu.add_norm_on_cpu import cpu_kernel
    from chapters.toolkit.ir.row_index import row_dimensions
    from chapters.toolkit.machine import llvm_host

    dims = row_dimensions([tvm.tirx.IntImm("int64", n) for n in shape])
    kernel = cpu_kernel(dims, shape[-1], dtype, EPSILON).with_attr("global_symbol", "main")
    call = tvm.compile(kernel, target=llvm_host()["target"])["main"]
    arrays = numbers(shape, dtype, seed)
    outputs = [np.full_like(arrays[0], np.nan) for _ in range(2)]
    tensors = [in_numpy_memory(a) for a in (*arrays, *outputs)]
    call(*tensors)
    error = checked(tensors[3].numpy(), tensors[4].numpy(), arrays)
    return {"ours": (lambda: call(*tensors), error)}


def unfused(shape, dtype, threads, seed):
    """The pair as TVM's own pipeline compiles it: two kernels without a schedule."""
    import tvm
    from tvm import relax

    from chapters.toolkit.bench.operands import in_numpy_memory
    from chapters.toolkit.machine import llvm_host

    arrays = numbers(shape, dtype, seed)
    target = llvm_host()["target"]
    vm = relax.VirtualMachine(tvm.compile(pair(shape, dtype), target=target), tvm.cpu())
    tensors = [in_numpy_memory(a) for a in arrays]
    main = vm["main"]
    norm, total = main(*tensors)
    return {"unfused": (lambda: main(*tensors), checked(norm.numpy(), total.numpy(), arrays))}


def pair(shape, dtype):
    """main(x1, x2, weight) -> (norm, total), unfused."""
    from tvm import relax

    builder = relax.BlockBuilder()
    sizes = {"x1": shape, "x2": shape, "weight": shape[-1:]}
    params = [relax.Var(name, relax.TensorType(size, dtype)) for name, size in sizes.items()]
    x1, x2, weight = params
    with builder.function("main", params):
        with builder.dataflow():
            total = builder.emit(relax.op.add(x1, x2))
            norm = relax.op.nn.rms_norm(total, weight, axes=[-1], epsilon=EPSILON)
            out = builder.emit_output(relax.Tuple([builder.emit(norm), total]))
        builder.emit_func_output(out)
    return builder.get()


def bounds(shape, dtype, threads, seed):
    """Two reads and two writes of as many bytes, with plain and with streaming stores."""
    from chapters.toolkit.bench.copy_bounds import CHUNK, two_in_two_out
    from chapters.toolkit.bench.operands import in_numpy_memory
    from chapters.toolkit.machine import llvm_host

    item = 4 if dtype == "float32" else 2
    chunks = max(1, int(np.prod(shape)) * item // (4 * CHUNK))
    tensors = [in_numpy_memory(np.full((chunks, CHUNK), 0.5, "float32")) for _ in range(4)]
    target = llvm_host()["target"]
    plain, streaming = two_in_two_out(False, target), two_in_two_out(True, target)
    return {
        "plain stores": (lambda: plain(*tensors), None),
        "streaming stores": (lambda: streaming(*tensors), None),
    }


def numpy_peer(shape, dtype, threads, seed):
    """As one would write it: float32 in between for the 16-bit dtypes."""
    arrays = numbers(shape, dtype, seed)
    x1, x2, weight = arrays
    scale = weight.astype("float32")

    def call():
        total = x1 + x2
        wide = total.astype("float32", copy=False)
        mean = np.mean(wide * wide, axis=-1, keepdims=True)
        norm = wide * (1 / np.sqrt(mean + np.float32(EPSILON))) * scale
        return norm.astype(total.dtype, copy=False), total

    return {"NumPy": (call, checked(*call(), arrays))}


def torch_peer(shape, dtype, threads, seed):
    """PyTorch, eager and compiled."""
    from chapters.toolkit.bench.timing import MissingPeer

    try:
        import torch
    except ImportError:
        raise MissingPeer("PyTorch is not installed") from None
    torch.set_num_threads(threads)
    arrays = numbers(shape, dtype, seed)
    kind = getattr(torch, dtype)
    tensors = [torch.from_numpy(a.astype("float32")).to(kind) for a in arrays]

    def eager(x1, x2, weight):
        total = x1 + x2
        return torch.nn.functional.rms_norm(total, (shape[-1],), weight, EPSILON), total

    calls = {}
    for name, function in {"PyTorch": eager, "torch.compile": torch.compile(eager)}.items():

        def call(function=function):
            with torch.inference_mode():
                return function(*tensors)

        results = [r.float().numpy().astype(arrays[0].dtype) for r in call()]
        calls[name] = (call, checked(*results, arrays))
    return calls


# --- tables -------------------------------------------------------------------------------------------


def cpu_table(measured: dict) -> Table:
    """Speed, the share of the bound, and how many times a peer's."""
    rows = []
    for threads, by_case in measured.items():
        for case, seconds in by_case.items():
            mine = seconds["ours"]
            dtype, shape = case.split(" ", 1)
            moved = bytes_counted(tuple(int(n) for n in shape.strip("()").split(",")), dtype)
            bound = min(seconds["plain stores"], seconds["streaming stores"])
            times = [
                f"{seconds[name] / mine:.1f}×" if name in seconds else "–"
                for name in ("unfused", "NumPy", "PyTorch", "torch.compile")
            ]
            share = f"{seconds['plain stores'] / mine:.0%}", f"{bound / mine:.0%}"
            rows.append((threads, dtype, shape, f"{moved / mine / 1e9:.1f} GB/s", *share, *times))
    header = ("threads", "dtype", "shape", "speed", "of plain copy", "of best copy")
    peers = ("unfused takes", "NumPy takes", "PyTorch takes", "torch.compile takes")
    return Table((*header, *peers), rows)


def _cpu_shown():
    from chapters.toolkit.bench.results import load, shown_as

    return shown_as(load("ch04_cpu"), 4, cpu_table)


def _gpu_shown():
    from chapters.toolkit.pages.gpu_results import norm_shown

    return norm_shown("ch04_gpu", chapter=4)


TABLES = {"ch04_cpu": _cpu_shown, "ch04_gpu": _gpu_shown, registers.NAME: registers.shown}


def shown(name: str):
    """What a page shows of a results file, with its source, or the sentence that nothing was measured yet."""
    return TABLES[name]()
