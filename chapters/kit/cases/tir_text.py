"""TensorIR functions from short text: loops, blocks and parameters without the lines that every program repeats.

    sums = write_block("sums", "i 4, k 3", "S[vi] = S[vi] + A[vi, vk]", init="S[vi] = 0")
    write_function({"A": '(4, 3), "int32"', "S": '(4,), "int32"'}, sums)

A text may hold others: a block may have blocks among its lines, and loops may be around several of them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping


def write_loops(loops: str, body: str) -> str:
    """`body` in `loops`, such as "i 4, k 3": the name and the extent of each. Without loops, `body`."""
    if not loops:
        return body
    names, extents = zip(*_split(loops), strict=True)
    head = f"for {', '.join(names)} in T.grid({', '.join(extents)}):"
    return f"{head}\n{_indent(body)}"


def write_block(
    name: str, loops: str, *lines: str, init: str = "", axes: str = "", shared: str = ""
) -> str:
    """A block of these lines in `loops`, of which those that are `shared` are around other blocks too.

    axes: its axes. Without them it has one for each loop, of the loop's extent and called v and its name: in a block
    with an init, those of loops that begin with k are reductions.
    """
    pairs = _split(loops)
    kinds = {loop: "reduce" if init and loop.startswith("k") else "spatial" for loop, _ in pairs}
    axes = axes or "\n".join(f"v{a} = T.axis.{kinds[a]}({extent}, {a})" for a, extent in pairs)
    start = ["with T.init():", _indent(init)] if init else []
    body = _indent("\n".join([axes, *start, *lines]))
    own = ", ".join(" ".join(pair) for pair in pairs if pair not in _split(shared))
    return write_loops(own, f'with T.sblock("{name}"):\n{body}\n')


def write_function(buffers: Mapping[str, str], *body: str, more: str = "") -> str:
    """A PrimFunc `main`. buffers: its parameters, each with a shape and a dtype as text; more: others as text."""
    params = ", ".join([f"{name}: T.Buffer({text})" for name, text in buffers.items()])
    head = f"@T.prim_func(s_tir=True)\ndef main({params}{more}):"
    return "\n".join([head, *map(_indent, body), ""])


def _split(loops: str) -> list[list[str]]:
    return [loop.split(maxsplit=1) for loop in re.split(r", (?=\w+ )", loops) if loop]


def _indent(text: str) -> str:
    return textwrap.indent(text, "    ")
