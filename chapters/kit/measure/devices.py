"""A GPU of this machine, or one behind TVM's RPC: compiles kernels for it, runs and times them there.

`open_device` finds one. Everything that can go wrong with a device is a DeviceError with one sentence and what to do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import rpc, tirx
from tvm.rpc import base
from tvm.target import Target
from tvm.target.detect_target import SUPPORTED_DEVICE
from tvm_ffi import structural_map

from chapters.kit.emulator import wgsl_on_vulkan
from chapters.kit.gpu.call import choose_compiler, executable
from chapters.kit.gpu.launches import Engine, HostProgram, Launch
from chapters.kit.gpu.targets import WEBGPU
from chapters.kit.machine import DeviceError, cuda_state, driver_problem
from chapters.kit.measure.quantiles import time_repeated

KINDS = {"cuda": "CUDA", "metal": "Metal", "vulkan": "Vulkan"}  # in the order of the search
CPU = "llvm"  # the CPU, its threads one after the other: only for tests
SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "software")  # Vulkan on a CPU
BATCH_MS = 20  # a measurement repeats a kernel until it takes this long
PATIENCE = 5.0  # seconds in which a server must answer
_numbers = itertools.count()


class NoDevice(DeviceError):
    """This machine has no such device; the message says what it has."""


@dataclass(frozen=True)
class Prepared:
    """A kernel and its arrays on a device. call() runs it; result() is its last array; seconds() measures a call."""

    call: Callable[[], None]
    result: Callable[[], np.ndarray]
    seconds: Callable[[], float]


class Device:
    """One of TVM's devices, on this machine or in `session`, which reaches the machine at `address`.

    kind: one of KINDS, or CPU. target: for its kernels. slow: whether a CPU stands in for the GPU.
    """

    def __init__(self, kind: str, index: int, address: str = "", session=None):
        self.kind, self.address, self.session, self.slow = kind, address, session, kind == CPU
        self.name = f"{kind}:{index}"
        self.raw = _find_device(kind, index, session)
        with self.describe_failures("asked what it is"):
            about = [] if self.slow else [str(self.raw.device_name or "")]
            about = ", ".join(filter(None, [*about, address and f"at {address}"]))
            self.name += f" ({about})" if about else ""
            self.target = self._target()

    def _target(self) -> Target:
        """What TVM detects on the device, and a host that is the machine's processor."""
        host = {"kind": "llvm"}
        if self.session:
            with contextlib.suppress(AttributeError):  # a server without TVM's compiler
                triple = self.session.get_function("tvm.codegen.llvm.GetDefaultTargetTriple")
                host["mtriple"] = str(triple())
        return Target(host) if self.slow else Target(SUPPORTED_DEVICE[self.kind](self.raw), host)

    def prepare(self, func: tirx.PrimFunc, arrays: Sequence[np.ndarray]) -> Prepared:
        """`func`, compiled for this device, with copies of `arrays` there. Raises DeviceError."""
        try:
            func = serialize_threads(func) if self.slow else func
            compiled = executable(func, self.target)
        except Exception as error:
            raise DeviceError(
                f"TVM cannot compile the kernel for {self.name}: {last_line(error)}"
            ) from None
        module = self.load(compiled)
        with self.describe_failures("given the arrays"):
            held = [tvm.runtime.tensor(np.ascontiguousarray(a), device=self.raw) for a in arrays]

        def call() -> None:
            with self.describe_failures("running the kernel"):
                module["main"](*held)
                self.raw.sync()

        def result() -> np.ndarray:
            with self.describe_failures("asked for the result"):
                return held[-1].numpy()

        def seconds() -> float:
            with self.describe_failures("timing the kernel"):
                clock = module.time_evaluator("main", self.raw, number=1, min_repeat_ms=BATCH_MS)
                return float(clock(*held).mean)

        return Prepared(call, result, seconds)

    def load(self, compiled: tvm.runtime.Executable):
        """The module of `compiled`, for this device's target, where the device is. Raises DeviceError."""
        if not self.session:
            return compiled.jit()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder, f"kernel{next(_numbers)}.tar")  # a server loads a name once
            compiled.export_library(str(path))  # objects, which the server links
            with self.describe_failures("loading the kernel (a C compiler there must link it)"):
                self.session.upload(str(path))
                return self.session.load_module(path.name)

    def function(self, name: str):
        """TVM's global function `name`, where the device is."""
        return self.session.get_function(name) if self.session else tvm.get_global_func(name)

    @contextlib.contextmanager
    def describe_failures(self, doing: str) -> Iterator[None]:
        """Turn what TVM raises while it does something with the device into a DeviceError."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:
            where = f"The machine at {self.address}" if self.session else self.name
            text = f"{where} failed, {doing}: {last_line(error)}"
            if "RPCSessionTimeoutError" in str(error):
                text = (
                    f"{where} stopped the session, {doing}: it took too long. A kernel that never ends looks like "
                    "this."
                )
            elif self.session and type(error).__name__ != "RPCError":  # it does not say why
                text = (
                    f"{where} went away, {doing}. See whether serve-device still runs there and the tunnel is open, "
                    "then try again."
                )
            raise DeviceError(text) from None


def serialize_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its threads as loops: right only for a kernel whose threads share nothing."""

    def loop(one: tirx.For) -> tirx.For:
        if one.thread_binding is None:
            return one
        return tirx.For(one.loop_var, one.min, one.extent, tirx.ForKind.SERIAL, one.body)

    return func.with_body(structural_map(func.body, (tirx.For, loop)))


def last_line(error: Exception) -> str:
    """The last line of TVM's message that says something, ended by one full stop."""
    text = str(error).split("\nStack trace")[0].replace("Error caught from RPC call:", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300].rstrip(".") + "."


class WgslDevice:
    """Like Device, for what wgpu finds (Vulkan, Metal or DirectX): TVM's wheel has no Vulkan runtime of its own."""

    kind, session, target = "vulkan", None, WEBGPU

    def __init__(self):
        self.name = f"vulkan:0 ({wgsl_on_vulkan.device_name()}, as WGSL)"
        self.slow = any(word in self.name.lower() for word in SOFTWARE)

    def prepare(self, func: tirx.PrimFunc, arrays: Sequence[np.ndarray]) -> Prepared:
        """`func`, compiled to WGSL, with copies of `arrays` on the device. Raises DeviceError."""
        held = [array.copy() for array in arrays]
        try:
            program = HostProgram(func, WEBGPU)
        except Exception as error:
            raise DeviceError(
                f"TVM cannot compile the kernel to WGSL: {last_line(error)}"
            ) from None
        if not program.kernels:
            raise DeviceError(
                "Nothing of this program runs on the GPU: no loop is bound to blocks and threads. Bind its loops."
            )

        def run(engine: Engine) -> None:
            try:
                program.run(engine, held)
            except Exception as error:
                raise DeviceError(f"{self.name} refuses the kernel: {last_line(error)}") from None

        @functools.cache
        def shaders() -> list[wgsl_on_vulkan.Shader]:
            launches: list[Launch] = []
            run(launches.append)
            return [wgsl_on_vulkan.Shader(launch) for launch in launches]

        def repeat(times: int) -> None:
            for shader in shaders():
                shader.run(times)
                shader.wait()

        def seconds() -> float:
            shaders()  # made before the clock starts
            return time_repeated(repeat, BATCH_MS / 1e3)

        return Prepared(lambda: run(wgsl_on_vulkan.run_wgsl), lambda: held[-1], seconds)


# --- which device ---------------------------------------------------------------------------------


def open_device(asked: str, remote: str, seconds: int = 0) -> Device | WgslDevice:
    """The device called `asked`, such as "cuda", "cuda:1" or "vulkan"; "" for the first there is. Raises DeviceError.

    remote: HOST:PORT[/KEY] of the machine that has it; "" for this one, where NoDevice says that there is none.
    seconds: after which a server ends the session; 0 for never.
    """
    kind, _, number = asked.partition(":")
    index = int(number or 0)
    address, session = connect(remote, seconds) if remote else ("", None)
    where = f"The machine at {address}" if remote else "This machine"
    choose_compiler()
    try:
        for one in [kind] if kind else KINDS:
            if one == CPU or _find_device(one, index, session).exist:
                return Device(one, index, address, session)
            if index and _find_device(one, 0, session).exist:
                raise DeviceError(
                    f"{where} has {one}:0 and no {one}:{index}; devices are counted from 0."
                )
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"{where} cannot be asked: {last_line(error)}") from None
    if remote:
        what = f"{KINDS[kind]} device" if kind else "GPU"
        raise DeviceError(
            f"{where} has no {what} that TVM can use. Run `python -m chapters doctor` there: it says what is missing."
        )
    if kind != "vulkan":
        raise NoDevice(_describe_absence(kind))
    if reason := wgsl_on_vulkan.missing():
        raise NoDevice(
            f"This machine has no Vulkan device that the course can use: {reason}. “GPU code, run without a GPU” in "
            "docs/setup.md says what to install."
        )
    if index:
        raise DeviceError(f"wgpu gives the course one Vulkan device: use vulkan:0, not {asked}.")
    return WgslDevice()


def _find_device(kind: str, index: int, session):
    """TVM's device, which need not exist."""
    return (session or tvm.runtime).device("cpu" if kind == CPU else kind, index)


def _describe_absence(kind: str) -> str:
    """Why this machine has no device of a kind, or none at all, and what else there is."""
    if kind == "metal":
        return "There is no Metal device here. TVM finds one on a Mac with Apple silicon."
    reason = driver_problem() or f"There is no CUDA device here: {cuda_state()[1]}"
    return f"{reason}. --device vulkan runs WGSL on any other GPU, and --remote HOST:PORT uses another machine's."


def connect(remote: str, seconds: int = 0) -> tuple[str, rpc.RPCSession]:
    """(HOST:PORT, a session of the server there) for `remote`, which is HOST:PORT[/KEY]. Raises DeviceError.

    seconds: after which the server ends the session; 0 for never.
    """
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^\[\]:/\s]+):(\d{1,5})(?:/([^\s/]+))?", remote.strip())
    if not found or not 0 < int(found[2]) < 65536:
        raise DeviceError(
            f"--remote {remote} is no address. Write HOST:PORT or HOST:PORT/KEY, as in 127.0.0.1:9090/gpu."
        )
    host, port, key = found[1].strip("[]"), int(found[2]), found[3] or ""
    address = f"{found[1]}:{port}"
    _expect_answer(address, host, port)
    try:
        return address, rpc.connect(host, port, key, session_timeout=seconds)
    except Exception as error:
        if "cannot find server that matches key" in str(error):
            given = f"the key {key!r}" if key else "a caller without a key"
            raise DeviceError(
                f"The server at {address} refuses {given}. Use the key that it was started with: "
                f"--remote {address}/KEY."
            ) from None
        raise DeviceError(
            f"{address} answers, but not as TVM's RPC does. Use the port that serve-device printed."
        ) from None


def _expect_answer(address: str, host: str, port: int) -> None:
    """Raise DeviceError unless something answers at once; TVM's client waits without a limit for a busy server."""
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as line:
            line.sendall(
                struct.pack("<i", base.RPC_TRACKER_MAGIC)
            )  # a server that is free hangs up
            with contextlib.suppress(ConnectionResetError):
                line.recv(4)
    except TimeoutError:
        raise DeviceError(
            f"{address} does not answer within {PATIENCE:g} s. If serve-device runs there, it is busy with another "
            "session: wait until that ends, or start a second server at another port."
        ) from None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise DeviceError(
            f"Nothing answers at {address} ({reason}). Start `python -m chapters serve-device` on the machine with the "
            "GPU. If it is behind ssh, keep the tunnel open (docs/setup.md, “A GPU elsewhere”)."
        ) from None
