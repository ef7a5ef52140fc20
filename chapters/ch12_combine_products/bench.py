"""Measures what CombineProducts gains on this CPU: three projections of one tensor, apart and as one product.

Chapter 9's pipeline compiles both, for one thread. Only functions that need TVM import it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chapters.kit.bench.operands import check_error, draw_arrays
from chapters.kit.bench.results import SourcedTable, load, sourced_table
from chapters.kit.bench.timing import measure
from chapters.kit.draw.table import Table, format_duration

ROWS = (1, 4, 16, 64, 512)
# model -> columns of x, and of the results: the query, the key and the value of one layer
MODELS = {"SmolLM2-135M": (576, (576, 192, 192)), "Llama 3.2 1B": (2048, (2048, 512, 512))}


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """Return {name of the results file: seconds per call}. Pass the table to `say`."""
    models = {}
    for name in list(MODELS)[: 1 if quick else None]:
        found = {}
        for rows in (1, 64) if quick else ROWS:
            sizes = {"model": name, "rows": rows}
            rounds = 3 if quick else 15
            found[str(rows)] = measure(__name__, ("projections",), sizes, rounds=rounds, say=say)
        models[name] = found
    measured = {"threads": 1, "models": models}
    say(f"\n{make_table(measured)}\n")
    return {"ch12_projections": measured}


def projections(model, rows, seed):
    """Compile the module before the pass and after it, with chapter 9's pipeline."""
    import tvm
    from tvm import relax

    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    k, widths = MODELS[model]
    x, *weights = draw_arrays(seed, (rows, k), *((n, k) for n in widths))
    before = module(rows, weights)
    target, given = llvm_host()["target"], tvm.runtime.tensor(x)
    calls = {}
    for name, mod in (("separate", before), ("combined", earlier(12).CombineProducts()(before))):
        pipeline = earlier(9).fusion_pipeline(target)
        main = relax.VirtualMachine(
            tvm.compile(mod, target=target, relax_pipeline=pipeline), tvm.cpu()
        )["main"]
        calls[name] = (lambda main=main: main(given), _check_products(main(given), x, weights))
    return calls


def module(rows: int, weights: list[np.ndarray]):
    """main(x) = x times each of `weights` (n, k) transposed, in float32."""
    from tvm import relax

    x = relax.Var("x", relax.TensorType((rows, weights[0].shape[1]), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = [builder.emit(relax.op.permute_dims(relax.const(w))) for w in weights]
            outs = [builder.emit_output(relax.op.matmul(x, w)) for w in turned]
        builder.emit_func_output(relax.Tuple(outs))
    return builder.get()


def _check_products(found, x: np.ndarray, weights: list[np.ndarray]) -> float:
    """The largest error of the results; raises ValueError if it is too large."""
    wide = x.astype("float64")
    return max(check_error(one.numpy(), wide @ w.T) for one, w in zip(found, weights, strict=True))


def make_table(measured: dict) -> Table:
    """One row per model and number of rows of x: the times, and their ratio."""
    rows = []
    for model, found in measured["models"].items():
        for count, seconds in found.items():
            before, after = seconds["separate"], seconds["combined"]
            times = format_duration(before), format_duration(after), f"{before / after:.2f}×"
            rows.append((model, count, *times))
    return Table(("layer of", "rows of x", "three products", "one product, split", "gain"), rows)


TABLES = {"ch12_projections": make_table}


def show_results(name: str) -> SourcedTable:
    """Return the table of a results file with its source, or a sentence that says that it was not measured yet."""
    return sourced_table(load(name), 12, TABLES[name])
