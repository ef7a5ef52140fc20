"""`python -m chapters serve-device`: lets another machine use this one's GPU, through TVM's RPC server.

TVM's RPC has no password and no encryption, and a caller can run any program here. So it listens on 127.0.0.1 unless it
is told otherwise, where only this machine and ssh tunnels reach it.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import time

from chapters.kit.gpu.call import choose_compiler

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class CannotServe(Exception):
    """The server cannot start; the message says why and what to do."""


def serve(host: str, port: int, key: str) -> int:
    """Serve until Ctrl-C or SIGTERM, then end the server's processes."""
    if not importlib.util.find_spec("cloudpickle"):
        raise CannotServe(
            "serve-device needs the package cloudpickle, which TVM's RPC server uses: pip install -e '.[remote]'."
        )
    choose_compiler()
    from tvm import rpc

    try:
        server = rpc.Server(
            host,
            port,
            port + 1,
            key=key,
            silent=True,
            no_fork=sys.platform != "linux",  # Metal does not survive a fork
            server_init_callback=_leave_interrupts_to_parent,
        )
    except Exception as error:
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CannotServe(
            f"The server cannot listen at {host}:{port} ({last}). Is another one running there? --port chooses another "
            "port."
        ) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _describe(host, port, key)
        while server.proc.is_alive():
            time.sleep(0.5)
        raise CannotServe("The server's process ended by itself; its last lines above say why.")
    except KeyboardInterrupt:
        print("\nNo longer serving.")
        return 0
    finally:
        server.terminate()


def _leave_interrupts_to_parent() -> None:
    """What the server's process does first: ignore Ctrl-C, because the parent ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _describe(host: str, port: int, key: str) -> None:
    """Print what is served, and how to reach it."""
    from chapters.kit.measure.devices import DeviceError, open_device

    try:
        print(f"Serving {open_device('', '').name}.")
    except DeviceError:
        print("!! TVM finds no GPU on this machine; `python -m chapters doctor` says why.")
    print(f"Listening at {host}:{port}. Ctrl-C ends.")
    local = host in LOOPBACK
    if local:
        print(
            "On the machine with the course, with this machine's name in place of GPU-MACHINE:\n"
            f"    ssh -N -L {port}:127.0.0.1:{port} GPU-MACHINE      # in a terminal of its own"
        )
    else:
        print(
            f"!! Everyone who reaches port {port} can run programs on this machine: TVM's RPC has no password and no "
            "encryption. Do this only in a network that you trust.\nOn the machine with the course:"
        )
    at = f"{'127.0.0.1' if local else 'HOST'}:{port}{f'/{key}' if key else ''}"
    print(f"    python -m chapters check 8.2 --remote {at}", flush=True)
