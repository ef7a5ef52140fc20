"""Measures what CombineProducts gains on this CPU: three projections of one tensor, apart and as one product.

Chapter 9's pipeline compiles both, for one thread. Only functions that need TVM import it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from chapters.kit.bench.cases import duration, ratio
from chapters.kit.bench.operands import check_error, compile_here, draw_arrays
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import measure_cases
from chapters.kit.draw.table import Table, tabulate

ROWS = (1, 4, 16, 64, 512)
# model -> columns of x, and of the results: the query, the key and the value of one layer
MODELS = {"SmolLM2-135M": (576, (576, 192, 192)), "Llama 3.2 1B": (2048, (2048, 512, 512))}


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: the cases}."""
    cases = [
        {"model": name, "rows": rows, "threads": 1}
        for name in list(MODELS)[: 1 if quick else None]
        for rows in ((1, 64) if quick else ROWS)
    ]
    rounds = 3 if quick else 15
    found = measure_cases(__name__, ("projections",), cases, rounds=rounds, say=say)
    return {"ch12_projections": found}


def projections(model, rows, threads, seed):
    """Compile the module before the pass and after it, with chapter 9's pipeline."""
    import tvm

    from chapters.kit.machine import llvm_host
    from chapters.runner.earlier import earlier

    k, widths = MODELS[model]
    x, *weights = draw_arrays(seed, (rows, k), *((n, k) for n in widths))
    before = module(rows, weights)
    target, given = llvm_host()["target"], tvm.runtime.tensor(x)
    calls = {}
    for name, mod in (("separate", before), ("combined", earlier(12).CombineProducts()(before))):
        main = compile_here(mod, relax_pipeline=earlier(9).fusion_pipeline(target))
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
    columns = {
        "layer of": "model",
        "rows of x": "rows",
        "three products": duration("separate"),
        "one product, split": duration("combined"),
        "gain": ratio("separate", "combined"),
    }
    return tabulate(measured["cases"], columns)


TABLES = {"ch12_projections": make_table}
show_results = partial(show_one, TABLES)
