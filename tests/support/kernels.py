"""What tests share to draw and lower programs, run them on random arrays, and compare; epilogues of products.

Results begin as poison between guard zones where a kernel is run alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tvm
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.target import Target

from chapters.checking.draws import SAME_EVERYWHERE
from chapters.kit.cases.guard_zones import QUICK_HERE, run_compiled
from chapters.kit.cases.relax_text import relax_module
from solutions.ch09_the_compiler.pipeline import fusion_pipeline, phases

# the phases that make kernels, and those that also schedule them
LOWER = ("attach", "graph and lower")
KERNELS = (*LOWER, "schedule")


def after_phases(mod: tvm.IRModule, target: Target, *names: str, **facts) -> tvm.IRModule:
    """`mod` after the phases `names` for `target`, by default KERNELS. facts: what the pipeline is told."""
    found = phases(target, **facts)
    return run_passes([one for name in names or KERNELS for one in found[name]], mod, target)


def run_passes(passes: Iterable, mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    with target:
        return tvm.transform.Sequential(list(passes))(mod.clone())


def compile_main(
    mod: tvm.IRModule, target: Target = QUICK_HERE, pipeline=None, checked: bool = False
) -> Callable[..., object]:
    """`main` of `mod`, on NumPy arrays and lists of them. pipeline: if not chapter 9's, another one.

    checked: kernels compare their arguments with what they declare, which takes longer to compile than they do.
    """
    with tvm.transform.PassContext(config={"tirx.disable_assert": not checked}):
        made = tvm.compile(mod, target, relax_pipeline=pipeline or fusion_pipeline(target))
    main = relax.VirtualMachine(made, tvm.cpu())["main"]

    def place(given):
        return [*map(place, given)] if isinstance(given, list) else tvm.runtime.tensor(given)

    return lambda *arrays: main(*map(place, arrays))


def run_main(
    mod: tvm.IRModule, *arrays, target: Target = QUICK_HERE, pipeline=None
) -> np.ndarray | list[np.ndarray]:
    """What `main` returns, as one array or as a list of them."""
    found = compile_main(mod, target, pipeline)(*arrays)
    return found.numpy() if hasattr(found, "numpy") else [one.numpy() for one in found]


def run_kernel(
    func: tirx.PrimFunc, *arrays: np.ndarray, shape: tuple[int, ...], target: Target = QUICK_HERE
) -> np.ndarray:
    """What `func` writes into its last buffer, which has this shape, given `arrays`, which it must leave alone.

    Raises WroteOutside if it writes beside an array.
    """
    dtype = str(func.params[-1].dtype)
    unset = np.full(shape, np.nan if "float" in dtype else -123456789).astype(dtype)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    # NumPy shares no array of bfloat16, so these have no guard zones
    shared = [str(a.dtype) != "bfloat16" for a in arrays]
    given = [a if one else tvm.runtime.tensor(a) for a, one in zip(arrays, shared, strict=True)]
    *after, result = run_compiled(mod, [*given, unset], target)
    before = itertools.compress(arrays, shared)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
    return result


def compile_kernels(kernels: Mapping[object, tirx.PrimFunc], target: Target = QUICK_HERE) -> dict:
    """The functions of `kernels`, compiled together."""
    names = {key: f"kernel{at}" for at, key in enumerate(kernels)}
    mod = {names[key]: one.with_attr("global_symbol", names[key]) for key, one in kernels.items()}
    built = tvm.compile(tvm.IRModule(mod), target)
    return {key: built[name] for key, name in names.items()}


def draw(*shapes: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Random arrays of these shapes."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def try_draws(check: Callable, *strategies: st.SearchStrategy, number: int, part: int = 0) -> None:
    """Call `check` with `number` draws of the strategies: the same ones each time, and others for each `part`."""
    seed(part)(settings(SAME_EVERYWHERE, max_examples=number)(given(*strategies)(check)))()


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference, relative to the largest number; NaN if there is one."""
    error = np.abs(found.astype("float64") - exact.astype("float64"))
    return float(error.max() / np.abs(exact.astype("float64")).max())


# --- products and what follows them ---------------------------------------------------------------

ERF = np.vectorize(math.erf, otypes=[float])


def sigmoid(y):
    return 1 / (1 + np.exp(-y))


# what may follow a product y, in Relax and in NumPy; b is a vector, r a matrix, and DTYPE stands for their dtype
EPILOGUES = {
    "none": ("y", lambda y, b, r: y),
    "bias": ("R.add(y, b)", lambda y, b, r: y + b),
    "gelu": ("R.nn.gelu(R.add(y, b))", lambda y, b, r: (y + b) * (0.5 + 0.5 * ERF((y + b) / 2**0.5))),
    "bias and residual": ("R.add(R.add(y, b), r)", lambda y, b, r: y + b + r),
    "residual first, then bias": ("R.add(R.add(r, y), b)", lambda y, b, r: y + b + r),
    "residual": ("R.add(r, y)", lambda y, b, r: y + r),
    "silu": ("R.nn.silu(R.add(b, y))", lambda y, b, r: (y + b) * sigmoid(y + b)),
    "gate": ("R.multiply(R.nn.silu(y), r)", lambda y, b, r: y * sigmoid(y) * r),
    "softcap": (
        'R.multiply(R.tanh(R.divide(y, R.const(3.0, "DTYPE"))), R.const(3.0, "DTYPE"))',
        lambda y, b, r: 3 * np.tanh(y / 3),
    ),
    "two vectors": (
        'R.multiply(R.add(y, b), R.tanh(R.add(y, R.const(1.0, "DTYPE"))))',
        lambda y, b, r: (y + b) * np.tanh(y + 1),
    ),
    "read twice": ("R.multiply(R.add(y, b), R.add(y, r))", lambda y, b, r: (y + b) * (y + r)),
}  # fmt: skip


def linear_module(
    rows, epilogue: str, dtype: str = "float16", n: int = 128, k: int = 96, out: str = ""
) -> tvm.IRModule:
    """y = x @ w.T, with x (*rows, k), w (n, k), b (n,), r (*rows, n), and an epilogue. out: the dtype asked for."""
    asked = f', out_dtype="{out}"' if out else ""
    wide = out or dtype
    return relax_module(
        f"""
def main(x: {(*rows, k, dtype)}, w: {(n, k, dtype)}, b: {(n, wide)}, r: {(*rows, n, wide)}):
    y = R.matmul(x, R.permute_dims(w){asked})
    out = {epilogue.replace("DTYPE", dtype)}
"""
    )
