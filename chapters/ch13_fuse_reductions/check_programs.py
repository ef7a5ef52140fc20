"""The programs on which chapter 13 judges: a maximum and sums that read it, in many forms; and what must be refused.

A `Program` is a choice of features. `text` writes it as TVMScript, `arrays` draws its arguments, and `expected`
computes in float64, with NumPy, what it must give.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from hypothesis import strategies as st
from tvm import s_tir, tirx
from tvm.script import tirx as T

from chapters.kit.ir.parse_alone import from_source

# what x is, in the axes {i} and {k}
ELEMENTS = {
    "X": "X[{i}, {k}]",
    "scaled": "X[{i}, {k}] * T.float32(0.125)",
    "transposed": "X[{k}, {i}]",
    "masked": 'T.if_then_else({k} <= {i}, X[{i}, {k}], -T.infinity("float32"))',
    "half": 'T.Cast("float32", X[{i}, {k}])',
}
INITS = {"-inf": '-T.infinity("float32")', "smallest": 'T.min_value("float32")'}
SUMS = {"total": ("total",), "weighted": ("weighted",), "both": ("total", "weighted")}
FORMS = ("weight first", "weight last", "sum last", "three factors")
LOOPS = (
    *("as written", "second turned", "first split", "first turned", "second split", "shared rows"),
    *("parallel rows", "columns from 1"),
)
BESIDE = ("nothing", "a reader between", "a reader after")
ROW = (1.0, 3.0, 2.0, 5.0, 0.0)
NUMBERS = (
    *("small", "rising", "falling", "-inf first", "-inf last", "all -inf", "nan", "+inf"),
    "large",
)

# what must be refused, and why; the keys complete “a program with …”
REFUSED = {
    "a minimum": "`first` must be a maximum: the rescaling keeps exp(x - m) at most 1 only if no x is above m.",
    "the difference turned": "exp(m - x) of a maximum grows without bound. Only exp(x - m) is at most 1.",
    "the maximum a second time": "The addend is exp(x - m) * m. If m becomes m', exp(m - m') does not turn the sum "
    "so far into the sum with m'.",
    "no exp": "The addend is x - m. If m becomes m', the sum so far changes by an addition for each step, and not by "
    "the factor exp(m - m').",
    "the square": "The addend is exp(x - m) twice, so it changes by exp(m - m') twice.",
    "another element of the maximum": "Row i reads the maximum of another row.",
    "another x": "The exponent has z and not the x of the maximum. A z above the maximum so far may overflow, "
    "although the sum with the final maximum does not.",
    "a sum from 1": "The 1 from which the sum starts is not multiplied by exp(-m), so it must not be rescaled.",
    "a product": "The second reduction multiplies: a product of k factors changes by exp(m - m') to the power k.",
    "fewer elements": "The maximum is over all elements, and the sum is not.",
    "a predicate": "Some iterations of the second loop do not run.",
    "a predicate at the maximum": "Some iterations of the first loop do not run, so the maximum misses elements.",
    "the other axis": "The maximum is along rows, and the sum along columns: each addend has another maximum.",
    "float16 sums": "A sum on the way has another maximum than at the end. Its addends may be large beside those that "
    "remain, and float16 overflows above 65504.",
    "x written in between": "The sum reads other x than the maximum has seen.",
    "the maximum written in between": "The sum reads another maximum than the first loop has found.",
    "y written in between": "The sum reads y after it was written, and fused it would read it before.",
    "the sum written in between": "A block between the two writes where the sum will be, and fused it is there before.",
    "a difference": "Each step subtracts. The sum would have to be rescaled too, but it is not what is added up here.",
    "a quotient": "The addend has 1 / exp(x - m), which changes by exp(m' - m), and not by exp(m - m').",
    "exp2": "If m becomes m', 2 ** (x - m) changes by 2 ** (m - m'), and not by exp(m - m').",
    "the maximum of pairs": "Two rows share a maximum, so the first sum is complete before the second row is seen.",
    "the sum read in between": "A block between the two reads what was in the sum before, and fused it reads the sum.",
    "a part of the sum read": "A block in the loop of the sum reads it after each step. Fused, it reads the whole sum.",
    "a sum as a factor": "The factor is a sum that an earlier call has fused, so it is not complete in each step.",
    "shared steps": "Both are in one loop over k, so each step of the sum has the maximum of the elements until then.",
    "tiles of other rows": "Both are in one loop over tiles, and a tile sums rows whose maximum a later tile finds.",
    "twice the x": "The exponent has 2 x and not the x of the maximum, so it may be far above 0.",
    "other elements": "The maximum is over the first five elements of a row, and the sum over the last five.",
    "a further reduction axis": "Each element has two addends, and the sum must be rescaled once for both.",
    "columns that share a sum": "Two columns add to one element, and each begins by making it 0: the last one stays.",
    "x written beside the maximum": "A block in the loops of the maximum writes x after each step. The sum reads what "
    "it has written, and fused it reads x before.",
    "x written beside the sum": "A block in the loops of the sum writes x of other rows, which the sum reads later.",
    "the sum read beside the maximum": "A block in the loops of the maximum reads what was in the sum before, and "
    "fused it reads the sum.",
    "the sum of another row read": "A block in the loop of the rows reads a sum that is not yet made, and fused it is.",
}
# of those, the programs that are written here as they are: what `main` does with X (4, 6) and M (4,), and the sums
_MAXIMUM = """
for i, k in T.grid(4, 6):
    with T.sblock("maximum"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            M[vi] = -T.infinity("float32")
        M[vi] = T.max(M[vi], X[vi, vk])
"""
_TOTAL = """
for i, k in T.grid(4, 6):
    with T.sblock("total"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            S[vi] = T.float32(0)
        S[vi] = S[vi] + T.exp(X[vi, vk] - M[vi])
"""
_WEIGHTED = """
for i, k in T.grid(4, 6):
    with T.sblock("weighted"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            W[vi] = T.float32(0)
        W[vi] = W[vi] + T.exp(X[vi, vk] - M[vi]) * S[vi]
"""
_READ = """
for i in range(4):
    with T.sblock("between"):
        vi = T.axis.spatial(4, i)
        B[vi] = S[vi]
"""
_BESIDE = """    with T.sblock("beside"):
        wi, wk = T.axis.remap("SS", [i, k])
        {}
"""
_AXES = 'vi, vk = T.axis.remap("SR", [i, k])'
_READ_ROW = """    with T.sblock("beside"):
        wi = T.axis.spatial(4, i)
        B[wi] = S[wi]
"""


def _by_rows(text: str) -> str:
    """The loop over k in a loop over the rows, so that a block may follow it there."""
    inner = text.replace("\n    ", "\n        ")
    return inner.replace("for i, k in T.grid(4, 6):", "for i in range(4):\n    for k in range(6):")


def _in_steps(text: str) -> str:
    """The loop over the rows alone, to stand in a loop over k that both blocks share."""
    return text.replace("for i, k in T.grid(4, 6)", "for i in range(4)").replace("\n", "\n    ")


def _in_tiles(text: str, row: str) -> str:
    """The loops of one of two tiles t of rows."""
    inner = text.replace("for i, k in T.grid(4, 6)", "for u, k in T.grid(2, 6)")
    inner = inner.replace(
        _AXES,
        f"vi = T.axis.spatial(4, {row})\n        vk = T.axis.reduce(6, k)",
    )
    return inner.replace("\n", "\n    ")


WRITTEN = {
    "a difference": _MAXIMUM + _TOTAL.replace("S[vi] + T", "S[vi] - T"),
    "a quotient": _MAXIMUM + _TOTAL.replace("T.exp(X", "T.float32(2) / T.exp(X"),
    "exp2": _MAXIMUM + _TOTAL.replace("T.exp", "T.exp2"),
    "the maximum of pairs": (_MAXIMUM + _TOTAL).replace("M[vi]", "M[vi // 2]"),
    "the sum read in between": _MAXIMUM + _READ + _TOTAL,
    "a part of the sum read": _MAXIMUM + _TOTAL + _BESIDE.format("P[wi, wk] = S[wi]"),
    "a sum as a factor": _MAXIMUM + _TOTAL + _WEIGHTED,
    "shared steps": "\nfor k in range(6):\n    " + _in_steps(_MAXIMUM + _TOTAL),
    "twice the x": _MAXIMUM + _TOTAL.replace("X[vi, vk]", "X[vi, vk] * T.float32(2)"),
    "other elements": (
        _MAXIMUM
        + _TOTAL.replace(
            _AXES, "vi = T.axis.spatial(4, i)\n        vk = T.axis.reduce((1, 6), k + 1)"
        )
    ).replace("(4, 6)", "(4, 5)"),
    "a further reduction axis": _MAXIMUM
    + _TOTAL.replace("i, k in T.grid(4, 6)", "i, k, j in T.grid(4, 6, 2)")
    .replace(_AXES, 'vi, vk, vj = T.axis.remap("SRR", [i, k, j])')
    .replace("M[vi])", "M[vi]) * B[vj]"),
    "columns that share a sum": _MAXIMUM
    + _TOTAL.replace("i, k in T.grid(4, 6)", "i, j, k in T.grid(4, 2, 6)").replace(
        _AXES, 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])'
    ),
    "x written beside the maximum": _MAXIMUM + _BESIDE.format("X[wi, wk] = T.float32(1)") + _TOTAL,
    "x written beside the sum": _MAXIMUM + _TOTAL + _BESIDE.format("X[3 - wi, wk] = T.float32(1)"),
    "the sum read beside the maximum": _by_rows(_MAXIMUM) + _READ_ROW + _TOTAL,
    "the sum of another row read": _MAXIMUM
    + _by_rows(_TOTAL)
    + _READ_ROW.replace("S[wi]", "S[3 - wi]"),
    "tiles of other rows": "\nfor t in range(2):\n    "
    + _in_tiles(_MAXIMUM, "t * 2 + u")
    + _in_tiles(_TOTAL, "u * 2 + t"),
}
# of the others, those whose weight is not exp(x - m)
WEIGHTS = {
    "the difference turned": "T.exp({m} - {x})",
    "no exp": "({x} - {m})",
    "the square": "T.exp({x} - {m}) * T.exp({x} - {m})",
    "the maximum a second time": "T.exp({x} - {m}) * {m}",
}
NEEDS_FACTOR = ("y written in between", "float16 sums")
PLAIN_SUM = ("the other axis",)


@dataclass(frozen=True)
class Program:
    """rows, length: of X. width: columns of the weighted sum. refused: a key of REFUSED, or "" if it must be fused."""

    rows: int = 1
    length: int = 1
    width: int = 1
    sums: str = "total"
    x: str = "X"
    init: str = "-inf"
    form: str = "weight first"
    loops: str = "as written"
    beside: str = "nothing"
    numbers: str = "small"
    refused: str = ""

    @property
    def is_written(self) -> bool:
        """Whether it is one of WRITTEN."""
        return self.refused in WRITTEN

    @property
    def seconds(self) -> tuple[str, ...]:
        """The names of the blocks to fuse into `maximum`, in order."""
        return SUMS["both" if self.refused == "a sum as a factor" else self.sums]

    @property
    def odd(self) -> dict[str, str]:
        """The features that are not the plainest."""
        features = {f.name: getattr(self, f.name) for f in fields(self) if f.type == "str"}
        return {name: one for name, one in features.items() if one != getattr(Program, name)}

    @property
    def size(self) -> int:
        """What makes it long to read: the number of features that are not the plainest, then its loops."""
        return 100 * len(self.odd) + self.rows + self.length + self.width

    @property
    def about(self) -> str:
        """The features that are not the plainest, in a few words."""
        return "; ".join(f"{name}: {one}" for name, one in self.odd.items() if name != "refused")


def to_fuse() -> st.SearchStrategy[Program]:
    """Programs that must be fused, the plainest of each choice first."""
    return st.builds(
        Program,
        rows=st.sampled_from((1, 2, 3)),
        length=st.sampled_from((1, 2, 3, 5)),
        width=st.sampled_from((1, 2, 3)),
        sums=st.sampled_from(tuple(SUMS)),
        numbers=st.sampled_from(NUMBERS),
        x=st.sampled_from(tuple(ELEMENTS)),
        init=st.sampled_from(tuple(INITS)),
        form=st.sampled_from(FORMS),
        loops=st.sampled_from(LOOPS),
        beside=st.sampled_from(BESIDE),
    )


def to_refuse() -> st.SearchStrategy[Program]:
    """Programs that must be refused; apart from the reason they are plain."""
    return st.builds(
        Program,
        rows=st.sampled_from((2, 3)),
        length=st.sampled_from((2, 3)),
        width=st.sampled_from((1, 2)),
        sums=st.sampled_from(("total", "weighted")),
        x=st.sampled_from(("X", "scaled")),
        form=st.sampled_from(FORMS[:2]),
        loops=st.sampled_from(LOOPS[:2]),
        refused=st.sampled_from(tuple(why for why in REFUSED if why not in WRITTEN)),
    ).filter(is_possible)


def plain_fused() -> list[Program]:
    """The plainest programs, the smallest first: most wrong answers are wrong on one of them."""
    plain = [Program(length=n, sums=sums) for sums in SUMS for n in (1, 2)]
    return [*plain, Program(2, 3, 2, sums="weighted", loops="columns from 1")]


def plain_refused() -> list[Program]:
    """The plainest program of each reason to refuse."""
    sums = {why: "weighted" if why in NEEDS_FACTOR else "total" for why in REFUSED}
    sizes = {why: (4, 6) if why in WRITTEN else (2, 3) for why in REFUSED}
    return [Program(*sizes[why], sums=sums[why], refused=why) for why in REFUSED]


def is_possible(program: Program) -> bool:
    """Whether the reason to refuse can occur in this program."""
    weighted = program.sums == "weighted"
    if program.is_written:
        return not weighted
    if program.refused in NEEDS_FACTOR:
        return weighted
    return not (program.refused in PLAIN_SUM and weighted)


# --- as TVMScript ---------------------------------------------------------------------------------


def text(program: Program) -> str:
    """The program as TVMScript."""
    p, why = program, program.refused
    if p.is_written:
        return _write(why)
    kind = "float16" if p.x == "half" or why == "float16 sums" else "float32"
    sums = "float16" if why == "float16 sums" else "float32"
    shape = (p.length, p.rows) if p.x == "transposed" else (p.rows, p.length)
    params = [f'X: T.Buffer({shape}, "{kind}")']
    if why == "another x":
        params.append(f'Z: T.Buffer({shape}, "float32")')
    if "weighted" in p.seconds:
        params.append(f'V: T.Buffer(({p.length}, {p.width}), "{sums}")')
    if p.form == "three factors":
        params.append(f'Y: T.Buffer(({p.length},), "{sums}")')
    params += [f'M: T.Buffer(({p.rows},), "{sums}")']
    if "total" in p.seconds:
        length = p.length if why == "the other axis" else p.rows
        params.append(f'S: T.Buffer(({length},), "{sums}")')
    if "weighted" in p.seconds:
        params.append(f'W: T.Buffer(({p.rows}, {p.width}), "{sums}")')
    if p.beside == "a reader between":
        params.append(f'B: T.Buffer(({p.rows},), "float32")')
    if p.beside == "a reader after":
        params.append(f'P: T.Buffer(({p.rows}, {p.length}), "float32")')
    first, others = _maximum(p), [_sum(p, name) for name in p.seconds]
    parts = [first, _between(p), *others]
    if p.loops == "shared rows":
        row = f"for i in range({p.rows}):\n"
        parts = [row, *(part.replace(row, "", 1) for part in parts)]
    body = "".join(parts)
    if p.beside == "a reader after":
        loops, step = [("i", p.rows), ("k", p.length)], f"T.exp({_x(p, 'vi', 'vk')} - M[vi])"
        body += _block(p, loops, "after", "SS", [], f"P[vi, vk] = {step}")
    return _function(params, body)


def _write(why: str) -> str:
    """One of WRITTEN as TVMScript, with the buffers that it uses."""
    shapes = {"X": (4, 6), "M": (4,), "S": (4,), "W": (4,), "B": (4,), "P": (4, 6)}
    body = WRITTEN[why]
    used = {name: shape for name, shape in shapes.items() if f"{name}[" in body}
    return _function([f'{b}: T.Buffer({shape}, "float32")' for b, shape in used.items()], body)


def _function(params: list[str], body: str) -> str:
    head = f"@T.prim_func(s_tir=True)\ndef main({', '.join(params)}):\n"
    return head + textwrap.indent(body, "    ", lambda line: True)


def _x(p: Program, i: str, k: str, buffer: str = "X") -> str:
    return ELEMENTS[p.x].format(i=i, k=k).replace("X[", f"{buffer}[")


def _block(
    p: Program, loops, name: str, kinds: str, init: list[str], step: str, where: str = ""
) -> str:
    """Loops, each on a line of its own, around one block; its axes are the loops' names with a v before."""
    out = ""
    for depth, (var, extent) in enumerate(loops):
        parallel = p.loops == "parallel rows" and (depth, var) == (0, "i")
        rows = f"T.parallel({extent})" if parallel else f"range({extent})"
        out += "    " * depth + f"for {var} in {rows}:\n"
    pad = "    " * len(loops)
    out += f'{pad}with T.sblock("{name}"):\n'
    if where:
        out += f"{pad}    T.where({where})\n"
    for (var, extent), axis in zip(loops, kinds, strict=True):
        values = f"{extent}, {var}"
        if p.loops == "columns from 1" and (name, var) == ("weighted", "j"):
            values = f"(1, {extent + 1}), j + 1"
        out += f"{pad}    v{var} = T.axis.{'spatial' if axis == 'S' else 'reduce'}({values})\n"
    if init:
        out += f"{pad}    with T.init():\n" + "".join(f"{pad}        {line}\n" for line in init)
    return out + "".join(f"{pad}    {line}\n" for line in step.splitlines())


def _maximum(p: Program) -> str:
    init, larger = INITS[p.init], "max"
    if p.refused == "a minimum":
        init, larger = 'T.infinity("float32")', "min"
    if p.refused == "float16 sums":
        init = init.replace("float32", "float16")
    where = f"k < {p.length - 1}" if p.refused == "a predicate at the maximum" else ""
    loops = [("i", p.rows), ("k", p.length)]
    step = f"M[vi] = T.{larger}(M[vi], {_x(p, 'vi', 'vk').replace('float32', _kind(p))})\n"
    return _block(p, loops, "maximum", "SR", [f"M[vi] = {init}"], step, where)


def _kind(p: Program) -> str:
    return "float16" if p.refused == "float16 sums" else "float32"


def _sum(p: Program, name: str) -> str:
    why, rows = p.refused, "vi"
    x = _x(p, "vi", "vk", "Z" if why == "another x" else "X").replace("float32", _kind(p))
    if why == "another element of the maximum":
        rows = f"{p.rows - 1} - vi"
    factors = [WEIGHTS.get(why, "T.exp({x} - {m})").format(x=x, m=f"M[{rows}]")]
    loops, kinds, target = [("i", p.rows), ("k", p.length)], "SR", "S[vi]"
    if name == "weighted":
        loops, kinds, target = [("i", p.rows), ("j", p.width), ("k", p.length)], "SSR", "W[vi, vj]"
        factors.append("V[vk, vj]")
        if p.loops == "columns from 1":
            target, factors[-1] = "W[vi, vj - 1]", "V[vk, vj - 1]"
    if why == "the other axis":
        kinds, target = "RS", "S[vk]"
    if p.form == "three factors":
        factors.insert(0, "Y[vk]")
    if p.form == "weight last":
        factors.reverse()
    addend, sign = " * ".join(factors), "+"
    if why == "a product":
        addend, sign = f"({addend})", "*"
    sides = [target, addend]
    if p.form == "sum last":
        sides.reverse()
    if p.loops == "second turned":
        loops, kinds = loops[::-1], kinds[::-1]
    if why == "fewer elements":
        loops = [(var, n - 1 if var == "k" else n) for var, n in loops]
    where = f"k < {p.length - 1}" if why == "a predicate" else ""
    step = f"{target} = {f' {sign} '.join(sides)}\n"
    start = f"T.{_kind(p)}({int(why in ('a sum from 1', 'a product'))})"
    return _block(p, loops, name, kinds, [f"{target} = {start}"], step, where)


def _between(p: Program) -> str:
    loops, step = {
        "a reader between": ("i", "B[vi] = M[vi] + T.float32(1)"),
        "x written in between": ("ik", "X[vi, vk] = X[vi, vk] + T.float32(1)"),
        "the maximum written in between": ("i", "M[vi] = M[vi] + T.float32(1)"),
        "y written in between": ("kj", "V[vk, vj] = V[vk, vj] + T.float32(1)"),
        "the sum written in between": (
            "i",
            f"{'S[vi]' if p.sums == 'total' else 'W[vi, 0]'} = T.float32(7)",
        ),
    }.get(p.refused or p.beside, ("", ""))
    sizes = {"i": p.rows, "j": p.width, "k": p.length}
    around = [(var, sizes[var]) for var in loops]
    return _block(p, around, "between", "S" * len(around), [], step) if step else ""


def schedule(program: Program) -> s_tir.Schedule:
    """A schedule of the program, in which its loops are as it says."""
    sch = s_tir.Schedule(_parse(text(program)))
    if program.loops == "first split":
        sch.split(sch.get_loops("maximum")[-1], [None, 2])
    if program.loops == "first turned":
        sch.reorder(*reversed(sch.get_loops("maximum")))
    if program.loops == "second split":
        sch.split(sch.get_loops(program.seconds[0])[-1], [None, 2])
    return sch


@cache
def _parse(source: str) -> tirx.PrimFunc:
    """The function; parsing takes as long as the rest of a look at a program, and several looks need it."""
    return from_source(source, {"T": T})


# --- numbers --------------------------------------------------------------------------------------


def arrays(program: Program) -> dict[str, np.ndarray]:
    """Arguments by name: the first row of X is as the lesson has it, and all results hold 77."""
    p = replace(program, rows=4, length=6) if program.is_written else program
    x = np.resize(ROW, p.length) - 4.0 * np.arange(p.rows)[:, None]
    place = p.length // 2
    if p.numbers in ("rising", "falling"):
        x += (30 if p.numbers == "rising" else -30) * np.arange(p.length)
    elif p.numbers == "-inf first":
        x[:, : place + 1] = -np.inf
        x[:, -1] = 1.5
    elif p.numbers == "-inf last":
        x[:, place:] = -np.inf
        x[:, 0] = 1.5
    elif p.numbers == "all -inf":
        x[0] = -np.inf
    elif p.numbers == "nan":
        x[0, place] = np.nan
    elif p.numbers == "+inf":
        x[0, place] = np.inf
    elif p.numbers == "large":
        x = x * 5 + 300
    z = np.full(x.shape, 300.0)
    if p.refused in ("another x", "float16 sums"):  # the maximum rises at the end
        last = 300 if p.refused == "another x" else 20
        x = np.full(x.shape, last) * (np.arange(p.length) == p.length - 1)
    if p.x == "scaled":
        x = x * 8
    held = x.T if p.x == "transposed" else x
    factors = 1.0 + np.arange(p.length)[:, None] + np.arange(p.width)
    known = {
        "X": held,
        "Z": z,
        "V": 0 * factors + 40000 if p.refused == "float16 sums" else factors,
        "Y": np.where(np.arange(p.length) % 2, -2.0, 1.0),
    }
    func = schedule(p).mod["main"]
    names = [str(buffer.name) for buffer in func.params]
    found = {}
    for name, buffer in zip(names, func.params, strict=True):
        shape = [int(n) for n in buffer.shape]
        value = known.get(name)
        found[name] = (np.full(shape, 77) if value is None else value).astype(str(buffer.dtype))
    return found


def expected(program: Program, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results in float64. An element is NaN where a NaN or +inf is in its row, or all of the row is -inf."""
    p, x = program, _elements(program, given)
    lowest = -np.inf if p.init == "-inf" else float(np.finfo("float32").min)
    with np.errstate(invalid="ignore"):
        largest = np.maximum(x.max(axis=1), lowest)
        weights = np.exp(x - largest[:, None])
        factors = given["Y"].astype("float64") if p.form == "three factors" else np.ones(p.length)
        found = {"M": largest}
        if "S" in given:
            found["S"] = weights @ factors
        if "W" in given:
            found["W"] = weights @ (factors[:, None] * given["V"].astype("float64"))
        if "B" in given:
            found["B"] = largest + 1
        if "P" in given:
            found["P"] = weights
    return found


def rows_without_maximum(program: Program, given: dict[str, np.ndarray]) -> np.ndarray:
    """Whether all elements of a row are -inf; a fused sum may be 0 there, where the unfused one is NaN."""
    return np.all(_elements(program, given) == -np.inf, axis=1)


def _elements(program: Program, given: dict[str, np.ndarray]) -> np.ndarray:
    """What the program takes the maximum of, a row for each maximum, in float64."""
    x = given["X"].astype("float64")
    if program.x == "transposed":
        return x.T
    if program.x == "masked":
        return np.where(np.arange(program.length) <= np.arange(program.rows)[:, None], x, -np.inf)
    return x * 0.125 if program.x == "scaled" else x
