"""The picture of a kernel says what the kernel does, and stands alone as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from tvm import te, tirx

from chapters.kit.draw.kernel_picture import THREAD, kernel_picture
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import Plan, row_kernel, wide_kernel

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


def test_the_svg_is_well_formed_and_says_what_it_shows():
    drawn = kernel_picture(SIMPLE, "a < b")
    root = ElementTree.fromstring(drawn.svg)
    words = " ".join(root.itertext())
    for word in ("x1, x2", "total", "weight", "norm", "exchange", "a < b"):
        assert word in words
    assert "<figcaption" in drawn._repr_html_()


def test_a_kernel_without_threads_is_refused():
    x = te.placeholder((4,), name="x")
    func = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1, name="y")])
    with pytest.raises(ValueError, match="no loop is bound to threadIdx"):
        kernel_picture(func, "none")


def test_no_line_runs_through_a_box():
    root = ElementTree.fromstring(kernel_picture(SIMPLE, "simple").svg)
    place = "{http://www.w3.org/2000/svg}"
    boxes = [(float(r.get("y")), float(r.get("height"))) for r in root.iter(f"{place}rect")]
    life = {"class": "life", "x1": str(THREAD)}.items()
    drawn = [line for line in root.iter(f"{place}line") if life <= line.attrib.items()]
    lines = [(float(line.get("y1")), float(line.get("y2"))) for line in drawn]
    assert len(lines) == len(boxes) + 1
    for top, height in boxes:
        assert all(end <= top or start >= top + height for start, end in lines)
