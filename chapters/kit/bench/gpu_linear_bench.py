"""A linear layer with its bias on a GPU: the chapter's kernels and PyTorch's, all checked before they are timed.

x (m, k), w (n, k) and bias (n,) give x @ w.T + bias. A kernel is a PrimFunc of four buffers: x and w, the bias and the
result in the dtypes that it declares. A kernel that writes float32 moves more bytes, so bytes are counted per kernel.
A layer of one row takes as long as reading its weight, so a copy of as many bytes is measured beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from chapters.kit.bench.gpu_clock import (
    COPY,
    Run,
    WrongNumbersError,
    keep_result,
    make_copy,
    measure_case,
)
from chapters.kit.gpu.call import compile_kernel, signature
from chapters.kit.gpu.limits import ITEM_BYTES

CHECKED_ROWS = 64  # of the result are compared, at most: float64 products are slow on many GPUs
# ||result - exact|| / ||exact||, by the dtype of the result: its own rounding, or that of a sum in float32
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-4}


@dataclass(frozen=True)
class Layer:
    """The sizes of one product, and the dtype of x and w."""

    m: int
    n: int
    k: int
    dtype: str

    @property
    def operations(self) -> int:
        """Multiplications and additions; the bias is not counted."""
        return 2 * self.m * self.n * self.k

    def bytes_moved(self, out_dtype: str) -> int:
        """Bytes, if every operand is read once and the result written once; the bias counts as `dtype`."""
        operands = (self.m * self.k + self.n * self.k + self.n) * ITEM_BYTES[self.dtype]
        return operands + self.m * self.n * ITEM_BYTES[out_dtype]


def draw_inputs(layer: Layer, device: str = "cuda") -> tuple:
    """Fresh random x, w and bias of the layer's dtype; w is scaled like a trained layer's, so results are about 1."""
    import torch

    kind = getattr(torch, layer.dtype)
    x = torch.randn(layer.m, layer.k, device=device).to(kind)
    w = (torch.randn(layer.n, layer.k, device=device) / math.sqrt(layer.k)).to(kind)
    return x, w, torch.randn(layer.n, device=device).to(kind)


def compute_error(result, x, w, bias, after: Callable | None = None) -> float:
    """The relative error against float64 over some rows, including the first and the last.

    after: what is applied to the layer's result, as a function of a tensor; None for nothing. Raises WrongNumbersError
    if any element, of any row, is infinite or not a number.
    """
    import torch

    if not bool(torch.isfinite(result).all()):
        raise WrongNumbersError("elements of the result are not finite, or were not written")
    rows = choose_rows(x)
    exact = x[rows].double() @ w.double().T + bias.double()
    if after is not None:
        exact = after(exact)
    return float((result[rows].double() - exact).norm() / exact.norm())


def choose_rows(x):
    """The numbers of the rows of `x` whose results are compared: evenly spread, the first and the last among them."""
    import torch

    count = min(CHECKED_ROWS, len(x))
    return torch.linspace(0, len(x) - 1, count, device=x.device).round().long()


def check_result(
    call: Callable[[], object],
    result: Callable[[], object],
    x,
    w,
    bias,
    after: Callable | None = None,
) -> float:
    """The `compute_error` of one call; raises WrongNumbersError if it is above the tolerance of the result's dtype."""
    call()
    found = compute_error(result(), x, w, bias, after)
    dtype = str(result().dtype).removeprefix("torch.")
    if not found <= TOLERANCE[dtype]:
        allowed = f"{TOLERANCE[dtype]:.1e} is allowed for {dtype}"
        raise WrongNumbersError(f"the result is off by {found:.1e}, and {allowed}")
    return found


def bind_kernel(func, bind: Callable, x, w, bias, *, fused: bool = True):
    """(call, result) of a PrimFunc on these tensors; its result starts as not-a-number.

    bind: `func`, compiled by chapters.kit.gpu.call.compile_kernel. fused=False: the kernel gets a bias of zeros, and
    a second launch adds the bias.
    """
    import torch

    _, _, (bias_shape, bias_dtype), (shape, dtype) = signature(func)
    given = bias.to(getattr(torch, bias_dtype)).reshape(bias_shape).contiguous()
    out = torch.full(shape, float("nan"), dtype=getattr(torch, dtype), device=x.device)
    if fused:
        return bind([x, w, given, out]), lambda: out
    product = bind([x, w, torch.zeros_like(given), out])

    def call() -> None:
        product()
        out.add_(given)

    return call, lambda: out


def bind_torch(x, w, bias, *, fused: bool):
    """(call, result) of PyTorch: its linear, which gives the bias to cuBLASLt's epilogue; or a product and an add."""
    import torch

    if fused:
        return keep_result(torch.nn.functional.linear, x, w, bias)
    out = torch.full((len(x), len(w)), float("nan"), dtype=x.dtype, device=x.device)

    def separately() -> None:
        torch.matmul(x, w.T, out=out)
        out.add_(bias)

    return separately, lambda: out


def measure_ways(
    layer: Layer, ways: Mapping[str, Callable], run: Run, after: Callable | None = None
) -> dict:
    """One case of the results file. ways: name -> a function of (x, w, bias) that returns (call, result).

    after: what they apply to the layer's result, as for `compute_error`.
    """
    tensors = draw_inputs(layer, run.device)
    copy = None
    if layer.m == 1:
        copy = make_copy(layer.bytes_moved(layer.dtype), run.device)
    check = functools.partial(check_result, after=after)
    found, case = measure_case(ways, tensors, check, run, copy)
    moved = {COPY: layer.bytes_moved(layer.dtype)} if copy else {}
    for name, (_, result) in found.items():
        moved[name] = layer.bytes_moved(str(result().dtype).removeprefix("torch."))
    return {**asdict(layer), "operations": layer.operations, "bytes": moved, **case}


def measure(
    layer: Layer,
    kernels: Mapping[str, Callable[[], object]],
    run: Run,
    separately: Sequence[str] = (),
    compile_it: Callable = compile_kernel,
) -> dict:
    """`measure_ways` of kernels and of PyTorch. kernels: name -> a function that makes the PrimFunc for this layer.

    separately: the names of kernels that are measured once more with the bias in a second launch. compile_it: from a
    PrimFunc to the `bind` of `bind_kernel`.
    """

    @functools.cache
    def built(name: str) -> tuple:
        func = kernels[name]()
        return func, compile_it(func)

    def way(name: str, fused: bool) -> Callable:
        return lambda *tensors: bind_kernel(*built(name), *tensors, fused=fused)

    ways = {
        "PyTorch's linear": functools.partial(bind_torch, fused=True),
        "PyTorch's matmul, then an add": functools.partial(bind_torch, fused=False),
        **{name: way(name, True) for name in kernels},
        **{f"{name}, then an add": way(name, False) for name in separately},
    }
    return measure_ways(layer, ways, run)
