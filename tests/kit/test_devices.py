"""Kernels on devices: a CPU behind TVM's RPC on the loopback, Vulkan without a GPU, CUDA text up to the launch."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import socket
import tarfile
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm.target import Target

from chapters.ch08_gpu_targets.device_kernels import KERNELS, Linear
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul
from chapters.ch11_a_real_model.passes import phases
from chapters.kit import machine
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.chat.compile_decoder import compile_decoder
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.model_on_device import ModelOnDevice
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.emulator.executors import required
from chapters.kit.gpu import call
from chapters.kit.gpu.call import executable
from chapters.kit.measure import devices, rpc_server
from chapters.kit.measure.devices import (
    Device,
    DeviceError,
    NoDevice,
    Prepared,
    connect,
    open_device,
)
from chapters.kit.measure.exercise_kernels import DeviceKernel, WrongNumbers, check, measure
from chapters.kit.quantized.dot_products import lanes_of
from solutions.ch08_gpu_targets import gpu_schedules as reference
from tests.support.injected_faults import needs_vulkan
from tests.support.served import KEY, free_port, left, needs_server, served

QUICK = {"rounds": 2, "seed": 0}
# a layer that also runs on a CPU, whose threads come one after the other
SMALL = DeviceKernel(
    lambda _answer, layer, tile: naive_matmul(
        linear_bias(layer.m, layer.n, layer.k, layer.dtype), tile
    ),
    [(Linear(32, 64, 24), ThreadTile(16, 32, 8, 2, 4))],
    (Linear(64, 64, 16),) * 2,
    ThreadTile(64, 64, 16, 4, 4),
)
LOCAL = {"8.1": KERNELS["8.1"], "a layer": SMALL}  # kernels without shared memory


@pytest.mark.skipif(not required(), reason="nothing is required here")
def test_what_the_tests_of_rpc_need_is_required_too():
    import cloudpickle  # noqa: F401


@pytest.fixture(scope="module")
def shared_server():
    with served() as running:
        yield running


@pytest.fixture
def server(shared_server):
    """A session ends with its last object, and a server takes one at a time."""
    yield shared_server
    gc.collect()


@pytest.fixture(scope="module")
def here():
    return open_device("llvm", "")


def answer(**changed):
    """The reference with some of its names changed."""
    return SimpleNamespace(**{**vars(reference), **changed})


# --- an address, and who answers there ------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "laptop", "laptop:", ":9090", "laptop:0", "laptop:99999", "a:1/b/c", "a:1/", "a b:1"],
)
def test_what_is_no_address(text):
    with pytest.raises(DeviceError, match=r"is no address\. Write HOST:PORT"):
        connect(text)


def test_nothing_answers():
    for host in ("127.0.0.1", "no-such-host.invalid", "[::1]"):
        with pytest.raises(DeviceError) as caught:
            connect(f"{host}:{free_port()}/key")
        assert str(caught.value).startswith(f"Nothing answers at {host}:")
        assert "serve-device" in str(caught.value)


@pytest.mark.parametrize(
    ("says", "told"),
    [(b"SSH-2.0-OpenSSH\r\n", "answers, but not as TVM's RPC"), (None, "not answer within 0.3 s")],
)
def test_something_else_answers_or_is_silent(says, told, monkeypatch):
    monkeypatch.setattr(devices, "PATIENCE", 0.3)
    stop = threading.Event()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(4)

        def answer_calls() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = found.accept()
                    line.sendall(says) if says else stop.wait()
                    line.close()

        threading.Thread(target=answer_calls, daemon=True).start()
        with pytest.raises(DeviceError, match=told):
            connect(f"127.0.0.1:{found.getsockname()[1]}")
        stop.set()


@needs_server
@pytest.mark.parametrize(("key", "says"), [("", "a caller without a key"), ("/x", "the key 'x'")])
def test_a_wrong_key_is_refused(server, key, says):
    with pytest.raises(DeviceError, match=f"refuses {says}. Use the key that it was started with"):
        connect(f"127.0.0.1:{server.port}{key}")


@needs_server
def test_a_busy_server_says_so_and_is_free_again_afterwards(server, monkeypatch):
    first = open_device("llvm", server.address)
    monkeypatch.setattr(devices, "PATIENCE", 0.5)
    with pytest.raises(DeviceError, match="it is busy with another session"):
        open_device("llvm", server.address)
    monkeypatch.undo()
    del first
    assert open_device("llvm", server.address).session


# --- kernels behind RPC ---------------------------------------------------------------------------


def test_a_wrong_kernel_is_found_and_not_timed():
    """It leaves out the last column."""

    def prepare(answer, arrays):
        result = Linear(64, 64, 16).exact(arrays)
        result[:, -1] = np.nan if answer == "wrong" else result[:, -1]
        return Prepared(lambda: None, lambda: result, lambda: 1e-3)

    device = SimpleNamespace(name="a GPU", kind="none", session=None, slow=True, prepare=prepare)
    case = dataclasses.replace(SMALL, func=lambda answer, problem, tile: answer)
    assert check(case, "right", device)[0].startswith("✓ right on a GPU for 32 × 64 × 24 float32, ")
    says = r"element \[0, 63\] was not written and must be .* 32 of 2048 elements are off"
    with pytest.raises(WrongNumbers, match=says):
        check(case, "wrong", device)
    with pytest.raises(WrongNumbers, match="was not written"):
        measure(case, {"yours": "wrong", "the reference": "right"}, device, **QUICK)
    table, missing = measure(case, {"the reference": "wrong", "yours": "right"}, device, **QUICK)
    assert [row[0] for row in table.rows] == ["yours"] and "numbers are wrong" in missing[-1]


@needs_server
def test_a_session_that_takes_too_long_is_ended_by_the_server(server):
    remote = open_device("llvm", server.address, seconds=1)
    with pytest.raises(DeviceError, match=r"stopped the session|went away"):
        for _ in range(30):
            time.sleep(0.3)
            check(SMALL, reference, remote)
    assert open_device("llvm", server.address).session, "the next caller is served"


@needs_server
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_leaves_no_process_behind(how):
    with served() as server:
        session = open_device("llvm", server.address)  # a session is open while it ends
        family = server.family
        assert len(family) >= 3
        said = server.end(how)
        assert not left(family) and "Traceback" not in said
        del session


@needs_server
def test_a_server_that_cannot_start_says_why(server, monkeypatch):
    with pytest.raises(rpc_server.CannotServe, match="--port chooses another"):
        rpc_server.serve("127.0.0.1", server.port, KEY)
    monkeypatch.setattr(rpc_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(rpc_server.CannotServe, match=r"pip install -e '\.\[remote\]'"):
        rpc_server.serve("127.0.0.1", 9090, KEY)


# --- CUDA text, up to the launch ------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_machine_with_cuda_is_sent(name, tmp_path):
    """CUDA text for every exercise's kernel on its timed size, and host code for another processor than this one's."""
    exercise = KERNELS[name]
    func = exercise.func(reference, exercise.large[True], exercise.tile)
    host = {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}
    target = Target({"kind": "cuda", "arch": "sm_87"}, host=host)
    executable(func, target).export_library(str(tmp_path / "kernel.tar"))
    with tarfile.open(tmp_path / "kernel.tar") as packed:
        held = {one.name: packed.extractfile(one).read() for one in packed if one.isfile()}
    arm = 183  # e_machine of ELF
    assert {int.from_bytes(data[18:20], "little") for data in held.values()} == {arm}
    assert any(
        b"__global__" in data or b".version" in data or b"\x7fELF" in data[64:]
        for data in held.values()
    )


class FakeGpu:
    """What TVM says of a CUDA device."""

    exist, device_name, compute_version = True, "NVIDIA Test", "8.7"
    max_threads_per_block, max_shared_memory_per_block, warp_size = 1024, 49152, 32


@pytest.fixture
def two_gpus(monkeypatch):
    """This machine has cuda:0 and cuda:1, and nothing else."""

    def device(kind, index):
        return FakeGpu() if kind == "cuda" and index < 2 else SimpleNamespace(exist=False)

    monkeypatch.setattr(tvm.runtime, "device", device)


def test_the_target_is_what_the_gpu_says(two_gpus):
    found = open_device("cuda:1", "")
    assert found.name == "cuda:1 (NVIDIA Test)" and str(found.target.attrs["arch"]) == "sm_87"
    assert int(found.target.attrs["max_num_threads"]) == 1024
    assert found.target.host.kind.name == "llvm" and open_device("", "").name[:6] == "cuda:0"
    with pytest.raises(DeviceError, match=r"This machine has cuda:0 and no cuda:2; devices are"):
        open_device("cuda:2", "")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("cuda", "There is no CUDA device here.*--device vulkan runs WGSL"),
        ("metal", "There is no Metal device here"),
    ],
)
def test_a_device_that_is_not_here(asked, says, server):
    if tvm.runtime.device(asked, 0).exist:
        pytest.skip("this machine has one")
    with pytest.raises(NoDevice, match=says):
        open_device(asked, "")
    at = f"127.0.0.1:{server.port}"
    with pytest.raises(DeviceError, match=rf"The machine at {at} has no \w+ device that TVM can"):
        open_device(asked, server.address)


def test_a_driver_that_is_too_old_is_named_with_both_versions():
    def runtime(status):
        """libcudart, where the driver supports CUDA 12.2 and the runtime is 13.0."""

        class Runtime(dict):
            def cudaGetDeviceCount(self, _pointer) -> int:
                return status

        numbers = {"cudaDriverGetVersion": 12020, "cudaRuntimeGetVersion": 13000}
        return Runtime({n: lambda p, v=v: setattr(p._obj, "value", v) for n, v in numbers.items()})

    said = machine.driver_problem(lambda name: runtime(machine.INSUFFICIENT_DRIVER))
    assert "supports CUDA 12.2, and TVM's CUDA runtime is 13.0" in said
    assert "driver for CUDA 13" in said
    assert machine.driver_problem(lambda name: runtime(0)) == ""
    assert machine.driver_problem(lambda name: None) == "", "without a driver it is not too old"


@pytest.mark.parametrize(
    ("nvrtc", "nvcc", "chosen"), [(True, True, None), (False, True, "nvcc"), (False, False, None)]
)
def test_the_compiler_that_is_there_is_chosen(monkeypatch, nvrtc, nvcc, chosen):
    monkeypatch.setenv(call.MODE, "x")  # so that it is as before afterwards
    monkeypatch.delenv(call.MODE)
    monkeypatch.setattr(call.importlib.util, "find_spec", lambda name: "here" if nvrtc else None)
    monkeypatch.setattr(call.shutil, "which", lambda name: "/nvcc" if nvcc else None)
    call.choose_compiler()
    assert os.environ.get(call.MODE) == chosen


# --- PyTorch, tiles, and Vulkan without a GPU -----------------------------------------------------


def test_pytorch_takes_part_where_it_finds_the_gpu(here, monkeypatch):
    """PyTorch on the CPU stands in; then it gives wrong numbers."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    fakes = {"is_available": lambda: True, "synchronize": lambda: None}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    gpu = SimpleNamespace(**vars(here), prepare=here.prepare)
    gpu.kind, gpu.raw = "cuda", SimpleNamespace(index=1)
    asked = []

    def moved(array):
        plain = from_numpy(array)
        return SimpleNamespace(to=lambda place, kind: asked.append(place) or plain.to(kind))

    from_numpy = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", moved)
    for kernel in LOCAL.values():
        problem, tile = kernel.small[0]
        small = dataclasses.replace(kernel, large=(problem, problem), tile=tile)
        table, missing = measure(small, {"the reference": reference}, gpu, **QUICK)
        assert [row[0] for row in table.rows] == ["the reference", "PyTorch"] and not missing
    assert set(asked) == {"cuda:1"}
    monkeypatch.setattr(Linear, "by_torch", lambda self, a, b, c: a @ b.T)
    table, missing = measure(SMALL, {"the reference": reference}, gpu, **QUICK)
    assert len(table.rows) == 1 and "PyTorch: not timed, because its numbers" in missing[0]


@needs_vulkan
def test_what_vulkan_refuses_is_one_sentence():
    with pytest.raises(DeviceError, match="use vulkan:0, not vulkan:1"):
        open_device("vulkan:1", "")
    with pytest.raises(DeviceError, match="no loop is bound to blocks and threads"):
        check(KERNELS["8.1"], answer(bind_elementwise=lambda *_: None), open_device("vulkan", ""))


# --- the chat -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """target -> (the weights of the tests' Llama, its decoder for `target`)."""
    from tests.kit.test_chat_model import LLAMAS  # which skips without gguf

    llama, made = LLAMAS["Q4_1, and Q8_0 shared"], {}
    file = read_gguf(llama.save(tmp_path_factory.mktemp("model") / "model.gguf"))

    def compiled(target):
        if str(target) not in made:
            weights = Weights(file, read_config(file), lanes_of(target))
            made[str(target)] = weights, compile_decoder(weights, target, phases, exact=True)
        return made[str(target)]

    return compiled


def test_a_chat_is_compiled_for_a_gpu(decoder, monkeypatch, tmp_path):
    """For CUDA as far as its text."""
    monkeypatch.setattr(tvm.runtime, "device", lambda kind, index: FakeGpu())
    target = Device("cuda", 0).target
    monkeypatch.undo()
    _, compiled = decoder(target)
    compiled.executable.export_library(str(tmp_path / "chat.tar"))
    with tarfile.open(tmp_path / "chat.tar") as packed:
        assert any(b"__global__" in packed.extractfile(one).read() for one in packed)


@needs_server
@pytest.mark.parametrize("where", ["here", "behind RPC"])
def test_a_chat_on_a_device_gives_the_same_logits(decoder, where, request):
    at = "" if where == "here" else request.getfixturevalue("server").address
    there = open_device("llvm", at)
    from tests.kit.test_chat_model import Reference, hold_conversation

    weights, compiled = decoder(there.target)
    model = ModelOnDevice(compiled, weights, there)
    for found, exact in hold_conversation(model, Reference(weights.file.path)):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    with pytest.raises(ValueError, match="fit into the context"):
        model.feed([1])
