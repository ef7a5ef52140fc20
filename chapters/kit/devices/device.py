"""A device of TVM's runtime, on this machine or behind RPC: compiles a kernel for it, runs it, times it.

`open_device` finds one. Everything that can go wrong with a device is a DeviceError with one sentence and what to do.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target
from tvm_ffi import structural_map

from chapters.kit.devices import cuda_driver
from chapters.kit.devices.connect import Address, DeviceError, connect, parse
from chapters.kit.gpu.call import executable
from chapters.kit.machine import cuda_state

KINDS = ("cuda", "metal", "rocm", "opencl", "vulkan")  # in the order in which one is looked for
TITLES = {"cuda": "CUDA", "metal": "Metal", "rocm": "ROCm", "opencl": "OpenCL", "vulkan": "Vulkan"}
PSEUDO = "llvm"  # the CPU, its threads one after the other: only for tests
BATCH_MS = 20  # a measurement repeats a kernel until it takes this long
MOST = 16  # devices of a kind that are counted
_numbers = itertools.count()


class NoDevice(DeviceError):
    """This machine has no such device; the message says what it has."""


class Prepared:
    """A kernel and its arrays on a device. call() runs it; result() is its last array; seconds() measures a call."""

    def __init__(
        self,
        call: Callable[[], None],
        result: Callable[[], np.ndarray],
        seconds: Callable[[], float],
    ):
        self.call, self.result, self.seconds = call, result, seconds


class Device:
    """One of TVM's devices.

    kind: one of KINDS or PSEUDO. where: "" for this machine, else the address of its server. target: for kernels.
    """

    def __init__(self, kind: str, index: int, address: Address | None = None, session=None):
        self.kind, self.address, self.session = kind, address, session
        made = session.device if session else tvm.runtime.device
        self.raw = made("cpu" if kind == PSEUDO else kind, index)
        self.title = f"{kind}:{index}"
        with self.spoken("asked what it is"):
            self.target = self._target()
            name = "" if kind == PSEUDO else str(self.raw.device_name or "")
        about = [name, f"at {address}" if address else ""]
        self.name = f"{self.title} ({', '.join(filter(None, about))})" if any(about) else self.title

    @property
    def is_remote(self) -> bool:
        return self.session is not None

    @property
    def is_slow(self) -> bool:
        """Whether a CPU stands in for the GPU."""
        return self.kind == PSEUDO

    def has_function(self, name: str) -> bool:
        """Whether the machine's runtime has the global function `name`."""
        if not self.session:
            return tvm.get_global_func(name, allow_missing=True) is not None
        with contextlib.suppress(AttributeError):
            return self.session.get_function(name) is not None
        return False

    def prepare(self, func: tirx.PrimFunc, arrays: Sequence[np.ndarray]) -> Prepared:
        """`func`, compiled for this device, with copies of `arrays` there. Raises DeviceError."""
        module = self.load(self._compiled(func))
        with self.spoken("given the arrays"):
            held = [tvm.runtime.tensor(np.ascontiguousarray(a), device=self.raw) for a in arrays]

        def call() -> None:
            with self.spoken("running the kernel"):
                module["main"](*held)
                self.raw.sync()

        def result() -> np.ndarray:
            with self.spoken("asked for the result"):
                return held[-1].numpy()

        def seconds() -> float:
            with self.spoken("timing the kernel"):
                clock = module.time_evaluator("main", self.raw, number=1, min_repeat_ms=BATCH_MS)
                return float(clock(*held).mean)

        return Prepared(call, result, seconds)

    def _compiled(self, func: tirx.PrimFunc) -> tvm.runtime.Executable:
        func = one_thread_at_a_time(func) if self.kind == PSEUDO else func
        try:
            return executable(func, self.target)
        except Exception as error:
            raise DeviceError(
                f"TVM cannot compile the kernel for {self.name}: {said(error)}"
            ) from None

    def load(self, compiled: tvm.runtime.Executable):
        """The module of `compiled`, for this device's target, where the device is. Raises DeviceError."""
        if not self.session:
            return compiled.jit()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = sent(compiled, Path(folder))
            with self.spoken("loading the kernel (which needs a C compiler there, to link it)"):
                self.session.upload(str(path))
                return self.session.load_module(path.name)

    def _target(self) -> Target:
        host: dict = {"kind": "llvm"}
        if self.session:
            with contextlib.suppress(AttributeError):  # a server without TVM's compiler
                triple = self.session.get_function("tvm.codegen.llvm.GetDefaultTargetTriple")
                host["mtriple"] = str(triple())
        if self.kind == PSEUDO:
            return Target(host)
        facts: dict = {"kind": self.kind}
        if self.kind == "cuda":
            facts["arch"] = "sm_" + str(self.raw.compute_version).replace(".", "")
        says = {
            "max_num_threads": self.raw.max_threads_per_block,
            "max_threads_per_block": self.raw.max_threads_per_block,
            "max_shared_memory_per_block": self.raw.max_shared_memory_per_block,
            "thread_warp_size": self.raw.warp_size,
        }
        facts |= {name: int(number) for name, number in says.items() if number}
        return Target(facts, host=Target(host))

    @contextlib.contextmanager
    def spoken(self, doing: str) -> Iterator[None]:
        """Turn what TVM raises while it does something with the device into a DeviceError."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:
            if not self.session:
                raise DeviceError(f"{self.title} failed, {doing}: {said(error)}") from None
            if "RPCSessionTimeoutError" in str(error):
                raise DeviceError(
                    f"The machine at {self.address} stopped the session, {doing}: it took too long. A kernel that "
                    "never ends looks like this."
                ) from None
            if type(error).__name__ == "RPCError":  # the machine is there and says why
                raise DeviceError(
                    f"The machine at {self.address} failed, {doing}: {said(error)}"
                ) from None
            raise DeviceError(
                f"The machine at {self.address} went away, {doing}. See whether serve-device still runs there and the "
                "tunnel is open, then try again."
            ) from None


def sent(compiled: tvm.runtime.Executable, folder: Path) -> Path:
    """What a server is sent: the objects of `compiled`, which it links. GPU code is in them as text, or compiled."""
    path = folder / f"kernel{next(_numbers)}.tar"  # a server loads a name once
    compiled.export_library(str(path))
    return path


def said(error: Exception) -> str:
    """The last line of TVM's message that says something, ended by one full stop."""
    text = str(error).split("\nStack trace")[0].replace("Error caught from RPC call:", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300].rstrip(".") + "."


def one_thread_at_a_time(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its threads as loops: right only for a kernel whose threads share nothing."""

    def loop(one: tirx.For) -> tirx.For:
        if one.thread_binding is None:
            return one
        return tirx.For(one.loop_var, one.min, one.extent, tirx.ForKind.SERIAL, one.body)

    return func.with_body(structural_map(func.body, (tirx.For, loop)))


# --- which device ---------------------------------------------------------------------------------


def open_device(asked: str, remote: str, seconds: int = 0):
    """The device called `asked`, such as "cuda", "cuda:1" or "vulkan"; "" for the first there is. Raises DeviceError.

    remote: the address of the machine that has it; "" for this one, where NoDevice says that there is none. seconds: a
    server ends the session after that time.
    """
    kind, _, number = asked.partition(":")
    index = int(number or 0)
    if kind and kind not in (*KINDS, PSEUDO):
        known = ", ".join(KINDS)
        raise DeviceError(f"There is no kind of device called {kind}. Use one of {known}.")
    if remote:
        return _remote(kind, index, parse(remote), seconds)
    if kind == PSEUDO:
        return Device(PSEUDO, index)
    cuda_driver.choose_compiler()
    for one in [kind] if kind else KINDS:
        if there := _count(one, tvm.runtime.device):
            if index < there:
                return Device(one, index)
            raise DeviceError(_too_few(one, index, there, "This machine"))
    if kind == "vulkan":
        return _through_wgpu(index)
    raise NoDevice(_none(kind))


def _remote(kind: str, index: int, address: Address, seconds: int) -> Device:
    session = connect(address, seconds)
    if kind == PSEUDO:
        return Device(kind, index, address, session)
    try:
        for one in [kind] if kind else KINDS:
            if there := _count(one, session.device):
                if index < there:
                    return Device(one, index, address, session)
                raise DeviceError(_too_few(one, index, there, f"The machine at {address}"))
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"The machine at {address} cannot be asked: {said(error)}") from None
    what = f"{TITLES[kind]} device" if kind else "GPU"
    raise DeviceError(
        f"The machine at {address} has no {what} that TVM can use. Run `python -m chapters doctor` there: it says "
        "what is missing."
    )


def _through_wgpu(index: int):
    from chapters.kit.devices.wgsl import WgslDevice
    from chapters.kit.gpu import wgsl_on_vulkan

    if reason := wgsl_on_vulkan.missing():
        raise NoDevice(
            f"This machine has no Vulkan device that the course can use: {reason}. “GPU code, run without a GPU” in "
            "docs/setup.md says what to install."
        )
    if index:
        raise DeviceError(_too_few("vulkan", index, 1, "This machine"))
    return WgslDevice()


def _count(kind: str, made: Callable) -> int:
    """How many devices of a kind there are, numbered from 0."""
    return next((n for n in range(MOST) if not made(kind, n).exist), MOST)


def _too_few(kind: str, index: int, there: int, where: str) -> str:
    many = f"{there} {TITLES[kind]} devices" if there > 1 else f"one {TITLES[kind]} device"
    names = " and ".join(f"{kind}:{n}" for n in sorted({0, there - 1}))
    return f"There is no {kind}:{index}. {where} has {many}: use {names}."


def _none(kind: str) -> str:
    """Why this machine has no device of a kind, or none at all, and what else there is."""
    if kind in ("opencl", "rocm"):
        return (
            f"This TVM wheel writes {TITLES[kind]} code and has no {TITLES[kind]} runtime, so it cannot run it. Use "
            "--device vulkan, or --remote with a TVM server that has that runtime."
        )
    if kind == "metal":
        return "There is no Metal device here. TVM finds one on a Mac with Apple silicon."
    old = cuda_driver.too_old()
    reason = old or f"There is no CUDA device here: {cuda_state()[1]}"
    elsewhere = (
        "--device vulkan runs WGSL on any other GPU, and --remote HOST:PORT uses another machine's."
    )
    return f"{reason}. {elsewhere}"
