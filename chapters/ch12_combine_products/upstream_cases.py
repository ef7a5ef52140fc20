"""Programs that show what TVM's CombineParallelMatmul does on stock TVM. In all but one, the weights are parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from chapters.ch12_combine_products.costs import count_launches, lower
from chapters.kit.cases.relax_text import relax_module


def _products(types: str, body: str, **constants: relax.Expr) -> tvm.IRModule:
    lines = "".join(f"\n    {line}" for line in body.split("; "))
    return relax_module(f"def main({types}):{lines}", **constants)


X, A, B, C = "x: (3, 4)", "a: (4, 2)", "b: (4, 5)", "c: (4, 4)"
BOTH = "q = R.matmul(x, a); k = R.matmul(x, b)"
CASES = {
    "three products": _products(
        f"{X}, {A}, {B}, {C}", f"{BOTH}; v = R.matmul(x, c); return q, k, v"
    ),
    "two products, the weights constants in the call": _products(
        X,
        f"{BOTH}; return q, k",
        a=relax.const(np.eye(4, 2, dtype="float32")),
        b=relax.const(np.eye(4, 5, dtype="float32")),
    ),
    "three products, one not used": _products(
        f"{X}, {A}, {B}, {C}", f"{BOTH}; v = R.matmul(x, c); return q, k"
    ),
    "two products, each with a bias": _products(
        f"{X}, {A}, {B}, p: (2,), r: (5,)",
        f"{BOTH}; q1 = R.add(q, p); k1 = R.add(k, r); return q1, k1",
    ),
    "one bias for all rows, one for each": _products(
        f"{X}, {A}, {B}, p: (1, 2), r: (3, 5)",
        f"{BOTH}; q1 = R.add(q, p); k1 = R.add(k, r); return q1, k1",
    ),
    "x is a vector": _products(f"x: (4,), {A}, {B}", f"{BOTH}; return q, k"),
    "the second weight computed from the first product": _products(
        "x: (4, 4), a: (4, 4)",
        "q = R.matmul(x, a); t = R.tanh(q); k = R.matmul(x, t); return q, k",
    ),
    "results of two dtypes": _products(
        "x: (3, 4, 'float16'), a: (4, 2, 'float16'), b: (4, 5, 'float16')",
        "q = R.matmul(x, a); k = R.matmul(x, b, out_dtype='float32'); return q, k",
    ),
}


def outcome(transform: Callable[[tvm.IRModule], tvm.IRModule], mod: tvm.IRModule) -> str:
    """What becomes of `mod`: an error, wrong numbers, or how many kernels are launched before and after."""
    try:
        after = transform(mod)
    except Exception as error:
        return f"fails: {type(error).__name__}"
    random = np.random.default_rng(0)
    given = [
        tvm.runtime.tensor(
            random.standard_normal(list(map(int, p.ty.shape))).astype(str(p.ty.dtype))
        )
        for p in mod["main"].params
    ]
    machines = [relax.VirtualMachine(tvm.compile(one, "llvm"), tvm.cpu()) for one in (mod, after)]
    results = [[one.numpy() for one in machine["main"](*given)] for machine in machines]
    if not all(np.allclose(a, b, atol=1e-2) for a, b in zip(*results, strict=True)):
        return "wrong numbers"
    counts = [count_launches(lower(one)) for one in (mod, after)]
    return "{} launches before, {} after".format(*counts)
