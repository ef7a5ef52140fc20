"""The pictures that a reader steps through: what they are drawn from, what they show, and how a browser moves them.

What a picture shows at a step is read from `Panel.html`; one test finds the same in a browser, for every picture.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir
from tvm.target import Target

from chapters.ch07_when_fusion_is_sound.side_by_side import Verdict
from chapters.ch08_gpu_targets import registers, tile_sizes
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import shared_matmul
from chapters.ch11_a_real_model.given import unpack
from chapters.kit.bench.results import load
from chapters.kit.cases.hard_cases import CASES
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.accumulators import accumulators, counts, example_arrays, with_accumulator
from chapters.kit.draw.cache_lines import cache_lines, fetches
from chapters.kit.draw.epilogue_places import Epilogue, curves, where_applied
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.draw.loop_visits import visited, visits
from chapters.kit.draw.read_order import ReadOrder
from chapters.kit.draw.stepper import Panel, Stepper, changing
from chapters.kit.draw.trace_stores import execute
from chapters.kit.gpu.bank_picture import bank_picture, read_of_column, read_of_kernel
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.gpu_matmul import matmul_bias as layer_with_bias
from chapters.kit.gpu.gpus import BOARDS
from chapters.kit.gpu.kernel_report import used_by
from chapters.kit.gpu.roofline_picture import SHOWN as ROOFLINES
from chapters.kit.gpu.roofline_picture import roofline_picture
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import bytes_moved, conflicts
from chapters.kit.measure.storage_lives import lives, storages_over_time
from chapters.kit.passes.planned_storage import evaluate, lower, read_plan
from chapters.kit.quantized.block_picture import halves, unpacked_block
from docs.pages.verdict_grid import VerdictGrid
from solutions.ch02_attach_metadata.attach_support_info import (
    AttachMemoryPlanAttr,
    AttachVariableBounds,
)
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue
from solutions.ch09_the_compiler.pipeline import phases
from tests.website.conftest import alone


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a picture in a browser; a script that fails makes the test fail."""
    pages, errors = [], []

    def open_(picture, **options):
        context = chromium.new_context(**options)
        pages.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        address = tmp_path / "page.html"
        address.write_text(alone(picture, "pictures.css", "stepper.js"), encoding="utf-8")
        page.goto(address.as_uri())
        return page

    yield open_
    for context in pages:
        context.close()
    assert errors == []


def said(page) -> str:
    """What the panel that is shown says about its step."""
    return page.inner_text(".stepper-says:visible")


def value_of(page, name: str) -> str:
    """What a screen reader says about a slider."""
    return page.get_by_label(name, exact=True).get_attribute("aria-valuetext")


def panel_of(picture: Stepper, name: str) -> Panel:
    return next(panel for panel in picture.panels if panel.name == name)


def texts(panel: Panel, step: int, kind: str, mark: str = "") -> list[str]:
    """The texts of the elements with a class at a step; with a mark, of those that carry it."""
    marked = f' data-mark="{mark}"[^>]*' if mark else "[^>]*"
    return re.findall(rf'<\w+{marked} class="(?:[\w-]+ )*{kind}"[^>]*>([^<]*)<', panel.html(step))


# --- any picture ----------------------------------------------------------------------------------

TWO = Stepper(
    "Two panels",
    [
        Panel("long", ["a", "b", "c", "d"], changing("b", "x", ["0", "1", "2", "3"], ["", "on", "", "off"])),
        Panel("short", ["e", "f"], changing("b", "y", ["4", "5"])),
    ],
    "two",
)  # fmt: skip
DIALS = Stepper(
    "Two dials",
    [Panel(name, [f"{name} {n}" for n in range(6)], changing("b", "x", range(6))) for name in ("one", "other")],
    "two",
    start=4,
    dials={"size": ["s", "m", "l"], "kind": ["p", "q"]},
)  # fmt: skip


def test_buttons_keys_and_slider_move_between_the_steps(opened):
    page = opened(TWO)
    back, on = (page.get_by_label(f"Two panels: Step {word}") for word in ("back", "on"))
    assert said(page) == "a" and page.inner_text(".x") == "0"
    back.click()  # stays at the first step
    on.click()
    assert said(page) == "b" and page.get_attribute(".x", "data-mark") == "on"
    page.keyboard.press("Enter")  # on the button, which has the focus
    assert said(page) == "c" and page.get_attribute(".x", "data-mark") == ""
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert said(page) == "d" and value_of(page, "Step") == "3 of 3"
    page.keyboard.press("Home")
    assert said(page) == "a" and page.inner_text(".x") == "0"


def test_a_choice_shows_its_panel_at_the_nearest_step(opened):
    page = opened(TWO)
    page.fill("input[type=range]", "2")
    page.click("label >> text=short")
    assert said(page) == "f" and page.inner_text(".y") == "5" and page.is_hidden(".x")
    page.keyboard.press("ArrowLeft")  # the radio buttons' own: the panel before
    assert said(page) == "b" and page.is_hidden(".y")


def test_play_runs_to_the_end_and_stops_when_asked(opened):
    page = opened(TWO)
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.stepper-says').textContent === 'b'")
    page.click("text=Pause")
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.stepper-says').textContent === 'd'")
    page.click("text=Play")  # from the start again
    assert said(page) == "a"


def test_nothing_plays_where_the_reader_wants_less_motion(opened):
    page = opened(TWO, reduced_motion="reduce")
    assert page.locator("text=Play").count() == 0


def test_each_slider_moves_its_own_value(opened):
    page = opened(DIALS)
    assert (value_of(page, "size"), value_of(page, "kind")) == ("l", "p")
    assert said(page) == "one 4" and page.locator("text=Play").count() == 0
    page.focus("#two-dial-1")
    page.keyboard.press("ArrowRight")
    assert said(page) == "one 5" and value_of(page, "size") == "l"
    page.focus("#two-dial-0")
    page.keyboard.press("Home")
    assert said(page) == "one 1" and page.inner_text(".x:visible") == "1"
    page.click("label >> text=other")  # the values stay
    assert said(page) == "other 1" and value_of(page, "size") == "s"


def test_without_scripts_all_panels_show_their_end_or_the_start_of_the_dials(opened):
    page = opened(TWO, java_script_enabled=False)
    assert page.inner_text(".x") == "3" and page.inner_text(".y") == "5"
    assert page.locator(".stepper-name:visible").all_inner_texts() == ["long", "short"]
    page = opened(DIALS, java_script_enabled=False)
    assert page.inner_text(".stepper-plain") == "size l, kind p"
    assert page.locator(".x").all_inner_texts() == ["4", "4"]
    assert str(DIALS).splitlines()[1] == "one: one 4"


PICTURES = ["accumulators_", "applied", "visits_", "lives_", "block_", "lines", "banks", "tiles"]
PICTURES += ["roofline"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_browser_shows_each_step_as_it_is_computed(opened, request, name):
    picture = request.getfixturevalue(name)
    page = opened(picture)
    same = """(panel, wanted) => {
      const made = document.createElement("template");
      made.innerHTML = wanted;
      return panel.isEqualNode(made.content.firstChild);
    }"""
    for number, panel in enumerate(picture.panels):
        if number:
            page.click(f".stepper-choices label >> nth={number}")
        for step in sorted({0, len(panel.says) // 2, len(panel.says) - 1}):
            rest = step
            for n, values in reversed(list(enumerate(picture.dials.values()))):
                page.fill(f"#{picture.key}-dial-{n}", str(rest % len(values)))
                rest //= len(values)
            if not picture.dials:
                page.fill("input[type=range]", str(step))
            shown = page.locator(".stepper-panel").nth(number)
            assert said(page) == panel.says[step]
            assert shown.evaluate(same, panel.html(step)), (panel.name, step)


# --- two accumulators -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs() -> dict[str, s_tir.Schedule]:
    fused = s_tir.Schedule(matmul_bias(2, 2, 3))
    fuse_reduction_epilogue(fused, "matmul", "bias")
    return {"Start from 0": s_tir.Schedule(matmul_bias(2, 2, 3)), "Start from the bias": fused}


def test_the_run_of_a_program_computes_what_it_should(programs):
    for sch in programs.values():
        func = with_accumulator(sch)
        arrays = example_arrays(func)
        result = arrays["D"].copy()
        for store in execute(func, arrays):
            if store.wrote.buffer == "D":
                result[store.wrote.index] = store.wrote.value
        a, b, c = (arrays[name].astype("int32") for name in "ABC")
        assert np.array_equal(result, a @ b.T + c)


def test_the_fused_program_has_one_load_and_one_store_less_per_element(programs):
    runs = [execute(f, example_arrays(f)) for f in map(with_accumulator, programs.values())]
    # 4 elements: 3 steps with two operands and the bias, one store; unfused also temp, stored and loaded
    assert list(map(counts, runs)) == [(4 * 8, 4 * 2), (4 * 7, 4)]


@pytest.fixture(scope="module")
def accumulators_(programs) -> Stepper:
    return accumulators(programs)


def test_the_counters_follow_the_steps(programs):
    (panel,) = accumulators(programs).panels
    assert texts(panel, 0, "acc-read") + texts(panel, 0, "acc-written") == ["0"] * 4
    assert texts(panel, 1, "acc-line") == ["accumulator ← 0", "accumulator ← C[0, 0]"]
    assert texts(panel, 1, "acc-read") + texts(panel, 1, "acc-written") == ["0", "1", "0", "0"]
    assert len(texts(panel, 1, "step-cell", "read")) == 1
    end = len(panel.says) - 1
    assert texts(panel, end, "acc-read") + texts(panel, end, "acc-written") == [
        "32",
        "28",
        "8",
        "4",
    ]
    assert texts(panel, end, "acc-line") == [
        "second pass: D[1, 1] ← temp[1, 1] + C[1, 1]",
        "finished",
    ]
    assert panel.says[end].endswith("start from the bias: 28 loads, 4 stores, finished")


# --- an epilogue at three places ------------------------------------------------------------------

STEPS = [3, -5, 4, 2, -7, 1, 5, -5]
EPILOGUES = [
    Epilogue("t + 4", lambda t: t + 4),
    Epilogue("max(t, 0)", lambda t: np.maximum(t, 0)),
    Epilogue("7 - t", lambda t: 7 - t),
    Epilogue("max(t, 4) after a maximum", lambda t: np.maximum(t, 4), np.maximum, -9),
]


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda epilogue: epilogue.name)
def test_the_curves_are_the_epilogue_applied_at_the_three_places(epilogue):
    found = curves(epilogue, STEPS)
    total, start, every = (np.array([x]) for x in (epilogue.init, *2 * [epilogue.f(epilogue.init)]))
    for k, x in enumerate([None, *STEPS]):
        if k:
            total, start = epilogue.step(total, x), epilogue.step(start, x)
            every = epilogue.f(epilogue.step(every, x))
        assert (found["end"][k], found["start"][k], found["every"][k]) == (
            epilogue.f(total),
            start,
            every,
        )


def test_only_an_addend_may_enter_a_sum_and_a_maximum_stands_any_place():
    places = [curves(epilogue, STEPS) for epilogue in EPILOGUES]
    agree = [[bool((p[one] == p["end"]).all()) for one in ("start", "every")] for p in places]
    assert agree == [[True, False], [False, False], [False, False], [True, True]]


@pytest.fixture(scope="module")
def applied() -> Stepper:
    return where_applied(EPILOGUES, STEPS)


def test_the_curves_grow_with_the_steps_and_the_table_marks_what_differs(applied):
    first = applied.panels[0]
    assert first.says[2] == "at the end 2, at the start 2, at every step 10 – wrong at every step"
    assert len(re.findall(r'<path data-mark="(?:now|past)" class="ap-point"', first.html(2))) == 9
    relu = panel_of(applied, "max(t, 0)")
    assert (
        relu.says[8]
        == "at the end 0, at the start -2, at every step 1 – wrong at the start and at every step"
    )
    row = re.search(r'<tr class="ap-end">(.*?)</tr>', relu.body)[1]
    assert re.findall(r">(-?\d+)</td>", row) == list("030240030")
    assert texts(relu, 8, "off", "now") == ["-2", "1"]
    last = applied.panels[-1]
    assert last.says[8].endswith("all agree") and not texts(last, 8, "off")


# --- loops beside the iterations ------------------------------------------------------------------


@pytest.fixture(scope="module")
def stages() -> dict[str, tvm.tirx.PrimFunc]:
    sch = s_tir.Schedule(row_sums(8, 4))
    found = {"nothing": sch.mod["main"]}
    i, k = sch.get_loops("total")
    _, inner = sch.split(i, [None, 4])
    found["split"] = sch.mod["main"]
    sch.reorder(k, inner)
    found["reorder"] = sch.mod["main"]
    sch.vectorize(inner)
    found["vectorize"] = sch.mod["main"]
    sch.decompose_reduction("total", k)
    found["decompose"] = sch.mod["main"]
    return found


def test_the_visits_are_those_of_the_loops(stages):
    cells = {name: [visit.cells for visit in visited(func)] for name, func in stages.items()}
    rows = [((i, column),) for i in range(8) for column in range(5)]  # column 0 is the init
    tiles = [(i, k) for first in (0, 4) for k in range(4) for i in range(first, first + 4)]
    reordered = [((i, c),) for i, k in tiles for c in ([0, 1] if k == 0 else [k + 1])]
    vectors = [tuple((i, c) for i in range(first, first + 4)) for first in (0, 4) for c in range(5)]
    assert cells == {
        "nothing": rows,
        "split": rows,
        "reorder": reordered,
        "vectorize": vectors,
        "decompose": vectors,
    }


def test_each_stage_computes_the_sums(stages):
    array = np.random.default_rng(0).integers(-9, 10, (8, 4)).astype("int32")
    for func in stages.values():
        found = np.zeros(8, "int32")
        for store in execute(func, {"A": array, "total": found}):
            found[store.wrote.index] = store.wrote.value
        assert np.array_equal(found, array.sum(axis=1))


@pytest.fixture(scope="module")
def visits_(stages) -> Stepper:
    return visits(stages)


def test_loops_show_their_values_and_cells_their_visits(visits_, stages):
    assert visits_.panels[0].says[6] == "total sets the sum of row 1 to 0"
    reorder, vectors, apart = (panel_of(visits_, n) for n in ("reorder", "vectorize", "decompose"))
    assert reorder.says[15] == "total adds column 2 of row 2"
    assert texts(reorder, 15, "vi-value") == ["= 0", "= 2", "= 2"]
    assert len(re.findall(r'<rect data-mark="(?:now|past)"', reorder.html(15))) == 15
    assert vectors.says[10] == "total adds column 3 of rows 4 to 7, 4 at once"
    assert len(re.findall(r'<rect data-mark="now"', vectors.html(10))) == 4
    assert apart.says[6] == "total_init sets the sums of rows 4 to 7 to 0"
    running = re.findall(r'<li data-mark="now" class="block"[^>]*><b>(\w+)', apart.html(6))
    assert running == ["total_init"]
    names = re.findall(r"<li[^>]*><b>(\w+)</b>", apart.body)
    lines = str(loop_nest(stages["decompose"])).splitlines()[1:]
    assert names == [line.split()[0].rstrip(":") for line in lines]


# --- storages over time ---------------------------------------------------------------------------

TWO_SIZES = relax_module("""
def main(x: ("n", 16), y: ("m", 24)):
    a = R.exp(x)
    b = R.tanh(a)
    c = R.exp(y)
    d = R.tanh(c)
    return b, d
""")
LARGEST = {"n": 8, "m": 4}


@pytest.fixture(scope="module")
def plans() -> dict[str, relax.Function]:
    mods = {"without bounds": TWO_SIZES, "with bounds": AttachVariableBounds(LARGEST)(TWO_SIZES)}
    mods["outputs too"] = AttachMemoryPlanAttr()(mods["with bounds"])
    return {name: lower(mod)["main"] for name, mod in mods.items()}


def test_the_strips_are_the_allocations_of_the_plan(plans):
    for func in plans.values():
        plan = read_plan(tvm.IRModule({"main": func}))
        found = lives(func)
        assert found.calls == ["tir_exp", "tir_tanh", "tir_exp1", "tir_tanh1"]
        assert [(bool(s.number), str(s.size)) for s in found.strips] == [
            (s.planned, str(s.size)) for s in plan.storages
        ]
        assert found.bytes(LARGEST) == plan.bytes(LARGEST)


def test_a_tensor_lives_from_its_kernel_to_its_last_reader(plans):
    held = {
        name: [
            [(one.name, one.first, one.last) for one in strip.lives] for strip in lives(f).strips
        ]
        for name, f in plans.items()
    }
    a, b, c, d = ("a", 1, 2), ("b", 2, 5), ("c", 3, 4), ("d", 4, 5)
    assert held == {
        "without bounds": [[a], [b], [c], [d]],
        "with bounds": [[a, c], [b], [d]],
        "outputs too": [[a, c], [b], [d]],
    }


@pytest.mark.parametrize("bounds", [{}, {"batch_size": 8, "context_window": 64}])
def test_in_the_decoder_no_two_tensors_are_in_a_storage_at_once(bounds):
    """The decode step of `tiny` after the memory phase of chapter 9."""
    facts = {"variable_bounds": bounds, "metadata": {"vocab_size": 500}}
    *found, _vm = phases(Target("llvm"), **facts).values()
    with Target("llvm"):
        passes = tvm.transform.Sequential([one for phase in found for one in phase])
        func = passes(decoder("tiny", functions=["batch_decode"])[0])["batch_decode"]
    read = lives(func)
    assert len(read.calls) == 38 and len(read.strips) == (5 if bounds else 11)
    for strip in read.strips:
        for one, other in pairwise(strip.lives):
            assert one.last < other.first
        if not bounds:  # only equal sizes share; the lesson says so
            sizes = {"batch_size": 7, "context_window": 61}
            assert {evaluate(one.size, sizes) for one in strip.lives} == {
                evaluate(strip.size, sizes)
            }


def test_a_function_that_branches_is_refused():
    branching = relax_module("""
def main(x: (4,), choose: R.Tensor((), "bool")):
    if choose:
        y = R.exp(x)
    else:
        y = R.tanh(x)
    return y
""")
    with pytest.raises(ValueError, match="branches"):
        lives(branching["main"])


@pytest.fixture(scope="module")
def lives_(plans) -> Stepper:
    return storages_over_time(plans, LARGEST, start=3)


def test_a_storage_is_used_again_with_bounds_only(lives_):
    without, bounded = (panel_of(lives_, f"{word} bounds") for word in ("without", "with"))

    def bars(panel: Panel, step: int, mark: str) -> list[str]:
        return re.findall(rf'<i data-mark="{mark}"[^>]*>([^<]*)<', panel.html(step))

    assert without.says[3] == "tir_exp1 writes c into storage 2; 896 of 1,792 bytes hold tensors"
    assert bars(without, 3, "now") == ["b", "c"]
    assert texts(without, 3, "sl-name") == [""] * 4
    assert "<b>b, at run time</b> 64 * n = 512 bytes" in without.body
    assert bounded.says[3] == (
        "tir_exp1 writes c into storage 1, where a was; 896 of 1,408 bytes hold tensors"
    )
    (total,) = texts(bounded, 3, "sl-total")
    assert total.startswith("3 pieces of memory, 1,408 bytes")
    assert bars(bounded, 4, "now") == ["c", "b", "d"]
    assert bounded.says[0] == "no kernel has been called" and len(bars(bounded, 0, "later")) == 4
    heights = re.findall(r"height:([\d.]+)%[^>]*>[ac]<", bounded.body)
    assert float(heights[1]) / float(heights[0]) == pytest.approx(384 / 512, abs=0.02)


# --- the block of a quantized matrix --------------------------------------------------------------


@pytest.fixture(scope="module")
def block() -> np.ndarray:
    numbers = np.array([0.5, -2.0], "<f2").view("uint8")
    return np.concatenate([numbers, np.random.default_rng(0).integers(0, 256, 16, "uint8")])


def test_each_half_of_a_byte_belongs_to_the_weight_that_it_changes(block):
    assert halves(block) == {"low": list(range(16)), "high": list(range(16, 32))}


@pytest.fixture(scope="module")
def block_(block) -> Stepper:
    return unpacked_block(block)


def test_all_bytes_at_once_end_as_the_weights(block_, block):
    whole = block_.panels[0]
    assert whole.says[3] == "b & 15: the low halves are the codes of weights 0 to 15"

    def values(step: int) -> list[list[str]]:
        found = re.findall(r'<i [^>]*class="ub-(low|high)"[^>]*>([^<]*)<', whole.html(step))
        return [[text for half, text in found if half == wanted] for wanted in ("low", "high")]

    assert values(3) == [[str(byte & 15) for byte in block[4:]], ["·"] * 16]
    assert values(4)[1] == [str(byte >> 4) for byte in block[4:]]
    assert len(re.findall(r'<b data-mark="now" class="ub-high"', whole.html(4))) == 16
    low, high = values(6)
    assert [float(text) for text in low + high] == unpack(block).tolist()


def test_a_byte_lights_up_with_its_two_weights(block_, block):
    single = panel_of(block_, "byte by byte")
    low, high = (float(unpack(block)[n]) for n in (1, 17))
    code = int(block[5])
    assert single.says[2] == (
        f"byte 5 is {code:02x}: low half {code & 15}, so weight 1 = 0.5 × {code & 15} − 2 = {low:g}; "
        f"high half {code >> 4}, so weight 17 = 0.5 × {code >> 4} − 2 = {high:g}"
    )
    marked = re.findall(
        r'<[bi] data-mark="now" class="ub-(?:low|high)"[^>]*>([^<]*)<', single.html(2)
    )
    assert marked == [f"{code >> 4:x}", f"{code & 15:x}", f"{low:g}", f"{high:g}"]


# --- cache lines ----------------------------------------------------------------------------------

DOWN = ReadOrder("down", "lv", (8, 8), tuple(k * 8 + j for j in range(8) for k in range(8)))
ALONG = ReadOrder("along", "w", (8, 8), tuple(range(64)))


def test_a_cache_drops_the_line_that_was_not_used_for_longest():
    assert fetches([0, 1, 4, 8, 2, 4], line=4, kept=2) == [
        (True, (0,)),
        (False, (0,)),
        (True, (0, 1)),
        (True, (1, 2)),
        (True, (2, 0)),
        (True, (0, 1)),
    ]


@pytest.mark.parametrize(("kept", "down"), [(4, 64), (7, 64), (8, 16)])
def test_a_column_fetches_each_line_again_unless_the_cache_holds_a_line_per_row(kept, down):
    order = [sum(new for new, _ in fetches(one.reads, 4, kept)) for one in (DOWN, ALONG)]
    assert order == [down, 16]


@pytest.fixture(scope="module")
def lines() -> Stepper:
    return cache_lines([DOWN, ALONG])


def test_the_strip_shows_what_the_cache_holds(lines):
    (panel,) = lines.panels
    assert panel.says[6] == "down: 6 lines fetched; along: 2 lines fetched"
    down, along = panel.html(6).split('class="acc-side"')[1:]
    new, held = ('<span data-mark="new" class="cl-line"', '<span data-mark="held" class="cl-line"')
    assert [down.count(new), down.count(held), along.count(new), along.count(held)] == [1, 3, 0, 2]
    assert re.findall(r">(\d+)<", down.partition(new)[2])[:4] == ["40", "41", "42", "43"]
    assert texts(panel, 6, "cl-cell", "now") == ["40", "5"]
    assert texts(panel, 64, "acc-read") + texts(panel, 64, "acc-written") == [
        "64",
        "64",
        "64",
        "16",
    ]


def test_a_row_that_ends_inside_a_line_is_refused():
    with pytest.raises(ValueError, match="no multiple of 4"):
        cache_lines([ReadOrder("odd", "w", (2, 6), tuple(range(12)))])


# --- the banks of shared memory -------------------------------------------------------------------

PADDINGS = range(0, 36, 4)


@pytest.fixture(scope="module")
def kernels() -> dict[int, tvm.tirx.PrimFunc]:
    layer, tile = layer_with_bias(256, 256, 256, "float16"), ThreadTile(64, 64, 16, 4, 4, vector=2)
    return {p: shared_matmul(layer, tile, p // 2) for p in PADDINGS}


@pytest.fixture(scope="module")
def banks(kernels) -> Stepper:
    ours = [read_of_kernel(kernels[p], CUDA, "B_shared", 64, 32, p) for p in PADDINGS]
    return bank_picture({"B": ours, "column": [read_of_column(p) for p in PADDINGS]})


def test_the_kernel_s_cycles_are_its_conflicts_and_the_formula_s(kernels):
    for padding, func in kernels.items():
        read = read_of_kernel(func, CUDA, "B_shared", 64, 32, padding)
        apart = 4 * (32 + padding) // 4  # words between the rows of neighbouring threads
        rows_per_bank = 16 * np.gcd(apart, 32) // 32
        assert read.access.bank_cycles == [rows_per_bank], padding
        assert conflicts(func, CUDA)["read B_shared"] == rows_per_bank
        assert {len(words) for words in read.access.bank_words[0].values()} == {rows_per_bank}


def test_a_column_is_free_of_conflicts_if_rows_are_an_odd_number_of_words_apart():
    cycles = [read_of_column(p).access.bank_cycles[0] for p in PADDINGS]
    assert cycles == [32, 1, 2, 1, 4, 1, 2, 1, 8]


def strokes(panel: Panel, step: int, kind: str) -> list[int]:
    """How many strokes of a kind are painted at a step: in memory, and at the banks."""
    found = re.findall(
        rf'<path data-mark="now" class="bk-{kind}[ "][^>]*d="([^"]*)"', panel.html(step)
    )
    return [path.count("M") for path in found]


def test_padding_spreads_the_words_over_the_banks(banks):
    ours, column = banks.panels
    assert ours.says[0] == "16 words in 1 bank, 16-way conflict, 16 cycles"
    assert strokes(ours, 0, "queued") == [16, 1] and strokes(ours, 0, "pad") == []
    assert ours.says[1] == "16 words in 8 banks, 2-way conflict, 2 cycles"
    assert strokes(ours, 1, "queued") == [16, 8] and len(strokes(ours, 1, "pad")) == 1
    assert column.says[1] == "32 words in 32 banks, no conflict, 1 cycle"
    assert strokes(column, 1, "queued") == [] and strokes(column, 1, "alone") == [32, 32]
    assert re.findall(r'<td data-mark="now"[^>]*>(\d+)<', column.html(1)) == ["4", "1"]
    assert column.says[8] == "32 words in 4 banks, 8-way conflict, 8 cycles"
    assert list(banks.dials) == ["Padding per row"]


def test_tiles_with_other_paddings_are_refused():
    with pytest.raises(ValueError, match="different paddings"):
        bank_picture({"a": [read_of_column(0)], "b": [read_of_column(4)]})


# --- the sizes of a tile --------------------------------------------------------------------------

COUNTED = load(tile_sizes.NAME)["measured"]["tiles"]


def test_every_tile_that_can_be_is_counted():
    assert set(COUNTED) == {n for n, t in tile_sizes.tiles().items() if isinstance(t, ThreadTile)}
    assert tile_sizes.tile_of(64, 1, 16).startswith("4,096 threads per block")
    assert tile_sizes.tile_of(64, 2, 8).startswith("A piece of A has 512 elements")


@pytest.mark.parametrize("name", ["64 4 16", "32 2 8", "256 16 4"])
def test_the_kept_counts_are_those_of_the_kernel(name):
    kept, tile = COUNTED[name], tile_sizes.tiles()[name]
    func = shared_matmul(layer_with_bias(*tile_sizes.SIZE, "float32"), tile)
    moved = bytes_moved(func, CUDA)
    assert moved["A"] + moved["B"] == kept["moved"]
    if missing():
        pytest.skip(missing())
    used, threads = used_by(func, "sm_90a")
    assert (threads, used.shared_bytes) == (kept["threads"], kept["shared"])
    assert abs(used.registers - kept["used"]["sm_90a"][0]) <= 8  # compilers differ


def test_the_picture_has_the_numbers_of_the_lesson_s_table():
    measured = load(registers.NAME)["measured"]
    table = measured["kernels"]
    assert measured["compiler"] == load(tile_sizes.NAME)["measured"]["compiler"], "count both anew"
    same = {"4 × 4 per thread": "64 4 16", "8 × 8 per thread": "128 8 8", "16 × 16 per thread": "128 16 4"}  # fmt: skip
    for arch in ("sm_80", "sm_90a"):
        for name, tile in same.items():
            one, other = table[arch][name], COUNTED[tile]
            assert [one["registers"], one["stored"], one["loaded"]] == other["used"][arch]
            assert (one["threads"], one["shared"]) == (other["threads"], other["shared"])


@pytest.fixture(scope="module")
def tiles() -> Stepper:
    return tile_sizes.show_tile_sizes()


def meters(panel: Panel, tile: str) -> dict[str, str]:
    step = list(tile_sizes.tiles()).index(tile)
    names = re.findall(r"<dt>([^<]*)</dt>", panel.body)
    return dict(zip(names, texts(panel, step, "ts-value"), strict=True))


def test_a_larger_tile_loads_less_until_it_spills(tiles):
    first = tiles.panels[0]
    assert meters(first, "64 4 16") == {
        "bytes of A and B loaded": "2,097,152",
        "threads per block": "256",
        "registers per thread": "78",
        "bytes spilled per thread": "0",
        "bytes of shared memory": "10,240",
        "occupancy": "37.5 %",
    }
    assert meters(first, "128 4 16")["threads per block"] == "1,024"
    assert meters(first, "128 4 16")["bytes of A and B loaded"] == "1,048,576"
    assert meters(first, "128 16 16")["registers per thread"] == "255"
    step = list(tile_sizes.tiles()).index("128 16 16")
    assert len(texts(first, step, "ts-value", "bad")) == 1 and not texts(
        first, 0, "ts-value", "bad"
    )
    bars = re.findall(r'style="--share:([\d.]+)" class="ts-bar"', first.html(step))
    assert bars[2] == "1" and bars[0] == "0.25"
    assert meters(panel_of(tiles, "RTX 4090"), "128 16 16")["occupancy"] == "16.7 %"
    none = list(tile_sizes.tiles()).index("128 2 16")
    assert first.says[none].startswith("No kernel: 4,096 threads per block")
    assert set(meters(first, "128 2 16").values()) == {"–"}


def test_the_tile_of_the_traced_occupancy_is_shown_first(tiles):
    assert "Block 64 × 64, Thread 4 × 4, Steps at a time 16<" in tiles._repr_html_()
    assert str(tiles).splitlines()[1].startswith("H100 SXM: 78 registers, nothing")


def test_nothing_is_drawn_before_it_is_counted(monkeypatch):
    monkeypatch.setattr(tile_sizes, "load", lambda name: None)
    assert "Not counted yet" in str(tile_sizes.show_tile_sizes())
    monkeypatch.setattr(tile_sizes, "missing", lambda: "no compiler")
    assert tile_sizes.main() == 1


# --- the roofline ---------------------------------------------------------------------------------

LAYERS = {m: (2 * m * 4096**2, 2 * (2 * m * 4096 + 4096**2)) for m in (2**n for n in range(13))}


def test_the_roofline_has_every_board_whose_two_rates_have_a_source():
    assert set(ROOFLINES) == {b.name for b in BOARDS.values() if b.bandwidth and b.tensor}


@pytest.fixture(scope="module")
def roofline() -> Stepper:
    return roofline_picture(LAYERS)


def test_the_point_moves_from_memory_to_arithmetic(roofline):
    first = roofline.panels[0]

    def point(panel: Panel, step: int) -> tuple[str, float]:
        found = r'<circle data-mark="now" class="rf-point rf-by-(\w+)" cx="([\d.]+)"'
        ((limit, x),) = re.findall(found, panel.html(step))
        return limit, float(x)

    assert first.says[0] == (
        "1.0 operations per byte; at most 3.35 · 10¹² per second, 0.338 % of the peak; at least 10 µs. "
        "Limited by memory."
    )
    assert first.says[8].endswith("Limited by memory.")
    assert first.says[9].endswith("Limited by arithmetic.")
    assert [point(first, step)[0] for step in (0, 8, 9)] == ["memory", "memory", "peak"]
    assert point(first, 9)[1] > point(first, 0)[1]
    named = [texts(panel_of(roofline, "T4"), step, "strong", "now") for step in (0, 9)]
    assert named == [["1 row"], ["512 rows"]]
    assert first.says[12].startswith("1,365.3 operations per byte; at most 989 · 10¹²")
    assert first.html(0).count('class="rf-point') == len(LAYERS)


def test_the_other_points_stay_and_their_words_do_not(opened, roofline):
    page = opened(roofline)
    shown = "all => all.filter((one) => getComputedStyle(one).visibility === 'visible').length"
    panel = page.locator(".stepper-panel >> nth=0")
    assert panel.locator(".rf-point").evaluate_all(shown) == len(LAYERS)
    assert panel.locator(".strong").evaluate_all(shown) == 1


def test_every_roofline_names_its_source_and_that_it_is_not_measured():
    told = roofline_picture(LAYERS)._repr_html_()
    assert "no GPU was measured" in told
    for board in ("H100 SXM", "T4"):
        assert BOARDS[board].source.partition(",")[0] in told


# --- the grid of verdicts -------------------------------------------------------------------------

GRID = VerdictGrid(
    [
        Verdict("a plain bias", "right", "right", "init: an addend"),
        Verdict("minus a bias", "wrong", "right", "init: an addend"),
        Verdict("relu", "wrong", "right", "last step: any epilogue"),
        Verdict("starts from 5", "outside its arrays", "refused", "each point once"),
        Verdict("read transposed", "internal error", "refused", "each point once"),
        Verdict("the bias is an operand", "reads not declared", "right", "init: an addend"),
    ],
    CASES,
)


def test_the_counts_are_those_of_the_verdicts():
    assert str(GRID).splitlines() == [
        "built-in: 1 right, 0 refused, 1 documented behaviour, 2 wrong numbers, 1 invalid IR, 1 internal error",
        "ours: 4 right, 2 refused, 0 wrong numbers",
    ]


def test_a_tile_says_its_program_and_both_verdicts():
    tiles = re.findall(r'role="img" aria-label="([^"]*)" title="([^"]*)"', GRID._repr_html_())
    assert len(tiles) == 6 and all(label == title for label, title in tiles)
    assert tiles[0][0] == "a plain bias: built-in right, ours right (init)"
