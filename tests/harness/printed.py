"""The end of what an answer printed; a loop may print more than anyone wants to hold in memory."""

from __future__ import annotations

from typing import BinaryIO

MOST_SHOWN = 4000
CUT = "[… what was printed before this is not shown]"


def tail(printed: BinaryIO) -> str:
    """The last MOST_SHOWN bytes of `printed` as text, from a line's beginning and with a mark if there were more."""
    size = printed.seek(0, 2)
    printed.seek(max(0, size - MOST_SHOWN))
    text = printed.read().decode("utf-8", "replace")
    if size <= MOST_SHOWN:
        return text
    whole = text.partition("\n")[2] or text
    return f"{CUT}\n{whole}"
