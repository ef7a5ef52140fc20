"""One block of the type Q4_1, taken apart: which byte holds which codes, and what each code becomes.

`unpacked_block(block)` draws it from `read_quantized_rows`, which reads the blocks of files. To find the weight to
which half a byte belongs, it changes that half, and looks which code changes.
"""

from __future__ import annotations

import html
from collections.abc import Callable

import numpy as np

from chapters.kit.draw.stepper import Panel, Stepper, attributes, step_attribute
from chapters.kit.quantized.weight_blocks import QuantizedRows, read_quantized_rows

NUMBERS = 4  # bytes of the scale and the minimum, before those of the codes
MASKS = {"low": 0x0F, "high": 0xF0}


def find_weights(block: np.ndarray) -> dict[str, list[int]]:
    """For the low and the high halves of the bytes of codes, in order: the number of the weight whose code it is."""
    codes = _read(block).codes[0]
    found = {}
    for name, mask in MASKS.items():
        found[name] = []
        for at in range(NUMBERS, len(block)):
            other = block.copy()
            other[at] ^= mask
            (weight,) = np.flatnonzero(_read(other).codes[0] != codes)
            found[name].append(int(weight))
    return found


def _read(block: np.ndarray) -> QuantizedRows:
    return read_quantized_rows("Q4_1", block[None])


def unpacked_block(block: np.ndarray) -> Stepper:
    """The picture. block: uint8 (20,), with finite numbers."""
    read = _read(block)
    scale, minimum = (float(one[0, 0]) for one in (read.scales, read.minima))
    codes, weights = read.codes[0].tolist(), read.floats()[0].tolist()
    belongs_to = find_weights(block)
    whole = Panel("all bytes at once", *_whole(block, belongs_to, codes, scale, minimum, weights))
    single = Panel("byte by byte", *_bytewise(block, belongs_to, codes, scale, minimum, weights))
    label = "The bytes of one block of Q4_1, and the 32 weights that they hold"
    caption = (
        "Blue: the low half of a byte, and the weight whose code it is. Orange: the high half. Each weight has its "
        "number above it. Bytes are in hexadecimal, so a digit is half a byte."
    )
    return Stepper(label, [whole, single], "unpacked-block", start=3, asks="Read", caption=caption)


def _whole(block, belongs_to, codes, scale, minimum, weights) -> tuple[list[str], str]:
    """What the panel that reads all bytes at once says, and its body."""
    low, high = (f"{min(found)} to {max(found)}" for found in belongs_to.values())
    says = [
        f"{len(block)} bytes, as the file stores them",
        f"bytes 0 and 1 are the scale: {scale:g}",
        f"bytes 2 and 3 are the minimum: {minimum:g}",
        f"b & 15: the low halves are the codes of weights {low}",
        f"b >> 4: the high halves are the codes of weights {high}",
        f"each code times the scale, {scale:g}",
        f"plus the minimum, {minimum:g}: {len(weights)} weights",
    ]
    begins = {"low": 3, "high": 4}

    def texts(half: str, weight: int) -> list[str]:
        code = codes[weight]
        unread = ["·"] * begins[half]
        return [*unread, *[code] * (5 - len(unread)), f"{scale * code:g}", f"{weights[weight]:g}"]

    return says, _draw(block, belongs_to, (1, 2), lambda half, at: begins[half], texts)


def _bytewise(block, belongs_to, codes, scale, minimum, weights) -> tuple[list[str], str]:
    """What the panel that reads byte after byte says, and its body."""
    count = len(block) - NUMBERS
    says = [f"the scale is {scale:g} and the minimum {minimum:g}; no code has been read"]
    for at in range(count):
        parts = []
        for half, found in belongs_to.items():
            code, weight = codes[found[at]], found[at]
            parts.append(
                f"{half} half {code}, so weight {weight} = {scale:g} × {code} {_signed(minimum)} = {weights[weight]:g}"
            )
        says.append(f"byte {NUMBERS + at} is {block[NUMBERS + at]:02x}: {'; '.join(parts)}")

    def texts(half: str, weight: int) -> list[str]:
        return ["·"] * (belongs_to[half].index(weight) + 1) + [f"{weights[weight]:g}"]

    return says, _draw(block, belongs_to, (0, 0), lambda half, at: at + 1, texts)


def _signed(number: float) -> str:
    return f"{'−' if number < 0 else '+'} {abs(number):g}"


def _draw(
    block: np.ndarray,
    belongs_to: dict[str, list[int]],
    numbers: tuple[int, int],
    step: Callable[[str, int], int],
    texts: Callable[[str, int], list[str]],
) -> str:
    """The HTML of a block. numbers: the steps of scale and minimum. step: that of half a byte; texts: of a weight."""
    read = _read(block)
    head = "".join(
        f'<span class="ub-number"{step_attribute(first)}>bytes {at} and {at + 1}: '
        f"<b>{block[at]:02x} {block[at + 1]:02x}</b>, the {name} {value[0, 0]:g}</span>"
        for first, name, at, value in zip(
            numbers, ("scale", "minimum"), (0, 2), (read.scales, read.minima), strict=True
        )
    )
    columns = []
    for at, byte in enumerate(block[NUMBERS:].tolist()):
        steps = {half: step_attribute(step(half, at)) for half in MASKS}
        hexed = "".join(
            f'<b class="ub-{half}"{steps[half]}>{digit:x}</b>'
            for half, digit in (("high", byte >> 4), ("low", byte & 15))
        )
        cells = "".join(
            f'<small>{found[at]}</small><i class="ub-{half}"{attributes(texts(half, found[at]))}{steps[half]}></i>'
            for half, found in belongs_to.items()
        )
        columns.append(
            f'<div class="ub-byte"><small>byte {NUMBERS + at}</small><span class="ub-hex">{hexed}</span>{cells}</div>'
        )
    label = html.escape(f"{len(columns)} bytes of codes, and under each its two weights")
    codes = f'<div class="ub-codes" role="img" aria-label="{label}">{"".join(columns)}</div>'
    return f'<p class="ub-numbers">{head}</p>{codes}'
