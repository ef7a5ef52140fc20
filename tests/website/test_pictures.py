"""The pictures with a slider: what they are drawn from, and how they are driven in a browser."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir
from tvm.target import Target

from chapters.ch07_when_fusion_is_sound.side_by_side import Verdict
from chapters.ch08_gpu_targets import registers, tile_sizes
from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.kit.bench.results import load
from chapters.kit.cases.hard_cases import CASES
from chapters.kit.cases.matmul_bias import matmul_bias
from chapters.kit.cases.relax_text import relax_module
from chapters.kit.cases.row_sums import row_sums
from chapters.kit.decoder.llama import decoder
from chapters.kit.draw.accumulators import accumulators, counts, example_arrays, with_accumulator
from chapters.kit.draw.applied import Epilogue, curves, where_applied
from chapters.kit.draw.cache_lines import cache_lines, fetches
from chapters.kit.draw.executed import execute
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.draw.read_order import ReadOrder
from chapters.kit.draw.scrubber import Panel, Scrubber, changing
from chapters.kit.draw.visits import visited, visits
from chapters.kit.gpu.bank_picture import bank_picture, read_of_column, read_of_kernel
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.gpu_matmul import matmul_bias as layer_with_bias
from chapters.kit.gpu.gpus import BOARDS, architecture
from chapters.kit.gpu.kernel_report import used_by
from chapters.kit.gpu.limits import LIMITS
from chapters.kit.gpu.roofline_picture import SHOWN as ROOFLINES
from chapters.kit.gpu.roofline_picture import bound, roofline_picture
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import bytes_moved, conflicts
from chapters.kit.pipeline.planned_storage import evaluate, lower, read_plan
from chapters.kit.pipeline.storage_lives import lives, storages_over_time
from chapters.kit.quantized.block_picture import halves, unpacked_block
from docs.pages.verdict_grid import VerdictGrid
from solutions.ch02_attach_metadata.attach_support_info import (
    AttachMemoryPlanAttr,
    AttachVariableBounds,
)
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import fuse_reduction_epilogue
from solutions.ch08_gpu_targets.gpu_schedules import occupancy, shared_matmul
from solutions.ch09_the_compiler.pipeline import phases
from solutions.ch11_a_real_model.quantized import unpack
from tests.website.conftest import alone


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[[object], str]:
    """Writes a picture as a page with the site's script and style sheet, and gives its address."""

    def write(picture) -> str:
        page = tmp_path_factory.mktemp("picture") / "page.html"
        text = alone(picture, "pictures.css", "pictures.js", "pictures_grid.js")
        page.write_text(text, encoding="utf-8")
        return page.as_uri()

    return write


@pytest.fixture
def opened(chromium, written):
    """Opens a picture in a browser; a script that fails makes the test fail."""
    pages, errors = [], []

    def open_(picture, **options):
        context = chromium.new_context(**options)
        pages.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(written(picture))
        return page

    yield open_
    for context in pages:
        context.close()
    assert errors == []


def said(page) -> str:
    """What the picture says about its step; the slider must stand there."""
    words = page.inner_text(".scrub-where")
    assert words.startswith(f"Step {page.input_value('input[type=range]')} of ")
    return words.partition(": ")[2]


# --- any picture ----------------------------------------------------------------------------------

TWO = Scrubber(
    "Two panels",
    [
        Panel("long", ["a", "b", "c", "d"], changing("b", "x", ["0", "1", "2", "3"], ["", "on", "", "off"])),
        Panel("short", ["e", "f"], changing("b", "y", ["4", "5"])),
    ],
    "two",
)  # fmt: skip


def test_buttons_keys_and_slider_move_between_the_steps(opened):
    page = opened(TWO)
    assert said(page) == "a" and page.inner_text(".x") == "0"
    page.click("text=Back", force=True)  # it looks disabled, and keeps the keyboard's focus
    page.click("text=Next")
    assert said(page) == "b" and page.get_attribute(".x", "data-mark") == "on"
    page.keyboard.press("Enter")  # on the button, which has the focus
    assert said(page) == "c" and page.get_attribute(".x", "data-mark") == ""
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert said(page) == "d" and page.get_attribute("text=Next", "aria-disabled") == "true"
    page.keyboard.press("Home")
    assert said(page) == "a" and page.inner_text(".x") == "0"
    page.fill("input[type=range]", "2")
    assert (
        said(page) == "c"
        and page.get_attribute("input[type=range]", "aria-valuetext") == "step 2 of 3"
    )


def test_a_choice_shows_its_panel_at_the_nearest_step(opened):
    page = opened(TWO)
    page.fill("input[type=range]", "2")
    page.click("label >> text=short")
    assert said(page) == "f" and page.inner_text(".y") == "5" and page.is_hidden(".x")
    page.keyboard.press(
        "ArrowLeft"
    )  # the radio buttons' own: the panel before; the end stays the end
    assert said(page) == "d" and page.is_hidden(".y")


def test_play_runs_to_the_end_and_stops_when_asked(opened):
    page = opened(TWO)
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.scrub-where').textContent.endsWith(': b')")
    page.click("text=Pause")
    assert page.is_visible("text=Play")
    page.click("text=Play")
    page.wait_for_function("document.querySelector('.scrub-where').textContent.endsWith(': d')")
    assert page.is_visible("text=Play")
    page.click("text=Play")  # from the start again
    assert said(page) == "a"


def test_nothing_plays_where_the_reader_wants_less_motion(opened):
    page = opened(TWO, reduced_motion="reduce")
    assert page.is_hidden("text=Play") and page.is_visible("text=Next")


def test_without_scripts_all_panels_show_their_end(opened):
    page = opened(TWO, java_script_enabled=False)
    assert page.inner_text(".x") == "3" and page.inner_text(".y") == "5"
    assert page.locator(".scrub-name:visible").all_inner_texts() == ["long", "short"]


# --- two accumulators -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programs() -> dict[str, s_tir.Schedule]:
    fused = s_tir.Schedule(matmul_bias(2, 2, 3))
    fuse_reduction_epilogue(fused, "matmul", "bias")
    return {"Start from 0": s_tir.Schedule(matmul_bias(2, 2, 3)), "Start from the bias": fused}


def test_the_run_of_a_program_computes_what_the_compiled_one_does(programs):
    for sch in programs.values():
        func = with_accumulator(sch)
        arrays = example_arrays(func)
        result = arrays["D"].copy()
        for store in execute(func, arrays):
            if store.wrote.buffer == "D":
                result[store.wrote.index] = store.wrote.value
        there = [tvm.runtime.tensor(arrays[name]) for name in "ABCD"]
        tvm.compile(func, target="llvm")["main"](*there)
        assert np.array_equal(result, there[3].numpy())


def test_the_fused_program_has_one_load_and_one_store_less_per_element(programs):
    runs = [execute(f, example_arrays(f)) for f in map(with_accumulator, programs.values())]
    # 4 elements: 3 steps with two operands and the bias, one store; unfused also temp, stored and loaded
    assert list(map(counts, runs)) == [(4 * 8, 4 * 2), (4 * 7, 4)]


def test_the_counters_follow_the_slider(opened, programs):
    page = opened(accumulators(programs))
    assert page.locator(".acc-counts b").all_inner_texts() == ["0", "0", "0", "0"]
    page.click("text=Next")
    assert page.locator(".acc-line").all_inner_texts() == [
        "accumulator ← 0",
        "accumulator ← C[0, 0]",
    ]
    assert page.locator(".acc-counts b").all_inner_texts() == ["0", "0", "1", "0"]
    assert page.locator(".acc-cell[data-mark=read]:visible").count() == 1
    page.focus("input[type=range]")
    page.keyboard.press("End")
    assert page.locator(".acc-counts b").all_inner_texts() == ["32", "8", "28", "4"]
    assert page.locator(".acc-line").all_inner_texts() == [
        "second pass: D[1, 1] ← temp[1, 1] + C[1, 1]",
        "finished",
    ]
    assert said(page).endswith("start from the bias: 28 loads, 4 stores, finished")


def test_without_scripts_the_counters_show_the_end(opened, programs):
    page = opened(accumulators(programs), java_script_enabled=False)
    assert page.locator(".acc-counts b").all_inner_texts() == ["32", "8", "28", "4"]


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


def test_the_curves_grow_with_the_slider_and_the_table_marks_what_differs(opened):
    page = opened(where_applied(EPILOGUES, STEPS))
    assert said(page) == "at the end 2, at the start 2, at every step 10 – wrong at every step"
    panel = ".scrub-panel:visible"
    assert page.locator(f"{panel} .ap .ap-end .ap-point:not([data-mark=later])").count() == 3
    page.click("label >> text=max(t, 0)")
    page.focus("input[type=range]")
    page.keyboard.press("End")
    assert (
        said(page)
        == "at the end 0, at the start -2, at every step 1 – wrong at the start and at every step"
    )
    assert page.locator(f"{panel} .ap-end .ap-cell").all_inner_texts() == list("030240030")
    assert page.locator(f"{panel} .ap-cell.ap-off[data-mark=now]").all_inner_texts() == ["-2", "1"]
    page.click("label >> text=after a maximum")
    assert said(page).endswith("all agree") and page.locator(f"{panel} .ap-off").count() == 0


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


def test_loops_show_their_values_and_cells_their_visits(opened, stages):
    page = opened(visits(stages))
    panel = ".scrub-panel:visible"
    assert said(page) == "total sets the sum of row 1 to 0"
    page.click("label >> text=reorder")
    page.fill("input[type=range]", "15")
    assert said(page) == "total adds column 2 of row 2"
    assert page.locator(f"{panel} .vi-value").all_inner_texts() == ["= 0", "= 2", "= 2"]
    assert page.locator(f"{panel} .vi-cell:not([data-mark=later])").count() == 15
    page.focus("label >> text=reorder >> input")
    page.keyboard.press("ArrowRight")
    assert (
        said(page) == "total adds column 3 of rows 4 to 7, 4 at once"
    )  # the end: it has ten steps
    assert page.locator(f"{panel} .vi-cell[data-mark=now]").count() == 4
    page.keyboard.press("ArrowRight")
    page.fill("input[type=range]", "6")
    assert said(page) == "total_init sets the sums of rows 4 to 7 to 0"
    assert page.locator(f"{panel} .vi-block[data-mark=now] b").all_inner_texts() == ["total_init"]
    names = page.locator(f"{panel} .vi-tree li > b").all_inner_texts()
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


def test_a_storage_is_used_again_with_bounds_only(opened, plans):
    page = opened(storages_over_time(plans, LARGEST, start=3))
    bars = ".scrub-panel:visible .sl-strip i"

    def in_use() -> list[str]:
        return page.locator(f"{bars}[data-mark=now]").all_inner_texts()

    assert said(page) == "tir_exp1 writes c into storage 2; 896 of 1,792 bytes hold tensors"
    assert in_use() == ["b", "c"]
    page.click("label >> text=/^with bounds$/")
    assert said(page) == (
        "tir_exp1 writes c into storage 1, where a was; 896 of 1,408 bytes hold tensors"
    )
    assert page.inner_text(".sl-total:visible").startswith("3 pieces of memory, 1,408 bytes")
    first = page.locator(".scrub-panel:visible .sl-strip >> nth=0")
    assert first.locator("i").all_inner_texts() == ["a", "c"]
    heights = [first.locator("i").nth(n).bounding_box()["height"] for n in (0, 1)]
    assert heights[1] / heights[0] == pytest.approx(384 / 512, abs=0.02)
    page.focus("input[type=range]")
    page.keyboard.press("ArrowRight")
    assert in_use() == ["c", "b", "d"]
    page.keyboard.press("Home")
    assert said(page) == "no kernel has been called" and in_use() == []
    assert page.locator(f"{bars}[data-mark=later]").count() == 4


def test_without_scripts_each_plan_shows_its_bars(opened, plans):
    page = opened(storages_over_time(plans, LARGEST), java_script_enabled=False)
    assert page.locator(".sl-strip i:visible").count() == 12
    assert page.locator(".sl-name").all_inner_texts()[:2] == [
        "storage 1 64 * n = 512 bytes",
        "b, at run time 64 * n = 512 bytes",
    ]


# --- the block of a quantized matrix --------------------------------------------------------------


@pytest.fixture(scope="module")
def block() -> np.ndarray:
    numbers = np.array([0.5, -2.0], "<f2").view("uint8")
    return np.concatenate([numbers, np.random.default_rng(0).integers(0, 256, 16, "uint8")])


def test_each_half_of_a_byte_belongs_to_the_weight_that_it_changes(block):
    assert halves(block) == {"low": list(range(16)), "high": list(range(16, 32))}


def test_all_bytes_at_once_end_as_the_weights(opened, block):
    page = opened(unpacked_block(block))
    panel = ".scrub-panel:visible"
    low, high = (page.locator(f"{panel} i.ub-{half}") for half in ("low", "high"))
    assert said(page) == "b & 15: the low halves are the codes of weights 0 to 15"
    assert low.all_inner_texts() == [str(byte & 15) for byte in block[4:]]
    assert high.all_inner_texts() == ["·"] * 16
    page.focus("text=Next")
    page.keyboard.press("Enter")
    assert high.all_inner_texts() == [str(byte >> 4) for byte in block[4:]]
    assert page.locator(f"{panel} b.ub-high[data-mark=now]").count() == 16
    page.focus("input[type=range]")
    page.keyboard.press("End")
    texts = [*low.all_inner_texts(), *high.all_inner_texts()]
    assert [float(text) for text in texts] == unpack(block).tolist()


def test_a_byte_lights_up_with_its_two_weights(opened, block):
    page = opened(unpacked_block(block))
    page.click("label >> text=byte by byte")
    page.fill("input[type=range]", "2")
    low, high = (float(unpack(block)[n]) for n in (1, 17))
    code = int(block[5])
    assert said(page) == (
        f"byte 5 is {code:02x}: low half {code & 15}, so weight 1 = 0.5 × {code & 15} − 2 = {low:g}; "
        f"high half {code >> 4}, so weight 17 = 0.5 × {code >> 4} − 2 = {high:g}"
    )
    marked = page.locator(".scrub-panel:visible .ub-codes [data-mark=now]")
    assert marked.all_inner_texts() == [f"{code >> 4:x}", f"{code & 15:x}", f"{low:g}", f"{high:g}"]


def test_without_scripts_the_block_shows_its_weights(opened, block):
    page = opened(unpacked_block(block), java_script_enabled=False)
    texts = page.locator("i.ub-low").all_inner_texts()
    assert [float(text) for text in texts] == 2 * unpack(block)[:16].tolist()


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


def test_the_strip_shows_what_the_cache_holds(opened):
    page = opened(cache_lines([DOWN, ALONG]))
    assert said(page) == "down: 6 lines fetched; along: 2 lines fetched"
    sides = [page.locator(".acc-side").nth(n) for n in (0, 1)]
    new = [side.locator(".cl-line[data-mark=new] .cl-cell").all_inner_texts() for side in sides]
    assert new == [["40", "41", "42", "43"], []]
    assert [s.locator(".cl-line[data-mark=held]").count() for s in sides] == [3, 2]
    assert [s.locator(".cl-cell[data-mark=now]").inner_text() for s in sides] == ["40", "5"]
    page.focus("input[type=range]")
    page.keyboard.press("End")
    assert page.locator(".acc-counts b").all_inner_texts() == ["64", "64", "64", "16"]


def test_a_row_that_ends_inside_a_line_is_refused():
    with pytest.raises(ValueError, match="no multiple of 4"):
        cache_lines([ReadOrder("odd", "w", (2, 6), tuple(range(12)))])


# --- sliders with names ---------------------------------------------------------------------------

DIALS = Scrubber(
    "Two dials",
    [
        Panel(name, [f"{name} {n}" for n in range(6)], changing("b", "x", range(6), shown=4))
        for name in ("one", "other")
    ],
    "two",
    start=4,
    dials={"size": ["s", "m", "l"], "kind": ["p", "q"]},
)


def value_of(page, name: str) -> str:
    """What a screen reader says about a slider."""
    return page.get_by_label(name, exact=True).get_attribute("aria-valuetext")


def drag(page, name: str, share: float) -> None:
    """Drag a slider by mouse from where its thumb may be to a share of its width."""
    slider = page.get_by_label(name, exact=True)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, height)
    page.mouse.down()
    page.mouse.move(box["x"] + 8 + share * (box["width"] - 16), height, steps=5)
    page.mouse.up()


def test_each_slider_moves_its_own_value(opened):
    page = opened(DIALS)
    assert (value_of(page, "size"), value_of(page, "kind")) == ("l", "p")
    assert page.inner_text(".scrub-where") == "one 4" and page.locator(".scrub-bar").count() == 0
    page.focus("#two-dial-1")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".scrub-where") == "one 5" and value_of(page, "size") == "l"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    assert page.inner_text(".scrub-where") == "one 1" and page.inner_text(".x:visible") == "1"
    drag(page, "size", 0.5)
    assert (value_of(page, "size"), value_of(page, "kind")) == ("m", "q")
    page.click("label >> text=other")  # the values stay
    assert page.inner_text(".scrub-where") == "other 3" and value_of(page, "size") == "m"


def test_without_scripts_the_sliders_start_is_told(opened):
    page = opened(DIALS, java_script_enabled=False)
    told = page.locator(".scrub-told:visible").all_inner_texts()
    assert told == ["size l, kind p: one 4", "size l, kind p: other 4"]
    assert page.locator(".x").all_inner_texts() == ["4", "4"]
    assert str(DIALS).splitlines()[1] == "one: size l, kind p: one 4"


# --- the banks of shared memory -------------------------------------------------------------------

PADDINGS = range(0, 36, 4)


@pytest.fixture(scope="module")
def kernels() -> dict[int, tvm.tirx.PrimFunc]:
    layer, tile = layer_with_bias(256, 256, 256, "float16"), ThreadTile(64, 64, 16, 4, 4, vector=2)
    return {p: shared_matmul(layer, tile, p // 2) for p in PADDINGS}


@pytest.fixture(scope="module")
def banks(kernels) -> Scrubber:
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


def strokes(page, kind: str) -> list[str]:
    """The strokes of a kind that are painted in the first panel that is shown: in memory, and at the banks."""
    paths = page.locator(".scrub-panel:visible >> nth=0").locator(f".bk-{kind}[data-mark=now]")
    return [path.get_attribute("d") for path in paths.all()]


def test_padding_spreads_the_words_over_the_banks(opened, banks):
    page = opened(banks)
    assert page.inner_text(".scrub-where") == "16 words in 1 bank, 16-way conflict, 16 cycles"
    cells, bars = strokes(page, "queued")
    assert (cells.count("M"), bars.count("M")) == (16, 1) and strokes(page, "pad") == []
    page.focus("#banks-dial-0")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".scrub-where") == "16 words in 8 banks, 2-way conflict, 2 cycles"
    assert value_of(page, "Padding per row") == "4 bytes"
    cells, bars = strokes(page, "queued")
    assert (cells.count("M"), bars.count("M")) == (16, 8) and len(strokes(page, "pad")) == 1
    page.click("label >> text=column")
    assert page.inner_text(".scrub-where") == "32 words in 32 banks, no conflict, 1 cycle"
    assert strokes(page, "queued") == []
    assert [stroke.count("M") for stroke in strokes(page, "alone")] == [32, 32]
    assert page.locator(".bk-cell[data-mark=now]:visible").all_inner_texts() == ["4", "1"]
    drag(page, "Padding per row", 1)
    assert page.inner_text(".scrub-where") == "32 words in 4 banks, 8-way conflict, 8 cycles"
    painted = "list => list.filter((e) => getComputedStyle(e).visibility === 'visible').length"
    assert page.locator(".scrub-panel:visible .bk-queued").evaluate_all(painted) == 2


def test_without_scripts_the_banks_show_their_worst_and_all_cycles(opened, banks):
    page = opened(banks, java_script_enabled=False)
    assert (
        page.locator(".scrub-told").first.inner_text().startswith("Padding per row 0 bytes: 16 w")
    )
    cells = page.locator(".scrub-panel >> nth=0").locator("tr >> nth=1").locator("td")
    assert cells.all_inner_texts() == ["16", "2", "4", "2", "8", "2", "4", "2", "16"]
    assert [stroke.count("M") for stroke in strokes(page, "queued")] == [16, 1]


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


@pytest.mark.parametrize("board", tile_sizes.SHOWN)
def test_resident_blocks_and_occupancy_agree(board):
    arch = architecture(BOARDS[board].arch).target
    for kept in COUNTED.values():
        one = tile_sizes.state(kept, arch)
        assert one.share == occupancy(one.used, one.threads, arch)
        warps = -(-one.threads // 32)
        assert one.resident * warps * 32 == pytest.approx(one.share * LIMITS[arch].threads)


def meters(page) -> dict[str, str]:
    panel = page.locator(".scrub-panel:visible")
    names, values = panel.locator("dt").all_inner_texts(), panel.locator(".ts-value")
    return dict(zip(names, values.all_inner_texts(), strict=True))


def test_a_larger_tile_loads_less_until_it_spills(opened):
    page = opened(tile_sizes.shown())
    assert meters(page) == {
        "bytes of A and B loaded": "2,097,152",
        "threads per block": "256",
        "registers per thread": "78",
        "bytes spilled per thread": "0",
        "bytes of shared memory": "10,240",
        "occupancy": "37.5 %",
    }
    assert page.locator(".ts-value[data-mark=bad]:visible").count() == 0
    page.focus("#tile-sizes-dial-0")
    page.keyboard.press("ArrowRight")
    assert value_of(page, "Block") == "128 × 128" and meters(page)["threads per block"] == "1,024"
    assert meters(page)["bytes of A and B loaded"] == "1,048,576"
    drag(page, "Thread", 1)
    assert value_of(page, "Thread") == "16 × 16" and meters(page)["registers per thread"] == "255"
    assert page.locator(".ts-value[data-mark=bad]:visible").count() == 1
    width = "e => getComputedStyle(e).getPropertyValue('--share')"
    bars = page.locator(".scrub-panel:visible .ts-bar")
    assert bars.nth(2).evaluate(width) == "1" and bars.nth(0).evaluate(width) == "0.25"
    page.click("label >> text=RTX 4090")
    assert meters(page)["occupancy"] == "16.7 %" and value_of(page, "Block") == "128 × 128"
    drag(page, "Thread", 0)
    assert page.inner_text(".scrub-where").startswith("No kernel: 4,096 threads per block")
    assert set(meters(page).values()) == {"–"}


def test_without_scripts_the_tile_of_the_traced_occupancy_is_shown(opened):
    page = opened(tile_sizes.shown(), java_script_enabled=False)
    told = page.locator(".scrub-told").first.inner_text()
    assert told.startswith("Block 64 × 64, Thread 4 × 4, Steps at a time 16: 78 registers, nothing")
    first = page.locator(".scrub-panel >> nth=0").locator(".ts-value")
    assert first.all_inner_texts()[2:] == ["78", "0", "10,240", "37.5 %"]


def test_nothing_is_drawn_before_it_is_counted(monkeypatch):
    monkeypatch.setattr(tile_sizes, "load", lambda name: None)
    assert "Not counted yet" in str(tile_sizes.shown())
    monkeypatch.setattr(tile_sizes, "missing", lambda: "no compiler")
    assert tile_sizes.main() == 1


# --- the roofline ---------------------------------------------------------------------------------

LAYERS = {m: (2 * m * 4096**2, 2 * (2 * m * 4096 + 4096**2)) for m in (2**n for n in range(13))}


def test_the_roofline_has_every_board_whose_two_rates_have_a_source():
    assert set(ROOFLINES) == {b.name for b in BOARDS.values() if b.bandwidth and b.tensor}


@pytest.mark.parametrize("name", ROOFLINES)
def test_the_bound_is_the_larger_of_the_two_times(name):
    board = BOARDS[name]
    for operations, moved in LAYERS.values():
        one = bound(operations, moved, board)
        assert one.seconds == max(moved / board.bandwidth, operations / board.tensor)
        assert one.rate == pytest.approx(min(one.intensity * board.bandwidth, board.tensor))
        assert one.by_memory == (one.intensity < board.tensor / board.bandwidth)


def test_the_point_moves_from_memory_to_arithmetic(opened):
    page = opened(roofline_picture(LAYERS))
    now = page.locator(".rf-point[data-mark=now]:visible")
    assert now.count() == 1 and "rf-by-memory" in now.get_attribute("class")
    assert page.inner_text(".scrub-where") == (
        "1.0 operations per byte; at most 3.35 · 10¹² per second, 0.338 % of the peak; at least 10 µs. "
        "Limited by memory."
    )
    left = float(now.get_attribute("cx"))
    page.focus("#roofline-dial-0")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert value_of(page, "Rows of x") == "256"
    assert page.inner_text(".scrub-where").endswith("Limited by memory.")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".scrub-where").endswith("Limited by arithmetic.")
    assert "rf-by-peak" in now.get_attribute("class") and float(now.get_attribute("cx")) > left
    assert page.locator(".rf-now:visible").all_text_contents() == ["512 rows"]
    page.click("label >> text=T4")
    drag(page, "Rows of x", 0)
    assert page.locator(".rf-now:visible").all_text_contents() == ["1 row"]
    drag(page, "Rows of x", 1)
    assert page.inner_text(".scrub-where").startswith(
        "1,365.3 operations per byte; at most 65 · 10¹²"
    )


def test_every_roofline_names_its_source_and_that_it_is_not_measured():
    told = roofline_picture(LAYERS)._repr_html_()
    assert "no GPU was measured" in told
    for board in ("H100 SXM", "T4"):
        assert BOARDS[board].source.partition(",")[0] in told


def test_without_scripts_the_roofline_shows_one_row_among_all(opened):
    page = opened(roofline_picture(LAYERS), java_script_enabled=False)
    first = page.locator(".scrub-panel >> nth=0")
    assert first.locator(".rf-point:visible").count() == len(LAYERS)
    assert first.locator(".rf-now:visible").all_text_contents() == ["1 row"]


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


def bright(page) -> list[str]:
    """The names on the tiles that are not dimmed."""
    said = page.locator(".vg-tile:not(.vg-dim) .vg-said").all_text_contents()
    return [one.partition(":")[0] for one in said]


def test_the_counts_are_those_of_the_verdicts():
    assert str(GRID).splitlines() == [
        "built-in: 1 right, 0 refused, 1 documented behaviour, 2 wrong numbers, 1 invalid IR, 1 internal error",
        "ours: 4 right, 2 refused, 0 wrong numbers",
    ]


def test_a_count_filters_and_a_second_press_shows_all(opened):
    page = opened(GRID)
    assert len(bright(page)) == 6 and page.inner_text(".vg-where").startswith("6 of 6 programs")
    builtin, ours = (f".vg-count[data-who={who}] button" for who in ("builtin", "ours"))
    page.click(f"{builtin} >> text=wrong numbers")
    assert set(bright(page)) == {"minus a bias", "starts from 5"}
    page.focus(f"{ours} >> text=refused")
    page.keyboard.press("Space")
    assert bright(page) == ["starts from 5"] and page.inner_text(".vg-where").startswith(
        "1 of 6 programs"
    )
    assert page.locator(".vg-count button[aria-pressed=true]").count() == 2
    page.click(f"{builtin} >> text=wrong numbers")
    assert set(bright(page)) == {"starts from 5", "read transposed"}
    page.click(f"{ours} >> text=wrong numbers")
    assert bright(page) == []


def test_arrow_keys_walk_over_the_tiles_that_are_left(opened):
    page = opened(GRID)
    page.click(".vg-count[data-who=ours] button >> text=right")
    names = bright(page)
    assert page.locator(".vg-tile button[tabindex='0']").count() == 1
    page.focus(".vg-tile button[tabindex='0']")
    for name in [*names, names[-1]]:  # at the last one it stays
        assert page.inner_text(".vg-where").startswith(f"{name}: built-in ")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert page.inner_text(".vg-where").startswith(f"{names[0]}: ")
    page.hover(".vg-tile:not(.vg-dim) >> nth=2")
    assert page.inner_text(".vg-where").startswith(f"{names[2]}: ")


def test_without_scripts_the_grid_has_its_counts_and_titles(opened):
    page = opened(GRID, java_script_enabled=False)
    assert page.locator(".vg-number").all_inner_texts() == list("101211420")
    assert (
        page.get_attribute(".vg-tile >> nth=0", "title")
        == "a plain bias: built-in right, ours right (init)"
    )
