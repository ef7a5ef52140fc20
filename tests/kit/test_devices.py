"""Kernels on devices: a CPU behind TVM's RPC on the loopback, Vulkan without a GPU, CUDA text up to the launch."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.on_device import EXERCISES, reference
from chapters.ch11_a_real_model.passes import phases
from chapters.kit.bench import vendor
from chapters.kit.bench.on_device import Linear, cannot, check, measure, tile_of
from chapters.kit.chat.compiled import compile_decoder
from chapters.kit.chat.gguf_file import read_gguf
from chapters.kit.chat.on_device import ModelOnDevice
from chapters.kit.chat.weights import Weights, read_config
from chapters.kit.devices import connect as connecting
from chapters.kit.devices import cuda_driver, device
from chapters.kit.devices.connect import Address, DeviceError, connect, parse
from chapters.kit.devices.device import Device, NoDevice, open_device
from chapters.kit.gpu import call, wgsl_on_vulkan
from chapters.kit.gpu.call import executable
from chapters.kit.gpu.executors import required
from chapters.kit.quantized.dot_products import lanes_of
from tests.support.served import KEY, free_port, left, needs_server, served

QUICK = {"rounds": 2, "seed": 0}
SMALL = dataclasses.replace(EXERCISES["8.4"], large=lambda tile, slow: Linear(64, 64, 16))
needs_vulkan = pytest.mark.skipif(bool(wgsl_on_vulkan.missing()), reason=wgsl_on_vulkan.missing())


@pytest.mark.skipif(not required(), reason="nothing is required here")
def test_what_the_tests_of_rpc_need_is_required_too():
    import cloudpickle  # noqa: F401
    import tornado  # noqa: F401


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


# --- what is not the reference's kernel -----------------------------------------------------------


def answer(**changed):
    """The reference with some of its names changed."""
    return SimpleNamespace(**{**vars(reference), **changed})


# --- an address, and who answers there ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9090", Address("127.0.0.1", 9090)),
        ("jetson:9190/orin", Address("jetson", 9190, "orin")),
        ("[::1]:9090/a", Address("::1", 9090, "a")),
    ],
)
def test_an_address(text, address):
    assert parse(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "jetson", "jetson:", ":9090", "jetson:0", "jetson:99999", "a:1/b/c", "a:1/", "a b:1"],
)
def test_what_is_no_address(text):
    with pytest.raises(DeviceError, match=r"is no address\. Write HOST:PORT"):
        parse(text)


def test_nothing_answers():
    with pytest.raises(DeviceError, match=r"Nothing answers at 127\.0\.0\.1:\d+ .*serve-device"):
        connect(Address("127.0.0.1", free_port()))
    with pytest.raises(DeviceError, match=r"Nothing answers at no-such-host\.invalid:9090"):
        connect(Address("no-such-host.invalid", 9090))


@contextlib.contextmanager
def listening(says: bytes | None):
    """The address of something that is not TVM: it answers `says`; None for never."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(4)
        stop = threading.Event()

        def answer_calls() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = found.accept()
                    if says is None:
                        stop.wait()
                    else:
                        line.sendall(says)
                    line.close()

        threading.Thread(target=answer_calls, daemon=True).start()
        yield Address("127.0.0.1", found.getsockname()[1])
        stop.set()


def test_something_else_answers():
    with listening(b"SSH-2.0-OpenSSH") as address, pytest.raises(DeviceError) as caught:
        connect(address)
    assert "Something else than TVM's RPC answers" in str(caught.value)


def test_something_silent_does_not_hang(monkeypatch):
    monkeypatch.setattr(connecting, "PATIENCE", 0.3)
    with listening(None) as address, pytest.raises(DeviceError) as caught:
        connect(address)
    assert "does not answer within 0.3 s" in str(caught.value)


@needs_server
@pytest.mark.parametrize(("key", "says"), [("", "a caller without a key"), ("x", "the key 'x'")])
def test_a_wrong_key_is_refused(server, key, says):
    with pytest.raises(DeviceError, match=f"refuses {says}. Use the key that it was started with"):
        connect(Address("127.0.0.1", server.port, key))


@needs_server
def test_a_busy_server_says_so_and_is_free_again_afterwards(server, monkeypatch):
    first = open_device("llvm", server.address)
    monkeypatch.setattr(connecting, "PATIENCE", 0.5)
    with pytest.raises(DeviceError, match="it is busy with another session"):
        open_device("llvm", server.address)
    monkeypatch.undo()
    del first
    assert open_device("llvm", server.address).is_remote


@needs_server
def test_a_tracker_hands_out_boards_by_key(monkeypatch):
    pytest.importorskip("tornado", reason="needs `pip install -e '.[remote]'`")
    port = free_port()
    command = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--silent"]
    tracker = subprocess.Popen(
        [*command, "--port", str(port), "--port-end", str(port + 1)], start_new_session=True
    )
    at = f"127.0.0.1:{port}"
    try:
        _wait_for(port)
        with pytest.raises(
            DeviceError, match="Its keys are: none, because no board has registered"
        ):
            open_device("llvm", f"{at}/{KEY}")
        with served("--tracker", at):
            for text, says in ((at, "boards by key"), (f"{at}/x", "no board with the key 'x'")):
                with pytest.raises(DeviceError, match=rf"has {says}. Its keys are: {KEY}"):
                    open_device("llvm", text)
            board = open_device("llvm", f"{at}/{KEY}")
            assert check(SMALL, reference, board).wrong == ""
            with pytest.raises(DeviceError, match="are busy"):
                open_device("llvm", f"{at}/{KEY}")
    finally:
        family = [
            psutil.Process(tracker.pid),
            *psutil.Process(tracker.pid).children(recursive=True),
        ]
        for one in family:
            one.kill()
        tracker.wait(10)


def _wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the tracker did not start")


# --- kernels behind RPC ---------------------------------------------------------------------------


@needs_server
def test_a_kernel_is_right_and_timed_behind_rpc(server):
    remote = open_device("llvm", server.address)
    for name in ("8.2", "8.4"):
        assert check(EXERCISES[name], reference, remote).wrong == ""
    found = measure(SMALL, {"yours": reference, "the reference": reference}, remote, **QUICK)
    assert set(found.times) == {"yours", "the reference"} and not found.wrong
    assert all(0 < time.median < 1 for time in found.times.values())
    assert found.without == [f"no vendor library: the TVM at {remote.address} has no cuBLAS"]


def test_a_wrong_kernel_is_found_and_not_timed(here):
    """It leaves out the last column."""

    def func(answer, problem, tile):
        m, n, k = problem.m, problem.n, problem.k
        wide = n if answer is reference else n - 1

        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((m, k), "float32"),
            B: T.Buffer((n, k), "float32"),
            C: T.Buffer((n,), "float32"),
            D: T.Buffer((m, n), "float32"),
        ):
            for i, j in T.grid(m, wide):
                with T.sblock("start"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = C[vj]
            for i, j, p in T.grid(m, wide, k):
                with T.sblock("sum"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                    D[vi, vj] = D[vi, vj] + A[vi, vk] * B[vj, vk]

        return main

    case = dataclasses.replace(SMALL, func=func)
    assert check(case, reference, here).wrong == ""
    wrong = answer()
    said = check(case, wrong, here).wrong
    assert "element [0, 63] was not written and must be" in said and "32 of 2048 elements" in said
    timed = measure(case, {"yours": wrong, "the reference": reference}, here, **QUICK)
    assert "was not written" in timed.wrong and not timed.times
    timed = measure(case, {"other": wrong, "the reference": reference}, here, **QUICK)
    assert list(timed.times) == ["the reference"] and "numbers are wrong" in timed.without[0]


def test_a_kernel_that_is_not_bound_is_one_sentence():
    if wgsl_on_vulkan.missing():
        pytest.skip(wgsl_on_vulkan.missing())
    with pytest.raises(DeviceError, match="no loop is bound to blocks and threads"):
        check(EXERCISES["8.2"], answer(bind_elementwise=lambda *_: None), open_device("vulkan", ""))


@needs_server
def test_a_machine_that_goes_away_is_one_sentence():
    with served() as server:
        remote = open_device("llvm", server.address)
        problem = Linear(64, 64, 16)
        arrays = problem.arrays(0)
        prepared = remote.prepare(
            EXERCISES["8.4"].func(reference, problem, ThreadTile(16, 32, 8, 2, 4)), arrays
        )
        prepared.call()
        server.kill()
        with pytest.raises(
            DeviceError, match=r"went away, running the kernel\. See whether serve-device"
        ):
            prepared.call()


@needs_server
def test_a_session_that_takes_too_long_is_ended_by_the_server(server):
    remote = open_device("llvm", server.address, seconds=2)
    time.sleep(4)
    with pytest.raises(DeviceError, match=r"stopped the session|went away"):
        check(SMALL, reference, remote)
    assert open_device("llvm", server.address).is_remote, "the next caller is served"


# --- the server's processes -----------------------------------------------------------------------


@needs_server
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
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
    from chapters.kit.devices import serve

    with pytest.raises(serve.CannotServe, match="--port chooses another"):
        serve.serve("127.0.0.1", server.port, KEY, "")
    with pytest.raises(serve.CannotServe, match="add --key"):
        serve.serve("127.0.0.1", 9090, "", "127.0.0.1:9190")
    with pytest.raises(serve.CannotServe, match="--tracker foo is no address"):
        serve.serve("127.0.0.1", 9090, KEY, "foo")
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(serve.CannotServe, match=r"pip install -e '\.\[remote\]'"):
        serve.serve("127.0.0.1", 9090, KEY, "")


# --- CUDA text, up to the launch ------------------------------------------------------------------

CUDA_HOSTS = {"x86-64": "x86_64-unknown-linux-gnu", "a Jetson": "aarch64-unknown-linux-gnu"}


@pytest.mark.parametrize("host", CUDA_HOSTS)
@pytest.mark.parametrize("name", EXERCISES)
def test_what_a_machine_with_cuda_is_sent(name, host, tmp_path):
    """Every exercise's kernel on its timed size: CUDA text, and host code for the processor that is there."""
    exercise = EXERCISES[name]
    func = exercise.func(reference, exercise.large(exercise.tile, True), exercise.tile)
    target = Target(
        {"kind": "cuda", "arch": "sm_87"}, host={"kind": "llvm", "mtriple": CUDA_HOSTS[host]}
    )
    path = device.sent(executable(func, target), tmp_path)
    with tarfile.open(path) as packed:
        held = {one.name: packed.extractfile(one).read() for one in packed if one.isfile()}
    machine = {"x86-64": 62, "a Jetson": 183}[host]  # e_machine of ELF
    assert {int.from_bytes(data[18:20], "little") for data in held.values()} == {machine}
    assert any(
        b"__global__" in data or b".version" in data or b"\x7fELF" in data[64:]
        for data in held.values()
    )


class FakeGpu:
    """What TVM says of a CUDA device."""

    exist, device_name, compute_version = True, "NVIDIA Test", "8.7"
    max_threads_per_block, max_shared_memory_per_block, warp_size = 1024, 49152, 32


def test_the_target_is_what_the_gpu_says(monkeypatch):
    monkeypatch.setattr(device.tvm.runtime, "device", lambda kind, index: FakeGpu())
    found = Device("cuda", 1)
    assert found.name == "cuda:1 (NVIDIA Test)" and str(found.target.attrs["arch"]) == "sm_87"
    assert (
        int(found.target.attrs["max_num_threads"]) == 1024 and found.target.host.kind.name == "llvm"
    )


@pytest.mark.parametrize(
    ("there", "asked", "says"),
    [
        (1, "cuda:1", r"There is no cuda:1\. This machine has one CUDA device: use cuda:0\."),
        (
            2,
            "cuda:2",
            r"There is no cuda:2\. This machine has 2 CUDA devices: use cuda:0 and cuda:1\.",
        ),
    ],
)
def test_a_number_that_no_device_has(monkeypatch, there, asked, says):
    monkeypatch.setattr(device, "_count", lambda kind, made: there if kind == "cuda" else 0)
    with pytest.raises(DeviceError, match=says):
        open_device(asked, "")


def test_the_second_of_two_gpus_is_used(monkeypatch):
    monkeypatch.setattr(device, "_count", lambda kind, made: 2 if kind == "cuda" else 0)
    asked = []
    monkeypatch.setattr(
        device.tvm.runtime, "device", lambda kind, index: asked.append((kind, index)) or FakeGpu()
    )
    assert open_device("cuda:1", "").title == "cuda:1" and asked == [("cuda", 1)]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("cuda", "There is no CUDA device here.*--device vulkan runs WGSL"),
        ("metal", "There is no Metal device here"),
        ("opencl", "writes OpenCL code and has no OpenCL runtime"),
        ("rocm", "writes ROCm code and has no ROCm runtime"),
    ],
)
def test_a_device_that_is_not_here(asked, says):
    if tvm.runtime.device(asked, 0).exist:
        pytest.skip("this machine has one")
    with pytest.raises(NoDevice, match=says):
        open_device(asked, "")


@needs_server
def test_a_machine_without_the_device_is_named(server):
    with pytest.raises(
        DeviceError, match=rf"The machine at 127.0.0.1:{server.port} has no Metal device"
    ):
        open_device("metal", server.address)


class FakeRuntime:
    """libcudart, where the driver supports CUDA 12.2 and the runtime is 13.0."""

    def __init__(self, status: int):
        self.status = status

    def __getitem__(self, name: str):
        def version(pointer) -> int:
            pointer._obj.value = {"cudaDriverGetVersion": 12020, "cudaRuntimeGetVersion": 13000}[
                name
            ]
            return 0

        return version

    def cudaGetDeviceCount(self, _pointer) -> int:
        return self.status


def test_a_driver_that_is_too_old_is_named_with_both_versions():
    said = cuda_driver.too_old(lambda name: FakeRuntime(cuda_driver.INSUFFICIENT_DRIVER))
    assert (
        "supports CUDA 12.2, and TVM's CUDA runtime is 13.0" in said
        and "driver for CUDA 13" in said
    )
    assert cuda_driver.too_old(lambda name: FakeRuntime(0)) == ""
    assert cuda_driver.too_old(lambda name: None) == "", "without a driver it is not too old"


# --- vendors, tiles, and Vulkan without a GPU -----------------------------------------------------


def test_the_library_of_a_tvm_that_has_one_takes_part(here, monkeypatch):
    """TVM's own function for cuBLAS, which the wheel lacks, stands in; then one that gives wrong numbers."""
    monkeypatch.setattr(vendor, "CUBLAS", "tvm.contrib.cublas.matmul")
    factor = [1.0]

    def product(a, b, d, _transpose_a, _transpose_b):
        d.copyfrom(factor[0] * (a.numpy() @ b.numpy().T))

    tvm_ffi.register_global_func("tvm.contrib.cublas.matmul", product)
    try:
        found = measure(SMALL, {"the reference": reference}, here, **QUICK)
        assert "cuBLAS, without the bias" in found.times
        factor[0] = 1.01
        found = measure(SMALL, {"the reference": reference}, here, **QUICK)
        assert list(found.times) == ["the reference"]
        assert any("cuBLAS" in one and "numbers are wrong" in one for one in found.without)
    finally:
        tvm_ffi.registry.remove_global_func("tvm.contrib.cublas.matmul")


@pytest.mark.parametrize(
    ("exercise", "numbers", "says"),
    [
        ("8.4", "64,64", "a tile is block_m,block_n,block_k,thread_m,thread_n"),
        ("8.4", "a,b", "whole numbers with commas"),
        ("8.4", "64,64,16,0,4", "must be 1 or more"),
        ("8.4", "64,64,16,5,4", "the fourth number of a tile must divide the first"),
        ("8.4", "64,64,16,1,1", "blocks of 4096 threads, and 1024 are allowed"),
        ("8.11", "64,64,32,8,32", "multiples of 16"),
        ("8.2", "2048,4", "threads,vector: 1 to 1024"),
        ("8.10", "1,2", "has no tile to choose"),
    ],
)
def test_a_tile_that_cannot_be_is_one_sentence(exercise, numbers, says):
    with pytest.raises(DeviceError, match=says):
        tile_of(EXERCISES[exercise], numbers)


def test_a_tile_of_ones_own_is_measured(here):
    tile = tile_of(EXERCISES["8.4"], "48,32,8,3,4")
    assert tile == ThreadTile(48, 32, 8, 3, 4)
    assert str(EXERCISES["8.4"].large(tile, True)) == "288 × 256 × 256 float32", "whole blocks"
    case = dataclasses.replace(SMALL, large=lambda tile, slow: Linear(48, 32, 16))
    assert measure(case, {"yours": reference}, here, tile=tile, **QUICK).times["yours"].median > 0


def test_what_cannot_run_on_a_device_says_why(here):
    assert "share memory" in cannot(EXERCISES["8.5"], here)
    assert "NVIDIA" in cannot(EXERCISES["8.7"], here) and cannot(EXERCISES["8.4"], here) == ""


@needs_vulkan
@pytest.mark.parametrize("name", ["8.2", "8.4", "8.5", "8.10"])
def test_kernels_on_vulkan(name):
    vulkan = open_device("vulkan", "")
    assert "as WGSL" in vulkan.name and cannot(EXERCISES[name], vulkan) == ""
    assert check(EXERCISES[name], reference, vulkan).wrong == ""
    large = dataclasses.replace(
        EXERCISES[name], large=lambda tile, slow: EXERCISES[name].small[0][0]
    )
    tile = EXERCISES[name].small[0][1]
    found = measure(large, {"yours": reference}, vulkan, tile=tile, **QUICK)
    assert 0 < found.times["yours"].median < 1


@needs_vulkan
def test_there_is_one_device_of_wgpu():
    with pytest.raises(
        DeviceError, match=r"There is no vulkan:1\. This machine has one Vulkan device"
    ):
        open_device("vulkan:1", "")


def test_cuda_text_is_compiled_by_nvcc_where_nvrtc_fails(monkeypatch):
    monkeypatch.delenv(call.MODE, raising=False)
    modes = []

    def load():
        modes.append(os.environ.get(call.MODE, "nvrtc"))
        if modes[-1] == "nvrtc":
            raise RuntimeError("no cuda-bindings")
        return "loaded"

    assert call.with_either_compiler(load) == "loaded" and modes == ["nvrtc", "nvcc"]
    assert call.MODE not in os.environ
    monkeypatch.setenv(call.MODE, "nvrtc")
    with pytest.raises(RuntimeError, match="no cuda-bindings"):
        call.with_either_compiler(load)


@pytest.mark.parametrize(
    ("nvrtc", "nvcc", "chosen"), [(True, True, None), (False, True, "nvcc"), (False, False, None)]
)
def test_the_compiler_that_is_there_is_chosen(monkeypatch, nvrtc, nvcc, chosen):
    monkeypatch.setenv(cuda_driver.MODE, "x")  # so that it is as before afterwards
    monkeypatch.delenv(cuda_driver.MODE)
    monkeypatch.setattr(cuda_driver, "_has_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(cuda_driver.shutil, "which", lambda name: "/nvcc" if nvcc else None)
    cuda_driver.choose_compiler()
    assert os.environ.get(cuda_driver.MODE) == chosen
    assert cuda_driver.has_compiler() == (nvrtc or nvcc)


# --- the chat -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """target -> (the tests' Llama, its weights, its decoder for `target`, the names of its parameters)."""
    from tests.kit.test_chat_model import LLAMAS  # which skips without gguf

    llama, made = LLAMAS["Q4_1, and Q8_0 shared"], {}
    file = read_gguf(llama.save(tmp_path_factory.mktemp("model") / "model.gguf"))

    def compiled(target):
        if str(target) not in made:
            weights = Weights(file, read_config(file), lanes_of(target))
            found = compile_decoder(weights, target, phases, exact=True)
            made[str(target)] = llama, weights, *found
        return made[str(target)]

    return compiled


def test_a_chat_is_compiled_for_a_gpu(decoder, monkeypatch, tmp_path):
    """For CUDA as far as its text."""
    monkeypatch.setattr(device.tvm.runtime, "device", lambda kind, index: FakeGpu())
    target = Device("cuda", 0).target
    monkeypatch.undo()
    _, _, executable, _ = decoder(target)
    with tarfile.open(device.sent(executable, tmp_path)) as packed:
        assert any(b"__global__" in packed.extractfile(one).read() for one in packed)


@needs_server
@pytest.mark.parametrize("where", ["here", "behind RPC"])
def test_a_chat_on_a_device_gives_the_same_logits(decoder, where, request):
    at = "" if where == "here" else request.getfixturevalue("server").address
    there = open_device("llvm", at)
    from tests.kit.test_chat_model import Reference, conversation

    llama, weights, executable, names = decoder(there.target)
    model = ModelOnDevice(executable, weights, names, there, "float32")
    for found, exact in conversation(model, Reference(llama)):
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    with pytest.raises(ValueError, match="fit into the context"):
        model.feed([1])
