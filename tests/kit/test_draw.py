"""Pictures of graphs, kernels and loop nests: what no page shows.

What each picture on a page says and draws is in the kept output of its page.
"""

from __future__ import annotations

import pytest
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul
from chapters.kit.cases.example_programs import linear_bias as layer
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.kernel_picture import kernel_picture
from chapters.kit.draw.loop_nest import Loop, loop_nest
from chapters.kit.draw.picture import picture
from chapters.kit.draw.tile_picture import tile_picture
from chapters.kit.ir.row_index import row_dimensions

# --- graphs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mod():
    return relax_module("""
def main(x: ("n", 8)):
    out = R.multiply(x, R.const(0.5, "float32"))
""")


def test_a_number_is_drawn_as_it_is(mod):
    assert [node.name for node in picture(mod).nodes] == ["x", "0.5", "multiply", "output"]


def test_a_missing_function_names_those_there_are(mod):
    with pytest.raises(KeyError, match="no function 'forward'; it has main"):
        picture(mod, "forward")


def test_a_prim_func_is_refused_with_a_sentence(mod):
    lowered = relax.transform.LegalizeOps()(mod)
    with pytest.raises(TypeError, match="Only Relax functions are drawn"):
        picture(lowered["multiply"])
    with pytest.raises(TypeError, match="this is a str"):
        picture("main")


# --- kernels --------------------------------------------------------------------------------------


def test_rows_of_threads_are_counted():
    dims = row_dimensions([tirx.Var("rows", "int64"), tirx.IntImm("int64", 1024)])
    drawn = kernel_picture(wide_kernel(dims, 1024, "float16", 1e-5, Plan(32, 8, 4)), "wide")
    assert drawn.rows == 4 and "32 threads × 4 rows" in drawn.caption


def test_a_kernel_without_threads_is_refused():
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1, name="y")])
    with pytest.raises(ValueError, match="no loop is bound to threadIdx"):
        kernel_picture(func, "none")


def test_a_tile_without_shared_memory_says_so_and_a_kernel_without_tiles_is_refused():
    tiled = layer(64, 96, 40, "float32")
    assert "at every step" in str(tile_picture(naive_matmul(tiled, ThreadTile(32, 48, 8, 2, 4))))
    with pytest.raises(ValueError, match="no tile"):
        tile_picture(tiled)


# --- loop nests -----------------------------------------------------------------------------------


def test_threads_and_symbolic_extents():
    n = tirx.Var("n", "int64")
    x = te.placeholder((n, 4), name="x")
    sch = Schedule(te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] + 1.0, "y")]))
    _, columns = sch.get_loops("y")
    sch.bind(columns, "threadIdx.x")
    (outer,) = loop_nest(sch).body
    assert isinstance(outer, Loop) and outer.extent == "n"
    assert outer.body[0].facts == "threadIdx.x" and outer.body[0].body[0].does == "sets y"
    assert loop_nest(sch) == loop_nest(sch.mod) == loop_nest(sch.mod["main"])


def test_another_reduction_than_a_sum():
    x, k = te.placeholder((4, 6), name="x"), te.reduce_axis((0, 6), name="k")
    func = te.create_prim_func([x, te.compute((4,), lambda i: te.max(x[i, k], axis=k), "y")])
    assert "then updates it" in str(loop_nest(func))
