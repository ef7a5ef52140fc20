"""Compiles a thread-bound PrimFunc for this machine's GPU, and calls it on PyTorch's tensors and stream."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence

MODE = "TVM_CUDA_COMPILE_MODE"  # TVM's choice of a compiler: "nvrtc", or "nvcc"
ASYNCHRONOUS = {"tirx.use_async_copy": True}  # kernels that mark no copy stay as they are


def compile_kernel(func, target=None) -> Callable[[Sequence], Callable[[], None]]:
    """`func`, compiled, as a function of its tensors. It returns a call without arguments, which writes the outputs.

    target: by default that of the first CUDA device. NVRTC compiles, or nvcc: see `choose_compiler`. Raises ValueError
    if `func` is only for another architecture.
    """
    import tvm

    choose_compiler()
    main = executable(func, target or tvm.target.Target.from_device(tvm.cuda(0)))["main"]
    return lambda tensors: bind_tensors(main, tensors)


def executable(func, target):
    """`func`, compiled for `target`, a GPU's or a CPU's, as an Executable whose function is called "main".

    CUDA text is compiled later, where it is loaded.
    """
    import tvm

    from chapters.kit.gpu.launches import find_pipeline, target_of

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(config=ASYNCHRONOUS):
        return tvm.compile(mod, target=target_of(func, target), tir_pipeline=find_pipeline(mod))


def choose_compiler() -> None:
    """Let TVM compile CUDA text by nvcc where the package for NVRTC is missing, unless MODE chooses."""
    # "cuda" alone is a namespace, which other packages of NVIDIA share
    nvrtc = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.bindings"))
    if not nvrtc and shutil.which("nvcc"):
        os.environ.setdefault(MODE, "nvcc")


def bind_tensors(main: Callable, tensors: Sequence) -> Callable[[], None]:
    """A call of `main` on these tensors, without copies, on the stream that PyTorch uses at the time of the call."""
    import tvm_ffi

    seen = [tvm_ffi.from_dlpack(tensor) for tensor in tensors]

    def call() -> None:
        with tvm_ffi.use_torch_stream():
            main(*seen)

    return call


def signature(func) -> list[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of each buffer that `func` takes, in order. Raises TypeError for a symbolic shape."""
    return [(tuple(int(n) for n in param.shape), str(param.dtype)) for param in func.params]
