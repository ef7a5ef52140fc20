"""The checks of chapter 6: a primitive that fuses a bias into its reduction, and refuses everything it cannot prove."""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Callable
from functools import cache, lru_cache, partial, reduce
from inspect import cleandoc
from pathlib import Path
from unittest import mock

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.script import tirx as T
from tvm.sym import Analyzer

from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.interpret import OutOfBounds, interpret
from chapters.checking.programs import listing
from chapters.kit.cases.guard_zones import run_compiled
from chapters.kit.cases.tir_text import write_block, write_function, write_loops
from chapters.kit.cpu import int8_matmul
from chapters.kit.cpu.vnni import register
from chapters.kit.ir.block_site import locate
from chapters.kit.ir.ir_diff import diff
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.ir.region_cover import find_undeclared
from chapters.kit.ir.tensor_ir import mentions, nodes, substitute, with_fields
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line, locate_error
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as reference

LEARNERS = "fuse_reduction_epilogue.py"
LESSON = "chapters/ch06_reduction_epilogue/lesson.md"
BREAK = Section(LESSON, "Break it")
ADDED = Section(LESSON, "Analysis: what is added")
AXES = Section(LESSON, "Analysis: which axis is which")
OTHERS = Section(LESSON, "Analysis: who else sees it")
READY = Section(LESSON, "Analysis: when it is finished")
BLOCK = Section(LESSON, "Transformation")
PLACE = Section(LESSON, "Substitution")
REGIONS = Section(LESSON, "Regions that lie")
NOT_FIRE = Section(LESSON, "When it must not fire")

# --- programs -------------------------------------------------------------------------------------

_ELEMENT = {"A": "[vi, vk]", "B": "[vj, vk]"}


def _add_indices(text: str) -> str:
    """`text` with the index [vi, vj] after the buffers that have none; A's is [vi, vk], and B's [vj, vk]."""
    bare = r"\b(temp|[A-E])\b(?![\[.])"
    return re.sub(bare, lambda m: m[0] + _ELEMENT.get(m[0], "[vi, vj]"), text)


AXES_IN_4_BY_5 = "vi, vj = T.axis.spatial(4, i), T.axis.spatial(5, j)"


def nest(body: str, name: str = "bias", axes: str = "", loops: str = "i 4, j 5") -> str:
    """Two loops around a block; in its body, `temp` is temp[vi, vj] (see `_add_indices`)."""
    return write_block(name, loops, cleandoc(_add_indices(body)), axes=cleandoc(axes))


@cache  # parsing takes longer than most questions about a program
def program(
    epilogue: str = "D = temp + C",
    *,
    total: str = "temp[vi, vj]",
    step: str = "temp + A * B",
    init: str = "0",
    temp: str = "(4, 5)",
    before: str = "",
    between: str = "",
    after: str = "",
    axes: str = "",
    loops: str = "i 4, j 5",
    allocation: str | None = None,
    extra: str = "",
    **shapes: str,
) -> tirx.PrimFunc:
    """A (4, 5) matrix product over 3 steps, an epilogue (a line or a whole nest), and other blocks around them.

    axes, loops: those of an epilogue of one line.
    """
    if "\n" not in epilogue:
        epilogue = nest(epilogue, axes=axes, loops=loops)
    buffers = dict.fromkeys("ABCJED", "(4, 5)") | {"A": "(4, 3)", "B": "(5, 3)", "J": "(5,)"}
    buffers = {name: f'{shape}, "int32"' for name, shape in (buffers | shapes).items()}
    step, init = (f"{total} = {_add_indices(value)}" for value in (step, init))
    if allocation is None:
        allocation = f'temp = T.sblock_alloc_buffer({temp}, "int32")'
    parts = [
        'T.func_attr({"tirx.noalias": True, "kept": 7})',
        cleandoc(allocation),
        before,
        write_block("matmul", "i 4, j 5, k 3", step, init=init),
        *(between, epilogue, after),
    ]
    return from_source(write_function(buffers, *parts, more=extra))


def other(body: str) -> str:
    """A block beside the two."""
    return nest(body, name="other")


def rename(func: tirx.PrimFunc, old: str, new: str) -> tirx.PrimFunc:
    """`func` with another name for the variable, loop variable or buffer `old`; another one may have the name `new`."""
    (var,) = {found for found in nodes(func, tvm.ir.Var) if found.name == old}
    return substitute(func, {var: tirx.Var(new, var.ty)})


def add_reader() -> tirx.PrimFunc:
    """The usual program, and after it a block that reads D."""
    return program(after=other("E = D + 1"))


def find_blocks(func: tirx.PrimFunc) -> tuple[s_tir.SBlock, s_tir.SBlock]:
    """The reduction and the epilogue of `func`."""
    sch = s_tir.Schedule(func)
    return sch.get(sch.get_sblock("matmul")), sch.get(sch.get_sblock("bias"))


def plan(func: tirx.PrimFunc, epilogue: str = "bias") -> tuple[s_tir.Schedule, reference.Fusion]:
    """The reference's analysis of `func`, without the part that looks at bystanders.

    The references in it are valid as long as the schedule lives.
    """
    sch = s_tir.Schedule(func)
    site = locate(sch, sch.get_sblock("matmul"), sch.get_sblock(epilogue))
    step, consumer = site.producer.block.body, site.consumer.block
    load, addend = reference.split_sum(consumer, step.buffer)
    axes = reference.match_axes(load.indices, step.indices, consumer, site.producer.block)
    parts = substitute([consumer.body.indices, addend], axes)
    return sch, reference.Fusion(site, step.buffer, axes, consumer.body.buffer, *parts)


def draw_inputs(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Small random integers for every buffer; those called J are indices."""
    random = np.random.default_rng(seed)
    found = []
    for param in func.params:
        shape = tuple(int(size) for size in param.shape)
        high = int(np.prod(shape)) if param.name == "J" else 10
        low = 0 if param.name == "J" else -9
        found.append(random.integers(low, high, shape).astype(str(param.dtype)))
    return found


def run_in_python(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """What `func` leaves in its buffers, run point by point in Python."""
    arrays = [array.copy() for array in draw_inputs(func, seed)]
    interpret(func, arrays)
    return arrays


# --- asking ---------------------------------------------------------------------------------------


def must_refuse(call: Callable, func: tirx.PrimFunc, what: str, why: str, read: Section) -> None:
    """`call(func)` raises a ScheduleError of one line that names a block of `func`; None is the wrong answer."""
    try:
        call(func)
    except (NotImplementedError, CheckFailed):
        raise
    except ScheduleError as error:
        message = str(error)
        blocks = {block.name_hint for block in nodes(func.body, s_tir.SBlock)} - {"root"}
        named = any(re.search(rf"\b{re.escape(name)}\b", message) for name in blocks)
        what = "Your refusal does not name, in one line, the block that stands in the way."
        expected = 'a ScheduleError from `require(condition, block, "what is wrong with it")`'
        why = "A schedule may have twenty blocks. The reader of a refusal must know which one to look at."
        right = named and "\n" not in message
        NOT_FIRE.that(right, what, expected=expected, yours=message[:300], why=why)
        return
    except Exception as error:
        files = {Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)}
        place = next(
            filter(None, (locate_error(error, f) for f in files if f.name == LEARNERS)), ""
        )
        what = f"Your code must refuse a program, and raises {last_line(error)}."
        yours = f"{place}\nfor the program\n{listing(func)}"
        expected = "a ScheduleError from `require`"
        raise read.failed(what, expected=expected, yours=yours, why=why) from None
    yours = "accepted, for the program\n" + listing(func)
    raise read.failed(what, expected="a ScheduleError from `require`", yours=yours, why=why)


def unsound(table: dict[str, dict]) -> list[tuple[str, tirx.PrimFunc, str]]:
    """(title, program, reason) of each program in `table`."""
    return [(title, func, why) for why, cases in table.items() for title, func in cases.items()]


def must_accept(call: Callable, func: tirx.PrimFunc, what: str, why: str, read: Section):
    """`call(func)`; a ScheduleError is the wrong answer."""
    try:
        return call(func)
    except ScheduleError as error:
        expected = "no refusal, for the program\n" + listing(func)
        raise read.failed(what, expected=expected, yours=str(error)[:400], why=why) from None


def catch_refusal(call: Callable[[], object]) -> object:
    """What `call()` gives, or "refused"."""
    try:
        return call()
    except ScheduleError:
        return "refused"


def are_equal(one, two) -> bool:
    simplify = Analyzer().simplify
    return tvm_ffi.structural_equal(simplify(one), simplify(two))


# --- 6.1 ------------------------------------------------------------------------------------------

NESTED = (
    *("temp + C + E", "C + temp + E", "E + (C + temp)", "E + (temp + C)", "temp + (C + E)"),
    *("C - E + (temp + E) + vi", "vi + temp + (T.max(C, 2) + E)", "J[vj] + (C + (temp + E))"),
    "C + (vi + (E + (C + temp)))",
)
SUMS = {
    "temp + C": "temp + C",
    "C + temp": "C + temp",
    "an expression as addend": "temp + (C * 2 + vi)",
    "an addend that is looked up": "temp + C[vi, J[vj]]",
    "an addend with a condition": "temp + T.if_then_else(vi < 2, C, 1)",
    **{text: text for text in NESTED},
}
NO_SUMS = {
    "temp - C": "C is subtracted. A sum that starts from C ends at sum + C; this one would have to start from -C.",
    "C - temp": "The sum changes its sign. A sum that starts from C ends at C + sum.",
    "temp * 2 + C": "The sum is doubled, so every step would have to be doubled. Starting from C gives sum + C.",
    "T.max(temp + C, 0)": "Only the addend can move to the init, and the maximum would be lost. It cannot run at every "
    "step: with C = 0 and the steps -5 and 6 the program gives 1, and a maximum at every step gives 6.",
    'T.cast(T.cast(temp, "int8"), "int32") + C': "The sum is cut to 8 bits before C is added. "
    "A sum that starts from C is not.",
    "T.max(temp, 0) + C": "A maximum stands between the sum and the addition. In the fused block it would be lost.",
    "temp + temp": "The addend is the sum itself, which does not exist before the first step.",
    "temp + C * temp": "The addend depends on the sum, which does not exist before the first step.",
    "temp + C + temp": "The sum is added twice, so every step would have to be doubled.",
    "(temp - C) + E": "C is subtracted. A sum that starts from C + E ends at sum + C + E.",
    "E + (C - temp)": "The sum changes its sign before E is added.",
    "T.max(temp + C, 0) + E": "A maximum stands between the two additions. In the fused block it would be lost.",
    "C + (temp * 2 + E)": "The sum is doubled before anything is added.",
    'temp + T.call_extern("int32", "next_number") + C': "The call has side effects, and would run before the reduction "
    "instead of after it. That the term that is added last is harmless does not help.",
    'temp + C + T.call_extern("int32", "next_number")': "The call has side effects, and would run before the reduction "
    "instead of after it. That the term that is added first is harmless does not help.",
    'temp + T.call_extern("int32", "next_number")': "The call has side effects. It would run before the reduction "
    "instead of after it, and perhaps another number of times.",
}
BODIES = {
    "a block that stores twice": "D = temp + C\n        E = C",
}
INDICES = {
    "an index of the output": "D[vi, temp] = temp + C",
    "an index of the bias": "D = temp + C[vi, temp]",
    "an index of `temp`": "D = temp[vi, temp] + C",
    "an index of the bias, and nowhere else": "D = E + C[vi, temp]",
}


def _make_sum(text: str) -> tirx.PrimFunc:
    return program(f"D = {text}")


def make_sums() -> dict[str, tirx.PrimFunc]:
    """Programs whose epilogue is a sum, by what is special about them."""
    silent = nest("T.reads()\n        T.writes(D)\n        D = temp + E")
    return {title: _make_sum(text) for title, text in SUMS.items()} | {
        "no declared reads, and a residual that is called `temp`, too": rename(
            program(silent), "E", "temp"
        )
    }


def _split(impl, func: tirx.PrimFunc):
    """What `split_sum` makes of the epilogue of `func`."""
    reduction, epilogue = find_blocks(func)
    return impl.split_sum(epilogue, reduction.body.buffer)


def test_6_1_finds_the_addend(impl) -> None:
    """the addend holds every term of the sum but temp, each as often as the program adds it"""
    for title, func in make_sums().items():
        why = "The value is a sum of one load of `temp` and terms that do not mention `temp`."
        what = f"Your split_sum refuses an epilogue that is a sum: {title}."
        found = must_accept(partial(_split, impl), func, what, why, ADDED)
        parts = found if isinstance(found, tuple | list) else [found]
        kinds = ", ".join("None" if part is None else type(part).__name__ for part in parts)
        what = f"Your split_sum returned {kinds}, not the load and the addend."
        expected = "two expressions: return load, addend"
        both = len(parts) == 2 and all(isinstance(part, tvm.ir.Expr) for part in parts)
        ADDED.that(both, what, expected=expected, yours=repr(found)[:300])
        load, mine = found
        reduction, epilogue = find_blocks(func)
        terms = _list_terms(epilogue.body.value)
        temp = next(term for term in terms if mentions(term, reduction.body.buffer))
        what = f"The first value that your split_sum returns is not the load of `temp`: {title}."
        found = tvm_ffi.structural_equal(load, temp)
        why = "The load's indices say which element of `temp` the epilogue reads; exercise 6.2 needs them."
        ADDED.that(found, what, expected=_show(temp), yours=_show(load), why=why)
        wanted = [term for term in terms if not term.same_as(temp)]
        _check_terms(mine, wanted, title)


def _list_terms(value) -> list:
    """What `value` adds up, as written from left to right; a constant 0 is no term."""
    if isinstance(value, tirx.Add):
        return [*_list_terms(value.a), *_list_terms(value.b)]
    return [] if isinstance(value, tirx.IntImm) and value.value == 0 else [value]


def _check_terms(mine, wanted: list, title: str) -> None:
    """The addend `mine` holds each of the terms `wanted` as often as they do, in any order and nesting."""
    held, total = _list_terms(mine), reduce(tirx.Add, wanted)
    if Analyzer().can_prove_equal(mine, total):
        return  # perhaps simplified: C * 2 for C + C
    for term in [*wanted, *held]:
        times = [sum(are_equal(term, one) for one in terms) for terms in (held, wanted)]
        words = [{0: "not at all", 1: "once", 2: "twice"}.get(n, f"{n} times") for n in times]
        ADDED.that(
            times[0] == times[1],
            f"The program adds {_show(term)} {words[1]}, and your addend holds it {words[0]}: {title}.",
            expected=f"{_show(total)}, its terms in any order",
            yours=_show(mine),
            why="The addend becomes the init. A missing term is lost, and a term that it holds twice is added twice.",
        )


def _show(expression) -> str:
    """An expression as text, with the names of variables that stand free in it."""
    free = [v for v in nodes(expression, tvm.ir.Var) if not tirx.is_buffer_var(v)]
    named = substitute(expression, {v: tirx.Var(v.name, v.ty) for v in free})
    return str(named).splitlines()[-1]


def test_6_1_adds_nothing_to_a_copy(impl) -> None:
    """a copy adds 0, of the dtype that is copied"""
    for dtype in ("int32", "float32"):
        what = f"Your split_sum refuses a copy, `D[vi, vj] = temp[vi, vj]`, in {dtype}."
        why = (
            "A copy is a sum whose addend is 0. `cache_write` leaves such blocks in many schedules."
        )
        _, addend = must_accept(partial(_split, impl), _make_copy(dtype), what, why, ADDED)
        number = isinstance(addend, tirx.IntImm | tirx.FloatImm) and addend.value == 0
        ADDED.that(
            number and str(addend.ty.dtype) == dtype,
            f"For a copy in {dtype}, your addend is not a {dtype} 0.",
            expected=f'const(0, "{dtype}")',
            yours=f"{addend!r} in {addend.ty.dtype}" if number else repr(addend),
            why="The addend becomes the init, which is stored into a buffer of that dtype.",
        )


def _make_copy(dtype: str) -> tirx.PrimFunc:
    """The usual sums in this dtype, and a block that copies them."""
    text = program("D = temp").script().replace('"int32"', f'"{dtype}"')
    return from_source(text.replace("temp[vi, vj] = 0\n", f"temp[vi, vj] = T.{dtype}(0)\n"))


def test_6_1_refuses_all_else(impl) -> None:
    """an epilogue that is not a sum of temp and of terms without temp is refused"""
    for text, why in NO_SUMS.items():
        what = f"Your split_sum accepts `{text}`, which it must refuse."
        must_refuse(partial(_split, impl), _make_sum(text), what, why, ADDED)
    for title, body in BODIES.items():
        what = f"Your split_sum accepts {title}, which it must refuse."
        why = "The fused block has one init and one step. A second store would be lost."
        must_refuse(partial(_split, impl), program(nest(body)), what, why, ADDED)


def test_6_1_refuses_temp_in_an_index(impl) -> None:
    """an epilogue that uses temp in an index is refused"""
    for title, text in INDICES.items():
        what = f"Your split_sum accepts an epilogue that uses `temp` in {title}."
        why = "The index would be needed before the first step, and the sum does not exist then."
        must_refuse(partial(_split, impl), program(text), what, why, ADDED)


def observe_6_1(impl):
    def parts(func: tirx.PrimFunc):
        load, addend = _split(impl, func)
        return _show(load), _show(addend)

    funcs = *make_sums().values(), *map(_make_sum, NO_SUMS), *map(program, INDICES.values())
    funcs += _make_copy("int32"), _make_copy("float32")
    return [partial(catch_refusal, partial(parts, func)) for func in funcs]


# --- 6.2 ------------------------------------------------------------------------------------------

_OTHER_ORDER = 'vj, vi = T.axis.remap("SS", [j, i])'
_OTHER_NAMES = 'vi, vj = T.axis.remap("SS", [j, i])'
_MORE = """vi, vj = T.axis.remap("SS", [i, j])
        vu = T.axis.spatial(1, 0)"""


def _enclose(written: str, element: str) -> tirx.PrimFunc:
    """Both blocks inside another, with the axis vo. written: where the sums go; element: what the epilogue reads."""
    total, rows = f"temp[{written}]", 5 if "vi" in written else 1
    sums = write_block(
        "matmul",
        f"i {rows}, j 5, k 3",
        f"{total} = {total} + A[vj, vk]",
        init=f"{total} = 0",
    )
    loops = ", ".join(f"{axis[1]} {5 if axis in element else 1}" for axis in ("vi", "vj"))
    bias = write_block("bias", loops, f"D{element} = temp{element} + C{element}")
    allocation = 'temp = T.sblock_alloc_buffer((5, 5), "int32")'
    buffers = {"A": '(5, 3), "int32"'} | dict.fromkeys("CD", '(5, 5), "int32"')
    return from_source(write_function(buffers, write_block("outer", "o 5", allocation, sums, bias)))


def _spread(extent: int | str) -> str:
    """An epilogue with an axis of this extent, in which it does not read other sums."""
    return write_block(
        "bias", f"i 4, j 5, u {extent}", "D[vi, vj * 2 + vu] = temp[vi, vj] + C[vi, vj]"
    )


_TWO_ROWS_IN_ONE = {
    "total": "temp[vi // 2, vi % 2 * 5 + vj]",
    "step": "temp[vi // 2, vi % 2 * 5 + vj] + A * B",
    "temp": "(2, 10)",
}
SAME_ELEMENT = {
    "axes declared in the other order": program("D = temp + C", axes=_OTHER_ORDER),
    "a result kept transposed, its rows backwards": program(
        "D = temp[vj, 3 - vi] + C",
        total="temp[vj, 3 - vi]",
        step="temp[vj, 3 - vi] + A * B",
        temp="(5, 4)",
    ),
    "axes named the other way round": program(
        "D[vj, vi] = temp[vj, vi] + C[vj, vi]", axes=_OTHER_NAMES
    ),
    "an axis of one value": program("D[vi, vj + vu] = temp + C", axes=_MORE),
    "an axis whose one value is 2": program(
        "D[vi, vj + vu] = temp + C",
        axes=_MORE.replace("spatial(1, 0)", "spatial((2, 3), 2)"),
        D="(4, 7)",
    ),
    "two axes of one value, one from n to n + 1 and one of `n + 1 - n` values": program(
        "D[vi, vj + vu + vw] = temp + C",
        axes=_MORE.replace("vu =", "vu, vw = T.axis.spatial((n, n + 1), n),").replace(
            "spatial(1, 0)", "spatial(n + 1 - n, 0)"
        ),
        extra=", n: T.int32",
    ),
    "two rows of the sums in one row of `temp`": program(
        "D = temp[vi // 2, vi % 2 * 5 + vj] + C", **_TWO_ROWS_IN_ONE
    ),
    "an axis `vo` of the block around both, which both blocks use": _enclose("vo, vj", "[vo, vj]"),
    "a range of 4 that is written as `n + 4 - n`": program(
        axes="""vi = T.axis.spatial(n + 4 - n, i)
        vj = T.axis.spatial(5, j)""",
        extra=", n: T.int32",
    ),
}
OTHER_ELEMENT = {  # the reason, and the programs that must be refused for it
    "Row 0 of the output belongs to row 3 of the sum, so row 0 of the sum may not start from row 0 of the bias.": {
        "the epilogue reads the rows backwards": program("D = temp[3 - vi, vj] + C"),
    },
    "The two blocks name different elements, although the same axes occur in both.": {
        "the epilogue reads temp[vj, vi + 1], and the reduction writes temp[vi, vj]": program(
            "D = temp[vj, vi + 1] + C", loops="i 4, j 4"
        ),
    },
    "The epilogue uses only some of the sums. The others have no bias to start from and no place in D.": {
        "the epilogue reads only the diagonal": program(
            "D[vi, 0] = temp[vi, vi] + C", axes=_OTHER_ORDER
        ),
        "the epilogue has only the rows, and reads the diagonal of square sums": _enclose(
            "vi, vj", "[vi, vi]"
        ),
    },
    "One sum goes to several elements of D, and can start from one bias only.": {
        "the epilogue reads row 0 for all rows of D": program("D = temp[0, vj] + C"),
    },
    "The reduction also computes row 3. Fused, it would write a row of D that the program never writes.": {
        "the epilogue runs over rows 0 to 2, the reduction over rows 0 to 3": program(
            "D = temp + C", loops="i 3, j 5"
        ),
    },
    "The reduction also computes row 0, and no row 4. Both ranges have four values, but begin elsewhere.": {
        "the epilogue runs over rows 1 to 4, the reduction over rows 0 to 3": program(
            axes="""vi = T.axis.spatial((1, 5), i + 1)
        vj = T.axis.spatial(5, j)""",
            temp="(5, 5)",
            C="(5, 5)",
            D="(5, 5)",
        ),
    },
    "Each sum goes to n elements of D, and the fused reduction writes one. That n is 1 cannot be proved.": {
        "the axis `vu` has n values and is not in temp's indices": program(
            _spread("n"), D="(4, 10)", extra=", n: T.int32"
        ),
    },
    "Each sum goes to two elements of D, and the fused reduction writes one.": {
        "the axis `vu` has two values and is not in temp's indices": program(
            _spread(2), D="(4, 10)"
        ),
    },
    "`vo` is an axis of the block around both and has one value there: the epilogue uses one column of the sums.": {
        "the epilogue reads temp[vi, vo], where `vo` is an axis of the block around both": _enclose(
            "vi, vj", "[vi, vo]"
        ),
    },
    "`vo` is an axis of the block around both. The reduction makes one row, and the epilogue uses all.": {
        "the reduction writes temp[vo, vj], where `vo` is an axis of the block around both": _enclose(
            "vo, vj", "[vi, vj]"
        ),
    },
    "Each sum goes to four elements of D, and the fused reduction writes one: vi and vu are not one axis.": {
        "the epilogue reads temp[vi // 2, vu % 2 * 5 + vj], and the reduction writes it with vi for vu": program(
            write_block(
                "bias",
                "i 4, u 4, j 5",
                "D[vi * 20 + vu * 5 + vj] = temp[vi // 2, vu % 2 * 5 + vj] + C[vi, vj]",
            ),
            D="(80,)",
            **_TWO_ROWS_IN_ONE,
        ),
    },
    "`vi * 4 + vj` and `vi * 5 + vj` name different elements, although both mention vi and then vj.": {
        "the epilogue reads temp[vi * 4 + vj], the reduction writes temp[vi * 5 + vj]": program(
            "D = temp[vi * 4 + vj] + C",
            total="temp[vi * 5 + vj]",
            step="temp[vi * 5 + vj] + A * B",
            temp="(20,)",
        ),
    },
}


def _match(impl, func: tirx.PrimFunc) -> dict:
    return _pair(impl, *find_blocks(func))


def _pair(impl, reduction: s_tir.SBlock, epilogue: s_tir.SBlock) -> dict:
    return impl.match_axes(_find_indices(epilogue), reduction.body.indices, epilogue, reduction)


def _find_indices(epilogue: s_tir.SBlock) -> list:
    """The indices at which an epilogue reads temp."""
    found = nodes(epilogue.body, tvm.ir.TensorLoad)
    return next(load.indices for load in found if load.source.name == "temp")


def test_6_2_pairs_axes_through_temp(impl) -> None:
    """each axis of the epilogue is found in the reduction through the element of temp that both name"""
    for title, func in {"the usual program": program(), **SAME_ELEMENT}.items():
        blocks = reduction, epilogue = find_blocks(func)
        why = (
            "Both blocks name the same element of `temp`, over the same ranges. Names and order of the axes do not "
            "matter, nor how an index or a range is written."
        )
        what = f"Your match_axes refuses blocks that name the same element of `temp`: {title}."
        found = must_accept(lambda _, both=blocks: _pair(impl, *both), func, what, why, AXES)
        expect.returns(found, dict, "match_axes", "a dict", read=str(AXES))
        wrong = [axis for axis, value in found.items() if not isinstance(value, tvm.ir.Expr)]
        what = f"Your mapping gives {', '.join(map(str, wrong))} something that is not an expression: {title}."
        expected = "expressions as values, such as `axis.var` or `axis.dom.min`"
        AXES.that(not wrong, what, expected=expected, yours=repr(found)[:300])
        missing = [a.var.name for a in epilogue.iter_vars if a.var not in found]
        what = f"Your mapping lacks an axis of the epilogue: {', '.join(missing)}."
        expected = (
            "every axis of the epilogue as a key, by its variable `axis.var` and not by its name"
        )
        why = "The addend is rewritten with this mapping. An axis that stays in it is undefined in the reduction."
        AXES.that(not missing, what, expected=expected, yours=found, why=why)
        read = [Analyzer().simplify(substitute(index, found)) for index in _find_indices(epilogue)]
        AXES.that(
            tvm_ffi.structural_equal(read, list(reduction.body.indices)),
            f"With your pairing, the two blocks name different elements of `temp`: {title}.",
            expected=f"{_describe_pairs(_match(reference, func))}, in\n{listing(func)}",
            yours=_describe_pairs(found),
            why="Each sum must start from the addend of the point that reads it. A wrong pairing gives it another one.",
        )
        for axis in epilogue.iter_vars:
            if mentions(_find_indices(epilogue), axis.var):
                continue
            AXES.that(
                are_equal(found[axis.var], axis.dom.min),
                f"Your mapping gives the axis `{axis.var.name}` a value that it never has: {title}.",
                expected=f"{axis.dom.min}, because its range begins at {axis.dom.min} and has extent {axis.dom.extent}",
                yours=found[axis.var],
                why="The addend and the output's indices may mention that axis. A range need not begin at 0.",
            )


def _describe_pairs(axes: dict) -> str:
    pairs = [(mine.name, getattr(other, "name", other)) for mine, other in axes.items()]
    return ", ".join(f"the epilogue's {mine} is the reduction's {other}" for mine, other in pairs)


def test_6_2_refuses_other_elements(impl) -> None:
    """two blocks that name different elements of temp are refused"""
    for title, func, why in unsound(OTHER_ELEMENT):
        what = f"Your match_axes accepts blocks that it must refuse: {title}."
        must_refuse(partial(_match, impl), func, what, why, AXES)


def observe_6_2(impl):
    funcs = [
        program(),
        *SAME_ELEMENT.values(),
        *(func for _, func, _ in unsound(OTHER_ELEMENT)),
    ]
    return [
        partial(catch_refusal, lambda f=func: _describe_pairs(_match(impl, f))) for func in funcs
    ]


# --- 6.3 ------------------------------------------------------------------------------------------

HARMLESS = {
    "nobody else": program(),
    "a block between the two that copies the bias into a second allocated buffer": program(
        between=other("copy[vi, vj] = C"),
        allocation='temp, copy = [T.sblock_alloc_buffer((4, 5), "int32") for _ in range(2)]',
    ),
    "a block after both that reads D": add_reader(),
    "a block before both that computes the bias": program(before=other("C = E")),
    "a block before both that fills D": program(before=other("D = 3")),
    "a reduction that reads the bias too, and an epilogue that declares no reads": program(
        nest("T.reads()\n        T.writes(D)\n        D = temp + C"), step="temp + A * B * C"
    ),
}


def merge_loops(name: str, body: str) -> tirx.PrimFunc:
    """The usual program with another block between the two, in one loop over rows with the block `name`."""
    sch = s_tir.Schedule(program(between=other(body)))
    both = ("matmul", "other") if name == "matmul" else ("other", "bias")
    sch.merge(*(sch.get_loops(block)[0] for block in both))
    return sch.mod["main"]


_MATCHED = write_block(
    "other",
    "i 4",
    "T.reads()",
    "T.writes(C[vi, 0:5])",
    'row = T.match_buffer(C[vi, 0:5], (5,), "int32", offset_factor=1)',
    "row[0] = 4",
)
VISIBLE = {  # as OTHER_ELEMENT
    "Fused, no block writes temp, so that block would read memory that was never written.": {
        "a block after both reads temp": program(after=other("E = temp")),
        "a block between the two reads temp": program(between=other("E = temp")),
        "a block after both runs where temp is positive": program(
            after=other("T.where(temp[i, j] > 0)\n        E = C")
        ),
    },
    "The epilogue then adds the bias to what that block wrote, not to the reduction's sum.": {
        "a block between the two writes temp": program(between=other("temp = 1")),
    },
    "The caller may read temp afterwards, and fused, no block writes it.": {
        "temp is an argument of the function": program(
            allocation="", extra=', temp: T.Buffer((4, 5), "int32")'
        ),
        "temp is an argument, and another buffer of that name is allocated": rename(
            program(
                allocation='spare = T.sblock_alloc_buffer((4, 5), "int32")',
                extra=', temp: T.Buffer((4, 5), "int32")',
                after=other("E = spare[vi, vj]"),
            ),
            "spare",
            "temp",
        ),
    },
    "Fused, the bias is read when the reduction begins, before that block has written it.": {
        "a block between the two writes the bias": program(between=other("C = E")),
        "a block in the reduction's loop over rows writes the bias": merge_loops("matmul", "C = E"),
        "a block in the epilogue's loop over rows writes the bias": merge_loops("bias", "C = E"),
    },
    "`row` is a second name for memory of C. Fused, the bias is read before that block has written it.": {
        "a block between the two writes the bias through a second name": program(between=_MATCHED),
    },
    "The addend reads two buffers, and both are read before that block has run.": {
        "a block between the two writes the residual": program(
            "D = temp + C + E", between=other("E = C")
        ),
        "a block between the two writes the residual, which the epilogue does not declare": program(
            nest("T.reads(temp, C)\n        T.writes(D)\n        D = temp + C + E"),
            between=other("E = C"),
        ),
        "a block between the two writes the table that chooses the bias": program(
            "D = temp + C[vi, J[vj]]", between=other("J[vj] = 4 - vj")
        ),
    },
    "That block must see what D held before. Fused, D already holds sums.": {
        "a block between the two reads D": program(between=other("E = D")),
        "a block in the reduction's loop over rows reads D": merge_loops("matmul", "E = D"),
        "a block in the epilogue's loop over rows reads D": merge_loops("bias", "E = D"),
        "a block between the two reads D and does not declare it": program(
            between=other("T.reads(C[vi, vj])\n        T.writes(E[vi, vj])\n        E = D")
        ),
    },
    "Fused, D already holds sums when that loop asks how often it runs.": {
        "a loop between the two runs as often as D says": program(
            between=nest("E = C", "other", AXES_IN_4_BY_5, "i D[0, 0], j 5")
        ),
    },
    "That block writes the bias, and its T.writes does not say so. TVM does not compare the two, so do not trust it.": {
        "a block between the two writes the bias and does not declare it": program(
            between=other("T.reads(E[vi, vj])\n        T.writes(E[vi, vj])\n        C = E")
        ),
    },
    "Fused, row 3 starts from what row 0 of D holds, and by then that is a finished sum.": {
        "the epilogue adds what D held in another row": program("D = temp + D[3 - vi, vj]"),
    },
    "Unfused, the epilogue overwrites what that block stores. Fused, that block overwrites the finished sums.": {
        "a block between the two writes D": program(between=other("D = 3")),
    },
    "The reduction must see what D held before. Fused, it would read its own partial sums.": {
        "the reduction reads D": program(step="temp + A * D"),
    },
}


def _check_bystanders(impl, func: tirx.PrimFunc):
    _, fusion = plan(func)
    return impl.check_bystanders(fusion)


def test_6_3_minds_its_own_business(impl) -> None:
    """a program in which no other block notices the fusion is accepted"""
    for title, func in HARMLESS.items():
        what = f"Your check_bystanders refuses a program in which no other block notices the fusion: {title}."
        why = (
            "The fusion changes three things: temp disappears, D is written earlier, and the addend is read earlier. "
            "For D and the addend only blocks between the first step and the epilogue matter."
        )
        must_accept(partial(_check_bystanders, impl), func, what, why, OTHERS)


def test_6_3_sees_who_would_notice(impl) -> None:
    """a program in which a block or the caller notices the fusion is refused"""
    for title, func, why in unsound(VISIBLE):
        what = f"Your check_bystanders accepts a program that it must refuse: {title}."
        must_refuse(partial(_check_bystanders, impl), func, what, why, OTHERS)


def observe_6_3(impl):
    funcs = [*HARMLESS.values(), *(func for _, func, _ in unsound(VISIBLE))]
    return [partial(catch_refusal, partial(_check_bystanders, impl, func)) for func in funcs]


# --- 6.4 ------------------------------------------------------------------------------------------


def share_loops(
    shared: str,
    row: str,
    *,
    steps: int = 2,
    read: str = "wi",
    declared: str = "",
    bias: str = "wi",
) -> tirx.PrimFunc:
    """Four sums: row a * 2 + b, steps k. Both blocks are in the loops of `shared`, which names a, b and k.

    row: the epilogue's row, in the variables of its loops; a and b that are not shared are loops of its own.
    """

    def loops(names: str) -> str:
        return ", ".join(f"{name} {steps if name == 'k' else 2}" for name in names)

    def rest(names: str) -> str:
        """The loops of a block that are not shared; one of a single iteration if there is no other."""
        return loops("".join(name for name in names if name not in shared)) or "_once 1"

    sums = write_block(
        "matmul",
        rest("abk"),
        "temp[vi] = temp[vi] + A[vi, vk]",
        init="temp[vi] = 0",
        axes=f"vk, vi = T.axis.reduce({steps}, k), T.axis.spatial(4, a * 2 + b)",
    )
    addition = write_block(
        "bias",
        rest("".join(name for name in "ab" if name in row)),
        *filter(None, [declared]),
        f"D[wi] = C[{bias}] + temp[{read}]",
        axes=f"wi = T.axis.spatial(4, {row})",
    )
    buffers = {"A": f'(4, {steps}), "int32"'} | dict.fromkeys("CD", '(4,), "int32"')
    allocation = 'temp = T.sblock_alloc_buffer((4,), "int32")'
    body = write_loops(loops(shared), sums + addition)
    return from_source(write_function(buffers, allocation, body))


@lru_cache
def shared_programs() -> tuple[list[tirx.PrimFunc], list[tirx.PrimFunc]]:
    """Programs whose blocks share loops: those that give what starting from the bias gives, and those that do not.

    Every order of the loops, and rows that the epilogue takes in other orders than the reduction makes them.
    """
    same, other = [], []
    for steps, count in itertools.product((2, 1), range(4)):
        for shared in map("".join, itertools.permutations("abk", count)):
            loops = [v for v in shared if steps > 1 or v != "k"]
            if len(loops) > 2:
                continue  # the epilogue would run several times for each row
            digits = [*loops, *(v for v in "ab" if v not in shared)][:2]
            for (p, q), form in itertools.product(itertools.permutations(digits), _ROWS):
                func = share_loops(shared, form.format(p=p, q=q), steps=steps)
                both = (_run_both_ways(func, seed) for seed in (1, 2))
                (same if all(a == b for a, b in both) else other).append(func)
    return same, other


_ROWS = ("{p} * 2 + {q}", "(1 - {p}) * 2 + {q}", "{p} * 2 + (1 - {q})")


def _run_both_ways(func: tirx.PrimFunc, seed: int) -> tuple[list[int], list[int]]:
    """D after `func` as it is, and what sums that start from the bias give."""
    a, c, _ = draw_inputs(func, seed)
    return run_in_python(func, seed)[2].tolist(), (
        a.reshape(len(a), -1).sum(axis=1, dtype="int32") + c
    ).tolist()


def _ask_finished(impl, func: tirx.PrimFunc) -> None:
    sch = s_tir.Schedule(func)
    site = locate(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
    impl.check_shared_loops(site, site.producer.block.body.indices)


def _tile_rows(rows: int) -> tirx.PrimFunc:
    """The usual program with `rows` rows per tile, and the bias in the loop over tiles, put there by TVM."""
    sch = s_tir.Schedule(program())
    tiles, _ = sch.split(sch.get_loops("matmul")[0], [None, rows])
    sch.reverse_compute_at("bias", tiles)
    return sch.mod["main"]


def _make_symbolic_rows() -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, c: T.handle, d: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n, 4096), "int32")
        C = T.match_buffer(c, (n,), "int32")
        D = T.match_buffer(d, (n,), "int32")
        temp = T.sblock_alloc_buffer((n,), "int32")
        for i in range(n):
            for k in range(4096):
                with T.sblock("matmul"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        temp[vi] = 0
                    temp[vi] = temp[vi] + A[vi, vk]
            with T.sblock("bias"):
                wi = T.axis.spatial(n, i)
                D[wi] = temp[wi] + C[wi]

    return main


def make_finished() -> dict[str, tirx.PrimFunc]:
    """Programs in which each sum is finished when it is read, by what is special about them."""
    return {
        "no shared loop": program(),
        "a loop over rows around both, made by TVM": share_rows(),
        "tiles of two rows, made by TVM": _tile_rows(2),
        "tiles of three rows, of which the last is cut off": _tile_rows(3),
        "a number of rows that is not known": _make_symbolic_rows(),
        "an epilogue that declares more than it reads": share_loops(
            "ab", "a * 2 + b", declared="T.reads(temp[0:4], C[wi])"
        ),
        "a shared loop of one iteration, in which all steps run": _split_steps(1),
        "a bias that is read backwards": share_loops("ab", "a * 2 + b", bias="3 - wi"),
        "a shared loop over rows that is called k": rename(
            rename(share_loops("a", "a * 2 + b"), "k", "r"), "a", "k"
        ),
    }


def make_unfinished() -> dict[str, tirx.PrimFunc]:
    """Programs in which a sum is read that is not finished, by what is special about them."""
    own = "T.reads(temp[wi], C[wi])"
    return {
        "an epilogue that reads another row than it declares": share_loops(
            "ab", "a * 2 + b", read="3 - wi", declared=own
        ),
        "one that does so inside a tile": share_loops(
            "a", "a * 2 + b", read="3 - wi", declared=own
        ),
    }


def _split_steps(outer: int) -> tirx.PrimFunc:
    """Sums over two axes. The second has four steps in two loops; both blocks are in the first, of `outer` iterations.

    In each of these the epilogue makes its share of the two rows.
    """
    steps, rows = 4 // outer, 2 // outer
    sums = write_block(
        "matmul",
        f"i 2, m 3, k1 {steps}",
        "temp[vi] = temp[vi] + A[vi, vm, vk]",
        init="temp[vi] = 0",
        axes=f'vi, vm = T.axis.remap("SR", [i, m])\nvk = T.axis.reduce(4, k0 * {steps} + k1)',
    )
    addition = write_block(
        "bias",
        f"j {rows}",
        "D[wi] = temp[wi] + C[wi]",
        axes=f"wi = T.axis.spatial(2, k0 * {rows} + j)",
    )
    buffers = {"A": '(2, 3, 4), "int32"'} | dict.fromkeys("CD", '(2,), "int32"')
    allocation = 'temp = T.sblock_alloc_buffer((2,), "int32")'
    body = write_loops(f"k0 {outer}", sums + addition)
    return from_source(write_function(buffers, allocation, body))


def test_6_4_accepts_finished_sums(impl) -> None:
    """a program in which each sum is finished when the epilogue reads it is accepted"""
    cases = list(make_finished().items())
    same, _ = shared_programs()
    cases += [
        ("see the program", f)
        for f in same
        if catch_refusal(partial(_ask_finished, reference, f)) is None
    ]
    for title, func in cases:
        what = f"Your check_shared_loops refuses a program in which each sum is finished when it is read: {title}."
        why = "In each iteration of the shared loops, the epilogue reads only sums of which all steps are done."
        must_accept(partial(_ask_finished, impl), func, what, why, READY)


def test_6_4_refuses_unfinished_sums(impl) -> None:
    """a program in which the epilogue reads a sum too early is refused"""
    for title, func in make_unfinished().items():
        what = f"Your check_shared_loops accepts a program that it must refuse: {title}."
        why = "A declaration may be wrong. The load in the body says which sum it reads, and that is made later."
        must_refuse(partial(_ask_finished, impl), func, what, why, READY)
    _, other = shared_programs()
    steps = share_loops("k", "k * 2 + b")
    for func in (*other, rename(steps, "k", "r"), _split_steps(2)):
        unfused, fused = next(
            (a, b) for a, b in (_run_both_ways(func, seed) for seed in (1, 2)) if a != b
        )
        what = (
            "Your check_shared_loops accepts a program in which the epilogue reads a sum too early."
        )
        why = f"On one input D is {unfused} as the program stands, and {fused} if its sums start from the bias."
        must_refuse(partial(_ask_finished, impl), func, what, why, READY)


def observe_6_4(impl):
    cases = [*make_finished().values(), *make_unfinished().values()]
    cases += [share_loops(*case) for case in (("a", "(1 - a) * 2 + b"), ("k", "k * 2 + a"))]
    cases += [share_loops("ka", "a * 2 + b", steps=1), _split_steps(2)]
    return [partial(catch_refusal, partial(_ask_finished, impl, func)) for func in cases]


# --- 6.5 ------------------------------------------------------------------------------------------


def annotate_reduction() -> tirx.PrimFunc:
    """The usual program with an annotation on its reduction."""
    sch = s_tir.Schedule(program())
    sch.annotate(sch.get_sblock("matmul"), "note", 3)
    return sch.mod["main"]


def _split_columns() -> tirx.PrimFunc:
    """The usual program; the reduction's columns are split by 4, which does not divide 5 and leaves a predicate."""
    sch = s_tir.Schedule(program())
    sch.split(sch.get_loops("matmul")[1], [None, 4])
    return sch.mod["main"]


FUSED = {
    "the usual program": program(),
    "a bias of one row": program("D = temp + C[vj]", C="(5,)"),
    "a transposed output": program("D[vj, vi] = temp + C", D="(5, 4)"),
    "axes declared in the other order": SAME_ELEMENT["axes declared in the other order"],
    "a step that subtracts": program(step="temp - A * B"),
    "an addend that is an expression": program("D = temp + (C * 2 + vi)"),
    "a bias and a residual": program("D = E + (temp + C)"),
    "a bias of one row and a residual": program("D = temp + C[vj] + E", C="(5,)"),
    "a bias of one row beside a sum with a residual": program("D = C[vj] + (temp + E)", C="(5,)"),
    "a residual beside a bias of one row": program("D = E + (C[vj] + temp)", C="(5,)"),
    "an operand read twice": program("D = temp + B[vj, 0]"),
    "a bias that the reduction reads too": program("D = temp + C[vi, 0]", step="temp + A * C"),
    "an annotated reduction": annotate_reduction(),
    "a split that does not divide": _split_columns(),
    "both blocks inside another block": _enclose("vi, vj", "[vi, vj]"),
}


def _check_results(
    func: tirx.PrimFunc, new: tirx.PrimFunc, what: str, read: str, seed: int = 1
) -> None:
    expected = run_in_python(func, seed)
    try:
        mine = run_in_python(new, seed)
    except (OutOfBounds, NameError) as error:
        reason = "a variable that is not defined here" if isinstance(error, NameError) else error
        wanted = "every access inside its buffer, and every variable an axis of the block or a size"
        why = "The fused block runs in the reduction's loops. It knows the reduction's axes, and no others."
        yours = f"{reason}, in\n{listing(new)}"
        raise read.failed(what, expected=wanted, yours=yours, why=why) from None
    for param, a, b in zip(func.params, mine, expected, strict=True):
        exact = a.dtype.kind != "f"
        tolerance = 0 if exact else 1e-3
        same = np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=not exact)
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            wanted = f"{param.name}{list(at)} = {b[at]} on small random integers"
            yours = f"{a[at]}, with\n{listing(new)}"
            why = "Integer sums are exact, so any difference is a mistake." if exact else ""
            raise read.failed(what, expected=wanted, yours=yours, why=why)


def _fuse(impl, func: tirx.PrimFunc) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    impl.fuse_reduction_epilogue(sch, reduction_block="matmul", epilogue_block="bias")
    return sch


def share_rows() -> tirx.PrimFunc:
    """Both blocks and a block that reads D, all under one loop over rows."""
    sch = s_tir.Schedule(add_reader())
    rows = sch.get_loops("matmul")[0]
    sch.reverse_compute_at("bias", rows)
    sch.reverse_compute_at("other", rows)
    return sch.mod["main"]


_TWO_OTHERS = write_loops(
    "i 4",
    write_block("one", "i 4, j 5", "E[vi, vj] = D[vi, vj] + 1", shared="i 4")
    + write_block("two", "i 4, j 5", "C[vi, vj] = E[vi, vj] + 1", shared="i 4"),
)


def _four_allocations() -> tirx.PrimFunc:
    """Allocations: one, `temp`, another `temp`, and one that no block uses."""
    lines = [
        f'{name} = T.sblock_alloc_buffer((4, 5), "int32")'
        for name in ("one", "temp", "two", "idle")
    ]
    parts = {
        "before": nest("one[vi, vj] = C", name="first"),
        "between": other("two[vi, vj] = one[vi, vj]"),
        "after": nest("E = two[vi, vj]", name="last"),
    }
    return rename(program(allocation="\n    ".join(lines), **parts), "two", "temp")


def _annotate_scope() -> tirx.PrimFunc:
    """Both blocks inside another block, which has an axis and an annotation."""
    sch = s_tir.Schedule(_enclose("vi, vj", "[vi, vj]"))
    sch.annotate(sch.get_sblock("outer"), "note", 2)
    return sch.mod["main"]


def _make_scope(impl, fusion) -> s_tir.SBlock:
    try:
        return impl.new_scope(fusion, reference.fused_block(fusion))
    except tvm.error.InternalError as error:
        if "SeqStmt" not in str(error):
            raise
        raise PLACE.failed(
            "Your new_scope makes a SeqStmt of fewer than two statements.",
            expected="the statement itself if one is left, and None if none is left",
            yours=next(x for x in str(error).splitlines() if "SeqStmt" in x).partition("  Use")[0],
            why="TVM builds a SeqStmt of two or more statements only. Without the epilogue, one may be left.",
        ) from None


def test_6_5_removes_the_epilogue_and_temp(impl) -> None:
    """the new scope holds the fused block, and neither the epilogue, its loops nor temp"""
    others = {"before": other("C = E"), "after": nest("E = D", name="last")}
    cases = {
        "the usual program": program(),
        "a loop around two other blocks": program(after=_TWO_OTHERS),
        "blocks before, between and after": program(**others),
        "loops around both": share_rows(),
        "a parallel loop with an annotation": mark_rows(),
        "a call before the two": program(before='T.evaluate(T.call_extern("int32", "touch", 1))'),
        "a split that does not divide, and leaves a predicate": _split_columns(),
        "an epilogue in one loop with another block": merge_loops("bias", "E = C"),
        "a reduction in one loop with another block": merge_loops("matmul", "E = C"),
        "an epilogue that is not called `bias`": program(nest("D = temp + C", name="add")),
        "four allocations, of which no block uses the last": _four_allocations(),
        "both blocks inside another block, which has an annotation": _annotate_scope(),
    }
    for title, func in cases.items():
        _, fusion = plan(func, "add" if "not called" in title else "bias")
        scope = _make_scope(impl, fusion)
        expect.returns(scope, s_tir.SBlock, "new_scope", "an SBlock")
        expected = reference.new_scope(fusion, reference.fused_block(fusion))
        names = sorted(b.name_hint for b in nodes(scope, s_tir.SBlock))
        wanted = sorted(b.name_hint for b in nodes(expected, s_tir.SBlock))
        what = f"Your new scope holds the wrong blocks: {title}."
        why = "The fused block does the work of the epilogue, so the epilogue goes. Every other block stays."
        PLACE.equal(names, wanted, what, why=why)
        what = f"`temp` is still allocated in your new scope: {title}."
        kept = [b.name for b in scope.alloc_buffers]
        allocated = any(b.same_as(fusion.temp) for b in scope.alloc_buffers)
        why = "After the fusion, no block uses it. (TVM's built-in leaves it there.)"
        wanted = "`alloc_buffers` without `temp`"
        PLACE.that(not allocated, what, expected=wanted, yours=str(kept), why=why)
        PLACE.equal(
            kept,
            [b.name for b in expected.alloc_buffers],
            f"Your new scope allocates other buffers than the old one without `temp`: {title}.",
            why="They are the user's schedule. Two buffers may have one name, so `same_as` finds `temp`.",
        )
        using = [b.name_hint for b in nodes(scope.body, s_tir.SBlock) if mentions(b, fusion.temp)]
        what = f"A block of your new scope still uses `temp`: {title}."
        why = (
            "The fused block writes the epilogue's output directly. It takes the reduction's place."
        )
        wanted = "blocks that do not use `temp`, because the scope no longer allocates it"
        PLACE.that(
            not mentions(scope, fusion.temp), what, expected=wanted, yours=str(using), why=why
        )
        PLACE.that(
            tvm_ffi.structural_equal(scope.body, expected.body),
            f"The statements of your new scope are not those of the old one: {title}.",
            expected="the same loops, without those that had only the epilogue inside, and each block with its "
            "`iter_values` and predicate",
            yours="- expected, + yours\n" + str(diff(_print_scope(expected), _print_scope(scope))),
            why="Loops, with their kinds and annotations, and what binds blocks to them are the user's schedule.",
        )
        PLACE.that(
            tvm_ffi.structural_equal(with_fields(scope, body=expected.body), expected),
            f"Your new scope has lost something of the old one, or has more: {title}.",
            expected="the axes, regions, name and annotations of the old scope",
            yours="- expected, + yours\n" + str(diff(_print_scope(expected), _print_scope(scope))),
            why="Only the statements and allocations change. `with_fields` copies the fields that you do not name.",
        )
        _check_objects(fusion, scope, title)


def _check_objects(fusion, scope: s_tir.SBlock, title: str) -> None:
    """The statements of the scope that hold neither block are the same objects in the new `scope`."""
    old, new = (
        s.body.seq if isinstance(s.body, tirx.SeqStmt) else [s.body]
        for s in (fusion.site.scope, scope)
    )
    two = (fusion.reduction, fusion.epilogue)
    for stmt in old:
        inside = any(block.same_as(one) for block in nodes(stmt, s_tir.SBlock) for one in two)
        PLACE.that(
            inside or any(stmt.same_as(other) for other in new),
            f"Your new scope rebuilds a statement that holds neither of the two blocks: {title}.",
            expected="the same object: return `stmt` itself if nothing below it has changed",
            yours="a new object for\n" + str(stmt)[:300],
            why="`sch.state.replace` walks through every statement that is new, and skips those that it knows.",
        )


def _print_scope(scope: s_tir.SBlock) -> str:
    return s_tir.SBlockRealize([axis.dom.min for axis in scope.iter_vars], True, scope).script()


def test_6_5_fuses(impl) -> None:
    """the whole primitive, on blocks by name: same numbers, one block fewer"""
    for title, func in FUSED.items():
        what = f"Your fuse_reduction_epilogue refuses a program that can be fused: {title}."
        why = "All conditions hold on this program."
        mod = must_accept(partial(_fuse, impl), func, what, why, PLACE).mod
        before, names = (
            [b.name_hint for b in nodes(f.body, s_tir.SBlock)] for f in (func, mod["main"])
        )
        what = f"After the fusion the schedule holds the blocks {', '.join(names)}: {title}."
        wanted = [name for name in before if name != "bias"]
        why = (
            "A new scope does nothing by itself. `sch.state.replace` puts it into the schedule, in the place of the "
            "scope whose sref it gets: `fusion.site.scope_sref`."
        )
        PLACE.that(names == wanted, what, expected=", ".join(wanted), why=why)
        what = f"The fused program computes other numbers: {title}."
        _check_results(func, mod["main"], what, PLACE)
        for a, b in zip(
            run_compiled(mod, draw_inputs(func, 5)), run_in_python(func, 5), strict=True
        ):
            what = f"Compiled, the fused program computes other numbers: {title}."
            PLACE.that(np.array_equal(a, b), what)


def test_6_5_keeps_handles_and_flags(impl) -> None:
    """handles of the reduction, its loops and other blocks stay valid, and TVM's own verification passes"""
    sch = s_tir.Schedule(add_reader(), debug_mask="all")
    reduction, epilogue, last = (sch.get_sblock(name) for name in ("matmul", "bias", "other"))
    loops, others = sch.get_loops(reduction), sch.get_loops(last)
    given = _fuse_with_map(impl, sch, reduction, epilogue)
    for whose, handles in {"the reduction": loops, "another block": others}.items():
        PLACE.that(
            all(_is_alive(sch, handle) for handle in handles),
            f"After your fusion the handles of the loops of {whose} are dead.",
            expected="every loop that stays, with its own loop variable",
            why="A schedule recognizes a loop by its variable. `with_loop_body` keeps the variable, and a loop whose "
            "body does not change need not be rebuilt.",
        )
    _check_handles(sch, reduction, loops, last, given)
    what = "The epilogue's handle still finds a block."
    expected = "an error, because its block is gone"
    PLACE.that(not _is_alive(sch, epilogue), what, expected=expected, why=REFERENCES)


REFERENCES = (
    "A schedule finds its blocks by references (srefs). The third argument of `replace` maps each old block to the "
    "new one that continues it. A block that is not in the map counts as new: old handles are dead and its flags are "
    "false, so that `decompose_reduction` says `not a reduction block`."
)


def _fuse_with_map(impl, sch: s_tir.Schedule, reduction, epilogue) -> str:
    """Fuse, and return in words the map that `replace` got: which block, it says, is which."""
    given, replace = [], s_tir.ScheduleState.replace

    def record(state, sref, stmt, reuse=None):
        blocks = {"old": nodes(sref.stmt, s_tir.SBlock), "new": nodes(stmt, s_tir.SBlock)}

        def named(one) -> str:
            age = [age for age, known in blocks.items() if any(one.same_as(b) for b in known)]
            return f"the {age[0] if len(age) == 1 else 'unchanged'} `{one.name_hint}`"

        pairs = (reuse or {}).items()
        if all(isinstance(one, s_tir.SBlock) for pair in pairs for one in pair):
            given.append("{" + ", ".join(f"{named(a)}: {named(b)}" for a, b in pairs) + "}")
        return replace(state, sref, stmt, reuse)

    with mock.patch.object(s_tir.ScheduleState, "replace", record):
        try:
            impl.fuse_reduction_epilogue(sch, reduction, epilogue)
        except tvm.error.InternalError as error:
            if not given:
                raise
            raise PLACE.failed(
                "`sch.state.replace` stops with an internal error.",
                expected="a map from each old block to the new one that continues it",
                yours=f"{given[-1]}; TVM says: {str(error).strip().splitlines()[-1][:160]}",
                why=f"{REFERENCES} No block continues the epilogue, so it is not in the map.",
            ) from None
    return given[-1] if given else ""


def _check_handles(sch: s_tir.Schedule, reduction, loops: list, last, given: str) -> None:
    """The handles of the reduction (now the fused block) and of `last` are alive, and both blocks can be scheduled."""
    try:
        block = sch.get(reduction)
        sch.get(last)
        _, outer = sch.split(loops[1], [None, 5])
        sch.reorder(outer, loops[2])
        sch.decompose_reduction(reduction, loops[2])
    except Exception as error:
        what = "After your fusion a handle is dead, or a flag is wrong."
        wanted = "a map with which sch.get(reduction), split, reorder and decompose_reduction work afterwards"
        said = str(error).strip().splitlines()[-1]
        yours = f"the map {given}; then TVM says: {said}" if given else said
        raise PLACE.failed(what, expected=wanted, yours=yours, why=REFERENCES) from None
    what = "The handle of the reduction does not find the fused block."
    PLACE.equal(block.body.buffer.name, "D", what, why=REFERENCES)


def _is_alive(sch: s_tir.Schedule, handle) -> bool:
    """Whether the handle of a block or a loop finds it."""
    try:
        sch.get(handle)
    except Exception:
        return False
    return True


def test_6_5_leaves_other_functions_alone(impl) -> None:
    """in a module of two functions and no main, only the one worked on changes, and its attributes stay"""
    funcs = {"work": program(), "idle": program("D = temp - C")}
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in funcs.items()})
    sch = s_tir.Schedule(mod)
    sch.work_on("work")
    impl.fuse_reduction_epilogue(sch, "matmul", "bias")
    what = "Your fusion changed another function of the module."
    expected = "`idle` unchanged"
    PLACE.that(tvm_ffi.structural_equal(sch.mod["idle"], mod["idle"]), what, expected=expected)
    attrs = sch.mod["work"].attrs
    what = "The function lost attributes."
    PLACE.that("kept" in attrs and "tirx.noalias" in attrs, what, yours=attrs)
    what = "The function worked on still has both blocks."
    PLACE.that(len(nodes(sch.mod["work"].body, s_tir.SBlock)) == 2, what)


def test_6_5_refuses_and_leaves_all_as_it_was(impl) -> None:
    """a refused fusion changes nothing, whichever condition it misses"""
    cases = [func for _, func, _ in [*unsound(OTHER_ELEMENT), *unsound(VISIBLE)]]
    cases += [*map(_make_sum, NO_SUMS), program(init="3"), program("D[vi, 0] = temp + C")]
    cases += [program(step="T.max(temp, A)"), program(step="temp * 2 + A")]
    for func in cases:
        sch = s_tir.Schedule(func)
        before, text = sch.mod, sch.mod.script()
        what = "Your fuse_reduction_epilogue accepts a program that it must refuse."
        why = "Fused, this program computes other numbers, or cannot be proved to compute the same."
        fuse = partial(impl.fuse_reduction_epilogue, sch, "matmul", "bias")
        must_refuse(lambda _, fuse=fuse: fuse(), func, what, why, NOT_FIRE)
        changed = str(diff(text, sch.mod.script()))
        what = "A refused fusion changed the schedule."
        expected = "every `require` before `sch.state.replace`"
        why = "A caller that catches the error goes on with the schedule, and expects it as it was."
        unchanged = sch.mod.same_as(before) and sch.mod.script() == text
        PLACE.that(unchanged, what, expected=expected, yours=changed, why=why)


def test_6_5_equals_the_built_in(impl) -> None:
    """split, reordered and decomposed, the result equals the built-in's except for its dead temp"""
    one_row = program("D = temp + C[vj]", C="(5,)")
    for title, func in {"after fusing": program(), "with a bias of one row": one_row}.items():
        mine, theirs = s_tir.Schedule(func), s_tir.Schedule(func)
        impl.fuse_reduction_epilogue(mine, "matmul", "bias")
        theirs.fuse_reduction_epilogue("matmul", "bias")
        for step in (None, _tile, _decompose):
            for sch in (mine, theirs):
                if step:
                    step(sch)
            alive = remove_dead_temp(theirs)
            then = ", then " + step.__name__.strip("_") if step else ""
            what = f"Your result is not the one of the built-in ({title}{then})."
            yours = "- built-in, + yours\n" + str(diff(alive, mine.mod))
            why = "On this program the built-in is right, and there is only one right result."
            PLACE.that(tvm_ffi.structural_equal(mine.mod, alive), what, yours=yours, why=why)


def _tile(sch: s_tir.Schedule) -> None:
    i, j, k = sch.get_loops("matmul")
    (k0, k1), (j0, j1) = sch.split(k, [None, 3]), sch.split(j, [None, 5])
    sch.reorder(i, j0, k0, j1, k1)


def _decompose(sch: s_tir.Schedule) -> None:
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])


def remove_dead_temp(sch: s_tir.Schedule) -> tvm.IRModule:
    copy = sch.copy()
    root = copy.get_sref(copy.get_sblock("root"))
    used = nodes(root.stmt.body, tvm.ir.Var)
    alive = [b for b in root.stmt.alloc_buffers if any(b.same_as(v) for v in used)]
    copy.state.replace(root, with_fields(root.stmt, alloc_buffers=alive), {})
    return copy.mod


def observe_6_5(impl):
    def describe_scope(func):
        _, fusion = plan(func)
        scope = impl.new_scope(fusion, reference.fused_block(fusion))
        loops = [loop.loop_var.name for loop in nodes(scope, tirx.For)]
        names = [b.name_hint for b in nodes(scope, s_tir.SBlock)]
        kept = [str(dict(loop.annotations)) for loop in nodes(scope, tirx.For)]
        kept += [str(realize.predicate) for realize in nodes(scope, s_tir.SBlockRealize)]
        return names, loops, kept, [b.name for b in scope.alloc_buffers]

    def describe_map():
        sch = s_tir.Schedule(add_reader())
        return _fuse_with_map(impl, sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))

    def find_alive():
        sch = s_tir.Schedule(add_reader())
        loops = [loop for name in ("matmul", "other") for loop in sch.get_loops(name)]
        impl.fuse_reduction_epilogue(sch, "matmul", "bias")
        return [_is_alive(sch, loop) for loop in loops]

    def use_handle(use):
        sch = s_tir.Schedule(add_reader())
        reduction = sch.get_sblock("matmul")
        impl.fuse_reduction_epilogue(sch, reduction, "bias")
        try:
            return use(sch, reduction)
        except Exception as error:
            return str(error).strip().splitlines()[-1][:60]

    def keeps_object():
        _, fusion = plan(program(after=_TWO_OTHERS))
        scope = impl.new_scope(fusion, reference.fused_block(fusion))
        return scope.body.seq[-1].same_as(fusion.site.scope.body.seq[-1])

    return [
        keeps_object,
        lambda: describe_scope(program()),
        lambda: describe_scope(mark_rows()),
        lambda: describe_scope(share_rows()),
        lambda: describe_scope(_split_columns()),
        lambda: describe_scope(_four_allocations()),
        describe_map,
        find_alive,
        lambda: use_handle(lambda sch, red: sch.get(red).name_hint),
        lambda: use_handle(
            lambda sch, red: sch.decompose_reduction(red, sch.get_loops(red)[2]) and "ok"
        ),
        lambda: use_handle(lambda sch, red: sch.reverse_compute_at("other", sch.get_loops(red)[0])),
        lambda: use_handle(lambda sch, red: len(nodes(sch.mod["main"].body, s_tir.SBlock))),
    ]


def mark_rows() -> tirx.PrimFunc:
    """Both blocks under one parallel loop that carries an annotation."""
    sch = s_tir.Schedule(share_rows())
    rows = sch.get_loops("matmul")[0]
    sch.annotate(rows, "note", 1)
    sch.parallel(rows)
    return sch.mod["main"]


# --- 6.6 ------------------------------------------------------------------------------------------


def decompose_fused() -> tuple[s_tir.Schedule, object]:
    """The usual program fused by the reference, tiled and decomposed: the schedule and its init block."""
    sch = s_tir.Schedule(annotate_reduction())
    reference.fuse_reduction_epilogue(sch, "matmul", "bias")
    _tile(sch)
    return sch, sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])


def test_6_6_declares_what_the_blocks_read(impl) -> None:
    """the init declares the bias, and the update no longer does"""
    sch, init = decompose_fused()
    impl.refresh_regions(sch, init)
    impl.refresh_regions(sch, "matmul_update")
    for name, wanted in (("matmul_init", ["C"]), ("matmul_update", ["D", "A", "B"])):
        block = sch.get(sch.get_sblock(name))
        reads = [r.source.name for r in block.reads]
        why = "Primitives that move blocks trust these regions, and `tensorize` compares them with its intrinsic's."
        what = f"After your refresh_regions, `{name}` declares other reads than it makes."
        REGIONS.equal(reads, wanted, what, why=why)
        writes = [r.source.name for r in block.writes]
        what = f"After your refresh_regions, `{name}` declares other writes than it makes."
        REGIONS.equal(writes, ["D"], what, why=why)


def test_6_6_keeps_the_handle_and_all_else(impl) -> None:
    """the handle stays valid, and nothing but the regions changes"""
    sch, init = decompose_fused()
    old = sch.get(init)
    impl.refresh_regions(sch, init)
    try:
        new = sch.get(init)
    except Exception as error:
        raise REGIONS.failed(
            "After your refresh_regions the block's handle is dead.",
            expected="sch.get(init) finds the block with its new regions",
            yours=str(error).strip().splitlines()[-1],
            why="`replace` keeps the reference of a block that is in its map, `{old: new}`. Others count as new.",
        ) from None
    same = tvm_ffi.structural_equal(with_fields(new, reads=old.reads), old)
    what = "Your refresh_regions changed more than the regions."
    expected = "the same name, body, init and annotations"
    why = "The block does what it did. `with_fields` copies the fields that you do not name."
    REGIONS.that(same, what, expected=expected, yours=str(new), why=why)


def test_6_6_believes_no_declaration(impl) -> None:
    """reads and writes are what the code does, whatever the block declared before"""
    body = "T.reads(A[0:4, 0:3])\n        T.writes(E[0:4, 0:5])\n        E = C"
    sch = s_tir.Schedule(program(after=other(body)))
    impl.refresh_regions(sch, "other")
    block = sch.get(sch.get_sblock("other"))
    for kind, wanted in (("reads", "C[vi, vj]"), ("writes", "E[vi, vj]")):
        declared = ", ".join(_describe_region(region) for region in getattr(block, kind))
        what = f"After your refresh_regions the block still declares other {kind} than it makes."
        why = "It declared all of E before, and writes one element per point. Take both lists from the code."
        REGIONS.equal(declared, wanted, what, why=why)


def test_6_6_finds_what_no_block_declares(impl) -> None:
    """buffers that no block declares, and those that only an init uses, are found too"""
    sch = _remove_regions(s_tir.Schedule(_enclose("vi, vj", "[vi, vj]")), "bias")
    title = "a block that reads a buffer which the block around it allocates"
    _refresh(impl, sch, "bias", ["temp", "C"], ["D"], title)
    _refresh(
        impl,
        _fuse_bare(),
        "matmul",
        ["C", "A", "B"],
        ["D"],
        "a fused block with its init",
    )


def _fuse_bare() -> s_tir.Schedule:
    """The usual program fused by the reference; the fused block declares nothing."""
    return _remove_regions(_fuse(reference, program()), "matmul")


def _remove_regions(sch: s_tir.Schedule, name: str) -> s_tir.Schedule:
    """`sch`, with a block that declares neither reads nor writes."""
    sref = sch.get_sref(sch.get_sblock(name))
    bare = with_fields(sref.stmt, reads=[], writes=[])
    sch.state.replace(sref, bare, {sref.stmt: bare})
    return sch


def _refresh(impl, sch: s_tir.Schedule, name: str, reads: list, writes: list, title: str) -> None:
    """`refresh_regions` gives the block `name`, which declares nothing, these buffers in any order."""
    impl.refresh_regions(sch, name)
    block = sch.get(sch.get_sblock(name))
    for kind, wanted in (("reads", reads), ("writes", writes)):
        found = sorted(region.source.name for region in getattr(block, kind))
        what = f"After your refresh_regions, `{name}` declares other {kind} than it makes: {title}."
        why = "TVM reports only buffers that the dict names. Name every buffer that the block itself mentions."
        REGIONS.equal(found, sorted(wanted), what, why=why)


def _describe_region(region) -> str:
    axes = [
        r.min if are_equal(r.extent, 1) else f"{r.min}:{r.min + r.extent}" for r in region.region
    ]
    return f"{region.source.name}[{', '.join(_show(a) if not isinstance(a, str) else a for a in axes)}]"


def test_6_6_refuses_a_pointer(impl) -> None:
    """a block that passes a pointer to a function is refused"""
    body = 'T.reads(C[vi, vj])\n        T.writes(E[vi, vj])\n        E = T.call_extern("int32", "touch", C.data)'
    sch = s_tir.Schedule(program(after=other(body)))
    before = sch.mod
    must_refuse(
        lambda _: impl.refresh_regions(sch, "other"),
        before["main"],
        "Your refresh_regions accepts a block that passes a pointer to a function.",
        "No analysis sees what `touch` reads through the pointer. The third list of `get_sblock_access_region` names "
        "such buffers. Only the author of the block can declare what it reads.",
        REGIONS,
    )
    what = "Your refresh_regions refuses, and has changed the schedule."
    REGIONS.that(sch.mod.same_as(before), what, expected="a refusal before `sch.state.replace`")


def test_6_6_lets_tensorize_through(impl) -> None:
    """a matrix product with 4-element dot products can be tensorized after fusing and decomposing"""
    sch = s_tir.Schedule(int8_matmul.program(4, 32, 8))
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
        raise REGIONS.failed(
            "tensorize still refuses the update block.",
            expected="T.reads(D, A, B), as the intrinsic declares them",
            yours=[x for x in str(error).splitlines() if "regions" in x or "rror" in x][-1],
            why="`tensorize` accepts a block only if it declares the same reads and writes as the intrinsic.",
        ) from None


def observe_6_6(impl):
    def regions(name):
        sch, init = decompose_fused()
        impl.refresh_regions(sch, init if name == "matmul_init" else name)
        block = sch.get(sch.get_sblock(name))
        named = [[r.source.name for r in declared] for declared in (block.reads, block.writes)]
        return named, len(block.annotations)

    def handle():
        sch, init = decompose_fused()
        impl.refresh_regions(sch, init)
        return sch.get(init).name_hint

    def with_init():
        sch = _fuse_bare()
        impl.refresh_regions(sch, "matmul")
        return [region.source.name for region in sch.get(sch.get_sblock("matmul")).reads]

    return [lambda: regions("matmul_init"), lambda: regions("matmul_update"), handle, with_init]


# --- 6.7 ------------------------------------------------------------------------------------------


def _list_sizes(block: s_tir.SBlock) -> list:
    """The bounds of the axes of `block`, and the sizes of what it allocates."""
    axes = [n for axis in block.iter_vars for n in (axis.dom.min, axis.dom.extent)]
    return axes + [n for buffer in block.alloc_buffers for n in buffer.shape]


def _fuse_both_ways(impl) -> tuple[tirx.PrimFunc, s_tir.Schedule, s_tir.Schedule]:
    func = impl.lost_read()
    expected = "a function written in TVMScript with @T.prim_func(s_tir=True)"
    expect.returns(func, tirx.PrimFunc, "lost_read", "a PrimFunc", expected=expected)
    sizes = [n for block in nodes(func.body, s_tir.SBlock) for n in _list_sizes(block)]
    sizes += [n for param in func.params for n in getattr(param, "shape", [param])]
    unknown = dict.fromkeys(str(n) for n in sizes if not isinstance(n, tirx.IntImm))
    what = f"Your program has a size that is not a number, or an argument that is not a buffer: {', '.join(unknown)}."
    why = "The check runs the program, and looks at single elements of each region."
    expected = "buffers as arguments, and numbers for all sizes"
    BREAK.that(not unknown, what, expected=expected, why=why)
    try:
        run_in_python(func, 1)
    except (OutOfBounds, NameError) as error:
        what = f"Your program cannot be run: {error}."
        raise BREAK.failed(
            what, expected="accesses inside of each buffer", yours=listing(func)
        ) from None
    mine, theirs = s_tir.Schedule(func), s_tir.Schedule(func)
    built_in = type(theirs).fuse_reduction_epilogue
    ours = reference.fuse_reduction_epilogue
    for whose, fuse, sch in (("TVM's built-in", built_in, theirs), ("The reference", ours, mine)):
        try:
            fuse(sch, "matmul", "bias")
        except ScheduleError as error:
            message = str(error)
            message = " ".join(message[max(message.rfind("Error message"), 0) :].split())
            what = f"{whose} refuses your program."
            expected = "blocks called `matmul` and `bias`, which TVM's built-in and the reference both fuse"
            why = "Only a program that both accept shows where their declarations differ."
            raise BREAK.failed(what, expected=expected, yours=message[:300], why=why) from None
    return func, mine, theirs


def test_6_7_the_built_in_loses_a_read(impl) -> None:
    """the built-in's fused block reads an element it does not declare; the reference's declares it"""
    func, mine, theirs = _fuse_both_ways(impl)
    block = theirs.get(theirs.get_sblock("matmul"))
    missed = find_undeclared(block)
    what = "On your program the built-in declares everything that the fused block reads."
    expected = "an element that the fused block reads, and that is in none of its declared regions"
    why = "The built-in lists what the epilogue reads, then what the reduction reads of buffers not listed yet."
    BREAK.that(bool(missed), what, expected=expected, yours=listing(theirs.mod["main"]), why=why)
    what = "The block of the reference does not declare everything that it reads, either."
    lost = find_undeclared(mine.get(mine.get_sblock("matmul")))
    why = "The reference believes what the two blocks of your program declare. One of them reads more than that."
    expected = "blocks whose `T.reads` name all that they read; without `T.reads`, TVM finds out"
    BREAK.that(not lost, what, expected=expected, yours=f"it {lost}", why=why)
    _check_results(func, mine.mod["main"], "The program is not fused right.", BLOCK)
    what = (
        "The built-in computes other numbers than your program. Only its declaration may be wrong."
    )
    _check_results(func, theirs.mod["main"], what, BREAK)


def observe_6_7(impl):
    def declared():
        _, _, theirs = _fuse_both_ways(impl)
        return find_undeclared(theirs.get(theirs.get_sblock("matmul")))

    return [declared, lambda: str(impl.lost_read().script())]
