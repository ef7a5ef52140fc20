"""What chapter 4's checks share: modules with a pair, their numbers in NumPy, and kernels run without a GPU."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import tirx
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


ROWS = ("n", 1, 64)
PAIR = """
total = R.add(x1, x2)
norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
"""


def write_function(
    body: str,
    x1: tuple | str = ROWS,
    x2: tuple | str = ROWS,
    weight: tuple | str = (64,),
    dtype: str = "float16",
    *,
    name: str = "main",
    dataflow: bool = True,
) -> str:
    """Text for `relax_module`: a function of x1, x2 and weight with this body. They are types, or shapes of `dtype`."""
    types = {"x1": x1, "x2": x2, "weight": weight}
    params = [f"{n}: {ty if isinstance(ty, str) else (*ty, dtype)}" for n, ty in types.items()]
    head = f"{'' if dataflow else '@bare'}\ndef {name}({', '.join(params)}):\n"
    return head + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"


def draw_inputs(shape: Sequence[int], dtype: str, seed: int = 0) -> list[np.ndarray]:
    """x1, x2 of `shape` and a weight; numbers of uneven size, so that no two can be exchanged unnoticed."""
    arrays = []
    for i, size in enumerate((shape, shape, shape[-1:])):
        random = np.random.default_rng(seed + i)
        scale = 0.5 + 2.0 * random.random(size)
        arrays.append((random.standard_normal(size) * scale).astype(dtype))
    return arrays


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
    return expect.call(expect.machine(mod), name, arrays)


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
