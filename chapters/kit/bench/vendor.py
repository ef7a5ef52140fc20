"""What a vendor's library makes of the same problem: PyTorch's on this machine, else cuBLAS where TVM has it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from chapters.kit.devices.connect import DeviceError
from chapters.kit.devices.device import BATCH_MS, Prepared

CUBLAS = "tvm.contrib.cublas.matmul"  # a function of TVM builds with cuBLAS; the wheel has none


def vendor(device, problem, arrays: Sequence[np.ndarray]) -> tuple[str, Prepared | None]:
    """(name, the library's way to compute `problem` on copies of `arrays`), or (why there is none, None)."""
    linear = len(arrays) == 4
    if linear and problem.dtype == "float32" and device.has_function(CUBLAS):
        product = device.prepare(
            _by_cublas(problem), [*arrays[:2], np.full_like(arrays[3], np.nan)]
        )
        bias = arrays[2]
        # it has no bias, so add it to what is compared; the time is that of the product alone
        return "cuBLAS, without the bias", Prepared(
            product.call, lambda: product.result() + bias, product.seconds
        )
    if device.is_remote:
        return f"the TVM at {device.address} has no cuBLAS", None
    if device.kind not in ("cuda", "metal"):
        return "PyTorch has none for this device", None
    if not importlib.util.find_spec("torch"):
        return "PyTorch is not installed, and this TVM has no cuBLAS", None
    return _by_torch(device, linear, arrays)


def _by_cublas(problem) -> tirx.PrimFunc:
    """A host function that hands the product to cuBLAS."""
    m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), dtype), B: T.Buffer((n, k), dtype), D: T.Buffer((m, n), "float32")
    ):
        with T.sblock("cublas"):
            T.reads(A[0:m, 0:k], B[0:n, 0:k])
            T.writes(D[0:m, 0:n])
            T.call_packed("tvm.contrib.cublas.matmul", A, B, D, False, True)

    return main


def _by_torch(device, linear: bool, arrays: Sequence[np.ndarray]) -> tuple[str, Prepared | None]:
    import torch

    library = torch.cuda if device.kind == "cuda" else torch.mps
    place = f"cuda:{device.raw.index}" if device.kind == "cuda" else "mps"
    there = (
        torch.cuda.is_available() if device.kind == "cuda" else torch.backends.mps.is_available()
    )
    if not there:
        return "this PyTorch finds no GPU", None
    try:
        held = [torch.from_numpy(array).to(place) for array in arrays]
    except Exception as error:
        raise DeviceError(f"PyTorch cannot use {place}: {str(error).splitlines()[0]}.") from None
    if linear:
        a, b, c, _ = held
        c = c.to(a.dtype)
        return "PyTorch's linear", _timed(lambda: torch.nn.functional.linear(a, b, c), library)
    return "PyTorch's addcmul", _timed(lambda: torch.addcmul(held[0], held[1], held[1]), library)


def _timed(call: Callable[[], object], library) -> Prepared:
    """A function of PyTorch, timed in batches with the host's clock."""
    last: list = [None]

    def once() -> None:
        last[0] = call()
        library.synchronize()

    def seconds() -> float:
        repeat = 1
        while True:
            library.synchronize()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            library.synchronize()
            spent = time.perf_counter() - start
            if spent * 1e3 >= BATCH_MS:
                return spent / repeat
            repeat *= 4

    return Prepared(once, lambda: last[0].float().cpu().numpy(), seconds)
