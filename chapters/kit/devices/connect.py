"""Reaches a machine with a GPU through TVM's RPC: a server, or a tracker that hands out one of its boards.

TVM's client waits without a limit for a server that is busy, and for a board that no tracker has. So the address is
asked first, through a socket with a time limit, who is there.
"""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass

from tvm import rpc
from tvm.rpc import base

from chapters.kit.devices.device_error import DeviceError

PATIENCE = 5.0  # seconds in which a server must answer


@dataclass(frozen=True)
class Address:
    """HOST:PORT[/KEY], as `--remote` takes it. key: the server's own, or that of a tracker's boards; "" for none."""

    host: str
    port: int
    key: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(text: str) -> Address:
    """The Address in `text`. Raises DeviceError if it is none."""
    found = re.fullmatch(
        r"(?:\[([^\[\]]+)\]|([^\[\]:/\s]+)):(\d{1,5})(?:/([^\s/]+))?", text.strip()
    )
    if not found or not 0 < int(found[3]) < 65536:
        raise DeviceError(
            f"--remote {text} is no address. Write HOST:PORT or HOST:PORT/KEY, as in 127.0.0.1:9090/gpu."
        )
    return Address(found[1] or found[2], int(found[3]), found[4] or "")


def connect(address: Address, seconds: int = 0) -> rpc.RPCSession:
    """A session on the machine at `address`. Raises DeviceError.

    seconds: after which the server ends the session; 0 for never. A tracker may give another board to each session.
    """
    if is_tracker(address):
        return _from_tracker(address, seconds)
    try:
        return rpc.connect(address.host, address.port, address.key, session_timeout=seconds)
    except Exception as error:
        if "cannot find server that matches key" in str(error):
            given = f"the key {address.key!r}" if address.key else "a caller without a key"
            raise DeviceError(
                f"The server at {address} refuses {given}. Use the key that it was started with: "
                f"--remote {address}/KEY."
            ) from None
        raise DeviceError(
            f"{address} answers, but not as TVM's RPC does: {_short(error)}"
        ) from None


def is_tracker(address: Address) -> bool:
    """True for a tracker, False for a server. Raises DeviceError if neither answers in time."""
    try:
        with socket.create_connection((address.host, address.port), timeout=PATIENCE) as line:
            line.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))  # a server hangs up
            try:
                answer = line.recv(4)
            except TimeoutError:
                raise DeviceError(
                    f"{address} takes the call and does not answer within {PATIENCE:g} s. If a server of TVM runs "
                    "there, it is busy with another session: wait until that ends, or start a second server."
                ) from None
            except ConnectionResetError:
                answer = b""
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise DeviceError(
            f"Nothing answers at {address} ({reason}). Start `python -m chapters serve-device` on the machine with the "
            "GPU. If it is behind ssh, keep the tunnel open (docs/setup.md, “A GPU elsewhere”)."
        ) from None
    if answer in (b"", struct.pack("<i", base.RPC_TRACKER_MAGIC)):
        return bool(answer)
    raise DeviceError(
        f"Something else than TVM's RPC answers at {address}. Use the port that serve-device or the tracker printed."
    )


def _from_tracker(address: Address, seconds: int) -> rpc.RPCSession:
    tracker = rpc.connect_tracker(address.host, address.port)
    try:
        queues = tracker.summary()["queue_info"]
        boards = [one["key"].partition(":")[2] for one in tracker.summary()["server_info"]]
        queue = queues.get(address.key)
        if queue is None or address.key not in boards:
            known = ", ".join(sorted(set(boards))) or "none, because no board has registered"
            given = f"no board with the key {address.key!r}" if address.key else "boards by key"
            raise DeviceError(
                f"{address} is a tracker and has {given}. Its keys are: {known}. Write --remote {address}/KEY."
            )
        if not queue["free"]:
            raise DeviceError(
                f"All boards with the key {address.key} of the tracker at {address} are busy. Try again later."
            )
        return tracker.request(address.key, session_timeout=seconds, max_retry=1)
    except (OSError, RuntimeError) as error:
        raise DeviceError(
            f"The tracker at {address} gives no board with the key {address.key}: {_short(error)}"
        ) from None
    finally:
        tracker.close()


def _short(error: Exception) -> str:
    """The first line of a message, ended by one full stop."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip()[:200].rstrip(".") + "."
