"""Small programs that reduce and then do something with the result, and schedules of them, for property tests.

`program` draws TVMScript and arguments: most programs are fusable, many have one thing wrong, some several. `moves`
draws schedule primitives, `reschedule` applies them. Sizes are tiny and all numbers small integers, so that every dtype
computes exactly. Hypothesis makes the choices. The first choice of every list is the simplest one, so that a draw that
fails shrinks towards a plain sum and a bias.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

from chapters.kit.ir.parse_alone import from_source

TABLE = 4  # the argument that is a table of indices, J
DTYPES = ("int32", "int32", "float32", "float64", "int64")
OTHERS = (  # blocks around the two, named by where they stand
    *("before: temp is set", "before: C is made", "before: D is filled", "before: D is read"),
    *("between: C is read", "between: C is written", "between: D is read", "between: D is filled"),
    *("between: temp is read", "between: F is written", "between: temp is written"),
    *("after: D is read", "after: temp is read", "after: D is written", "after: C is written"),
)
LAYOUTS = ("plain", "plain", "plain", "plain", "plain", "plain", "flat", "tiled", "unit", "shifted")
PER_TEST = 50  # draws of one test; several tests can run side by side


class Choices:
    """The choices of one draw. random: an example of CHOICES in chapters/checking/draws.py."""

    def __init__(self, random: random.Random):
        self._random = random

    def one(self, options: Sequence) -> Any:
        """One of `options`."""
        return options[self._random.randrange(len(options))]

    def chance(self, percent: float) -> bool:
        """True in `percent` of a hundred draws."""
        # of a range larger than this, Hypothesis prefers the lower end
        return self._random.randrange(100) >= 100 - percent

    def shuffled(self, items: Sequence, percent: float) -> list:
        """`items`, in `percent` of a hundred draws in any order."""
        left = list(items)
        if not self.chance(percent):
            return left
        return [left.pop(self._random.randrange(len(left))) for _ in items]


@dataclass(frozen=True)
class Forms:
    """What is drawn from. T is the running total, x and y what a step adds; s is the sum, a and g addends.

    odd_step, odd_epilogue: in how many of a hundred programs the form is one of the odd ones. odd: by how much the
    chances of everything else that is odd are multiplied. wide: expressions of the value V for a float64 output.
    """

    steps: Sequence[str]
    odd_steps: Sequence[str]
    epilogues: Sequence[str]
    odd_epilogues: Sequence[str]
    odd_step: float = 6
    odd_epilogue: float = 10
    odd: float = 1
    wide: Sequence[str] = ()


SEVERAL = "several terms"  # a sum of s and up to four other terms, in any order and nesting

# The plain steps shift with T, and the plain epilogues are a sum of s and other terms; the odd ones are not.
SUMS = Forms(
    steps=("T + x", "T + x", "x + T", "T - x", "T + x + y", "x + (T - y)"),
    odd_steps=(
        *("T * 2 + x", "T.max(T, x)", "T.min(T + x, 9)", "x - T"),
        *("T + T + x", "T + x * T", "x"),
    ),
    epilogues=("s + a", "s + a", "a + s", "s + a * 2", "s", SEVERAL, SEVERAL, SEVERAL),
    odd_epilogues=(
        *("s - a", "a - s", "s * 2 + a", "T.max(s + a, 0)", "s + s", "s + a * s", "s + a + s"),
        *("(s - a) + g", "a + (g - s)", "T.max(s + a, 0) + g", "a + (s * 2 + g)"),
        *("T.min(T.max(s, -5), 5)", "T.Select(s > 0, s + a, s)"),
    ),
)

_STEPS = ("T + x", "x + T", "T - x", "x + (T - y)", "T + x + y", "T + x")
_EPILOGUES = (
    *("s + a", "a + (s - g)", "s - a", "a - s", "s + a + g", "s * 2 + a", "s * a", "a * (g - s)"),
    *("T.max(s, 0)", "T.max(s + a, 0)", "T.max(a, s)", "T.min(s, a)", "T.min(T.max(s, -5), 5)"),
    *("s + s", "s * s", "s + a * s", "T.Select(s > 0, s + a, g)", "T.if_then_else(s < a, s, g)"),
    *("s", "s * 2 - s + a", "a", "T.max(s, T.max(g, a))", "s + (a - s)", "-(s - a) + s * g"),
)
# Any reduction and any epilogue, and sometimes another dtype for the output.
ANY_EPILOGUE = Forms(
    steps=_STEPS,
    odd_steps=(
        *_STEPS,
        *("T.max(T, x)", "T.min(x, T)", "T.max(x, T.max(T, y))", "T * 2 + x", "T.min(T + x, 9)"),
        *("x - T", "T + T + x", "x", "T + x * T"),
    ),
    epilogues=_EPILOGUES,
    odd_epilogues=_EPILOGUES,
    odd_step=50,
    odd_epilogue=50,
    odd=0.5,
    wide=(
        "T.Cast('float64', V)",
        "T.exp(T.Cast('float64', T.max(T.min(V, 4), -4)) * T.float64(0.5))",
    ),
)


@dataclass(repr=False)
class Program:
    """text: TVMScript of one PrimFunc. sizes: of the spatial axes. odd: what may stand in the way of a fusion."""

    text: str
    arguments: list
    sizes: list
    odd: list[str] = field(default_factory=list)

    @property
    def func(self) -> tvm.tirx.PrimFunc:
        return _parsed(self.text)

    def __repr__(self) -> str:
        return f"a program with {', '.join(self.odd) or 'nothing odd'}:\n{self.text}"

    def _repr_pretty_(self, printer, cycle: bool) -> None:
        """How Hypothesis shows it."""
        printer.text(repr(self))


@lru_cache(maxsize=400)  # several tests make the same draws
def _parsed(text: str) -> tvm.tirx.PrimFunc:
    return from_source(text)


@dataclass
class Layout:
    """Where a buffer keeps the element of a point: `shape`, and `at(values)`, which takes one text per spatial axis.

    A point in tiles is never counted backwards: this release compiles `(3 - i) // 2` beside `(3 - i) % 2` wrongly, as
    docs/upstream/index_counted_backwards.py shows.
    """

    shape: list[str]
    order: list[int]
    kind: str
    sizes: list

    def at(self, values: list[str]) -> str:
        flat = "0"
        for axis in self.order:
            flat = f"({flat}) * {self.sizes[axis]} + {values[axis]}"
        first, *rest = (values[axis] for axis in self.order)
        kinds = {
            "plain": [first, *rest],
            "flat": [flat.replace("(0) * ", "0 * ")],
            "tiled": [f"({first}) // 2", *rest, f"({first}) % 2"],
            "unit": [first, "0", *rest],
            "shifted": [f"{first} + 1", *rest],
            "strided": [f"({first}) * 2", *rest],
        }
        return ", ".join(kinds[self.kind])


# --- one program ----------------------------------------------------------------------------------


def program(choices: Choices, forms: Forms) -> Program:
    """A reduction in the block `mm`, an epilogue in `bias`, and perhaps a block `other` beside them."""
    return _Drawing(choices, forms).program()


class _Drawing:
    """The state of drawing one program."""

    def __init__(self, choices: Choices, forms: Forms):
        self.one, self.chance, self.shuffled = choices.one, choices.chance, choices.shuffled
        self.forms = forms
        self.odd: list[str] = []
        axes = self.one((2, 1, 3, 2, 2))
        self.sizes: list = [self.one((2, 3, 4, 5, 1)) for _ in range(axes)]
        if axes > 1 and self.chance(30):  # equal sizes, so that a transposed access stays in bounds
            self.sizes[1] = self.sizes[0]
        self.n = None
        if self.chance(15):
            self.n, self.sizes[self.one(range(axes))] = self.one((3, 5, 6)), "n"
        self.steps = [self.one((2, 3, 4, 1)) for _ in range(self.one((1, 1, 2)))]
        self.dtype = self.one(DTYPES)
        self.temp = self.layout(LAYOUTS)
        self.out = self.layout((*LAYOUTS, "strided"))
        self.bias = self.layout(("plain",))
        others = [self.one(OTHERS) for _ in range(2) if self.chance(20)]
        self.odd += others
        self.others = others
        self.out_dtype = self.dtype

    def oddly(self, percent: float, name: str) -> bool:
        """Whether to do something odd this time; if so, it is noted."""
        drawn = self.chance(percent)
        self.odd += [name] * drawn
        return drawn

    def rarely(self, percent: float, name: str) -> bool:
        """`oddly`, as rarely as the forms want it."""
        return self.oddly(percent * self.forms.odd, name)

    def layout(self, kinds: Sequence[str]) -> Layout:
        order = self.shuffled(range(len(self.sizes)), 40)
        kind, shape = self.one(kinds), [self.sizes[axis] for axis in order]
        if "n" in shape or (kind == "tiled" and shape[0] % 2):
            kind = "plain"
        if kind != "plain":
            first, *rest = shape
            shape = {
                "flat": [int(np.prod(shape))],
                "tiled": [first // 2, *rest, 2],
                "unit": [first, 1, *rest],
                "shifted": [first + 2, *rest],
                "strided": [first * 2, *rest],
            }[kind]
        return Layout([str(size) for size in shape], order, kind, self.sizes)

    # -- the reduction

    def reduction(self) -> list[str]:
        spatial = [(f"s{i}", size, "spatial") for i, size in enumerate(self.sizes)]
        summed = [(f"k{i}", size, "reduce") for i, size in enumerate(self.steps)]
        own, steps = [f"vs{i}" for i in range(len(spatial))], [f"vk{i}" for i in range(len(summed))]
        total = f"temp[{self.temp.at(own)}]"
        x = f"A[{', '.join([*own, *steps])}] * B[{self.one(steps)}]"
        y = f"B[{self.one(steps)}]"
        if self.rarely(4, "the reduction reads D"):
            x = f"{x} + D[{self.out.at(own)}]"
        elif self.chance(8):
            x = f"{x} * C[{self.bias.at(own)}]"
        odd = self.oddly(self.forms.odd_step, "odd step")
        step = self.one(self.forms.odd_steps if odd else self.forms.steps)
        body = [f"{total} = " + _fill(step, T=total, x=f"({x})", y=y)]
        if not self.rarely(2, "no init"):
            init = "3" if self.rarely(3, "init is not 0") else "0"
            body = ["with T.init():", f"    {total} = {self.number(init)}", *body]
        partial = self.rarely(3, "reduction: partial loops")
        return self.nest("mm", self.shuffled(spatial + summed, 30), body, partial)

    def number(self, text: str) -> str:
        return f"T.{self.dtype}({text})"

    # -- the epilogue

    def epilogue(self) -> list[str]:
        sizes = list(self.sizes)
        order = self.shuffled(range(len(sizes)), 30)
        wide = [i for i in order if sizes[i] != "n" and sizes[i] > 1]
        if wide and self.rarely(5, "epilogue: a slice"):
            sizes[self.one(wide)] -= 1
        own = [f"vw{i}" for i in range(len(sizes))]
        total = f"temp[{self.temp.at(self.read(own, sizes, wide))}]"
        stored = self.stored(own, sizes, wide)
        odd = self.oddly(self.forms.odd_epilogue, "odd epilogue")
        form = self.one(self.forms.odd_epilogues if odd else self.forms.epilogues)
        if form == SEVERAL:
            form = self.several_terms()
        value = _fill(form, s=total, a=f"({self.addend(own)})", g=f"G[{own[-1]}]")
        if self.forms.wide and not self.mentions_output() and self.oddly(25, "another dtype"):
            self.out_dtype = "float64"
            value = self.one(self.forms.wide).replace("V", f"({value})")
        axes = [(f"w{i}", sizes[i], "spatial") for i in order]
        if self.rarely(3, "epilogue: another axis"):
            axes.append(("w9", self.one((1, 2)), "spatial"))
        partial = self.rarely(3, "epilogue: partial loops")
        return self.nest("bias", axes, [f"D[{self.out.at(stored)}] = {value}"], partial)

    def several_terms(self) -> str:
        others = [self.one(("a", "g", "a * 2")) for _ in range(self.one(range(5)))]
        terms = self.shuffled(["s", *others], 100)
        while len(terms) > 1:
            at = self.one(range(len(terms) - 1))
            terms[at : at + 2] = [f"({terms[at]} + {terms[at + 1]})"]
        return terms[0]

    def read(self, own: list[str], sizes: list, wide: list[int]) -> list[str]:
        """The point whose sum the epilogue reads at the point `own`."""
        read = list(own)
        pairs = itertools.combinations(range(len(own)), 2)
        alike = [(i, j) for i, j in pairs if self.sizes[i] == self.sizes[j]]
        if alike and self.chance(25):
            i, j = self.one(alike)
            read[i], read[j] = read[j], read[i]
        reversible = wide and self.temp.kind != "tiled"
        if reversible and self.rarely(5, "epilogue: reversed"):
            i = self.one(wide)
            read[i] = f"({sizes[i] - 1} - {read[i]})"
        elif alike and self.rarely(4, "epilogue: diagonal"):
            i, j = self.one(alike)
            read[j] = read[i]
        return read

    def stored(self, own: list[str], sizes: list, wide: list[int]) -> list[str]:
        """The point at which the epilogue stores."""
        stored = list(own)
        reversible = wide and self.out.kind != "tiled"
        if reversible and self.rarely(4, "epilogue: stored reversed"):
            i = self.one(wide)
            stored[i] = f"({sizes[i] - 1} - {stored[i]})"
        elif wide and self.rarely(3, "epilogue: many to one"):
            stored[self.one(wide)] = "0"
        return stored

    def addend(self, own: list[str]) -> str:
        full, row = f"C[{self.bias.at(own)}]", f"G[{own[-1]}]"
        zeros = ", ".join(["0"] * len(self.steps))
        choices = [full] * 5 + [row] * 3
        choices += [f"{full} + {row}", self.number("-5"), self.number("3")]
        choices += [f'T.Cast("{self.dtype}", {own[0]})', f"A[{', '.join(own)}, {zeros}]"]
        choices += [f"T.if_then_else({own[0]} < 2, {full}, {self.number('1')})"]
        choices += [f"G[J[{own[-1]}]]"] * (self.sizes[-1] != "n")
        return self.one(choices)

    def mentions_output(self) -> bool:
        """Whether anything but the epilogue mentions D."""
        return "the reduction reads D" in self.odd or any(" D " in name for name in self.others)

    # -- everything else

    def other(self, name: str) -> list[str]:
        axes = [(f"o{i}", size, "spatial") for i, size in enumerate(self.sizes)]
        own = [f"vo{i}" for i in range(len(axes))]
        at = {"temp": self.temp.at(own), "C": self.bias.at(own), "D": self.out.at(own)}
        buffer, into = name.split()[1], f"F[{', '.join(own)}]"
        here = f"{buffer}[{at[buffer]}]" if buffer in at else into
        if name.endswith("read"):
            return self.nest("other", axes, [f"{into} = {here} + {self.number('1')}"])
        return self.nest("other", axes, [f"{here} = {self.number('4')}"])

    def nest(self, name: str, axes: list, body: list[str], partial: bool = False) -> list[str]:
        """Loops in any order around a block; partial: one of them ends early."""
        around = []
        for axis, size, _ in self.shuffled(axes, 40):
            fewer = partial and size != "n" and size > 1
            partial = partial and not fewer
            around.append(f"for {axis} in range({size - 1 if fewer else size}):")
        around.append(f'with T.sblock("{name}"):')
        own = [f"v{axis} = T.axis.{kind}({size}, {axis})" for axis, size, kind in axes]
        lines = ["    " * depth + line for depth, line in enumerate(around)]
        return lines + ["    " * len(around) + line for line in [*own, *body]]

    def program(self) -> Program:
        first, second = self.reduction(), self.epilogue()
        others = [(name, self.other(name)) for name in self.others]
        before, between, after = (
            [line for name, lines in others if name.startswith(where) for line in lines]
            for where in ("before", "between", "after")
        )
        body = [*before, *first, *between, *second, *after]
        if self.rarely(2, "the epilogue stands first"):
            body = [*second, *first]
        shapes = self.shapes()
        dtypes = dict.fromkeys(shapes, self.dtype) | {"J": "int32", "D": self.out_dtype}
        head = ["n = T.int32()"] if self.n else []
        for name, shape in shapes.items():
            sizes = ", ".join(shape)
            head.append(f'{name} = T.match_buffer({name.lower()}, ({sizes},), "{dtypes[name]}")')
        parameters = ", ".join(f"{name.lower()}: T.handle" for name in shapes)
        lines = "\n    ".join([f"def main({parameters}):", *head, *self.allocated(body)])
        text = f"@T.prim_func(s_tir=True)\n{lines}\n"
        return Program(text, self.arguments(shapes, dtypes), self.sizes, self.odd)

    def allocated(self, body: list[str]) -> list[str]:
        """`body` after the allocation of temp; perhaps both inside another block."""
        sizes = ", ".join(self.temp.shape)
        allocation = f'temp = T.sblock_alloc_buffer(({sizes},), "{self.dtype}")'
        if not self.rarely(10, "a block around both"):
            return [allocation, *body]
        around = ["for o in range(1):", '    with T.sblock("outer"):']
        around.append("        vo = T.axis.spatial(1, o)")
        if self.chance(70):
            return [*around, *("        " + line for line in [allocation, *body])]
        return [allocation, *around, *("        " + line for line in body)]

    def shapes(self) -> dict[str, list[str]]:
        """The shape of each argument, in the order of the parameters."""
        sizes = [str(size) for size in self.sizes]
        operands = {"A": [*sizes, *map(str, self.steps)], "B": [str(max(self.steps))]}
        addends = {"C": self.bias.shape, "G": [sizes[-1]], "J": [sizes[-1]]}
        return {**operands, **addends, "F": sizes, "D": self.out.shape}

    def arguments(self, shapes: dict, dtypes: dict) -> list[np.ndarray]:
        random = np.random.default_rng(self.one(range(2**32)))
        found = []
        for name, shape in shapes.items():
            size = tuple(self.n if s == "n" else int(s) for s in shape)
            drawn = random.integers(-9, 10, size) if name != "J" else random.permutation(size[0])
            found.append(drawn.astype(dtypes[name]))
        return found


def _fill(form: str, **parts: str) -> str:
    """`form` with its one-letter words replaced."""
    return re.sub(r"\b([Txysag])\b(?!\.)", lambda m: parts.get(m[1], m[0]), form)


# --- schedules ------------------------------------------------------------------------------------

FACTORS = ((None, 2), (None, 3), (2, None), (None, 2, 2))


@dataclass(frozen=True)
class Move:
    """One schedule primitive on a loop of `block`. first, second: which of the loops there are, counted round."""

    what: str
    block: str
    first: int
    second: int
    target: str
    factors: tuple[int | None, ...]


KINDS_OF_MOVES = (
    *("split", "split", "split", "split", "reorder", "reorder", "fuse", "fuse"),
    *("parallel", "unroll", "vectorize", "compute_at", "reverse_compute_at"),
)


def moves(choices: Choices, blocks: Sequence[str], number: int) -> list[Move]:
    """`number` primitives on `blocks`."""
    parts = KINDS_OF_MOVES, blocks, range(6), range(6), ("mm", "bias", "other"), FACTORS
    return [Move(*map(choices.one, parts)) for _ in range(number)]


@dataclass(frozen=True)
class Draw:
    """A program, and what is done to it before and after the fusion.

    decompose: at which of its loops, if at all. exact: fused without changing the order of the steps.
    """

    program: Program
    before: list[Move]
    after: list[Move]
    decompose: int | None
    exact: bool = False

    def schedule(self) -> s_tir.Schedule:
        """The program, scheduled as before the fusion."""
        sch = s_tir.Schedule(self.program.func)
        reschedule(sch, self.before)
        return sch


def try_fusing(sch: s_tir.Schedule, fuse: Callable) -> str:
    """The way that `fuse` took, or "fused"; "" if it refuses, in one sentence and with the schedule left as it was."""
    before, text, state, recorded = sch.mod, sch.mod.script(), sch.state, len(sch.trace.insts)
    try:
        return getattr(fuse(sch, "mm", "bias"), "how", "fused")
    except s_tir.ScheduleError as error:
        message = str(error)
        assert message.startswith("Block `") and "\n" not in message and message.endswith(".")
        assert sch.mod.same_as(before) and sch.mod.script() == text and sch.state.same_as(state)
        return ""
    finally:
        assert all(inst.kind.name == "GetSBlock" for inst in sch.trace.insts[recorded:])


def equal(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    """Whether all arrays are equal; float64, in which an exp may be, but for rounding."""
    return all(
        np.array_equal(a, b) if a.dtype != np.float64 else np.allclose(a, b, rtol=1e-12, atol=0)
        for a, b in zip(got, expected, strict=True)
    )


def reschedule(sch: s_tir.Schedule, chosen: Sequence[Move]) -> None:
    """Apply primitives one after another; those that TVM refuses are skipped."""
    for move in chosen:
        # ValueError: compute_at fails on an index it cannot invert
        with contextlib.suppress(s_tir.ScheduleError, ValueError):
            _apply(sch, move)


def _apply(sch: s_tir.Schedule, move: Move) -> None:
    block = sch.get_sblock(move.block)
    loops = sch.get_loops(block)
    if not loops:
        return
    first, second = (loops[number % len(loops)] for number in (move.first, move.second))
    match move.what:
        case "split":
            sch.split(first, list(move.factors))
        case "reorder":
            if not first.same_as(second):
                sch.reorder(first, second)
        case "fuse":
            inner = loops[move.first % len(loops) + 1 :][:1]
            if inner:
                sch.fuse(first, inner[0])
        case "parallel":
            sch.parallel(loops[0])
        case "unroll" if isinstance(sch.get(first).extent, tvm.tirx.IntImm):
            sch.unroll(first)
        case "vectorize" if isinstance(sch.get(loops[-1]).extent, tvm.tirx.IntImm):
            sch.vectorize(loops[-1])
        case "compute_at" | "reverse_compute_at":
            others = sch.get_loops(sch.get_sblock(move.target))
            if others:
                getattr(sch, move.what)(block, others[move.second % len(others)])
