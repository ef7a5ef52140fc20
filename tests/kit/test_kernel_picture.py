"""The pictures of a kernel, by steps and by tiles, say what the kernel does."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from tvm import te, tirx

from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul, shared_matmul
from chapters.kit.draw.kernel_picture import kernel_picture
from chapters.kit.draw.tile_picture import tile_picture
from chapters.kit.gpu.gpu_matmul import matmul_bias
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel

DIMS = row_dimensions([tirx.Var("rows", "int64"), tirx.IntImm("int64", 1024)])
SIMPLE = row_kernel(DIMS, 1024, "float16", 1e-5, 256)


def test_steps_of_the_simple_kernel():
    drawn = kernel_picture(SIMPLE, "simple")
    assert drawn.threads == 256 and drawn.rows == 1
    first, *_, last = drawn.steps
    assert first.memory_read == ("x1", "x2") and first.kept == ("held",) and first.times == 4
    assert last.memory_read == ("weight",) and last.memory_written == ("norm",)
    assert [step.name for step in drawn.steps if step.together] == ["sum over threads"]


def test_vectors_and_rows_of_the_wide_kernel():
    drawn = kernel_picture(wide_kernel(DIMS, 1024, "float16", 1e-5, Plan(32, 8, 4)), "wide")
    assert drawn.threads == 32 and drawn.rows == 4
    assert drawn.steps[0].times == 4 and drawn.steps[0].vector == 8
    assert "4 × 8 elements" in str(drawn) and "32 threads × 4 rows" in drawn.caption


def test_the_table_says_what_the_kernel_does():
    root = ElementTree.fromstring(kernel_picture(SIMPLE, "a < b").figure().replace("<br>", "<br/>"))
    rows = [[" ".join(cell.itertext()) for cell in row] for row in root.find("table/tbody")]
    assert rows[0] == ["x1, x2", "→ 4 elements", "add sets held", "", ""]
    assert [row[3:] for row in rows if row[3]] == [["⇄", "exchange"]]
    assert rows[-1][0] == "weight norm" and rows[-1][1].startswith("→ ← ")
    assert "a < b" in root.find("figcaption").itertext()


def test_a_kernel_without_threads_is_refused():
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1, name="y")])
    with pytest.raises(ValueError, match="no loop is bound to threadIdx"):
        kernel_picture(func, "none")


# --- tiles ----------------------------------------------------------------------------------------

LAYER = matmul_bias(64, 96, 40, "float32")
TILE = ThreadTile(32, 48, 8, 2, 4)


def test_facts_are_those_of_the_tile():
    picture = tile_picture(shared_matmul(LAYER, TILE))
    assert picture.size == (64, 96, 40) and picture.grid == (2, 2) and picture.tile == (32, 48)
    assert picture.threads == TILE.threads == (16, 12) and picture.own == (2, 4)
    assert (picture.turns, picture.steps) == (5, 8)
    assert picture.shared == ("A_shared", "B_shared")


def test_without_shared_memory_it_says_so():
    assert "at every step" in str(tile_picture(naive_matmul(LAYER, TILE)))


def test_the_drawing_of_tiles_is_well_formed_and_inside_its_frame():
    drawn = tile_picture(shared_matmul(LAYER, TILE)).figure().replace("<br>", "<br/>")
    root = ElementTree.fromstring(drawn).find("div/svg")
    width, height = (float(n) for n in root.get("viewBox").split()[2:])
    boxes = [e.attrib for e in root.iter() if e.tag.endswith("rect")]
    assert len(boxes) > 6
    for box in boxes:
        assert float(box["x"]) >= 0 and float(box["x"]) + float(box["width"]) <= width
        assert float(box["y"]) >= 0 and float(box["y"]) + float(box["height"]) <= height
    assert "sums in registers" in root.get("aria-label")


def test_a_kernel_that_is_not_tiled_is_refused():
    with pytest.raises(ValueError, match="no tile"):
        tile_picture(LAYER)
