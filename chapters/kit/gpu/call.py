"""A thread-bound PrimFunc compiled for the GPU at hand, as a call on PyTorch's tensors and on its stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

MODE = "TVM_CUDA_COMPILE_MODE"
ASYNCHRONOUS = {"tirx.use_async_copy": True}  # changes nothing in kernels that mark no copy


def compiled(func, target=None) -> Callable[[Sequence], Callable[[], None]]:
    """`func`, compiled: given its tensors it gives a call without arguments, which writes the outputs.

    target: of the GPU that is there, if none is given. NVIDIA's compiler is NVRTC, and nvcc where NVRTC is not usable
    and the environment does not choose. Raises ValueError for a function that is for another architecture alone.
    """
    import tvm

    from chapters.kit.gpu.launches import pipeline_of, target_of

    target = target_of(func, target or tvm.target.Target.from_device(tvm.cuda(0)))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})

    def compile_now():
        with tvm.transform.PassContext(config=ASYNCHRONOUS):
            return tvm.compile(mod, target=target, tir_pipeline=pipeline_of(mod))["main"]

    try:
        main = compile_now()
    except Exception:
        if MODE in os.environ:
            raise
        os.environ[MODE] = "nvcc"
        try:
            main = compile_now()
        finally:
            del os.environ[MODE]
    return lambda tensors: bound(main, tensors)


def bound(main: Callable, tensors: Sequence) -> Callable[[], None]:
    """`main` on these tensors, each seen by TVM without a copy, on whichever stream PyTorch is at then."""
    import tvm_ffi

    seen = [tvm_ffi.from_dlpack(tensor) for tensor in tensors]

    def call() -> None:
        with tvm_ffi.use_torch_stream():
            main(*seen)

    return call


def signature(func) -> list[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of each buffer that `func` takes, in order. Raises TypeError for a symbolic shape."""
    return [(tuple(int(n) for n in param.shape), str(param.dtype)) for param in func.params]
