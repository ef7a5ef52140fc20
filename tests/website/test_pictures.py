"""The pictures that a reader steps through: what they are drawn from, what they show, and how a browser moves them.

What each picture says and draws at each step is in the kept output of its page. Here are the numbers behind it, and how
stepper.js moves: in a browser as in `Panel.html`.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir

from chapters.ch08_gpu_targets import registers, tile_sizes
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.thread_schedule import shared_matmul
from chapters.kit.bench.results import load
from chapters.kit.cases.example_programs import linear_bias as layer_with_bias
from chapters.kit.cases.example_programs import matmul_bias, row_sums
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.draw.accumulators import count_accesses, example_arrays, with_accumulator
from chapters.kit.draw.cache_lines import cache_lines, run_cache
from chapters.kit.draw.epilogue_places import Epilogue, compute_curves
from chapters.kit.draw.iteration_order import trace_visits
from chapters.kit.draw.read_order import ReadOrder
from chapters.kit.draw.stepper import (
    Panel,
    Stepper,
    attributes,
    render_changing,
    step_attribute,
    table_row,
)
from chapters.kit.draw.trace_stores import execute
from chapters.kit.gpu.bank_picture import bank_picture, read_of_column, read_of_kernel
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.gpus import BOARDS
from chapters.kit.gpu.kernel_report import measure_resources
from chapters.kit.gpu.roofline_picture import SHOWN as ROOFLINES
from chapters.kit.gpu.roofline_picture import roofline_picture
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import bytes_moved, conflicts
from chapters.kit.measure.storage_lifetimes import read_lifetimes
from chapters.kit.passes.planned_storage import lower, read_plan
from chapters.kit.quantized.block_picture import find_weights
from docs.pages import front
from solutions.ch00_first_module.first_module import from_script
from solutions.ch02_attach_metadata.attach_support_info import (
    AttachMemoryPlanAttr,
    AttachVariableBounds,
)
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue
from tests.website.conftest import render_alone


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
        address.write_text(render_alone(picture, "pictures.css", "stepper.js"), encoding="utf-8")
        page.goto(address.as_uri())
        return page

    yield open_
    for context in pages:
        context.close()
    assert errors == []


def read_says(page) -> str:
    """What the panel that is shown says about its step."""
    return page.inner_text(".stepper-says:visible")


def read_slider(page, name: str) -> str:
    """What a screen reader says about a slider."""
    return page.get_by_label(name, exact=True).get_attribute("aria-valuetext")


# --- any picture ----------------------------------------------------------------------------------

TWO = Stepper(
    "Two panels",
    [
        Panel("long", ["a", "b", "c", "d"], render_changing("b", "x", ["0", "1", "2", "3"], ["", "on", "", "off"])),
        Panel("short", ["e", "f"], render_changing("b", "y", ["4", "5"])),
    ],
    "two",
)  # fmt: skip
DIALS = Stepper(
    "Two dials",
    [Panel(name, [f"{name} {n}" for n in range(6)], render_changing("b", "x", range(6))) for name in ("one", "other")],
    "two",
    start=4,
    dials={"size": ["s", "m", "l"], "kind": ["p", "q"]},
)  # fmt: skip
KINDS = Stepper(
    "All kinds of change",
    [
        Panel(
            "all <kinds>",
            ["zero", "1 < 2 & so on", "two"],
            f'<svg><g class="a"{step_attribute(1)}><rect{attributes(marks=["", "on", "off"])}/></g></svg>'
            f'<i class="bar"{attributes(shares=[0, 0.5, 1])}></i><table>{table_row("row", "pqr", off=[1])}</table>'
            + render_changing("b", "x", ["a < b", "c"], ["", "on"]),
        )
    ],
    "kinds",
)


def test_buttons_keys_and_slider_move_between_the_steps(opened):
    page = opened(TWO)
    back, on = (page.get_by_label(f"Two panels: Step {word}") for word in ("back", "on"))
    assert read_says(page) == "a" and page.inner_text(".x") == "0"
    back.click()  # stays at the first step
    on.click()
    assert read_says(page) == "b" and page.get_attribute(".x", "data-mark") == "on"
    page.keyboard.press("Enter")  # on the button, which has the focus
    assert read_says(page) == "c" and page.get_attribute(".x", "data-mark") == ""
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert read_says(page) == "d" and read_slider(page, "Step") == "3 of 3"
    page.keyboard.press("Home")
    assert read_says(page) == "a" and page.inner_text(".x") == "0"


def test_a_choice_shows_its_panel_at_the_nearest_step(opened):
    page = opened(TWO)
    page.fill("input[type=range]", "2")
    page.click("label >> text=short")
    assert read_says(page) == "f" and page.inner_text(".y") == "5" and page.is_hidden(".x")
    page.keyboard.press("ArrowLeft")  # the radio buttons' own: the panel before
    assert read_says(page) == "b" and page.is_hidden(".y")


def test_play_runs_to_the_end_and_stops_when_asked(opened):
    page = opened(TWO)
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.stepper-says').textContent === 'b'")
    page.click("text=Pause")
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.stepper-says').textContent === 'd'")
    page.click("text=Play")  # from the start again
    assert read_says(page) == "a"


def test_nothing_plays_where_the_reader_wants_less_motion(opened):
    page = opened(TWO, reduced_motion="reduce")
    assert page.locator("text=Play").count() == 0


def test_each_slider_moves_its_own_value(opened):
    page = opened(DIALS)
    assert (read_slider(page, "size"), read_slider(page, "kind")) == ("l", "p")
    assert read_says(page) == "one 4" and page.locator("text=Play").count() == 0
    page.focus("#two-dial-1")
    page.keyboard.press("ArrowRight")
    assert read_says(page) == "one 5" and read_slider(page, "size") == "l"
    page.focus("#two-dial-0")
    page.keyboard.press("Home")
    assert read_says(page) == "one 1" and page.inner_text(".x:visible") == "1"
    page.click("label >> text=other")  # the values stay
    assert read_says(page) == "other 1" and read_slider(page, "size") == "s"


def test_without_scripts_all_panels_show_their_end_or_the_start_of_the_dials(opened):
    page = opened(TWO, java_script_enabled=False)
    assert page.inner_text(".x") == "3" and page.inner_text(".y") == "5"
    assert page.locator(".stepper-name:visible").all_inner_texts() == ["long", "short"]
    page = opened(DIALS, java_script_enabled=False)
    assert page.inner_text(".stepper-plain") == "size l, kind p"
    assert page.locator(".x").all_inner_texts() == ["4", "4"]
    assert str(DIALS).splitlines()[1] == "one: one 4"


@pytest.mark.parametrize("picture", [TWO, DIALS, KINDS], ids=lambda picture: picture.label)
def test_a_browser_shows_each_step_as_it_is_computed(opened, picture):
    page = opened(picture)
    same = """(panel, wanted) => {
      const made = document.createElement("template");
      made.innerHTML = wanted;
      return panel.isEqualNode(made.content.firstChild);
    }"""
    for number, panel in enumerate(picture.panels):
        if number:
            page.click(f".stepper-choices label >> nth={number}")
        for step in range(len(panel.says)):
            rest = step
            for n, values in reversed(list(enumerate(picture.dials.values()))):
                page.fill(f"#{picture.key}-dial-{n}", str(rest % len(values)))
                rest //= len(values)
            if not picture.dials:
                page.fill("input[type=range]", str(step))
            shown = page.locator(".stepper-panel").nth(number)
            assert read_says(page) == panel.says[step]
            assert shown.evaluate(same, panel.html(step)), (panel.name, step)


def test_the_film_of_the_front_page_steps_from_frame_to_frame(opened):
    film = front.make_film("A film", front.draw_frames(from_script()))
    page = opened(film)
    frames = page.query_selector_all(".film > div")
    for wanted in (0, 1):
        assert [n for n, frame in enumerate(frames) if frame.is_visible()] == [wanted]
        page.get_by_label("A film: Step on").click()
    plain = opened(film, java_script_enabled=False).query_selector_all(".film > div")
    assert len(plain) == len(film.panels[0].says) and all(one.is_visible() for one in plain)


# --- two accumulators -----------------------------------------------------------------------------


def test_programs_compute_their_sums_and_the_fused_one_loads_and_stores_less():
    fused = s_tir.Schedule(matmul_bias(2, 2, 3))
    fuse_reduction_epilogue(fused, "matmul", "bias")
    counted = []
    for sch in (s_tir.Schedule(matmul_bias(2, 2, 3)), fused):
        func = with_accumulator(sch)
        arrays = example_arrays(func)
        result, stores = arrays["D"].copy(), execute(func, arrays)
        counted.append(count_accesses(stores))
        for store in stores:
            if store.wrote.buffer == "D":
                result[store.wrote.index] = store.wrote.value
        a, b, c = (arrays[name].astype("int32") for name in "ABC")
        assert np.array_equal(result, a @ b.T + c)
    # 4 elements: 3 steps with two operands and the bias, one store; unfused also temp, stored and loaded
    assert counted == [(4 * 8, 4 * 2), (4 * 7, 4)]


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
    found = compute_curves(epilogue, STEPS)
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
    cells = {name: [visit.cells for visit in trace_visits(func)] for name, func in stages.items()}
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
        found = read_lifetimes(func)
        assert found.calls == ["tir_exp", "tir_tanh", "tir_exp1", "tir_tanh1"]
        assert [(bool(s.number), str(s.size)) for s in found.strips] == [
            (s.planned, str(s.size)) for s in plan.storages
        ]
        assert found.bytes(LARGEST) == plan.bytes(LARGEST)


def test_a_tensor_lives_from_its_kernel_to_its_last_reader(plans):
    held = {
        name: [
            [(one.name, one.first, one.last) for one in strip.lives]
            for strip in read_lifetimes(f).strips
        ]
        for name, f in plans.items()
    }
    a, b, c, d = ("a", 1, 2), ("b", 2, 5), ("c", 3, 4), ("d", 4, 5)
    assert held == {
        "without bounds": [[a], [b], [c], [d]],
        "with bounds": [[a, c], [b], [d]],
        "outputs too": [[a, c], [b], [d]],
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
        read_lifetimes(branching["main"])


# --- the block of a quantized matrix --------------------------------------------------------------


def test_each_half_of_a_byte_belongs_to_the_weight_that_it_changes():
    numbers = np.array([0.5, -2.0], "<f2").view("uint8")
    block = np.concatenate([numbers, np.random.default_rng(0).integers(0, 256, 16, "uint8")])
    assert find_weights(block) == {"low": list(range(16)), "high": list(range(16, 32))}


# --- cache lines ----------------------------------------------------------------------------------


def test_a_cache_drops_the_line_that_was_not_used_for_longest():
    assert run_cache([0, 4, 1, 8, 5], line=4, kept=2) == [
        (True, (0,)),
        (True, (0, 1)),
        (False, (1, 0)),
        (True, (0, 2)),
        (True, (2, 1)),
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


def test_the_kernel_s_cycles_are_its_conflicts_and_the_formula_s(kernels):
    for padding, func in kernels.items():
        read = read_of_kernel(func, CUDA, "B_shared", 64, 32, padding)
        apart = 4 * (32 + padding) // 4  # words between the rows of neighbouring threads
        rows_per_bank = 16 * np.gcd(apart, 32) // 32
        assert read.access.bank_cycles == [rows_per_bank], padding
        assert conflicts(func, CUDA)["read B_shared"] == rows_per_bank
        assert {len(words) for words in read.access.bank_words[0].values()} == {rows_per_bank}


def test_tiles_with_other_paddings_are_refused():
    with pytest.raises(ValueError, match="different paddings"):
        bank_picture({"a": [read_of_column(0)], "b": [read_of_column(4)]})


# --- the sizes of a tile --------------------------------------------------------------------------

COUNTED = load(tile_sizes.NAME)["measured"]["tiles"]


def test_every_tile_that_can_be_is_counted():
    assert set(COUNTED) == {n for n, t in tile_sizes.tiles().items() if isinstance(t, ThreadTile)}
    assert tile_sizes.choose_tile(64, 1, 16).startswith("4,096 threads per block")
    assert tile_sizes.choose_tile(64, 2, 8).startswith("A piece of A has 512 elements")


@pytest.mark.parametrize("name", ["64 4 16", "32 2 8", "256 16 4"])
def test_the_kept_counts_are_those_of_the_kernel(name):
    kept, tile = COUNTED[name], tile_sizes.tiles()[name]
    func = shared_matmul(layer_with_bias(*tile_sizes.SIZE, "float32"), tile)
    moved = bytes_moved(func, CUDA)
    assert moved["A"] + moved["B"] == kept["moved"]
    if missing():
        pytest.skip(missing())
    used, threads = measure_resources(func, "sm_90a")
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


# --- the roofline ---------------------------------------------------------------------------------


def test_the_roofline_has_every_board_whose_two_rates_have_a_source():
    assert set(ROOFLINES) == {b.name for b in BOARDS.values() if b.bandwidth and b.tensor}


def test_the_other_points_stay_and_their_words_do_not(opened):
    layers = {m: (2 * m * 4096**2, 2 * (2 * m * 4096 + 4096**2)) for m in (2**n for n in range(13))}
    page = opened(roofline_picture(layers))
    shown = "all => all.filter((one) => getComputedStyle(one).visibility === 'visible').length"
    panel = page.locator(".stepper-panel >> nth=0")
    assert panel.locator(".rf-point").evaluate_all(shown) == len(layers)
    assert panel.locator(".strong").evaluate_all(shown) == 1
