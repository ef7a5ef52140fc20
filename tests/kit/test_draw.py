"""Pictures of graphs, kernels and loop nests say what the IR says."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from chapters.ch04_add_rms_norm.given import Plan, wide_kernel
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import naive_matmul, shared_matmul
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.draw.kernel_picture import kernel_picture
from chapters.kit.draw.layered_layout import lay_out
from chapters.kit.draw.loop_nest import Loop, loop_nest, side_by_side
from chapters.kit.draw.picture import before_after, picture
from chapters.kit.draw.tile_picture import tile_picture
from chapters.kit.gpu.gpu_matmul import matmul_bias as layer
from chapters.kit.ir.row_index import row_dimensions
from solutions.ch04_add_rms_norm.fuse_add_norm import row_kernel

# --- graphs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mod():
    return relax_module("""
def main(x: ("n", 8), w: (4, 8, "float16")):
    R.func_attr({"num_input": 1})
    lv = R.astype(w, "float32")
    lv1 = R.permute_dims(lv)
    lv2 = R.matmul(x, lv1)
    lv3 = R.multiply(lv2, R.const(0.5, "float32"))
    lv4 = R.split(lv3, 2, axis=-1)
    lv7 = R.concat((lv4[1], lv4[0]), axis=-1)
    gv = R.nn.relu(lv7)
    return (gv, gv)
""")


def test_listing_names_operators_types_and_what_they_read(mod):
    shown = str(picture(mod)).splitlines()
    assert [re.sub(r"\s+", " ", line.strip()) for line in shown] == [
        "main: 7 operators",
        "input x: n×8 float32",
        "weight w: 4×8 float16",
        "operator lv = astype(w): 4×8 float32",
        "operator lv1 = permute_dims(lv): 8×4 float32",
        "operator lv2 = matmul(x, lv1): n×4 float32",
        "constant 0.5: scalar float32",
        "operator lv3 = multiply(lv2, 0.5): n×4 float32",
        "operator lv4 = split(lv3): 2 tensors",
        "operator lv7 = concat(lv4[1], lv4[0]): n×4 float32",
        "operator gv = relu(lv7): n×4 float32",
        "output output 0 <- gv",
        "output output 1 <- gv",
    ]


def test_call_tir_is_a_kernel_under_its_own_name(mod):
    lowered = relax.transform.LegalizeOps()(mod)
    shown = picture(lowered)
    assert (shown.count("op"), shown.count("kernel")) == (0, 7)
    assert "relu" in [node.name for node in shown.nodes if node.kind == "kernel"]


def test_fused_function_is_drawn_as_one_box(mod):
    lowered = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(mod))
    fused = relax.transform.FuseOps()(lowered)
    assert picture(fused).count("function") > 0
    assert picture(fused).count("kernel", "function") < 7


def test_svg_is_well_formed_titled_and_has_no_ids(mod):
    svg = picture(mod, title="a < b").svg
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.find(f"{name}title").text == "a < b: data-flow graph, 7 operators"
    assert "relu" in root.find(f"{name}desc").text
    assert not [e for e in root.iter() if e.get("id")]
    boxes = [e for e in root.iter(f"{name}rect")]
    assert len(boxes) == len(picture(mod).nodes)


def test_before_after_shows_both_with_their_captions(mod):
    shown = before_after(mod, relax.transform.LegalizeOps()(mod))._repr_html_()
    assert shown.count("<svg") == 2
    assert "<b>before</b> · 7 operators" in shown
    assert "<b>after</b> · 7 kernels" in shown
    assert "\n\n" not in shown


def test_nothing_overlaps_and_data_flows_downwards(mod):
    nodes = picture(mod).nodes
    layout = lay_out(nodes)
    for a in nodes:
        ax, ay = layout.centre[a]
        assert a.width / 2 <= ax <= layout.width - a.width / 2
        for source, _ in a.inputs:
            assert layout.centre[source][1] < ay
        for b in nodes:
            bx, by = layout.centre[b]
            beside = abs(ax - bx) >= (a.width + b.width) / 2
            above = abs(ay - by) >= (a.height + b.height) / 2
            assert a is b or beside or above, (a.name, b.name)


def test_weights_stand_next_to_their_reader(mod):
    shown = picture(mod)
    y = {node.name: lay_out(shown.nodes).centre[node][1] for node in shown.nodes}
    assert y["w"] < y["astype"] < y["permute_dims"] < y["matmul"]
    assert y["multiply"] > y["0.5"] > y["permute_dims"]


def test_a_missing_function_names_those_there_are(mod):
    with pytest.raises(KeyError, match="no function 'forward'; it has main"):
        picture(mod, "forward")


def test_a_prim_func_is_refused_with_a_sentence(mod):
    lowered = relax.transform.LegalizeOps()(mod)
    prim = next(f for f in lowered.functions.values() if not isinstance(f, relax.Function))
    with pytest.raises(TypeError, match="Only Relax functions are drawn"):
        picture(prim)
    with pytest.raises(TypeError, match="this is a str"):
        picture("main")


# --- kernels, by their steps ----------------------------------------------------------------------

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

LAYER = layer(64, 96, 40, "float32")
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


# --- loop nests -----------------------------------------------------------------------------------

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
