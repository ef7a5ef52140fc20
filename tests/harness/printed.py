"""The end of what an answer printed; a loop may print more than anyone wants to hold in memory."""

from __future__ import annotations

from typing import BinaryIO

MOST_SHOWN = 4000
# TVM prints it when an exception leaves a BlockBuilder or a mutator; the exception itself says more.
NOISE = "BlockBuilder destroyed with remaining blocks!"
CUT = "[… what was printed before this is not shown]"


def tail(printed: BinaryIO) -> str:
    """The last MOST_SHOWN bytes of `printed` as text, from a line's beginning and with a mark if there were more.

    Lines with NOISE are left out.
    """
    size = printed.seek(0, 2)
    printed.seek(max(0, size - MOST_SHOWN))
    text = printed.read().decode("utf-8", "replace")
    text = "".join(line for line in text.splitlines(keepends=True) if NOISE not in line)
    if size <= MOST_SHOWN:
        return text
    whole = text.partition("\n")[2] or text
    return f"{CUT}\n{whole}"
