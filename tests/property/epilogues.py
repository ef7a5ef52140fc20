"""Draws programs whose epilogue does more than add: any reduction, any epilogue, another output dtype.

Built on `reductions`, whose programs are mostly a sum and a bias; here the odd steps and epilogues are the rule.
"""

from __future__ import annotations

import random
import re

from tests.property import reductions
from tests.property.reductions import Program

STEPS = (
    *("T + x", "x + T", "T - x", "x + (T - y)", "T + x + y", "T + x", "T.max(T, x)", "T.min(x, T)"),
    *(
        "T.max(x, T.max(T, y))",
        "T * 2 + x",
        "T.min(T + x, 9)",
        "x - T",
        "T + T + x",
        "x",
        "T + x * T",
    ),
)
EPILOGUES = (
    *("s + a", "a + (s - g)", "s - a", "a - s", "s + a + g", "s * 2 + a", "s * a", "a * (g - s)"),
    *("T.max(s, 0)", "T.max(s + a, 0)", "T.max(a, s)", "T.min(s, a)", "T.min(T.max(s, -5), 5)"),
    *(
        "s + s",
        "s * s",
        "s + a * s",
        "T.Select(s > 0, s + a, g)",
        "T.if_then_else(s < a, s, g)",
        "s",
    ),
    *("s * 2 - s + a", "a", "T.max(s, T.max(g, a))", "s + (a - s)", "-(s - a) + s * g"),
)
WIDE = ("T.Cast('float64', V)", "T.exp(T.Cast('float64', T.max(T.min(V, 4), -4)) * T.float64(0.5))")


class _Drawing(reductions._Drawing):
    """The same program with other steps and epilogues put in."""

    def oddly(self, chance: float, name: str) -> bool:
        if name in ("odd step", "odd epilogue"):
            return super().oddly(0.5, name)
        return super().oddly(chance / 2, name)


def draw(seed: int) -> Program:
    """The program number `seed`."""
    rng = random.Random(f"epilogue {seed}")
    kept = reductions.STEPS, reductions.ODD_STEPS, reductions.EPILOGUES, reductions.ODD_EPILOGUES
    names = ("STEPS", "ODD_STEPS", "EPILOGUES", "ODD_EPILOGUES")
    try:
        for name, forms in zip(names, (STEPS[:6], STEPS, EPILOGUES, EPILOGUES), strict=True):
            setattr(reductions, name, forms)
        program = _Drawing(seed).program()
    finally:
        for name, forms in zip(names, kept, strict=True):
            setattr(reductions, name, forms)
    if rng.random() < 0.25 and len(re.findall(r"^\s+D\[", program.text, re.MULTILINE)) == 1:
        return _widened(program, rng.choice(WIDE))
    return program


def _widened(program: Program, form: str) -> Program:
    """The same program with a float64 output, where nothing but its epilogue mentions the output."""
    lines = program.text.split("\n")
    if sum("D[" in line for line in lines) > 1:
        return program
    for i, line in enumerate(lines):
        store = re.match(r"(\s+D\[.*?\]) = (.*)$", line) if line.lstrip().startswith("D[") else None
        if store:
            target, value = line.split(" = ", 1)
            lines[i] = f"{target} = {form.replace('V', f'({value})')}"
        if line.lstrip().startswith("D = T.match_buffer"):
            lines[i] = re.sub(r'"\w+"\)$', '"float64")', line)
    text = "\n".join(lines)
    names = re.findall(r"^\s+(\w) = T\.match_buffer", text, re.MULTILINE)
    place = names.index("D")
    arguments = list(program.arguments)
    arguments[place] = arguments[place].astype("float64")
    return Program(text, arguments, program.sizes, [*program.odd, "another dtype"])
