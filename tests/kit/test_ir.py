"""Questions to the IR: what may write, which scopes there are, what two listings differ in."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import SBlock

from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.cases.tir_text import write_block, write_function
from chapters.kit.ir.ir_diff import diff, show
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.ir.region_cover import find_undeclared
from chapters.kit.ir.relax_effects import bindings_of, may_write, offloaded, scopes
from chapters.kit.ir.row_index import row_dimensions, row_index, unit_dimensions
from chapters.kit.ir.tensor_ir import nodes, substitute

# --- what a block declares ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "load", "missed"),
    [
        ("A[vi, vj]", "A[vi, vj]", False),
        ("A[vi:vi, vj:vj]", "A[vi, vj]", True),  # as many as there are in an empty region
        ("A[vi, 0:8], J[vj]", "A[vi, J[vj]]", False),
        ("A[vi, 0:7], J[vj]", "A[vi, J[vj]]", True),
        ("J[vj]", "A[vi, J[vj]]", True),
        ("A[vi, J[vj]], J[vj]", "A[vi, J[vj]]", False),
        ("A[vi, vj // 2 * 2:vj // 2 * 2 + 2]", "A[vi, vj // 2 * 2 + step]", False),
        ("A[vi, vj // 2 * 2]", "A[vi, vj // 2 * 2 + step]", True),
        ("A[0, vj]", "A[vi, vj]", True),
    ],
)
def test_an_access_that_a_block_does_not_declare_is_found(reads, load, missed):
    body = f"T.reads({reads})\nT.writes(B[vi, vj])\nfor step in range(2):\n    B[vi, vj] = {load}"
    buffers = {"A": '(4, 8), "float32"', "J": '(8,), "int32"', "B": '(4, 8), "float32"'}
    text = write_function(buffers, write_block("copied", "i 4, j 8", body))
    func = from_source(text)
    (block,) = (one for one in nodes(func.body, SBlock) if one.name_hint == "copied")
    assert bool(find_undeclared(block)) == missed


# --- effects, scopes, rows ------------------------------------------------------------------------

EFFECTS = relax_module(f"""{kernel("clear(a)", (4,), "a[at] = T.float32(0)")}
@private
@bare
def callee(x: (4,)) -> R.Tensor((4,), "float32"):
    return x

@impure
def main(x: (4,), choose: ("bool",)):
    harmless = R.add(x, x)
    alias = harmless
    in_place = R.call_tir_inplace(cls.clear, (alias,), [0], out_ty=R.Tensor((4,), "float32"))
    _printed = R.print(x, format="x")
    called = cls.callee(in_place)
    if choose:
        branch = R.exp(called)
    else:
        branch = R.call_tir_inplace(cls.clear, (called,), [0], out_ty=R.Tensor((4,), "float32"))
    return branch
""")


def test_only_pure_operators_that_make_new_tensors_are_harmless():
    found = {b.var.name: may_write(b.value) for b in bindings_of(EFFECTS["main"].body)}
    assert not {n: f for n, f in found.items() if f != (n not in ("harmless", "alias", "cls"))}
    assert isinstance(bindings_of(EFFECTS["main"].body)[-1].value, relax.If)


def test_every_branch_is_a_scope_of_its_own():
    found = list(scopes(EFFECTS["main"]))
    assert len(found) == 3 and found[0].same_as(EFFECTS["main"].body)


def test_functions_of_another_compiler_have_no_scopes():
    for key in ("Primitive", "Composite", "Codegen"):
        func = EFFECTS["callee"].with_attr(key, "x")
        assert offloaded(func) and not list(scopes(func))
    assert not offloaded(EFFECTS["callee"])


def test_rows_are_counted_with_the_last_dimension_fastest():
    shape = (2, 1, 3, 4)
    dims = row_dimensions([tirx.IntImm("int64", n) for n in (*shape, 8)])
    assert [isinstance(d, tirx.IntImm) for d in dims] == [False, True, False, False]
    sizes = {d: n for d, n in zip(dims, shape, strict=True) if not isinstance(d, tirx.IntImm)}
    for number, index in enumerate(itertools.product(*map(range, shape))):
        row = tirx.IntImm("int64", number)
        found = [_value(e, sizes) for e in row_index(row, dims)]
        assert tuple(found) == index == tuple(int(i) for i in np.unravel_index(number, shape))


def _value(expr, sizes) -> int:
    numbers = {var: tirx.IntImm("int64", n) for var, n in sizes.items()}
    return int(tvm.sym.Analyzer().simplify(substitute(expr, numbers)))


def test_one_kernel_for_one_row_and_for_many():
    def units(*shape):
        return unit_dimensions([tirx.IntImm("int64", n) for n in shape])

    assert units(1, 7, 64) == units(1, 1, 64) == (True, False)
    assert units(7, 1, 64) == (False, True)
    assert units(64) == () and units(1, 64) == (False,) and units(2, 3, 64) == (False, False)


# --- two listings ---------------------------------------------------------------------------------

HEADER = "# from typing import TypeVar\n# from tvm.script import ir as I\n\n"
BEFORE = HEADER + "\n".join(
    ["def main(x):", *[f"    keep{i} = {i}" for i in range(9)], "    y = R.add(x, w)"]
)
AFTER = BEFORE.replace("R.add", "R.multiply") + "\n    z = y"


def test_what_is_no_ir_is_refused_with_a_sentence():
    said = "Expected an IRModule, a function or a string of IR, got int"
    with pytest.raises(TypeError, match=said):
        diff(1, 2)


def test_no_difference_is_said_plainly():
    result = diff(BEFORE, BEFORE)
    assert not result
    assert str(result) == "no difference"
    assert "no difference" in result._repr_html_()
    assert "<div" not in result._repr_html_()


def test_text_marks_and_folds():
    lines = diff(BEFORE, AFTER, context=2).text().splitlines()
    assert lines == [
        "1 line gone, 2 new",
        "  ... 8 unchanged lines",
        "      keep7 = 7",
        "      keep8 = 8",
        "-     y = R.add(x, w)",
        "+     y = R.multiply(x, w)",
        "+     z = y",
    ]


def test_every_line_of_both_sides_is_in_the_rows_once_and_in_order():
    before = [f"lv{i} = op{i % 3}(lv{i - 1})" for i in range(30)]
    after = [*before[3:10], "new()", *before[10:20], "lv9 = op0(other)", *before[25:]]
    rows = diff("\n".join(before), "\n".join(after)).lines
    assert [r.before for r in rows if r.before is not None] == before
    assert [r.after for r in rows if r.after is not None] == after


def test_large_replacements_are_not_aligned_word_by_word():
    before = "\n".join(f"a{i} = f({i})" for i in range(80))
    after = "\n".join(f"b{i} = g({i}, {i})" for i in range(80))
    assert (diff(before, after).gone, diff(before, after).new) == (80, 80)


def test_colour_needs_a_terminal_and_respects_no_color(monkeypatch):
    result = diff(BEFORE, AFTER)
    assert "\033" not in str(result)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[31m-     y = R.add(x, w)\033[0m" in str(result)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in str(result)


def test_html_is_escaped_marked_and_has_no_blank_line():
    shown = diff("x = a < b", "x = a > b")._repr_html_()
    assert "x = a <b>&lt;</b> b" in shown and "x = a <b>&gt;</b> b" in shown
    assert "\N{MINUS SIGN}</i>" in shown and ">+</i>" in shown
    assert "\n\n" not in shown


def test_show_prints_the_listing_and_highlights_it():
    assert str(show(HEADER + "x = 1 < 2")) == "x = 1 < 2"
    assert "&lt;" in show("x = 1 < 2")._repr_html_()
