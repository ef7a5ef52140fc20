"""The picture of a loop nest says what its IR says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from tvm import te, tirx
from tvm.s_tir import Schedule

from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.draw.loop_nest import Loop, loop_nest, side_by_side

SCHEDULED = """\
after
  i_j_fused 128  (parallel)
    matmul_init: sets temp
    p_0 2  (along the sum)
      p_1 3  (three steps, unrolled, along the sum)
        matmul_update: adds to temp
  i 8
    j 16  (vectorized)
      bias: sets D"""


def scheduled() -> Schedule:
    """A product with a bias in loops of every kind that a CPU has."""
    sch = Schedule(matmul_bias(8, 16, 6))
    i, j, p = sch.get_loops("matmul")
    outer, inner = sch.split(p, [None, 3])
    sch.parallel(sch.fuse(i, j))
    sch.unroll(inner)
    sch.decompose_reduction("matmul", outer)
    sch.vectorize(sch.get_loops("bias")[1])
    return sch


def test_the_list_has_every_loop_and_what_it_is():
    picture = loop_nest(scheduled(), "after", {"p_1": "three steps"})
    assert str(picture) == repr(picture) == SCHEDULED


@pytest.mark.parametrize("of", ["schedule", "module", "function"])
def test_a_schedule_a_module_and_a_function_give_the_same(of):
    sch = scheduled()
    given = {"schedule": sch, "module": sch.mod, "function": sch.mod["main"]}[of]
    assert loop_nest(given) == loop_nest(sch)


def test_an_init_inside_a_block_is_told():
    (rows,) = loop_nest(row_sums(4, 24)).body
    (columns,) = rows.body
    assert (rows.extent, rows.along_a_sum, rows.kind) == ("4", False, "serial")
    assert columns.along_a_sum and columns.facts == "along the sum"
    assert columns.body[0].does == "starts total at the first step, then adds to it"


def test_threads_and_symbolic_extents():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 4), name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] + 1.0, "y")]))
    _, columns = sch.get_loops("y")
    sch.bind(columns, "threadIdx.x")
    (outer,) = loop_nest(sch).body
    assert isinstance(outer, Loop) and outer.extent == "n"
    assert outer.body[0].facts == "threadIdx.x" and outer.body[0].body[0].does == "sets y"


def test_another_reduction_than_a_sum():
    x, k = te.placeholder((4, 6), name="x"), te.reduce_axis((0, 6), name="k")
    func = te.create_prim_func([x, te.compute((4,), lambda i: te.max(x[i, k], axis=k), "y")])
    assert "then updates it" in str(loop_nest(func))


def test_the_boxes_stand_in_one_another_as_the_loops_do():
    nests = side_by_side(loop_nest(row_sums(2, 3), "a < b"), loop_nest(scheduled()))
    page = ElementTree.fromstring(nests._repr_html_().partition("</style>")[2])
    first, second = page.iter("figure")
    assert first.find("figcaption/b").text == "a < b"
    rows = first.find("ul/li")
    assert rows.find("b").text == "i" and rows.get("class") == "loop serial"
    columns = rows.find("ul/li")
    assert columns.get("class") == "loop serial along-a-sum"
    assert columns.find("ul/li").get("class") == "block"
    assert [item.find("b").text for item in second.findall("ul/li")] == ["i_j_fused", "i"]
    assert len(list(second.iter("li"))) == 8
