"""Draws small programs that reduce and then add: most of them fusable, many with one thing wrong, some with several.

`draw(seed)` gives a Program: TVMScript text and arguments. `reschedule` applies random schedule primitives to it. Sizes
are tiny and all numbers small integers, so that every dtype computes exactly.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import s_tir

TABLE = 4  # the argument that is a table of indices, J
DTYPES = ("int32", "int32", "float32", "float64", "int64")

# T is the running total, x and y what a step adds; the first row shifts with T, the second does not
STEPS = ("T + x", "T + x", "x + T", "T - x", "T + x + y", "x + (T - y)")
ODD_STEPS = ("T * 2 + x", "T.max(T, x)", "T.min(T + x, 9)", "x - T", "T + T + x", "T + x * T", "x")
# s is the sum, a and g addends; the first row is a sum of s and something, the second is not
EPILOGUES = ("s + a", "s + a", "a + s", "s + (a + g)", "s + a * 2", "s")
ODD_EPILOGUES = (
    *("s - a", "a - s", "s + a + g", "s * 2 + a", "T.max(s + a, 0)", "s + s", "s + a * s"),
    *("T.min(T.max(s, -5), 5)", "T.Select(s > 0, s + a, s)"),
)
OTHERS = (  # blocks around the two, named by where they stand
    *("before: temp is set", "before: C is made", "before: D is filled", "before: D is read"),
    *("between: C is read", "between: C is written", "between: D is read", "between: D is filled"),
    *("between: temp is read", "between: F is written", "between: temp is written"),
    *("after: D is read", "after: temp is read", "after: D is written", "after: C is written"),
)


@dataclass
class Program:
    """text: TVMScript of one PrimFunc. sizes: of the spatial axes. odd: what may stand in the way of a fusion."""

    text: str
    arguments: list
    sizes: list
    odd: list[str] = field(default_factory=list)

    @property
    def func(self) -> tvm.tirx.PrimFunc:
        return tvm.script.from_source(self.text)


@dataclass
class Layout:
    """Where a buffer keeps the element of a point: `shape`, and `at(values)` for one text a spatial axis."""

    shape: list[str]
    order: list[int]
    kind: str
    sizes: list

    def at(self, values: list[str]) -> str:
        values = [values[axis] for axis in self.order]
        sizes = [self.sizes[axis] for axis in self.order]
        if self.kind == "flat":
            text = "0"
            for value, size in zip(values, sizes, strict=True):
                text = f"({text}) * {size} + {value}"
            return text.replace("(0) * ", "0 * ")
        if self.kind == "tiled":
            values = [f"({values[0]}) // 2", *values[1:], f"({values[0]}) % 2"]
        if self.kind == "unit":
            values = [values[0], "0", *values[1:]]
        if self.kind == "shifted":
            values = [f"{values[0]} + 1", *values[1:]]
        if self.kind == "strided":
            values = [f"({values[0]}) * 2", *values[1:]]
        return ", ".join(values)


def _layout(rng: random.Random, sizes: list, kinds: tuple[str, ...]) -> Layout:
    order = list(range(len(sizes)))
    if rng.random() < 0.4:
        rng.shuffle(order)
    kind = rng.choice(kinds)
    shape = [sizes[axis] for axis in order]
    symbolic = any(isinstance(size, str) for size in sizes)
    if symbolic or (kind == "tiled" and shape[0] % 2):
        kind = "plain"
    if kind == "flat":
        shape = [int(np.prod(shape))]
    elif kind == "tiled":
        shape = [shape[0] // 2, *shape[1:], 2]
    elif kind == "unit":
        shape = [shape[0], 1, *shape[1:]]
    elif kind == "shifted":
        shape = [shape[0] + 2, *shape[1:]]
    elif kind == "strided":
        shape = [shape[0] * 2, *shape[1:]]
    return Layout([str(size) for size in shape], order, kind, sizes)


class _Drawing:
    """The state of drawing one program."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        rng = self.rng
        self.odd: list[str] = []
        self.sizes: list = [rng.choice((1, 2, 3, 4, 5)) for _ in range(rng.choice((1, 2, 2, 2, 3)))]
        if rng.random() < 0.3 and len(self.sizes) > 1:
            self.sizes[1] = self.sizes[
                0
            ]  # equal sizes, so that a transposed access stays in bounds
        self.n = None
        if rng.random() < 0.15:
            where = rng.randrange(len(self.sizes))
            self.n, self.sizes[where] = rng.choice((3, 5, 6)), "n"
        self.steps = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((1, 1, 2)))]
        self.dtype = rng.choice(DTYPES)
        self.temp = _layout(rng, self.sizes, ("plain",) * 6 + ("flat", "tiled", "unit", "shifted"))
        self.out = _layout(
            rng, self.sizes, ("plain",) * 6 + ("flat", "tiled", "unit", "shifted", "strided")
        )
        self.bias = _layout(rng, self.sizes, ("plain",))

    def oddly(self, chance: float, name: str) -> bool:
        """Whether to do something odd this time; if so, it is noted."""
        if self.rng.random() < chance:
            self.odd.append(name)
            return True
        return False

    # -- the reduction

    def reduction(self) -> list[str]:
        rng = self.rng
        spatial = [(f"s{i}", size, "spatial") for i, size in enumerate(self.sizes)]
        summed = [(f"k{i}", size, "reduce") for i, size in enumerate(self.steps)]
        axes = spatial + summed
        if rng.random() < 0.3:
            rng.shuffle(axes)
        self.reduction_axes = axes
        names = {axis[0]: "v" + axis[0] for axis in axes}
        at = self.temp.at([names[f"s{i}"] for i in range(len(self.sizes))])
        total = f"temp[{at}]"
        every = ", ".join(names[axis[0]] for axis in spatial + summed)
        x = f"A[{every}] * B[{names[rng.choice(summed)[0]]}]"
        y = f"B[{names[rng.choice(summed)[0]]}]"
        if self.oddly(0.04, "the reduction reads D"):
            x = f"{x} + D[{self.out.at([names[a[0]] for a in spatial])}]"
        elif rng.random() < 0.08:
            x = f"{x} * C[{self.bias.at([names[a[0]] for a in spatial])}]"
        odd = self.oddly(0.06, "odd step")
        step = rng.choice(ODD_STEPS if odd else STEPS)
        init = "3" if self.oddly(0.03, "init is not 0") else "0"
        body = [
            "with T.init():",
            f"    {total} = {self.number(init)}",
            f"{total} = " + _fill(step, T=total, x=f"({x})", y=y),
        ]
        if self.oddly(0.02, "no init"):
            body = body[2:]
        return self.nest("mm", axes, body, partial=self.oddly(0.03, "reduction: partial loops"))

    def number(self, text: str) -> str:
        return f'T.Cast("{self.dtype}", {text})' if "[" in text else f"T.{self.dtype}({text})"

    # -- the epilogue

    def epilogue(self) -> list[str]:
        rng = self.rng
        order = list(range(len(self.sizes)))
        if rng.random() < 0.3:
            rng.shuffle(order)
        sizes = list(self.sizes)
        wide = [i for i in order if sizes[i] != "n" and sizes[i] > 1]
        if wide and self.oddly(0.05, "epilogue: a slice"):
            sizes[rng.choice(wide)] -= 1
        read = [f"vw{i}" for i in range(len(sizes))]
        pairs = [(i, j) for i in order for j in order if i < j and self.sizes[i] == self.sizes[j]]
        if pairs and rng.random() < 0.25:
            i, j = rng.choice(pairs)
            read[i], read[j] = read[j], read[i]
        if wide and self.oddly(0.05, "epilogue: reversed"):
            i = rng.choice(wide)
            read[i] = f"({sizes[i] - 1} - {read[i]})"
        elif pairs and self.oddly(0.04, "epilogue: diagonal"):
            i, j = rng.choice(pairs)
            read[j] = read[i]
        own = [f"vw{i}" for i in range(len(sizes))]
        stored = list(own)
        if wide and self.oddly(0.04, "epilogue: stored reversed"):
            i = rng.choice(wide)
            stored[i] = f"({sizes[i] - 1} - {stored[i]})"
        elif wide and self.oddly(0.03, "epilogue: many to one"):
            stored[rng.choice(wide)] = "0"
        total = f"temp[{self.temp.at(read)}]"
        odd = self.oddly(0.10, "odd epilogue")
        form = rng.choice(ODD_EPILOGUES if odd else EPILOGUES)
        value = _fill(form, s=total, a=f"({self.addend(own)})", g=f"G[{own[-1]}]")
        axes = [(f"w{i}", sizes[i], "spatial") for i in order]
        if self.oddly(0.03, "epilogue: another axis"):
            axes.append(("w9", rng.choice((1, 2)), "spatial"))
        body = [f"D[{self.out.at(stored)}] = {value}"]
        return self.nest("bias", axes, body, partial=self.oddly(0.03, "epilogue: partial loops"))

    def addend(self, own: list[str]) -> str:
        rng = self.rng
        full = f"C[{self.bias.at(own)}]"
        choices = [full] * 5 + [f"G[{own[-1]}]"] * 3 + [f"{full} + G[{own[-1]}]"]
        choices += [self.number(str(rng.randint(-5, 5))), f'T.Cast("{self.dtype}", {own[0]})']
        choices += [f"T.if_then_else({own[0]} < 2, {full}, {self.number('1')})"]
        zeros = ", ".join(["0"] * len(self.steps))
        choices += [f"A[{', '.join(own)}, {zeros}]"]
        if self.sizes[-1] != "n":
            choices += [f"G[J[{own[-1]}]]"]
        return rng.choice(choices)

    # -- everything else

    def other(self, name: str) -> list[str]:
        axes = [(f"o{i}", size, "spatial") for i, size in enumerate(self.sizes)]
        own = [f"vo{i}" for i in range(len(axes))]
        places = {
            "temp": f"temp[{self.temp.at(own)}]",
            "C": f"C[{self.bias.at(own)}]",
            "D": f"D[{self.out.at(own)}]",
            "F": f"F[{', '.join(own)}]",
        }
        buffer = name.split()[1]
        here = places[buffer]
        if name.endswith("read"):
            body = f"{places['F']} = {here} + {self.number('1')}"
        else:
            body = f"{here} = {self.number('4')}"
        return self.nest("other", axes, [body])

    def nest(self, name: str, axes: list, body: list[str], partial: bool = False) -> list[str]:
        """Loops in random order around a block."""
        loops = list(axes)
        if self.rng.random() < 0.4:
            self.rng.shuffle(loops)
        lines, depth = [], 0
        for axis, size, _ in loops:
            fewer = partial and size != "n" and size > 1
            partial = partial and not fewer
            extent = size - 1 if fewer else size
            lines.append("    " * depth + f"for {axis} in range({extent}):")
            depth += 1
        lines.append("    " * depth + f'with T.sblock("{name}"):')
        for axis, size, kind in axes:
            lines.append("    " * (depth + 1) + f"v{axis} = T.axis.{kind}({size}, {axis})")
        return lines + ["    " * (depth + 1) + line for line in body]

    def program(self) -> Program:
        rng = self.rng
        chosen = []
        for _ in range(2):
            if rng.random() < 0.2:
                chosen.append(rng.choice(OTHERS))
        self.odd += chosen
        parts = {"before": [], "between": [], "after": []}
        for name in chosen:
            parts[name.split(":")[0]] += self.other(name)
        first, second = self.reduction(), self.epilogue()
        body = [*parts["before"], *first, *parts["between"], *second, *parts["after"]]
        if self.oddly(0.02, "the epilogue stands first"):
            body = [*second, *first]
        sizes = [str(size) for size in self.sizes]
        shapes = {
            "A": [*sizes, *map(str, self.steps)],
            "B": [str(max(self.steps))],
            "C": self.bias.shape,
            "G": [sizes[-1]],
            "J": [sizes[-1]],
            "F": sizes,
            "D": self.out.shape,
        }
        dtypes = dict.fromkeys(shapes, self.dtype) | {"J": "int32"}
        lines = ["@T.prim_func(s_tir=True)"]
        lines.append(f"def main({', '.join(f'{name.lower()}: T.handle' for name in shapes)}):")
        head = ["n = T.int32()"] if self.n else []
        for name, shape in shapes.items():
            head.append(
                f'{name} = T.match_buffer({name.lower()}, ({", ".join(shape)},), "{dtypes[name]}")'
            )
        allocation = (
            f'temp = T.sblock_alloc_buffer(({", ".join(self.temp.shape)},), "{self.dtype}")'
        )
        if self.oddly(0.1, "a block around both"):
            wrapped = [
                "for o in range(1):",
                '    with T.sblock("outer"):',
                "        vo = T.axis.spatial(1, o)",
            ]
            inside = rng.random() < 0.7
            if inside:
                wrapped.append("        " + allocation)
            wrapped += ["        " + line for line in body]
            body = wrapped if inside else [allocation, *wrapped]
        else:
            body = [allocation, *body]
        lines += ["    " + line for line in head + body]
        return Program(
            "\n".join(lines) + "\n", self.arguments(shapes, dtypes), self.sizes, self.odd
        )

    def arguments(self, shapes: dict, dtypes: dict) -> list:
        random_ = np.random.default_rng(self.rng.randrange(2**32))
        found = []
        for name, shape in shapes.items():
            size = tuple(self.n if s == "n" else int(s) for s in shape)
            if name == "J":
                found.append(random_.permutation(size[0]).astype("int32"))
            else:
                found.append(random_.integers(-9, 10, size).astype(dtypes[name]))
        return found


def _fill(form: str, **parts: str) -> str:
    """`form` with its one-letter words replaced."""
    return re.sub(r"\b([Txysag])\b(?!\.)", lambda m: parts.get(m[1], m[0]), form)


def draw(seed: int) -> Program:
    """The program number `seed`."""
    return _Drawing(seed).program()


def reschedule(
    sch: s_tir.Schedule, rng: random.Random, steps: int, blocks: tuple[str, ...]
) -> None:
    """Apply up to `steps` random primitives to the loops of `blocks`; those that TVM refuses are skipped."""
    for _ in range(steps):
        try:
            block = sch.get_sblock(rng.choice(blocks))
            _one_step(sch, rng, block)
        except (s_tir.ScheduleError, ValueError):  # compute_at fails on an index it cannot invert
            continue


def _one_step(sch: s_tir.Schedule, rng: random.Random, block) -> None:
    loops = sch.get_loops(block)
    if not loops:
        return
    loop = rng.choice(loops)
    match rng.choice(("split", "split", "reorder", "fuse", "kind", "move")):
        case "split":
            sch.split(loop, rng.choice(([None, 2], [None, 3], [2, None], [None, 2, 2])))
        case "reorder":
            picked = rng.sample(loops, min(len(loops), rng.choice((2, 3))))
            if len(picked) > 1:
                sch.reorder(*picked)
        case "fuse":
            where = rng.randrange(len(loops))
            if where + 1 < len(loops):
                sch.fuse(loops[where], loops[where + 1])
        case "kind":
            constant = [lo for lo in loops if isinstance(sch.get(lo).extent, tvm.tirx.IntImm)]
            choices = [(sch.parallel, loops[0])] + [(sch.unroll, lo) for lo in constant]
            if constant and constant[-1].same_as(loops[-1]):
                choices.append((sch.vectorize, loops[-1]))
            how, loop = rng.choice(choices)
            how(loop)
        case "move":
            other = sch.get_sblock(rng.choice(("mm", "bias", "other")))
            target = rng.choice(sch.get_loops(other))
            rng.choice((sch.compute_at, sch.reverse_compute_at))(block, target)
