"""The end of what an answer printed; a loop may print more than anyone wants to hold in memory."""

from __future__ import annotations

from typing import BinaryIO

MOST_SHOWN = 4000


def tail(printed: BinaryIO) -> str:
    """The last MOST_SHOWN bytes of `printed` as text."""
    size = printed.seek(0, 2)
    printed.seek(max(0, size - MOST_SHOWN))
    return printed.read().decode("utf-8", "replace")
