"""The checks of chapter 6: a primitive that fuses a bias into its reduction, and refuses everything it cannot prove."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.script import tirx as T
from tvm.sym import Analyzer

from chapters.toolkit.cpu.vnni import register
from chapters.toolkit.ir.block_site import locate
from chapters.toolkit.ir.ir_diff import diff
from chapters.toolkit.ir.tensor_ir import mentions, nodes, substitute, with_fields
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as reference
from tests.harness import expect
from tests.harness.failure import CheckFailed
from tests.property.guarded import run_compiled
from tests.property.interpret import OutOfBounds, interpret

LESSON = "chapters/ch06_reduction_epilogue/lesson.md"
ADDED = f"{LESSON}, “Analysis: what is added”"
AXES = f"{LESSON}, “Analysis: which axis is which”"
OTHERS = f"{LESSON}, “Analysis: who else sees it”"
BLOCK = f"{LESSON}, “Transformation”"
PLACE = f"{LESSON}, “Substitution”"
REGIONS = f"{LESSON}, “Regions that lie”"
NOT_FIRE = f"{LESSON}, “When it must not fire”"
MEASURE = f"{LESSON}, “Measure it”"

# --- programs -------------------------------------------------------------------------------------

_PROGRAM = """
@T.prim_func(s_tir=True)
def main(
    A: T.Buffer((4, 3), "int32"), B: T.Buffer((5, 3), "int32"), C: T.Buffer({C}, "int32"),
    J: T.Buffer((5,), "int32"), E: T.Buffer((4, 5), "int32"), D: T.Buffer({D}, "int32"){extra},
):
    T.func_attr({{"tirx.noalias": True, "kept": 7}})
    {allocation}
{before}
    for i, j, k in T.grid(4, 5, 3):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                {total} = {init}
            {total} = {step}
{between}
{epilogue}
{after}
"""

_LOOPS = """
for i, j in T.grid({loops}):
    with T.sblock("{name}"):
        {axes}
        {body}
"""


def nest(
    body: str,
    name: str = "bias",
    axes: str = 'vi, vj = T.axis.remap("SS", [i, j])',
    loops: str = "4, 5",
) -> str:
    """Two loops around a block."""
    return _LOOPS.format(name=name, axes=axes, body=body, loops=loops)


def program(
    epilogue: str = "D[vi, vj] = temp[vi, vj] + C[vi, vj]",
    *,
    total: str = "temp[vi, vj]",
    step: str = "temp[vi, vj] + A[vi, vk] * B[vj, vk]",
    init: str = "0",
    temp: str = "(4, 5)",
    before: str = "",
    between: str = "",
    after: str = "",
    **shapes: str,
) -> tirx.PrimFunc:
    """A (4, 5) matrix product over 3 steps, an epilogue (a line or a whole nest), and other blocks around them."""
    if "\n" not in epilogue:
        epilogue = nest(epilogue)
    parts = {"before": before, "between": between, "epilogue": epilogue, "after": after}
    text = _PROGRAM.format(
        **{name: textwrap.indent(part.strip("\n"), "    ") for name, part in parts.items()},
        total=total,
        step=step,
        init=init,
        C=shapes.get("C", "(4, 5)"),
        D=shapes.get("D", "(4, 5)"),
        extra=shapes.get("extra", ""),
        allocation=shapes.get("allocation", f'temp = T.sblock_alloc_buffer({temp}, "int32")'),
    )
    return tvm.script.from_source(text)


def other(body: str) -> str:
    """A block beside the two."""
    return nest(body, name="other")


def blocks_of(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, s_tir.SBlock, s_tir.SBlock]:
    """A schedule of `func`, its reduction and its epilogue."""
    sch = s_tir.Schedule(func)
    return sch, sch.get(sch.get_sblock("matmul")), sch.get(sch.get_sblock("bias"))


def planned(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, reference.Fusion]:
    """The reference's analysis of `func`, without the part that looks at bystanders."""
    sch, reduction, epilogue = blocks_of(func)
    site = locate(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
    store, temp = epilogue.body, reduction.body.buffer
    load, addend = reference.split_sum(epilogue, temp)
    axes = reference.match_axes(load.indices, reduction.body.indices, epilogue, reduction)
    fusion = reference.Fusion(
        site=site,
        temp=temp,
        axes=axes,
        output=store.buffer,
        indices=substitute(store.indices, axes),
        addend=substitute(addend, axes),
    )
    return sch, fusion


def listing(func: tirx.PrimFunc) -> str:
    """The loops of `func` as TVM prints them."""
    lines = func.script().splitlines()
    start = next(i for i, line in enumerate(lines) if "with T.sblock" in line)
    return textwrap.dedent("\n".join(lines[start + 1 :]))


def inputs_of(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Small random integers for every buffer; those called J are indices."""
    random = np.random.default_rng(seed)
    found = []
    for param in func.params:
        shape = tuple(int(size) for size in param.shape)
        high = int(np.prod(shape)) if param.name == "J" else 10
        low = 0 if param.name == "J" else -9
        found.append(random.integers(low, high, shape).astype(str(param.dtype)))
    return found


def results(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """What `func` leaves in its buffers, run point by point in Python."""
    arrays = [array.copy() for array in inputs_of(func, seed)]
    interpret(func, arrays)
    return arrays


# --- asking ---------------------------------------------------------------------------------------


def refuses(
    call: Callable[[], object], func: tirx.PrimFunc, what: str, *, why: str, read: str
) -> None:
    """`call` raises a ScheduleError of one line that names a block of `func`; None is the wrong answer."""
    try:
        call()
    except ScheduleError as error:
        message = str(error)
        named = "`matmul`" in message or "`bias`" in message
        expect.that(
            named and "\n" not in message,
            "A refusal does not name the block that stands in the way, in one line.",
            expected='require(condition, block, "the condition it misses"), which words it',
            yours=message[:300],
            why="A schedule of twenty blocks is mended only by somebody who knows which one to look at.",
            read=NOT_FIRE,
        )
        return
    raise CheckFailed(
        what,
        expected="a ScheduleError, by `require`",
        yours="accepted:\n" + listing(func),
        why=why,
        read=read,
    )


def accepts(call: Callable[[], object], func: tirx.PrimFunc, what: str, *, why: str, read: str):
    """`call()`; a ScheduleError is the wrong answer."""
    try:
        return call()
    except ScheduleError as error:
        raise CheckFailed(
            what,
            expected="no refusal for\n" + listing(func),
            yours=str(error)[:400],
            why=why,
            read=read,
        ) from None


def same_expr(one, two) -> bool:
    simplify = Analyzer().simplify
    return tvm_ffi.structural_equal(simplify(one), simplify(two))


# --- 6.1 ------------------------------------------------------------------------------------------

SUMS = {
    "temp + C": ("temp[vi, vj] + C[vi, vj]", "C[vi, vj]"),
    "C + temp": ("C[vi, vj] + temp[vi, vj]", "C[vi, vj]"),
    "an expression as addend": ("temp[vi, vj] + (C[vi, vj] * 2 + vi)", "C[vi, vj] * 2 + vi"),
    "an addend that is looked up": ("temp[vi, vj] + C[vi, J[vj]]", "C[vi, J[vj]]"),
    "an addend with a condition": (
        "temp[vi, vj] + T.if_then_else(vi < 2, C[vi, vj], 1)",
        "T.if_then_else(vi < 2, C[vi, vj], 1)",
    ),
}
NO_SUMS = {
    "temp - C": (
        "temp[vi, vj] - C[vi, vj]",
        "The text of this expression has a bias in it, but what is added is its negative; where `C - temp` looks the "
        "same, the sum itself changes its sign.",
    ),
    "C - temp": (
        "C[vi, vj] - temp[vi, vj]",
        "The sum changes its sign: starting from C and adding gives C + sum.",
    ),
    "temp * 2 + C": (
        "temp[vi, vj] * 2 + C[vi, vj]",
        "The sum is scaled, so every step would have to be scaled too: starting from C alone gives sum + C.",
    ),
    "max(temp + C, 0)": (
        "T.max(temp[vi, vj] + C[vi, vj], 0)",
        "A step that ran after the clipping would start from a clipped number: 0 + 6 - 2 clipped at 5 each time is 3.",
    ),
    "max(temp, 0) + C": (
        "T.max(temp[vi, vj], 0) + C[vi, vj]",
        "Something stands between the sum and the addition, and nobody would compute it any more.",
    ),
    "temp + temp": (
        "temp[vi, vj] + temp[vi, vj]",
        "The addend is the sum itself, which does not exist yet at the init.",
    ),
    "temp + C * temp": (
        "temp[vi, vj] + C[vi, vj] * temp[vi, vj]",
        "The addend depends on the sum, which does not exist yet at the init.",
    ),
    "an addend that calls something": (
        'temp[vi, vj] + T.call_extern("int32", "next_number")',
        "The call would happen before the reduction and not after it, and perhaps another number of times.",
    ),
}


def _sum(text: str) -> tirx.PrimFunc:
    return program(f"D[vi, vj] = {text}")


def test_6_1_finds_the_addend(impl) -> None:
    """the addend is found on either side of the sum"""
    for title, (text, addend) in SUMS.items():
        func = _sum(text)
        _, reduction, epilogue = blocks_of(func)
        found = accepts(
            lambda e=epilogue, r=reduction: impl.split_sum(e, r.body.buffer),
            func,
            f"split_sum refuses {title}.",
            why="It is the sum of one load of temp and something that does not mention temp.",
            read=ADDED,
        )
        expect.that(
            isinstance(found, tuple) and len(found) == 2,
            f"split_sum returned {type(found).__name__}, not the load and the addend.",
            expected="return load, addend",
        )
        load, mine = found
        wanted = epilogue.body.value
        side = wanted.b if same_expr(wanted.a, load) else wanted.a
        expect.that(
            same_expr(mine, side) and load.source.same_as(reduction.body.buffer),
            f"split_sum does not find the addend of {title}.",
            expected=f"temp[vi, vj] and {addend}",
            yours=f"{_text(load)} and {_text(mine)}",
            why="The addend becomes the init. Anything left out of it is lost.",
            read=ADDED,
        )


def _text(expression) -> str:
    """An expression as text, with the names of variables that stand free in it."""
    names = {
        v: tirx.Var(v.name, v.ty) if not tirx.is_buffer_var(v) else v
        for v in nodes(expression, tvm.ir.Var)
    }
    return str(substitute(expression, names)).splitlines()[-1]


def test_6_1_adds_nothing_to_a_copy(impl) -> None:
    """a copy adds 0, of the dtype that is copied"""
    for dtype in ("int32", "float32"):
        func = _copy(dtype)
        _, reduction, epilogue = blocks_of(func)
        _, addend = accepts(
            lambda e=epilogue, r=reduction: impl.split_sum(e, r.body.buffer),
            func,
            f"split_sum refuses a copy, `D[vi] = temp[vi]`, in {dtype}.",
            why="A copy is a sum whose addend is 0; `cache_write` leaves such blocks everywhere.",
            read=ADDED,
        )
        number = isinstance(addend, tirx.IntImm | tirx.FloatImm) and addend.value == 0
        expect.that(
            number and str(addend.ty.dtype) == dtype,
            f"The addend of a copy in {dtype} is no {dtype} 0.",
            expected=f'const(0, "{dtype}")',
            yours=f"{addend!r} in {addend.ty.dtype}" if number else repr(addend),
            why="It becomes the init, which is stored into a buffer of that dtype.",
            read=ADDED,
        )


def _copy(dtype: str) -> tirx.PrimFunc:
    """Sums of three numbers, and a block that copies them."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4, 3), dtype), D: T.Buffer((4,), dtype)):
        temp = T.sblock_alloc_buffer((4,), dtype)
        for i, k in T.grid(4, 3):
            with T.sblock("matmul"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    temp[vi] = T.cast(0, dtype)
                temp[vi] = temp[vi] + A[vi, vk]
        for i in range(4):
            with T.sblock("bias"):
                vi = T.axis.spatial(4, i)
                D[vi] = temp[vi]

    return main


def test_6_1_refuses_all_else(impl) -> None:
    """everything that is not a sum of temp and something free of temp is refused"""
    for title, (text, why) in NO_SUMS.items():
        func = _sum(text)
        _, reduction, epilogue = blocks_of(func)
        refuses(
            lambda e=epilogue, r=reduction: impl.split_sum(e, r.body.buffer),
            func,
            f"split_sum accepts {title}.",
            why=why,
            read=ADDED,
        )


def test_6_1_refuses_temp_in_an_index(impl) -> None:
    """temp may not decide where the output goes, or which bias is taken"""
    for title, text in {
        "an index of the output": "D[vi, temp[vi, vj]] = temp[vi, vj] + C[vi, vj]",
        "an index of the bias": "D[vi, vj] = temp[vi, vj] + C[vi, temp[vi, vj]]",
    }.items():
        func = program(text)
        _, reduction, epilogue = blocks_of(func)
        refuses(
            lambda e=epilogue, r=reduction: impl.split_sum(e, r.body.buffer),
            func,
            f"split_sum accepts temp as {title}.",
            why="Before the first step nobody knows that index yet.",
            read=ADDED,
        )


def observe_6_1(impl):
    def outcome(func: tirx.PrimFunc):
        _, reduction, epilogue = blocks_of(func)
        try:
            load, addend = impl.split_sum(epilogue, reduction.body.buffer)
        except ScheduleError:
            return "refused"
        parts = {"load": load, "a": epilogue.body.value}
        return _text(parts["load"]), _text(addend)

    texts = [f"D[vi, vj] = {text}" for text, _ in [*SUMS.values(), *NO_SUMS.values()]]
    texts += ["D[vi, vj] = temp[vi, vj]", "D[vi, temp[vi, vj]] = temp[vi, vj] + C[vi, vj]"]
    funcs = [*map(program, texts), _copy("float32")]
    return [lambda func=func: outcome(func) for func in funcs]


# --- 6.2 ------------------------------------------------------------------------------------------

_OTHER_ORDER = """vj = T.axis.spatial(5, j)
        vi = T.axis.spatial(4, i)"""
_SLICE = """vi = T.axis.spatial(3, i)
        vj = T.axis.spatial(5, j)"""
_MORE = """vi = T.axis.spatial(4, i)
        vj = T.axis.spatial(5, j)
        vu = T.axis.spatial({size}, {value})"""

SAME_ELEMENT = {
    "axes declared in the other order": program(
        nest("D[vi, vj] = temp[vi, vj] + C[vi, vj]", axes=_OTHER_ORDER)
    ),
    "a result kept transposed": program(
        "D[vi, vj] = temp[vj, vi] + C[vi, vj]",
        total="temp[vj, vi]",
        step="temp[vj, vi] + A[vi, vk] * B[vj, vk]",
        temp="(5, 4)",
    ),
    "axes named the other way round": program(
        nest(
            "D[vj, vi] = temp[vj, vi] + C[vj, vi]",
            axes="vi = T.axis.spatial(5, j)\n        vj = T.axis.spatial(4, i)",
        )
    ),
    "an axis of one value": program(
        nest("D[vi, vj + vu] = temp[vi, vj] + C[vi, vj]", axes=_MORE.format(size=1, value=0))
    ),
}
OTHER_ELEMENT = {
    "the rows read backwards": (
        program("D[vi, vj] = temp[3 - vi, vj] + C[vi, vj]"),
        "Row 0 of the output belongs to row 3 of the sum, so row 0 of the sum may not start from row 0 of the bias.",
    ),
    "rows and columns of a square result exchanged in one block only": (
        program(
            nest("D[vi, vj] = temp[vj, vi + 1] + C[vi, vj]", loops="4, 4"),
        ),
        "The two blocks speak of different elements, although the same axes occur in both.",
    ),
    "the diagonal": (
        program(nest("D[vi, 0] = temp[vi, vi] + C[vi, vj]", axes=_OTHER_ORDER)),
        "The epilogue uses some of the sums; the others have no bias to start from and no place in D.",
    ),
    "one row for all": (
        program("D[vi, vj] = temp[0, vj] + C[vi, vj]"),
        "One sum goes to several elements of D, and can start from one bias only.",
    ),
    "rows 0 to 2 of four": (
        program(nest("D[vi, vj] = temp[vi, vj] + C[vi, vj]", axes=_SLICE, loops="3, 5")),
        "The reduction also computes row 3: fused, it would write a row of D that the program never writes.",
    ),
    "one sum for two outputs": (
        program(
            """
for i, j, u in T.grid(4, 5, 2):
    with T.sblock("bias"):
        vi, vj, vu = T.axis.remap("SSS", [i, j, u])
        D[vi, vj * 2 + vu] = temp[vi, vj] + C[vi, vj]
""",
            D="(4, 10)",
        ),
        "The sum goes to two elements of D, and the fused reduction writes one.",
    ),
    "the same formula with another row length": (
        program(
            "D[vi, vj] = temp[vi * 4 + vj] + C[vi, vj]",
            total="temp[vi * 5 + vj]",
            step="temp[vi * 5 + vj] + A[vi, vk] * B[vj, vk]",
            temp="(20,)",
        ),
        "`vi * 4 + vj` and `vi * 5 + vj` name different elements, though both mention vi and then vj.",
    ),
}


def _match(impl, func: tirx.PrimFunc) -> dict:
    _, reduction, epilogue = blocks_of(func)
    load = next(
        load for load in nodes(epilogue.body, tvm.ir.TensorLoad) if load.source.name == "temp"
    )
    return impl.match_axes(load.indices, reduction.body.indices, epilogue, reduction)


def test_6_2_pairs_axes_through_temp(impl) -> None:
    """each axis of the epilogue is found in the reduction through the element of temp that both name"""
    for title, func in {"the usual program": program(), **SAME_ELEMENT}.items():
        _, reduction, epilogue = blocks_of(func)
        found = accepts(
            lambda f=func: _match(impl, f),
            func,
            f"match_axes refuses {title}.",
            why="Both blocks name the same element of temp; how axes are called or ordered says nothing.",
            read=AXES,
        )
        missing = [a.var.name for a in epilogue.iter_vars if a.var not in found]
        expect.that(
            not missing,
            f"match_axes leaves out an axis of the epilogue: {', '.join(missing)}.",
            expected="every axis of the epilogue as a key, the variable and not its name",
            yours=found,
            why="The addend is rewritten with this mapping; an axis that is left in it is undefined in the reduction.",
            read=AXES,
        )
        load = next(x for x in nodes(epilogue.body, tvm.ir.TensorLoad) if x.source.name == "temp")
        read = [Analyzer().simplify(substitute(index, found)) for index in load.indices]
        wrote = list(reduction.body.indices)
        expect.that(
            tvm_ffi.structural_equal(read, wrote),
            f"With the axes that match_axes pairs, the two blocks name different elements of temp: {title}.",
            expected=_pairs(reference.match_axes(load.indices, wrote, epilogue, reduction))
            + f", in\n{listing(func)}",
            yours=_pairs(found),
            why="An element of the sum starts from the addend of the point that reads it, and of no other.",
            read=AXES,
        )


def _pairs(axes: dict) -> str:
    pairs = [(mine.name, getattr(other, "name", other)) for mine, other in axes.items()]
    return ", ".join(f"the epilogue's {mine} is the reduction's {other}" for mine, other in pairs)


def test_6_2_refuses_other_elements(impl) -> None:
    """blocks that do not visit the same elements, one for one, are refused"""
    for title, (func, why) in OTHER_ELEMENT.items():
        refuses(
            lambda f=func: _match(impl, f), func, f"match_axes accepts {title}.", why=why, read=AXES
        )


def observe_6_2(impl):
    def outcome(func):
        try:
            return _pairs(_match(impl, func))
        except ScheduleError:
            return "refused"

    funcs = [program(), *SAME_ELEMENT.values(), *(func for func, _ in OTHER_ELEMENT.values())]
    return [lambda func=func: outcome(func) for func in funcs]


# --- 6.3 ------------------------------------------------------------------------------------------

HARMLESS = {
    "nobody else": program(),
    "a block between the two that reads the bias": program(between=other("E[vi, vj] = C[vi, vj]")),
    "a block after both that reads D": program(after=other("E[vi, vj] = D[vi, vj] + 1")),
    "a block before both that computes the bias": program(before=other("C[vi, vj] = E[vi, vj]")),
    "a block before both that fills D": program(before=other("D[vi, vj] = 3")),
    "a reduction that reads the bias too": program(
        step="temp[vi, vj] + A[vi, vk] * B[vj, vk] * C[vi, vj]"
    ),
}
_MATCHED = """
for i in range(4):
    with T.sblock("other"):
        vi = T.axis.spatial(4, i)
        T.reads()
        T.writes(C[vi, 0:5])
        row = T.match_buffer(C[vi, 0:5], (5,), "int32", offset_factor=1)
        row[0] = 4
"""
VISIBLE = {
    "a block after both reads temp": (
        program(after=other("E[vi, vj] = temp[vi, vj]")),
        "Nobody computes temp any more, so that block would read memory that was never written.",
    ),
    "a block between the two reads temp": (
        program(between=other("E[vi, vj] = temp[vi, vj]")),
        "Nobody computes temp any more, so that block would read memory that was never written.",
    ),
    "a block between the two writes temp": (
        program(between=other("temp[vi, vj] = 1")),
        "What the epilogue adds the bias to is then not the reduction's sum.",
    ),
    "temp is an argument of the function": (
        program(allocation="", extra=', temp: T.Buffer((4, 5), "int32")'),
        "The caller gets temp back and may read it.",
    ),
    "a block between the two writes the bias": (
        program(between=other("C[vi, vj] = E[vi, vj]")),
        "Fused, the bias is read when the reduction begins, before that block has written it.",
    ),
    "a block between the two writes the bias through a second name": (
        program(between=_MATCHED),
        "`row` is memory of C: fused, the bias is read before that block has written it.",
    ),
    "a block between the two writes the table that chooses the bias": (
        program(
            "D[vi, vj] = temp[vi, vj] + C[vi, J[vj]]",
            between=other("J[vj] = 4 - vj"),
        ),
        "The addend reads two buffers, C and J, and both are read before that block has run.",
    ),
    "a block between the two reads D": (
        program(between=other("E[vi, vj] = D[vi, vj]")),
        "It must see what D held before; fused, D already holds sums.",
    ),
    "a block between the two writes D": (
        program(between=other("D[vi, vj] = 3")),
        "It would overwrite the finished sums, which the program stores after it.",
    ),
    "the reduction reads D": (
        program(step="temp[vi, vj] + A[vi, vk] * D[vi, vj]"),
        "The reduction must see what D held before; fused, it would read its own partial sums.",
    ),
}


def test_6_3_minds_its_own_business(impl) -> None:
    """blocks that cannot tell the difference do not stand in the way"""
    for title, func in HARMLESS.items():
        _, fusion = planned(func)
        accepts(
            lambda f=fusion: impl.check_bystanders(f),
            func,
            f"check_bystanders refuses a harmless program: {title}.",
            why="A difference can be seen between the first step and the epilogue only, and only in temp, in D and in "
            "what the addend reads.",
            read=OTHERS,
        )


def test_6_3_sees_who_would_notice(impl) -> None:
    """temp is private, D is untouched and the addend's buffers are not written in between"""
    for title, (func, why) in VISIBLE.items():
        _, fusion = planned(func)
        refuses(
            lambda f=fusion: impl.check_bystanders(f),
            func,
            f"check_bystanders does not see that {title}.",
            why=why,
            read=OTHERS,
        )


def test_6_3_looks_into_the_loops(impl) -> None:
    """a block counts wherever it stands between, also inside the loops of one of the two"""
    func = program(
        """
for i in range(4):
    for j in range(5):
        with T.sblock("other"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = E[vi, vj]
    for j in range(5):
        with T.sblock("bias"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = temp[vi, vj] + C[vi, vj]
"""
    )
    _, fusion = planned(func)
    refuses(
        lambda: impl.check_bystanders(fusion),
        func,
        "check_bystanders does not see a block that writes the bias inside the epilogue's own loop.",
        why="Fused, the bias is read when the reduction begins, before that block has written it.",
        read=OTHERS,
    )


def observe_6_3(impl):
    def outcome(func):
        try:
            return impl.check_bystanders(planned(func)[1])
        except ScheduleError:
            return "refused"

    funcs = [*HARMLESS.values(), *(func for func, _ in VISIBLE.values())]
    return [lambda func=func: outcome(func) for func in funcs]


# --- 6.4 ------------------------------------------------------------------------------------------


def annotated() -> tirx.PrimFunc:
    """The usual program with an annotation on its reduction."""
    sch = s_tir.Schedule(program())
    sch.annotate(sch.get_sblock("matmul"), "note", 3)
    return sch.mod["main"]


FUSED = {
    "the usual program": program(),
    "a bias of one row": program("D[vi, vj] = temp[vi, vj] + C[vj]", C="(5,)"),
    "a transposed output": program("D[vj, vi] = temp[vi, vj] + C[vi, vj]", D="(5, 4)"),
    "axes declared in the other order": SAME_ELEMENT["axes declared in the other order"],
    "a step that subtracts": program(step="temp[vi, vj] - A[vi, vk] * B[vj, vk]"),
    "an addend that is an expression": program("D[vi, vj] = temp[vi, vj] + (C[vi, vj] * 2 + vi)"),
    "an operand read twice": program("D[vi, vj] = temp[vi, vj] + B[vj, 0]"),
    "a bias that the reduction reads too": program(
        "D[vi, vj] = temp[vi, vj] + C[vi, 0]", step="temp[vi, vj] + A[vi, vk] * C[vi, vj]"
    ),
    "an annotated reduction": annotated(),
}


def substituted(func: tirx.PrimFunc, block: s_tir.SBlock, plan) -> tirx.PrimFunc:
    """`func` with `block` in place of its two blocks, put there by the reference."""
    sch, _ = planned(func)
    scope = reference.new_scope(plan, block)
    sref = plan.site.scope_sref
    fresh = s_tir.Schedule(sch.mod)
    old = fresh.get_sref(fresh.get_sblock("root"))
    del sref
    fresh.state.replace(old, scope, {})
    return fresh.mod["main"]


def _fused(impl, func: tirx.PrimFunc) -> tuple[s_tir.SBlock, reference.Fusion]:
    _, fusion = planned(func)
    block = impl.fused_block(fusion)
    expect.that(
        isinstance(block, s_tir.SBlock),
        f"fused_block returned {type(block).__name__}, not an SBlock.",
        expected="with_fields(reduction, reads=…, writes=…, init=…, body=…)",
    )
    return block, fusion


def test_6_4_starts_from_the_addend(impl) -> None:
    """the fused block computes what the two blocks computed"""
    for title, func in FUSED.items():
        block, fusion = _fused(impl, func)
        expect.that(
            block.init is not None and not mentions([block.init, block.body], fusion.temp),
            f"The fused block still mentions temp, or has no init: {title}.",
            expected="`output` in the init and in the step, wherever `temp` was",
            yours=_block_text(func, block, fusion),
            why="temp will not exist any more.",
            read=BLOCK,
        )
        new = substituted(func, block, fusion)
        for seed in (1, 2):
            _same_results(
                func, new, f"The fused block computes something else: {title}.", BLOCK, seed
            )


def _block_text(func: tirx.PrimFunc, block: s_tir.SBlock, fusion) -> str:
    try:
        return listing(substituted(func, block, fusion))
    except Exception:
        return f"init: {block.init}\nstep: {block.body}"


def _same_results(
    func: tirx.PrimFunc, new: tirx.PrimFunc, what: str, read: str, seed: int = 1
) -> None:
    expected = results(func, seed)
    try:
        mine = results(new, seed)
    except (OutOfBounds, NameError) as error:
        reason = "a variable that nobody defines here" if isinstance(error, NameError) else error
        raise CheckFailed(
            what,
            expected="every access inside its buffer, every variable an axis of the block or a size",
            yours=f"{reason}, in\n{listing(new)}",
            read=read,
        ) from None
    for param, a, b in zip(func.params, mine, expected, strict=True):
        if not np.array_equal(a, b):
            where = tuple(int(i) for i in np.argwhere(a != b)[0])
            raise CheckFailed(
                what,
                expected=f"{param.name}{list(where)} = {b[where]} on small random integers",
                yours=f"{a[where]}, with\n{listing(new)}",
                why="Integers are exact: any difference is a mistake.",
                read=read,
            )


def test_6_4_keeps_what_belongs_to_the_reduction(impl) -> None:
    """name, axes and annotations are the reduction's"""
    block, fusion = _fused(impl, annotated())
    old = fusion.reduction
    for what, mine, theirs in (
        ("name", block.name_hint, old.name_hint),
        ("axes", [a.var.name for a in block.iter_vars], [a.var.name for a in old.iter_vars]),
        ("annotations", {k: int(v) for k, v in block.annotations.items()}, {"note": 3}),
    ):
        expect.equal(
            mine,
            theirs,
            f"The fused block does not keep the reduction's {what}.",
            why="Schedules and handles go on speaking of the reduction after the fusion.",
            read=BLOCK,
        )


def undeclared(block: s_tir.SBlock) -> str:
    """An access that the block makes and its reads or writes do not cover, or ""."""
    random, simplify = np.random.default_rng(3), Analyzer().simplify
    loads = [(x, block.reads, "reads") for x in nodes([block.init, block.body], tvm.ir.TensorLoad)]
    stores = [(x, block.writes, "writes") for x in nodes(block, tirx.BufferStore)]
    for access, declared, verb in loads + stores:
        buffer = access.source if verb == "reads" else access.buffer
        if verb == "reads" and any(buffer.same_as(w.source) for w in block.writes):
            continue
        for _ in range(12):
            point = {
                a.var: tirx.IntImm("int32", int(random.integers(int(a.dom.extent))))
                for a in block.iter_vars
            }
            index = [_number(simplify(substitute(i, point))) for i in access.indices]
            if None in index:
                continue  # an index that is itself loaded: any element
            boxes = [r for r in declared if r.source.same_as(buffer)]
            if not any(_inside(index, box, point) for box in boxes):
                at = ", ".join(f"{v.name}={x}" for v, x in point.items())
                return f"{verb} {buffer.name}{index} at {at}"
    return ""


def _number(value) -> int | None:
    return int(value) if isinstance(value, tirx.IntImm) else None


def _inside(index: list[int], box, point: dict) -> bool:
    simplify = Analyzer().simplify
    for i, axis in zip(index, box.region, strict=True):
        low = _number(simplify(substitute(axis.min, point)))
        size = _number(simplify(substitute(axis.extent, point)))
        if low is None or size is None or not low <= i < low + size:
            return False
    return True


def test_6_4_declares_what_it_reads_and_writes(impl) -> None:
    """T.reads and T.writes cover every access, each buffer once, and temp is in neither"""
    for title, func in FUSED.items():
        block, fusion = _fused(impl, func)
        missed = undeclared(block)
        expect.that(
            not missed,
            f"The fused block {missed} without declaring it: {title}.",
            expected="T.reads and T.writes that cover every access",
            yours=_block_text(func, block, fusion),
            why="Other primitives believe the declaration: they would move a block that writes this element past "
            "the one that reads it.",
            read=BLOCK,
        )
        buffers = [r.source for r in block.reads]
        once = len({*buffers}) == len(buffers)
        clean = not any(b.same_as(fusion.temp) or b.same_as(fusion.output) for b in buffers)
        expect.that(
            once and clean,
            f"T.reads names a buffer twice, or temp, or the output: {title}.",
            expected="one region a buffer (`one_a_buffer`); a reduction does not list what it writes",
            yours=_block_text(func, block, fusion),
            why="`cache_read` and others allow one region a buffer in a block, and temp will not exist any more.",
            read=BLOCK,
        )


def test_6_4_lists_the_bias_first(impl) -> None:
    """in the order that TVM's own primitive gives them: what the epilogue reads, then what the reduction reads"""
    block, _ = _fused(impl, program())
    names = [region.source.name for region in block.reads]
    expect.equal(
        names,
        ["C", "A", "B"],
        "T.reads is in another order than the built-in's.",
        why="The init reads before the step does, and `cache_read` counts reads by their number.",
        read=BLOCK,
    )


def observe_6_4(impl):
    def outcome(func):
        block, fusion = _fused(impl, func)
        parts = [block.name_hint, len(block.annotations)]
        parts += [[r.source.name for r in block.reads], undeclared(block)]
        try:
            return parts, [int(a.sum()) for a in results(substituted(func, block, fusion), 1)]
        except Exception as error:
            return parts, type(error).__name__

    return [lambda func=func: outcome(func) for func in FUSED.values()]


# --- 6.5 ------------------------------------------------------------------------------------------


def _apply(impl, func, **blocks) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    impl.fuse_reduction_epilogue(
        sch, **{"reduction_block": "matmul", "epilogue_block": "bias", **blocks}
    )
    return sch


def rows_shared() -> tirx.PrimFunc:
    """Both blocks under one loop over rows, and a block that reads D under it too."""
    sch = s_tir.Schedule(program(after=other("E[vi, vj] = D[vi, vj] + 1")))
    rows = sch.get_loops("matmul")[0]
    sch.reverse_compute_at("bias", rows)
    sch.reverse_compute_at("other", rows)
    return sch.mod["main"]


def two_functions() -> tvm.IRModule:
    """The program as `work`, and another function beside it; no `main`."""
    work = program().with_attr("global_symbol", "work")
    idle = program(epilogue="D[vi, vj] = temp[vi, vj] - C[vi, vj]").with_attr(
        "global_symbol", "idle"
    )
    return tvm.IRModule({"work": work, "idle": idle})


def _new_scope(impl, fusion) -> s_tir.SBlock:
    try:
        return impl.new_scope(fusion, reference.fused_block(fusion))
    except tvm.error.InternalError as error:
        if "SeqStmt" not in str(error):
            raise
        raise CheckFailed(
            "new_scope makes a SeqStmt of fewer than two statements.",
            expected="the statement itself where one is left, None where none is",
            yours=next(x for x in str(error).splitlines() if "SeqStmt" in x).partition("  Use")[0],
            why="TVM builds a SeqStmt of two statements or more only. Without the epilogue, one may be left.",
            read=PLACE,
        ) from None


def test_6_5_removes_the_epilogue_and_temp(impl) -> None:
    """the new scope holds the fused block, and neither the epilogue, its loops nor temp"""
    cases = {
        "the usual program": program(),
        "blocks before, between and after": program(
            before=other("C[vi, vj] = E[vi, vj]"), after=nest("E[vi, vj] = D[vi, vj]", name="last")
        ),
        "loops around both": rows_shared(),
        "a parallel loop with an annotation": marked(),
    }
    for title, func in cases.items():
        _, fusion = planned(func)
        scope = _new_scope(impl, fusion)
        expect.that(
            isinstance(scope, s_tir.SBlock),
            f"new_scope returned {type(scope).__name__}, not an SBlock.",
        )
        expected = reference.new_scope(fusion, reference.fused_block(fusion))
        names = sorted(b.name_hint for b in nodes(scope, s_tir.SBlock))
        wanted = sorted(b.name_hint for b in nodes(expected, s_tir.SBlock))
        expect.equal(
            names,
            wanted,
            f"The new scope holds other blocks than it should: {title}.",
            read=PLACE,
            why="The epilogue's work is done by the fused block now; everything else stays.",
        )
        expect.that(
            not mentions(scope, fusion.temp),
            f"temp is still allocated or used in the new scope: {title}.",
            expected="`alloc_buffers` without temp",
            yours=str([b.name for b in scope.alloc_buffers]),
            why="A buffer that nobody writes or reads is memory for nothing; TVM's own primitive leaves it there.",
            read=PLACE,
        )
        expect.that(
            tvm_ffi.structural_equal(scope.body, expected.body),
            f"The loops of the new scope are not those of the old one: {title}.",
            expected="only the epilogue's own loops gone",
            yours="- expected, + yours\n" + str(diff(_scope_text(expected), _scope_text(scope))),
            why="Annotations, kinds and bindings of loops are the schedule that somebody made.",
            read=PLACE,
        )


def _scope_text(scope: s_tir.SBlock) -> str:
    return s_tir.SBlockRealize([], True, scope).script()


def test_6_5_fuses(impl) -> None:
    """the whole primitive, on blocks by name: same numbers, one block fewer"""
    for title, func in FUSED.items():
        sch = accepts(
            lambda f=func: _apply(impl, f),
            func,
            f"fuse_reduction_epilogue refuses {title}.",
            why="It is proved to be safe.",
            read=PLACE,
        )
        mod = sch.mod
        names = [b.name_hint for b in nodes(mod["main"].body, s_tir.SBlock)]
        expect.that(
            "bias" not in names and "matmul" in names,
            f"After the fusion the schedule holds the blocks {', '.join(names)}.",
            expected="`matmul`, and no `bias`",
            read=PLACE,
            why="`sch.state.replace` is what puts a new statement into the schedule.",
        )
        _same_results(
            func, mod["main"], f"The fused program computes something else: {title}.", PLACE
        )
        arrays = inputs_of(func, 5)
        run = run_compiled(mod, arrays)
        for a, b in zip(run, results(func, 5), strict=True):
            expect.that(
                np.array_equal(a, b),
                f"Compiled, the fused program computes something else: {title}.",
                read=PLACE,
            )


def test_6_5_keeps_handles_and_flags(impl) -> None:
    """handles of the reduction, its loops and other blocks stay valid, and TVM's own verification passes"""
    func = program(after=other("E[vi, vj] = D[vi, vj] + 1"))
    sch = s_tir.Schedule(func, debug_mask="all")
    reduction, epilogue, last = (sch.get_sblock(name) for name in ("matmul", "bias", "other"))
    loops, others = sch.get_loops(reduction), sch.get_loops(last)
    impl.fuse_reduction_epilogue(sch, reduction, epilogue)
    for whose, handles in {"the reduction": loops, "another block": others}.items():
        expect.that(
            all(_is_alive(sch, handle) for handle in handles),
            f"After the fusion handles of the loops of {whose} are dead.",
            expected="every loop that stays around its own variable",
            why="A schedule knows a loop again by its variable. `with_loop_body` keeps it, and what does not change "
            "need not be made anew.",
            read=PLACE,
        )
    why = (
        "A schedule finds its blocks by references. `replace` needs a map from each old block to the new one, or it "
        "makes new references, whose flags are all false: the next primitive then says `not a reduction block`."
    )
    try:
        block = sch.get(reduction)
        sch.get(last)
        inner, outer = sch.split(loops[1], [None, 5])
        sch.reorder(outer, loops[2])
        init = sch.decompose_reduction(reduction, loops[2])
        del inner, init
    except Exception as error:
        raise CheckFailed(
            "After the fusion a handle is dead, or a flag is wrong.",
            expected="sch.get(reduction), then split, reorder and decompose_reduction on it",
            yours=str(error).strip().splitlines()[-1],
            why=why,
            read=PLACE,
        ) from None
    expect.equal(
        block.body.buffer.name,
        "D",
        "The handle of the reduction means another block than the fused one.",
        read=PLACE,
        why=why,
    )
    try:
        sch.get(epilogue)
    except Exception:
        return
    raise CheckFailed(
        "The epilogue's handle is still alive.",
        expected="an error: its block is gone",
        read=PLACE,
        why=why,
    )


def _is_alive(sch: s_tir.Schedule, handle: s_tir.schedule.LoopRV) -> bool:
    try:
        sch.get(handle)
    except ValueError:  # the loop no longer exists
        return False
    return True


def test_6_5_leaves_other_functions_alone(impl) -> None:
    """in a module of two functions and no main, only the one worked on changes, and its attributes stay"""
    mod = two_functions()
    sch = s_tir.Schedule(mod)
    sch.work_on("work")
    impl.fuse_reduction_epilogue(sch, "matmul", "bias")
    expect.that(
        tvm_ffi.structural_equal(sch.mod["idle"], mod["idle"]),
        "Another function of the module changed.",
        expected="`idle` as it was",
        read=PLACE,
    )
    attrs = sch.mod["work"].attrs
    expect.that(
        "kept" in attrs and "tirx.noalias" in attrs,
        "The function lost attributes.",
        yours=attrs,
        read=PLACE,
    )
    expect.that(
        len(nodes(sch.mod["work"].body, s_tir.SBlock)) == 2,
        "The function worked on still has both blocks.",
        read=PLACE,
    )


def test_6_5_refuses_and_leaves_all_as_it_was(impl) -> None:
    """a refused fusion changes nothing, whichever condition it misses"""
    cases = [func for func, _ in [*OTHER_ELEMENT.values(), *VISIBLE.values()]]
    cases += [_sum(text) for text, _ in NO_SUMS.values()]
    cases += [
        program(init="3"),
        program(step="T.max(temp[vi, vj], A[vi, vk])"),
        program(step="temp[vi, vj] * 2 + A[vi, vk]"),
        program("D[vi, 0] = temp[vi, vj] + C[vi, vj]"),
    ]
    for func in cases:
        sch = s_tir.Schedule(func)
        before, text = sch.mod, sch.mod.script()
        refuses(
            lambda s=sch: impl.fuse_reduction_epilogue(s, "matmul", "bias"),
            func,
            "fuse_reduction_epilogue accepts what it cannot prove.",
            why="A wrong result costs its user more than a slow one.",
            read=NOT_FIRE,
        )
        expect.that(
            sch.mod.same_as(before) and sch.mod.script() == text,
            "A refused fusion changed the schedule.",
            expected="every `require` before the first change",
            yours=str(diff(text, sch.mod.script())),
            why="Whoever catches the error goes on with the schedule as it was.",
            read=PLACE,
        )


def test_6_5_equals_the_built_in(impl) -> None:
    """split, reordered and decomposed, the result is the built-in's but for its dead temp"""
    for title, func in {
        "after fusing": program(),
        "with a bias of one row": program("D[vi, vj] = temp[vi, vj] + C[vj]", C="(5,)"),
    }.items():
        mine, theirs = s_tir.Schedule(func), s_tir.Schedule(func)
        impl.fuse_reduction_epilogue(mine, "matmul", "bias")
        theirs.fuse_reduction_epilogue("matmul", "bias")
        for step in (None, _tile, _decompose):
            for sch in (mine, theirs):
                if step:
                    step(sch)
            alive = _without_dead_temp(theirs)
            expect.that(
                tvm_ffi.structural_equal(mine.mod, alive),
                f"The result is not the built-in's ({title}{', then ' + step.__name__.strip('_') if step else ''}).",
                yours="- built-in, + yours\n" + str(diff(alive, mine.mod)),
                why="On this program the built-in is right, and the design is forced.",
                read=PLACE,
            )


def _tile(sch: s_tir.Schedule) -> None:
    i, j, k = sch.get_loops("matmul")
    (k0, k1), (j0, j1) = sch.split(k, [None, 3]), sch.split(j, [None, 5])
    sch.reorder(i, j0, k0, j1, k1)


def _decompose(sch: s_tir.Schedule) -> None:
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])


def _without_dead_temp(sch: s_tir.Schedule) -> tvm.IRModule:
    copy = sch.copy()
    root = copy.get_sref(copy.get_sblock("root"))
    used = nodes(root.stmt.body, tvm.ir.Var)
    alive = [b for b in root.stmt.alloc_buffers if any(b.same_as(v) for v in used)]
    copy.state.replace(root, with_fields(root.stmt, alloc_buffers=alive), {})
    return copy.mod


def observe_6_5(impl):
    def shape(func):
        _, fusion = planned(func)
        scope = impl.new_scope(fusion, reference.fused_block(fusion))
        loops = [loop.loop_var.name for loop in nodes(scope, tirx.For)]
        names = [b.name_hint for b in nodes(scope, s_tir.SBlock)]
        kept = [str(dict(loop.annotations)) for loop in nodes(scope, tirx.For)]
        return names, loops, kept, [b.name for b in scope.alloc_buffers]

    def alive():
        sch = s_tir.Schedule(program(after=other("E[vi, vj] = D[vi, vj]")))
        loops = [loop for name in ("matmul", "other") for loop in sch.get_loops(name)]
        impl.fuse_reduction_epilogue(sch, "matmul", "bias")
        return [_is_alive(sch, loop) for loop in loops]

    def handle(use):
        sch = s_tir.Schedule(program(after=other("E[vi, vj] = D[vi, vj]")))
        reduction = sch.get_sblock("matmul")
        impl.fuse_reduction_epilogue(sch, reduction, "bias")
        try:
            return use(sch, reduction)
        except Exception as error:
            return str(error).strip().splitlines()[-1][:60]

    return [
        lambda: shape(program()),
        lambda: shape(marked()),
        lambda: shape(rows_shared()),
        alive,
        lambda: handle(lambda sch, red: sch.get(red).name_hint),
        lambda: handle(
            lambda sch, red: sch.decompose_reduction(red, sch.get_loops(red)[2]) and "ok"
        ),
        lambda: handle(lambda sch, red: sch.reverse_compute_at("other", sch.get_loops(red)[0])),
        lambda: handle(lambda sch, red: len(nodes(sch.mod["main"].body, s_tir.SBlock))),
    ]


def marked() -> tirx.PrimFunc:
    """Both blocks under one parallel loop that carries an annotation."""
    sch = s_tir.Schedule(rows_shared())
    rows = sch.get_loops("matmul")[0]
    sch.annotate(rows, "note", 1)
    sch.parallel(rows)
    return sch.mod["main"]


# --- 6.6 ------------------------------------------------------------------------------------------


def decomposed() -> tuple[s_tir.Schedule, object]:
    """The usual program fused by the reference, tiled and decomposed: the schedule and its init block."""
    sch = s_tir.Schedule(annotated())
    reference.fuse_reduction_epilogue(sch, "matmul", "bias")
    _tile(sch)
    return sch, sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])


def test_6_6_declares_what_the_blocks_read(impl) -> None:
    """the init declares the bias, and the update no longer does"""
    sch, init = decomposed()
    impl.refresh_regions(sch, init)
    impl.refresh_regions(sch, "matmul_update")
    for name, wanted in (("matmul_init", ["C"]), ("matmul_update", ["D", "A", "B"])):
        block = sch.get(sch.get_sblock(name))
        reads = [r.source.name for r in block.reads]
        expect.equal(
            reads,
            wanted,
            f"`{name}` declares other reads than it makes.",
            why="Whoever moves blocks believes these regions, and tensorize compares them with its intrinsic's.",
            read=REGIONS,
        )
        writes = [r.source.name for r in block.writes]
        expect.equal(writes, ["D"], f"`{name}` declares other writes than it makes.", read=REGIONS)


def test_6_6_keeps_the_handle_and_all_else(impl) -> None:
    """the handle stays valid, and nothing but the regions changes"""
    sch, init = decomposed()
    old = sch.get(init)
    impl.refresh_regions(sch, init)
    try:
        new = sch.get(init)
    except Exception as error:
        raise CheckFailed(
            "After refresh_regions the block's handle is dead.",
            expected="sch.get(init) to give the block with its new regions",
            yours=str(error).strip().splitlines()[-1],
            why="`replace` keeps the reference of a block that its map names, old to new; every other one is new.",
            read=REGIONS,
        ) from None
    same = tvm_ffi.structural_equal(with_fields(new, reads=old.reads), old)
    expect.that(
        same, "refresh_regions changed more than the regions.", yours=str(new), read=REGIONS
    )


def test_6_6_lets_tensorize_through(impl) -> None:
    """a matrix product with 4-element dot products can be tensorized after fusing and decomposing"""
    sch = s_tir.Schedule(tensorizable())
    reference.fuse_reduction_epilogue(sch, "matmul", "bias")
    i, j, k = sch.get_loops("matmul")
    (j0, j1), (k0, k1) = sch.split(j, [None, 16]), sch.split(k, [None, 4])
    sch.reorder(i, j0, k0, j1, k1)
    init = sch.decompose_reduction("matmul", k0)
    impl.refresh_regions(sch, init)
    impl.refresh_regions(sch, "matmul_update")
    try:
        sch.tensorize(j1, register())
    except ScheduleError as error:
        raise CheckFailed(
            "tensorize still refuses the update block.",
            expected="T.reads(D, A, B), as the intrinsic declares them",
            yours=[line for line in str(error).splitlines() if "regions" in line or "rror" in line][
                -1
            ],
            why="An intrinsic is put in only where the block reads and writes exactly what it does.",
            read=REGIONS,
        ) from None


def tensorizable() -> tirx.PrimFunc:
    """An unsigned-by-signed product with packed weights, as the stock x86 dot product wants it."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((4, 8), "uint8"),
        W: T.Buffer((2, 2, 16, 4), "int8"),
        C: T.Buffer((32,), "int32"),
        D: T.Buffer((4, 32), "int32"),
    ):
        temp = T.sblock_alloc_buffer((4, 32), "int32")
        for i, j, k in T.grid(4, 32, 8):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    temp[vi, vj] = 0
                temp[vi, vj] = temp[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(
                    W[vj // 16, vk // 4, vj % 16, vk % 4], "int32"
                )
        for i, j in T.grid(4, 32):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + C[vj]

    return main


def observe_6_6(impl):
    def regions(name):
        sch, init = decomposed()
        impl.refresh_regions(sch, init if name == "matmul_init" else name)
        block = sch.get(sch.get_sblock(name))
        return (
            [r.source.name for r in block.reads],
            [r.source.name for r in block.writes],
            len(block.annotations),
        )

    def handle():
        sch, init = decomposed()
        impl.refresh_regions(sch, init)
        return sch.get(init).name_hint

    return [lambda: regions("matmul_init"), lambda: regions("matmul_update"), handle]


# --- 6.7 ------------------------------------------------------------------------------------------

MACHINES = ((600e9, 28e9), (2000e9, 28e9), (100e9, 10e9))


def _model(k: int, operations: float, traffic: float) -> float:
    """The sentence of the docstring, in exact fractions of a second for a million elements."""
    arithmetic = 1e6 * 2 * k / operations
    store, load = 1e6 * 8 / traffic, 1e6 * 4 / traffic
    return (arithmetic + store + load + store) / (arithmetic + store)


def test_6_7_is_one_line_of_arithmetic(impl) -> None:
    """the speed-up follows from operations, loads and stores"""
    for k in (64, 256, 1024, 4096):
        for operations, traffic in MACHINES:
            mine = impl.predicted_speedup(k, operations, traffic)
            expect.close(
                np.float64(mine),
                np.float64(_model(k, operations, traffic)),
                f"predicted_speedup is not what the two programs move for k = {k}.",
                rtol=1e-6,
                atol=0,
                why="Fused: 2 k operations and one store an element. A separate pass adds a load and a store; a store "
                "moves 8 bytes.",
                read=MEASURE,
            )


def observe_6_7(impl):
    cases = [(64, *MACHINES[0]), (4096, *MACHINES[1]), (256, *MACHINES[2])]
    return [lambda c=c: f"{impl.predicted_speedup(*c):.6f}" for c in cases]


# --- 6.8 ------------------------------------------------------------------------------------------


def _both(impl) -> tuple[tirx.PrimFunc, s_tir.Schedule, s_tir.Schedule]:
    func = impl.lost_read()
    expect.that(
        isinstance(func, tirx.PrimFunc),
        f"lost_read returned {type(func).__name__}, not a PrimFunc.",
        expected="a function written in TVMScript with @T.prim_func(s_tir=True)",
    )
    mine, theirs = s_tir.Schedule(func), s_tir.Schedule(func)
    built_in = type(theirs).fuse_reduction_epilogue
    primitives = {
        "TVM's built-in": (built_in, theirs),
        "The reference": (reference.fuse_reduction_epilogue, mine),
    }
    for whose, (fuse, sch) in primitives.items():
        try:
            fuse(sch, "matmul", "bias")
        except ScheduleError as error:
            lines = str(error).splitlines()
            message = next((x for x in lines if "rror message" in x), lines[0])
            raise CheckFailed(
                f"{whose} refuses your program.",
                expected="blocks called `matmul` and `bias` that TVM's built-in and the reference both accept",
                yours=message[:300],
                why="Only a program that both take shows where they differ.",
                read=f"{LESSON}, “Break it”",
            ) from None
    return func, mine, theirs


def test_6_8_the_built_in_loses_a_read(impl) -> None:
    """the built-in's fused block reads an element it does not declare; the reference's declares it"""
    func, mine, theirs = _both(impl)
    block = theirs.get(theirs.get_sblock("matmul"))
    missed = undeclared(block)
    expect.that(
        bool(missed),
        "The built-in declares everything your program reads.",
        expected="an element that is read, and is in none of the declared regions",
        yours=listing(theirs.mod["main"]),
        why="It lists each buffer once, with the region of the block that it looks at first.",
        read=f"{LESSON}, “Break it”",
    )
    expect.that(
        not undeclared(mine.get(mine.get_sblock("matmul"))), "The reference's block misses it too."
    )
    _same_results(func, mine.mod["main"], "The program is not fused right.", BLOCK)


def observe_6_8(impl):
    def declared():
        _, _, theirs = _both(impl)
        return undeclared(theirs.get(theirs.get_sblock("matmul")))

    return [declared, lambda: str(impl.lost_read().script())]
