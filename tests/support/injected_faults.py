"""GPU kernels that tests run on the CPU: with an injected fault, written by hand, in many orders of their threads."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np
import pytest
from tvm.target import Target

from chapters.checking.gpu_kernels import exact
from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.emulator.cuda_on_cpu import CudaOnCpu
from chapters.kit.gpu import cuda_resources
from chapters.kit.gpu.launches import Engine, HostProgram, Kernel, Launch, LaunchError
from chapters.kit.gpu.targets import CUDA

runs_here = pytest.mark.skipif(bool(cuda_on_cpu.missing()), reason=cuda_on_cpu.missing())
needs_vulkan = pytest.mark.skipif(bool(wgsl_on_vulkan.missing()), reason=wgsl_on_vulkan.missing())
needs_compiler = pytest.mark.skipif(bool(cuda_resources.missing()), reason=cuda_resources.missing())
both_orders = pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])

C_TYPES = {"float32": "float", "uint32": "uint"}


def source_of(func, target: Target = CUDA) -> str:
    """The CUDA text of the one kernel of `func`."""
    (kernel,) = HostProgram(func, target).kernels.values()
    return kernel.source


def run_changed(
    func,
    given: list[np.ndarray],
    change: Callable[[str], str] | None = None,
    backwards: bool = False,
    config: dict | None = None,
    *,
    target: Target = CUDA,
    engine: Engine | None = None,
) -> None:
    """Run `func` on `given`, in place, after `change` of its kernel's text; the change must find what it changes.

    engine: CudaOnCpu(backwards) if none is given.
    """
    program = _program(func, target, tuple((config or {}).items()))
    ((name, kernel),) = program.kernels.items()
    if change:
        text = change(kernel.source)
        assert text != kernel.source, (
            "no fault was injected: TVM writes this kernel differently now"
        )
        program.kernels[name] = dataclasses.replace(kernel, source=text)
    try:
        program.run(engine or CudaOnCpu(backwards), given)
    finally:
        program.kernels[name] = kernel


@functools.lru_cache(maxsize=8)
def _program(func, target: Target, config: tuple) -> HostProgram:
    """Faults are injected in the text, so one program serves all faults of a kernel."""
    return HostProgram(func, target, dict(config))


def at_match(pattern: str, which: int = 0, instead: str = "") -> Callable[[str], str]:
    """A change of a text: the match number `which` of `pattern` replaced."""

    def change(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert len(found) > which, f"{pattern} is not in the kernel"
        return text[: found[which].start()] + instead + text[found[which].end() :]

    return change


def error_of_layer(given: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(|given[3] - the layer of given[:3]|, that layer), infinite where an element is not a number."""
    right = exact(*given[:3])
    error = np.abs(given[3].astype("float64") - right)
    return np.where(np.isfinite(error), error, np.inf), right


def run_text(
    body: str,
    threads: int,
    *,
    blocks: int = 1,
    prelude: str = "",
    shared_bytes: int = 0,
    engine: Engine | None = None,
    **arrays: np.ndarray,
) -> None:
    """Run the kernel `body`, in CUDA C, on `arrays`, which it calls by name with `_ptr` behind.

    The text around it is as TVM writes it. prelude: device functions. engine: CudaOnCpu() if none is given.
    """
    parameters = ", ".join(
        f"{C_TYPES[str(array.dtype)]}* __restrict__ {name}_ptr" for name, array in arrays.items()
    )
    head = f'extern "C" __global__ void __launch_bounds__({threads}) main_kernel({parameters})'
    source = f"#endif\n{prelude}\n{head};\n{head} {{\n{body}\n}}\n"
    names = tuple(f"{name}_ptr" for name in arrays)
    kernel = Kernel("main_kernel", source, ("handle",) * len(names), names, ("threadIdx.x",))
    sizes = (blocks, 1, 1), (threads, 1, 1)
    launch = Launch(kernel, *sizes, tuple(arrays.values()), shared_bytes)
    (engine or CudaOnCpu())(launch)


def every_order(launch: Launch) -> None:
    """An engine for HostProgram.run: the first thread first, and then ten random orders.

    Raises LaunchError, with the seed, if an order gives other bits.
    """
    arrays = [one for one in launch.arguments if isinstance(one, np.ndarray)]
    before = [array.copy() for array in arrays]
    CudaOnCpu()(launch)
    after = [array.copy() for array in arrays]
    for seed in range(1, 11):
        for array, old in zip(arrays, before, strict=True):
            array[...] = old
        CudaOnCpu(seed=seed)(launch)
        for array, first in zip(arrays, after, strict=True):
            other = array.view("uint8") != first.view("uint8")
            if other.any():
                raise LaunchError(
                    f"{launch.kernel.name} gives other numbers in the random order of seed {seed}: "
                    f"{np.count_nonzero(other)} of {other.size} bytes of an array differ."
                )
