"""Drives a headless Chromium over its DevTools protocol, with nothing but the standard library.

    with Browser() as browser:
        page = browser.open("file:///…/index.html")
        page.evaluate("document.title")

Only what the tests of the site's scripts need: a page, JavaScript in it, keys as a reader presses them, a screen's
size, a colour scheme, a picture.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# WebGPU without a GPU: SwiftShader, which every Chromium carries, in the place of a Vulkan device
SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
_QUIET = (
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class BrowserError(Exception):
    """The browser did not start, went away, or a script in a page threw."""


def executable() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str:
    """Why no page can be run here, "" if one can."""
    return "" if executable() else "running a page needs Chromium, which is not installed"


class Browser:
    """A Chromium of its own, with an empty profile, until the `with` block ends."""

    def __init__(self, *flags: str, seconds: float = 60):
        self.flags, self.seconds = flags, seconds
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Browser:
        profile = self._closing.enter_context(
            tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        )
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        sandbox = ["--no-sandbox"] if root else []  # Chromium refuses to sandbox root
        self.process = subprocess.Popen(
            [executable(), *_QUIET, *sandbox, f"--user-data-dir={profile}", *self.flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._closing.callback(self._end)
        try:
            port, path = self._address(Path(profile) / "DevToolsActivePort")
            self._socket = self._closing.enter_context(_WebSocket(port, path, self.seconds))
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._closing.close()

    def open(self, url: str = "about:blank") -> Page:
        """A new page, loaded. Raises BrowserError if it cannot be."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, session["sessionId"])
        if url != "about:blank":
            page.go(url)
        return page

    def send(self, method: str, parameters: dict | None = None, session: str = "") -> dict:
        """One command of the protocol, and its result."""
        number = self._socket.send(method, parameters or {}, session)
        while True:
            answer = self._socket.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _address(self, file: Path) -> tuple[int, str]:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise BrowserError(f"Chromium ended at once ({self.process.returncode}).")
            lines = file.read_text(encoding="utf-8").split() if file.exists() else []
            if len(lines) == 2:
                return int(lines[0]), lines[1]
            time.sleep(0.05)
        raise BrowserError(f"Chromium did not start in {self.seconds} s.")

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


class Page:
    """One page of a Browser."""

    def __init__(self, browser: Browser, session: str):
        self.browser, self.session = browser, session
        self.send("Page.enable")

    def send(self, method: str, parameters: dict | None = None) -> dict:
        return self.browser.send(method, parameters, self.session)

    def go(self, url: str) -> None:
        """Load `url`, all of it. Raises BrowserError if there is nothing."""
        problem = self.send("Page.navigate", {"url": url}).get("errorText")
        if problem:
            raise BrowserError(f"{url}: {problem}")
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str):
        """The value of a JavaScript expression, awaited. Raises BrowserError with what it threw."""
        found = self.send(
            "Runtime.evaluate",
            {"expression": script, "awaitPromise": True, "returnByValue": True},
        )
        if "exceptionDetails" in found:
            thrown = found["exceptionDetails"]
            raise BrowserError(thrown.get("exception", {}).get("description") or thrown["text"])
        return found["result"].get("value")

    def wait_for(self, condition: str):
        """The value of the JavaScript expression as soon as it is true. Raises BrowserError if it never is."""
        end = time.monotonic() + self.browser.seconds
        while time.monotonic() < end:
            with contextlib.suppress(BrowserError):  # between two documents there is none to ask
                value = self.evaluate(condition)
                if value:
                    return value
            time.sleep(0.05)
        raise BrowserError(f"Not true within {self.browser.seconds} s: {condition}")

    def press(self, key: str, *, ctrl: bool = False, shift: bool = False, text: str = "") -> None:
        """Press and release a key: "Tab", "Enter", "ArrowDown", …"""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowUp": 38, "ArrowDown": 40}
        event = {
            "key": key,
            "code": "Space" if key == " " else key,
            "windowsVirtualKeyCode": code[key],
            "modifiers": 2 * ctrl + 8 * shift,
            **({"text": text} if text else {}),
        }
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", {"type": kind, **event})

    def screen(self, width: int, height: int) -> None:
        """Show the page on a screen of that many CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", size)

    def scheme(self, name: str) -> None:
        """Prefer "light" or "dark", as a system's setting does."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.send("Emulation.setEmulatedMedia", {"features": [feature]})

    def picture(self, path: Path) -> None:
        """Write what the page shows, all of its height, as PNG."""
        shot = self.send("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))


class _WebSocket:
    """The client's end of a WebSocket, as far as the DevTools protocol uses it: text messages of JSON."""

    def __init__(self, port: int, path: str, seconds: float):
        self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        self._number, self._buffer = 0, b""
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {urlsplit(path).path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        if not re.match(rb"HTTP/1\.1 101 ", head):
            raise BrowserError(f"Chromium refuses the connection: {head[:80]!r}")

    def __enter__(self) -> _WebSocket:
        return self

    def __exit__(self, *_) -> None:
        self._socket.close()

    def send(self, method: str, parameters: dict, session: str) -> int:
        """Send a command; returns the number that its answer will carry."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._frame(json.dumps(message).encode(), opcode=1)
        return self._number

    def receive(self) -> dict:
        """The next message, whole."""
        parts = []
        while True:
            first, second = self._take(2)
            size = second & 127
            if size > 125:
                width, code = (2, ">H") if size == 126 else (8, ">Q")
                (size,) = struct.unpack(code, self._take(width))
            data, opcode = self._take(size), first & 15
            if opcode == 8:
                raise BrowserError("Chromium closed the connection.")
            if opcode == 9:  # a ping wants its content back
                self._frame(data, opcode=10)
            if opcode < 8:
                parts.append(data)
                if first & 128:
                    return json.loads(b"".join(parts))

    def _frame(self, data: bytes, opcode: int) -> None:
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", 128 | opcode, 128 | size)
        elif size < 1 << 16:
            head = struct.pack(">BBH", 128 | opcode, 128 | 126, size)
        else:
            head = struct.pack(">BBQ", 128 | opcode, 128 | 127, size)
        # a client must mask; with a mask of zeros the data stays as it is
        self._socket.sendall(head + b"\0\0\0\0" + data)

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            raise BrowserError("Chromium does not answer.") from None
        if not data:
            raise BrowserError("Chromium has gone away.")
        self._buffer += data
