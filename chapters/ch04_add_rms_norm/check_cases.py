"""What chapter 4's checks share: modules with a pair, their numbers in NumPy, and kernels run without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.target import Target

from chapters.checking import expect, gpu_kernels
from chapters.checking.programs import poison
from chapters.runner.failure import CheckFailed

# two roundings of the dtype; measured errors are half
RELATIVE = {"float32": 2e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}
SHARED_PLACE = (
    "red_result is TVM's place for the sum over the threads. TVM may put a register there too, if you set it from the "
    "sum. Compute that value in the sblock that uses it, or keep the sum in shared memory."
)
NEXT_ROW = (
    "Each block has one row. If the threads do not divide the row, some of them have no element in the last iteration. "
    "Where `T.where` does not guard an sblock, they go on into the row of another block."
)


def module(
    build: Callable[..., list[relax.Expr]],
    shapes: dict[str, tuple],
    dtype: str = "float16",
    *,
    dataflow: bool = True,
) -> tvm.IRModule:
    """An IRModule whose `main` has a parameter for each of `shapes` and returns what `build(builder, *params)` gives.

    A string in a shape is a symbolic dimension of that name.
    """
    builder = relax.BlockBuilder()
    add_function(builder, "main", build, shapes, dtype, dataflow=dataflow)
    return builder.get()


def add_function(
    builder, name, build, shapes, dtype="float16", *, dataflow=True, attrs=None
) -> None:
    """Add a function called `name` to `builder`, made as `module` makes its `main`."""
    symbols = {extent for shape in shapes.values() for extent in shape if isinstance(extent, str)}
    dims = {name: tirx.Var(name, "int64") for name in symbols}
    params = [
        relax.Var(key, relax.TensorType([dims.get(extent, extent) for extent in shape], dtype))
        for key, shape in shapes.items()
    ]
    with builder.function(name, params, attrs=attrs):
        with builder.dataflow() if dataflow else nullcontext():
            emit = builder.emit_output if dataflow else builder.emit
            out = emit(relax.Tuple(build(builder, *params)))
        builder.emit_func_output(out)


def pair(builder, x1, x2, weight, epsilon: float = 1e-5, axes: Sequence[int] = (-1,)):
    """Emit an add and its norm; returns the two variables (total, norm)."""
    total = builder.emit(relax.op.add(x1, x2))
    norm = builder.emit(relax.op.nn.rms_norm(total, weight, axes=list(axes), epsilon=epsilon))
    return total, norm


def draw(shape: Sequence[int], dtype: str, seed: int) -> np.ndarray:
    """Random numbers of uneven size, so that rows, columns and arguments cannot be exchanged unnoticed."""
    random = np.random.default_rng(seed)
    scale = 0.5 + 2.0 * random.random(shape)
    return (random.standard_normal(shape) * scale).astype(dtype)


def inputs(shape: Sequence[int], dtype: str, seed: int = 0) -> list[np.ndarray]:
    """x1, x2 of `shape` and a weight."""
    return [draw(size, dtype, seed + i) for i, size in enumerate((shape, shape, shape[-1:]))]


def reference(
    x1: np.ndarray, x2: np.ndarray, weight: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """(norm in float64, total in the dtype): the sum is rounded to the dtype, everything after it is exact."""
    total = (x1.astype("float32") + x2.astype("float32")).astype(x1.dtype)
    exact = total.astype("float64")
    mean = np.mean(exact * exact, axis=-1, keepdims=True)
    return exact / np.sqrt(mean + epsilon) * weight.astype("float64"), total


def run(mod: tvm.IRModule, arrays: Sequence[np.ndarray], name: str = "main") -> list[np.ndarray]:
    """Compile `mod` for this CPU, call its function `name`, and return every result."""
    return run_each(mod, {name: arrays})[name]


def run_each(
    mod: tvm.IRModule, arrays: dict[str, Sequence[np.ndarray]]
) -> dict[str, list[np.ndarray]]:
    """Compile `mod` once for this CPU, call each function named in `arrays`, and return every result of each."""
    vm = expect.machine(mod)
    return {name: expect.call(vm, name, given) for name, given in arrays.items()}


def launch(
    func: tirx.PrimFunc,
    arrays: Sequence[np.ndarray],
    target: Target,
    backwards: bool = False,
    read: str = "",
):
    """Run a kernel of x1, x2, weight, norm, total without a GPU, on poisoned outputs: (norm, total, launches)."""
    norm, total = poison(arrays[0]), poison(arrays[0])
    try:
        launches = gpu_kernels.launch(func, [*arrays, norm, total], target, backwards, read)
    except CheckFailed as error:
        if "red_result" in error.failure.what:
            error.failure.why = SHARED_PLACE
        elif "two blocks" in error.failure.what:
            error.failure.why = NEXT_ROW
        raise
    return norm, total, launches
