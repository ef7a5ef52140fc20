"""Runs the WGSL that TVM writes for WebGPU, through `wgpu`, on any Vulkan, Metal or DirectX device.

Without a GPU that device is Mesa's lavapipe, which runs Vulkan on the CPU. WebGPU clears workgroup memory; here it is
then filled with poison, so that a kernel that forgets to set it gives wrong numbers.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile

import numpy as np

from chapters.kit.gpu.launches import Launch, LaunchError

MOST_BLOCKS = 65535  # WebGPU's limit for one dimension of a grid; TVM folds a longer one into z
_STORAGE = re.compile(r"@binding\(\d+\) var<storage, (read_write|read)>")
_WORKGROUP = re.compile(r"var<workgroup> (\w+) : array<(f32|f16|i32|u32), (\d+)>;")
_POISON = {"f32": "1e30f", "f16": "60000h", "i32": "2147483647i", "u32": "4294967295u"}
_LIMITS = """
max-compute-invocations-per-workgroup max-compute-workgroup-size-x max-compute-workgroup-storage-size
max-storage-buffer-binding-size max-storage-buffers-per-shader-stage
"""


@functools.cache
def _open_device():
    """(wgpu, device), or (None, why not)."""
    if sys.platform == "linux":  # a driver that looks for a display complains where this is not set
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    try:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="low-power")
        limits = {name.replace("_", "-"): value for name, value in adapter.limits.items()}
        device = adapter.request_device_sync(
            required_features=[f for f in ("shader-f16",) if f in adapter.features],
            required_limits={name: limits[name] for name in _LIMITS.split() if name in limits},
        )
    except Exception as error:  # no package, or no Vulkan behind it: a reason to skip, not a fault
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return None, f"running WGSL needs the package wgpu and a Vulkan device: {reason}"
    return wgpu, device


def missing(dtype: str = "float32") -> str:
    """Why kernels on `dtype` cannot run here; "" if they can."""
    wgpu, device = _open_device()
    if wgpu is None:
        return device
    if dtype == "bfloat16":
        return "WebGPU has no bfloat16"
    if dtype == "float16" and "shader-f16" not in device.features:
        return f"the Vulkan device has no float16: {device_name()}"
    return ""


def device_name() -> str:
    """The driver's name for the device that runs the kernels; "" if there is none."""
    wgpu, device = _open_device()
    return "" if wgpu is None else device.adapter.info["device"]


def poison_memory(source: str, name: str) -> str:
    """`source` with all workgroup memory of the function `name` set to poison before its first statement."""
    arrays = _WORKGROUP.findall(source)
    if not arrays:
        return source
    size = re.search(r"@workgroup_size\((\d+), (\d+), (\d+)\)", source)
    threads = int(size[1]) * int(size[2]) * int(size[3])
    flat = f"(threadIdx.z * {size[2]}u + threadIdx.y) * {size[1]}u + threadIdx.x"
    fill = "".join(
        f"  for (var i = {flat}; i < {count}u; i += {threads}u) {{ {array}[i] = {_POISON[kind]}; }}\n"
        for array, kind, count in arrays
    )
    start = source.index("{\n", source.index(f"fn {name}(")) + 2
    return source[:start] + fill + "  workgroupBarrier();\n" + source[start:]


def run_wgsl(launch: Launch) -> None:
    """An engine for HostProgram.run. Raises LaunchError if there is no device, or if it refuses the shader."""
    if _open_device()[0] is None:
        raise LaunchError(_open_device()[1])
    shader = Shader(launch, poison_memory(launch.kernel.source, launch.kernel.name))
    shader.run()
    shader.read()


class Shader:
    """A launch on the device, with copies of its arrays there.

    source: the text to run; by default the kernel's. Raises LaunchError if the device refuses it.
    """

    def __init__(self, launch: Launch, source: str = ""):
        wgpu, self._device = _open_device()
        usage, kernel = wgpu.BufferUsage, launch.kernel
        make = self._device.create_buffer_with_data
        self._pipeline = _make_pipeline(source or kernel.source, kernel.name)
        self._grid, self._modes = _fold_grid(launch.grid), _STORAGE.findall(kernel.source)
        self._buffers, scalars = [], b""
        for dtype, value in zip(kernel.dtypes, launch.arguments, strict=True):
            if dtype == "handle":
                data = value.tobytes()
                data += b"\0" * (-len(data) % 4)
                flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
                self._buffers.append((value, make(data=data, usage=flags)))
            else:
                # WGSL has no 64-bit integers; TVM makes them 32 bits wide
                scalars += np.array(value, {"int64": "int32"}.get(dtype, dtype)).tobytes()
        # packGridDimX: the number of the last block, needed if the grid is folded
        scalars += np.uint32(launch.grid[0] - 1).tobytes()
        bound = [buffer for _, buffer in self._buffers]
        if "podArgs" in kernel.source:
            scalars += b"\0" * (-len(scalars) % 16)
            bound.append(make(data=scalars, usage=usage.UNIFORM))
        entries = [
            {"binding": n, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for n, b in enumerate(bound)
        ]
        layout = self._pipeline.get_bind_group_layout(0)
        self._group = self._device.create_bind_group(layout=layout, entries=entries)

    def run(self, repeat: int = 1) -> None:
        """Queue the launch `repeat` times."""
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, self._group)
        for _ in range(repeat):
            compute.dispatch_workgroups(*self._grid)
        compute.end()
        self._device.queue.submit([encoder.finish()])

    def wait(self) -> None:
        """Return when everything that was queued is done."""
        self._device.queue.read_buffer(self._buffers[0][1], 0, 4)

    def read(self) -> None:
        """Copy what the kernel may have written back into the launch's arrays."""
        for (array, buffer), mode in zip(self._buffers, self._modes, strict=True):
            if mode == "read_write":
                data = np.frombuffer(self._device.queue.read_buffer(buffer), "uint8")[
                    : array.nbytes
                ]
                array.view("uint8").reshape(-1)[:] = data


def _fold_grid(grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """`grid` as it is launched: TVM's text expects blocks beyond MOST_BLOCKS along x in further layers of z."""
    x, y, z = grid
    return (x, y, z) if x <= MOST_BLOCKS else (MOST_BLOCKS, y, -(-x // MOST_BLOCKS))


@functools.lru_cache(maxsize=64)
def _make_pipeline(source: str, name: str):
    """The compute pipeline of the shader `source` with the entry point `name`."""
    _, device = _open_device()
    try:
        module = device.create_shader_module(code=source)
        compute = {"module": module, "entry_point": name}
        return device.create_compute_pipeline(layout="auto", compute=compute)
    except Exception as error:
        raise LaunchError(f"The device refuses the shader: {str(error).strip()[:400]}") from None
