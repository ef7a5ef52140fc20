"""What chapter 0 provides: one layer of a real model's size, and `measure`, which runs it and says what it cost."""

import time
import timeit

import numpy as np
import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.table import Table, format_si

RUNS = 9  # timed runs; the shortest counts, because another program can only make a run longer


def layer() -> tvm.IRModule:
    """The module of relu(x @ w.T + b): x of shape (1, 2048), w (2048, 2048), b (2048,), all float32."""
    return relax_module("""
def main(x: (1, 2048), w: (2048, 2048), b: (2048,)):
    wt = R.permute_dims(w)
    xw = R.matmul(x, wt)
    biased = R.add(xw, b)
    out = R.nn.relu(biased)
""")


def measure(mod: tvm.IRModule) -> Table:
    """Compile `mod` for this CPU, run its `main` on random numbers, and return a table of what it cost.

    mod: the module of `layer()`, or what passes made of it. One row per kernel that a run launches: the bytes of the
    arrays it is given (inputs and output), and its shortest time in RUNS runs. Below the table: launches, bytes, the
    shortest time of the whole call, timed in other runs, and the largest error against NumPy in float64.
    """
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    random, shapes = np.random.default_rng(0), ((1, 2048), (2048, 2048), (2048,))
    x, w, b = (random.standard_normal(shape).astype("float32") for shape in shapes)
    arguments = [tvm.runtime.tensor(array) for array in (x, w, b)]
    error = np.abs(vm["main"](*arguments).numpy() - np.maximum(x.astype("float64") @ w.T + b, 0))
    whole = min(timeit.repeat(lambda: vm["main"](*arguments), number=1, repeat=RUNS))
    runs = [_kernels(vm, arguments) for _ in range(RUNS)]
    rows = [
        (calls[0][0], format_si(calls[0][1], "B"), _ms(min(c[2] for c in calls)))
        for calls in zip(*runs, strict=True)
    ]
    moved = format_si(sum(moved for _, moved, _ in runs[0]), "B")
    launches = f"{len(rows)} launch{'es' * (len(rows) != 1)}"
    note = f"{launches}, {moved}, {_ms(whole)}; largest error {error.max():.0e}"
    return Table(("kernel", "moves", "takes"), rows, note)


def _ms(seconds: float) -> str:
    """`seconds` in one unit, whatever the machine: a row's unit must not change from run to run."""
    return f"{1e3 * seconds:.3f} ms"


def _kernels(vm: relax.VirtualMachine, arguments: list) -> list[tuple[str, int, float]]:
    """(name, bytes of its arrays, seconds) of each kernel that one run launches, in order."""
    found, start = [], 0.0

    def note(_function, name, is_before, _result, *given):
        nonlocal start
        if name.startswith("vm."):  # the machine's own bookkeeping, such as allocating memory
            return
        if is_before:
            start = time.perf_counter()
        else:
            seconds = time.perf_counter() - start
            found.append((name, sum(np.from_dlpack(one).nbytes for one in given), seconds))

    vm.set_instrument(note)
    vm["main"](*arguments)
    vm.set_instrument(lambda *_: None)
    return found
