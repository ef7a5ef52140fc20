"""Stops an answer that takes too long while the check goes on, so that the check can say what it was given."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Iterator

from chapters.runner.failure import CheckFailed


class TookTooLong(Exception):
    """The body of `limit_time` did not end in time."""


class DidNotEnd(CheckFailed):
    """The failure of an answer that was stopped."""


@contextlib.contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Interrupt the body, in the main thread, after `seconds`, and raise TookTooLong.

    A call into native code is interrupted when it calls Python next. Where native code swallows the interrupt, as TVM
    does in a visitor's method, the next one comes after as long again. A process that a shell started in the background
    ignores interrupts; meanwhile it does not.
    """
    over, ended, lock = threading.Event(), threading.Event(), threading.Lock()

    def watch() -> None:
        while not ended.wait(seconds):
            with lock:
                if not ended.is_set():
                    over.set()
                    _thread.interrupt_main()

    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # else the interrupt would be dropped
        signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        if not over.is_set():
            raise
    finally:
        with lock:
            ended.set()
        if over.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.01)  # the last interrupt may still be under way
        if not callable(before) and before is not None:
            signal.signal(signal.SIGINT, before)
    if over.is_set():
        raise TookTooLong
