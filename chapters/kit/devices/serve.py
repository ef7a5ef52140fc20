"""`python -m chapters serve-device`: lets another machine use this one's GPU, through TVM's RPC server.

TVM's RPC has no password and no encryption, and a caller can run any program here. So it listens on 127.0.0.1 unless it
is told otherwise, where only this machine and ssh tunnels reach it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import threading
import time

from chapters.kit.devices import cuda_driver

LOOPBACK = ("127.0.0.1", "::1", "localhost")
COMPILERS = ("g++", "gcc", "clang++", "clang", "cc")


class CannotServe(Exception):
    """The server cannot start; the message says why and what to do."""


def serve(host: str, port: int, key: str, tracker: str) -> int:
    """Serve until Ctrl-C or SIGTERM, then end every process of the server. tracker: HOST:PORT of a tracker, or ""."""
    if not importlib.util.find_spec("cloudpickle"):
        raise CannotServe(
            "serve-device needs the package cloudpickle, which TVM's RPC server uses: pip install -e '.[remote]'."
        )
    at = _tracker(tracker, key)
    cuda_driver.choose_compiler()
    from tvm import rpc

    try:
        server = rpc.Server(
            host,
            port,
            port + 1,
            key=key,
            tracker_addr=at,
            custom_addr=None if host in ("0.0.0.0", "::") else host,
            silent=True,
            no_fork=sys.platform != "linux",  # Metal does not survive a fork
            server_init_callback=_end_with_parent_of(os.getpid()),
        )
    except Exception as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CannotServe(
            f"The server cannot listen at {host}:{port} ({last}). Is another one running there? --port chooses another "
            "port."
        ) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _say(host, port, key, tracker)
        while server.proc.is_alive():
            time.sleep(0.5)
        raise CannotServe("The server's process ended by itself; its last lines above say why.")
    except KeyboardInterrupt:
        print("\nNo longer serving.")
        return 0
    finally:
        server.terminate()


def _tracker(text: str, key: str) -> tuple[str, int] | None:
    if not text:
        return None
    from chapters.kit.devices.connect import DeviceError, is_tracker, parse

    if not key:
        raise CannotServe("A tracker finds boards by their key: add --key, such as --key jetson.")
    try:
        address = parse(text)
        if not is_tracker(address):
            raise CannotServe(
                f"{address} is not a tracker. Start one there: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port "
                f"{address.port}."
            )
    except DeviceError as error:
        raise CannotServe(str(error).replace("--remote", "--tracker")) from None
    return address.host, address.port


def _end_with_parent_of(parent: int):
    """What the server's process does first: watch the process `parent`, and end with it, however that ends."""

    def watch() -> None:
        import psutil

        while True:
            with contextlib.suppress(psutil.Error):
                if psutil.Process(parent).status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.5)
                    continue
            for session in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    session.kill()
            os._exit(0)

    def begin() -> None:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C is for the parent, which ends this process
        threading.Thread(target=watch, daemon=True).start()

    return begin


def _say(host: str, port: int, key: str, tracker: str) -> None:
    from chapters.kit.devices.device import DeviceError, open_device

    name = ""
    try:
        name = open_device("", "").name
        print(f"Serving {name}.")
    except DeviceError:
        print("!! TVM finds no GPU on this machine; `python -m chapters doctor` says why.")
    if name.startswith("cuda") and not cuda_driver.has_compiler():
        print(
            "!! Nothing here compiles the CUDA text that arrives: pip install cuda-bindings nvidia-cuda-nvrtc."
        )
    print(f"Listening at {host}:{port}. Ctrl-C ends.", flush=True)
    if not any(shutil.which(one) for one in COMPILERS):
        print(
            "!! There is no C compiler here, which links the kernels that arrive: sudo apt install g++."
        )
    suffix = f"/{key}" if key else ""
    if tracker:
        print(
            f"Registered with the tracker at {tracker}: --remote {tracker}/{key} asks it for a board."
        )
    elif host in LOOPBACK:
        print(
            "On the machine with the course, with this machine's name in place of GPU-MACHINE:\n"
            f"    ssh -N -L {port}:127.0.0.1:{port} GPU-MACHINE      # in a terminal of its own\n"
            f"    python -m chapters check 8.4 --remote 127.0.0.1:{port}{suffix}"
        )
    else:
        print(
            f"On the machine with the course: python -m chapters check 8.4 --remote HOST:{port}{suffix}"
        )
    if host not in LOOPBACK:
        print(
            f"!! Everyone who reaches port {port} can run programs on this machine: TVM's RPC has no password and no "
            "encryption. Do this only in a network that you trust."
        )
    sys.stdout.flush()
