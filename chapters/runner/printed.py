"""The end of what an answer printed: a loop may print more than anyone wants to read."""

from __future__ import annotations

MOST_SHOWN = 4000
# TVM prints this when an exception leaves a BlockBuilder or a mutator; the exception itself says more.
NOISE = "BlockBuilder destroyed with remaining blocks!"
CUT = "[… what was printed before this is not shown]"


def tail(printed: bytes) -> str:
    """The last MOST_SHOWN bytes as text, from the beginning of a line, with a mark if there were more.

    Lines with NOISE are left out.
    """
    text = printed[-MOST_SHOWN:].decode("utf-8", "replace")
    text = "".join(line for line in text.splitlines(keepends=True) if NOISE not in line)
    if len(printed) <= MOST_SHOWN:
        return text
    whole = text.partition("\n")[2] or text
    return f"{CUT}\n{whole}"
