"""What TVM's compiled host code launches: kernels, grids and blocks, and the arguments in the kernel's own order.

A PrimFunc for a GPU becomes two things: device code, which is text here, and host code, which checks the arguments and
launches. The host code is compiled for this CPU without the device code. Each launch is then a call of a global
function with the kernel's name, and we register that function. So a launch is observed and not guessed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import tvm
import tvm_ffi
from tvm.tirx.build import codegen_build, split_host_device_mods

from chapters.kit.cpu.aligned import aligned_copy
from chapters.kit.gpu import tensor_maps
from chapters.kit.machine import QUICK_LLVM

# Optional attributes of a function: the passes that lower it, and the only architecture that it is for.
PIPELINE, ARCHITECTURE = "pipeline", "architecture"
TENSOR_MAP = "tensormap"  # the dtype of a parameter that describes a buffer to bulk copies
_CARRIER = {"bfloat16": "uint16"}  # DLPack from NumPy has no bfloat16; the bytes are the same


@dataclass(frozen=True)
class Kernel:
    """A device function: its source text, and its parameters as the launch passes them.

    dtypes: one per parameter, "handle" for a buffer, TENSOR_MAP for a tensor map. tags: the sizes that the launch
    passes after the parameters, such as "blockIdx.x".
    """

    name: str
    source: str
    dtypes: tuple[str, ...]
    names: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """One launch: NumPy arrays for the buffers (they share the caller's memory), numbers for the scalars.

    A tensor map is an array of its 128 bytes. shared_bytes: dynamic shared memory per block.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[object, ...]
    shared_bytes: int = 0


Engine = Callable[[Launch], None]  # executes a launch, in place


class LaunchError(Exception):
    """An engine found the kernel at fault; the message says which thread did what."""


class UnknownInstructionError(Exception):
    """A kernel uses something that an engine cannot execute; the kernel may still be right."""


class HostProgram:
    """A PrimFunc's host part, compiled for this CPU; its launches go to `engine`.

    func: a PrimFunc bound to threads. target: a GPU's; compiling for it needs only TVM. config: options of TVM's
    PassContext, such as {"tirx.use_async_copy": True}.
    """

    def __init__(
        self, func: tvm.tirx.PrimFunc, target: tvm.target.Target, config: dict | None = None
    ):
        # without this option the host code refuses arrays that are not on the GPU it was compiled for
        with tvm.transform.PassContext(config={"tirx.disable_assert": True, **(config or {})}):
            host, device = _split_host_and_device(func, target)
            self.kernels = {k.name: k for k in _build_kernels(device)}
            self._main = codegen_build(host, tvm.target.Target(QUICK_LLVM))["main"]
        # the compiled code looks a kernel up once, so each has one function for all runs
        self._calls = {name: self._call(name) for name in self.kernels}

    def run(self, engine: Engine, arguments: list[np.ndarray | int]) -> list[Launch]:
        """Call the PrimFunc on arrays for its buffers and ints for its scalars; outputs are written in place.

        Returns what was launched. Raises LaunchError if the engine finds a kernel at fault.
        """
        held = [_copy_aligned(one) if isinstance(one, np.ndarray) else one for one in arguments]
        self._run = run = _Run(engine, {a.ctypes.data: a for a in held if not isinstance(a, int)})
        for name, call in self._calls.items():
            tvm_ffi.register_global_func(name, call, override=True)
        tvm_ffi.register_global_func("__tvm_set_device", lambda *_: None, override=True)
        try:
            with tensor_maps.replace_encoder():
                self._main(*(a if isinstance(a, int) else tvm_ffi.from_dlpack(a) for a in held))
        except Exception:
            if not run.failed:
                raise
        if run.failed:
            raise run.failed[0]
        for given, copy in zip(arguments, held, strict=True):
            if isinstance(given, np.ndarray) and given.flags.writeable:
                given[...] = copy.view(given.dtype)
        return run.launches

    def _call(self, name: str) -> Callable:
        """The function that the host code calls to launch the kernel `name`; it looks the kernel up in `kernels`."""

        def call(*values) -> int:
            run = self._run
            launch = _read_launch(self.kernels[name], values, run.live)
            run.launches.append(launch)
            try:
                run.engine(launch)
            except Exception as error:  # an exception must not cross the compiled code
                run.failed.append(error)
                return -1
            return 0

        return call


@dataclass
class _Run:
    """One run of a HostProgram. live: the buffers, by address."""

    engine: Engine
    live: dict[int, np.ndarray]
    launches: list[Launch] = field(default_factory=list)
    failed: list[Exception] = field(default_factory=list)


def _cache_per_kernel(make: Callable) -> Callable:
    """`make(func, target)`, called once for kernels that are equal down to their names, as many answers' are."""

    @lru_cache(maxsize=128)
    def cached(kernel: tvm_ffi.StructuralKey, _names: str, target: tvm.target.Target):
        return make(kernel.key, target)

    return lambda func, target: cached(tvm_ffi.StructuralKey(func), func.script(), target)


host_program = _cache_per_kernel(HostProgram)


@_cache_per_kernel
def lower_kernel(
    func: tvm.tirx.PrimFunc, target: tvm.target.Target
) -> tuple[tvm.tirx.PrimFunc, ...]:
    """The device functions that `func` becomes on `target`, as TVM writes them out as source text."""
    _, device = _split_host_and_device(func, target)
    return tuple(kernel for part in device.values() for kernel in part.functions.values())


def target_of(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> tvm.target.Target:
    """`target`; if `func` is for one architecture only, such as sm_90a, a target with that architecture's instructions.

    Raises ValueError if `target` is another architecture.
    """
    wanted = func.attrs.get(ARCHITECTURE)
    arch = str(target.attrs.get("arch", target.kind.name))
    if wanted is None or arch == wanted:
        return target
    if arch != str(wanted).rstrip("a"):
        raise ValueError(
            f"This kernel needs instructions that only {wanted} has, and the target is {arch}: use another kernel."
        )
    return tvm.target.Target({"kind": "cuda", "arch": str(wanted)})


def find_pipeline(mod: tvm.IRModule) -> str:
    """The name of TVM's pipeline that lowers `mod`: the attribute PIPELINE of its function, else "s_tir"."""
    attrs = (func.attrs for func in mod.functions.values())
    return next((str(one[PIPELINE]) for one in attrs if PIPELINE in one), "s_tir")


def _split_host_and_device(func: tvm.tirx.PrimFunc, target: tvm.target.Target):
    """(host module, {target: device module}) of `func`, as tvm.compile makes them."""
    target = target_of(func, target)
    target = tvm.target.Target(target, host="llvm") if target.host is None else target
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = tvm.tirx.transform.BindTarget(target)(mod)
    pipeline, host_passes, device_passes = tvm.tirx.get_tir_pipeline(find_pipeline(mod))
    host, device = split_host_device_mods(pipeline(mod))
    return host_passes()(host), {t: device_passes()(m) for t, m in device.items()}


def _build_kernels(device: dict) -> list[Kernel]:
    return [
        Kernel(
            name=str(func.attrs["global_symbol"]),
            source=codegen_build(tvm.IRModule({gvar: func}), target).inspect_source(),
            dtypes=tuple(_parameter_dtype(p.ty) for p in func.params),
            names=tuple(p.name for p in func.params),
            tags=tuple(map(str, func.attrs["tirx.kernel_launch_params"])),
        )
        for target, mod in device.items()
        for gvar, func in mod.functions.items()
    ]


def _parameter_dtype(ty: tvm.ir.Type) -> str:
    if not isinstance(ty, tvm.ir.PointerType):
        return str(ty.dtype)
    return TENSOR_MAP if isinstance(ty.element_type, tvm.tirx.TensorMapType) else "handle"


def _copy_aligned(array: np.ndarray) -> np.ndarray:
    """A copy of `array` at an address that compiled code can rely on."""
    return aligned_copy(array.view(_CARRIER.get(str(array.dtype), array.dtype)))


def _read_launch(kernel: Kernel, values: tuple, live: dict[int, np.ndarray]) -> Launch:
    count = len(kernel.dtypes)
    sizes = dict(zip(kernel.tags, map(int, values[count:]), strict=False))
    grid, block = (
        tuple(sizes.get(f"{kind}Idx.{axis}", 1) for axis in "xyz") for kind in ("block", "thread")
    )
    arguments = []
    for dtype, value in zip(kernel.dtypes, values[:count], strict=True):
        if dtype == "handle":
            value = live[_address(value)]
        elif dtype == TENSOR_MAP:
            value = tensor_maps.copy_map(_address(value))
        arguments.append(value)
    shared_bytes = sizes.get("tirx.use_dyn_shared_memory", 0)
    return Launch(kernel, grid, block, tuple(arguments), shared_bytes)


def _address(value) -> int:
    return value.value if isinstance(value, ctypes.c_void_p) else int(value)
