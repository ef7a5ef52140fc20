"""Pictures show every operator once, in the order of the data."""

import re
from xml.etree import ElementTree

import pytest
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.layered_layout import layered
from chapters.kit.draw.picture import before_after, picture


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
    layout = layered(nodes)
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
    y = {node.name: layered(shown.nodes).centre[node][1] for node in shown.nodes}
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
