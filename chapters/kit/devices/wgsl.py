"""`--device vulkan`: the WGSL that TVM writes, run and timed by wgpu. TVM's wheel has no Vulkan runtime of its own."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np
from tvm import tirx

from chapters.kit.devices.connect import DeviceError
from chapters.kit.devices.device import BATCH_MS, Prepared, said
from chapters.kit.gpu import wgsl_on_vulkan
from chapters.kit.gpu.launches import Engine, HostProgram, Launch
from chapters.kit.gpu.targets import WEBGPU

SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "software")


class WgslDevice:
    """Like chapters.kit.devices.device.Device, for the device that wgpu finds: Vulkan, Metal or DirectX."""

    kind, is_remote, target, title = "vulkan", False, WEBGPU, "vulkan:0"

    def __init__(self):
        self.name = f"vulkan:0 ({wgsl_on_vulkan.device_name()}, as WGSL)"

    @property
    def is_slow(self) -> bool:
        """Whether a CPU stands in for the GPU."""
        return any(word in self.name.lower() for word in SOFTWARE)

    def has_function(self, _name: str) -> bool:
        return False

    def prepare(self, func: tirx.PrimFunc, arrays: Sequence[np.ndarray]) -> Prepared:
        """`func`, compiled to WGSL, with copies of `arrays` on the device. Raises DeviceError."""
        held = [array.copy() for array in arrays]
        try:
            program = HostProgram(func, WEBGPU)
        except Exception as error:
            raise DeviceError(f"TVM cannot compile the kernel to WGSL: {said(error)}") from None

        if not program.kernels:
            raise DeviceError(
                "Nothing of this program runs on the GPU: no loop is bound to blocks and threads. Bind its loops."
            )

        def call() -> None:
            self._run(program, wgsl_on_vulkan.run_wgsl, held)

        @functools.cache
        def shaders() -> list[wgsl_on_vulkan.Shader]:
            launches: list[Launch] = []
            self._run(program, launches.append, held)
            return [wgsl_on_vulkan.Shader(launch) for launch in launches]

        def seconds() -> float:
            repeat, kernels = 1, shaders()
            while True:
                start = time.perf_counter()
                for shader in kernels:
                    shader.run(repeat)
                    shader.wait()
                spent = time.perf_counter() - start
                if spent * 1e3 >= BATCH_MS:
                    return spent / repeat
                repeat *= 4

        return Prepared(call, lambda: held[-1], seconds)

    def _run(self, program: HostProgram, engine: Engine, held: list[np.ndarray]) -> None:
        try:
            program.run(engine, held)
        except Exception as error:
            raise DeviceError(f"{self.name} refuses the kernel: {said(error)}") from None
