"""What a check says when an answer is not right, and how that is laid out for a reader."""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict, dataclass, field

LONGEST = 20_000  # characters that a learner's screen can take
WIDTH = 88  # as wide as a code block on the site
MOST_SHOWN = (
    4000  # bytes of what an answer has printed: a loop may print more than anyone wants to read
)
# TVM prints this when an exception leaves a BlockBuilder or a mutator; the exception itself says more.
NOISE = "BlockBuilder destroyed with remaining blocks!"
CUT = "[… what was printed before this is not shown]"


@dataclass
class Failure:
    """A failed check in the order it is read.

    what: one sentence. expected, yours: values or an IR diff. why: why it matters. read: where to read on.
    like: the name and text of the catalogued mistake the answer behaves like, if any.
    """

    what: str
    expected: str = ""
    yours: str = ""
    why: str = ""
    read: str = ""
    like: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """Its fields, each text of at most LONGEST characters."""
        return {
            name: shorten(value, LONGEST) if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }


def shorten(text: str, longest: int) -> str:
    """`text`, or the beginning and the end of a long one."""
    left_out = len(text) - longest
    if left_out <= 0:
        return text
    return f"{text[: longest // 2]} [… {left_out} characters …] {text[-longest // 2 :]}"


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


class CheckFailed(AssertionError):
    """Raised by a check; carries a Failure."""

    def __init__(
        self, what: str, *, expected: object = "", yours: object = "", why: str = "", read: str = ""
    ):
        super().__init__(what)
        self.failure = Failure(what, str(expected), str(yours), why, read)


class Skip(Exception):
    """Raised by a check that cannot run on this machine; the message says what it needs."""


def message_of(error: BaseException) -> str:
    """The message of `error`, which may be long, or of a class of the learner's that cannot say it."""
    try:
        return str(error)
    except BaseException as second:
        return f"(its message could not be made: {type(second).__name__})"


def exercise_to_write(error: BaseException) -> str:
    """The "exercise 2.1" that a stub has raised, perhaps through TVM; "" for any other error."""
    said = message_of(error)
    return said if re.fullmatch(r"exercise \d+\.\d+", said) else ""


def _lay_out(label: str, text: str) -> list[str]:
    """A sentence is wrapped beside its label; code and IR follow beneath the label, unchanged."""
    lines = text.rstrip().split("\n")
    if len(lines) > 1:
        return [f"  {label}", *(f"    {line}" for line in lines)]
    wrapped = textwrap.wrap(lines[0], WIDTH - 12, break_long_words=False, break_on_hyphens=False)
    return [f"  {label if n == 0 else '':<9} {part}" for n, part in enumerate(wrapped or [""])]


def render(failure: dict, *, check: str, hint: str) -> str:
    """The text a learner sees. `check` is the check's title, `hint` the command for the next hint."""
    lines = [f"✗ {failure['what']}", f"  checked   {check}"]
    for label in ("expected", "yours"):
        if failure[label]:
            lines += _lay_out(label, failure[label])
    like = failure["like"]
    if like:
        lines.append(f"  This looks like: {like['what']}")
    if why := like.get("why") or failure["why"]:
        lines += _lay_out("because", why)
    if read := like.get("read") or failure["read"]:
        lines.append(f"  read      {read}")
    if hint:
        lines.append(f"  hint      {hint}")
    return "\n".join(lines)
