"""The page that runs a kernel in the browser: in Chromium its verdicts are right. Its facts are in its kept output.

Chromium brings a WebGPU device in software, so no GPU is needed; without Chromium or Playwright the tests of the script
are skipped.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from chapters.ch04_add_rms_norm.check_cases import draw_inputs, reference
from chapters.checking.programs import poison
from chapters.kit.emulator import wgsl_on_vulkan
from chapters.kit.emulator.executors import REQUIRED, required
from chapters.kit.emulator.wgsl_on_vulkan import run_wgsl
from chapters.kit.gpu.launches import HostProgram
from chapters.runner.course import ROOT
from docs.pages import browser_kernel
from docs.pages.browser_kernel import FAULTS, ROWS, BrowserKernel, describe_kernels
from tests.support.kernels import relative_error
from tests.website.conftest import explain_missing_browser

HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>A kernel</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="stylesheet" href="course.css">'
)


# --- what the page is given --------------------------------------------------------------------


def test_a_fault_that_finds_no_place_is_an_error():
    for fault in FAULTS[1:]:
        with pytest.raises(ValueError, match="no match"):
            fault.change("fn main_kernel() {\n}\n")


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=lambda n: FAULTS[n].title)
@pytest.mark.parametrize("which", range(2), ids=["float32", "float16"])
def test_only_what_tvm_wrote_is_right_on_vulkan(which, number):
    """The same texts on a device that also has float16, which a browser without a GPU lacks."""
    facts = describe_kernels()["kernels"][which]
    if reason := wgsl_on_vulkan.missing(facts["dtype"]):
        pytest.skip(reason)
    program = HostProgram(browser_kernel.make_kernel_func(facts["dtype"]), browser_kernel.WEBGPU)
    ((name, kernel),) = program.kernels.items()
    program.kernels[name] = dataclasses.replace(kernel, source=facts["texts"][number])
    arrays = draw_inputs((3, 1, browser_kernel.HIDDEN_SIZE), facts["dtype"])
    norm, total = poison(arrays[0]), poison(arrays[0])
    program.run(run_wgsl, [*arrays, norm, total])
    exact, rounded = reference(*arrays, browser_kernel.EPSILON)
    off = relative_error(norm, exact)
    assert (off <= facts["tolerance"]) == (number == 0)
    assert (total == rounded).all()


# --- what it does in a browser -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the page loads."""
    folder = tmp_path_factory.mktemp("page")
    for file in ("js/webgpu.js", "styles/course.css"):
        shutil.copy(ROOT / "docs" / file, folder)
    return folder


@pytest.fixture(scope="module")
def opened(chromium, folder):
    """Opens the page as on the site, without the theme. before: HTML at the end of its head."""

    def open_page(before: str = ""):
        body = f'<div class="md-typeset">{BrowserKernel()._repr_html_()}</div>'
        script = '<script src="webgpu.js" defer></script>'
        text = f'{HEAD}{before}<body data-md-color-scheme="default">{body}{script}</body></html>'
        (folder / "index.html").write_text(text, encoding="utf-8")
        page = chromium.new_page()
        page.goto((folder / "index.html").as_uri())
        device = "document.getElementById('webgpu-device').textContent"
        page.wait_for_function(f"!{device}.startsWith('Looking')")
        return page

    return open_page


@pytest.mark.skipif(not required(), reason=f"{REQUIRED} is not set")
def test_what_is_required_is_here():
    """In CI a missing browser is an error, not a reason to skip tests."""
    assert explain_missing_browser() == ""


@pytest.fixture(scope="module")
def page(opened):
    return opened()


def _choose(page, **choices: int) -> None:
    for name, value in choices.items():
        page.select_option(f"#webgpu-{name}", str(value))


def _read_text(page, name: str) -> str:
    return page.text_content(f"#webgpu-{name}")


def _run(page) -> str:
    page.click("#webgpu-run")
    page.wait_for_function("!document.getElementById('webgpu-run').disabled")
    return _read_text(page, "verdict")


def _replace(page, old: str, new: str) -> None:
    """Edit the kernel's text as a reader does."""
    text = page.input_value("#webgpu-text")
    assert old in text
    page.fill("#webgpu-text", text.replace(old, new))


def test_what_tvm_wrote_is_right(page):
    assert "swiftshader" in _read_text(page, "device").lower()
    _choose(page, dtype=0, fault=0, rows=0)
    assert _run(page).startswith(f"Right numbers: all {ROWS[0]} rows agree with float64.")
    row = page.locator("#webgpu-runs tbody tr").first.locator("td").all_text_contents()
    assert row[1:5] == ["float32", "as TVM wrote it", str(ROWS[0]), "0"] and float(row[7]) > 0


@pytest.mark.parametrize("number", range(1, len(FAULTS)), ids=lambda n: FAULTS[n].title)
def test_every_fault_shows(page, number):
    _choose(page, dtype=0, fault=number, rows=0)
    assert _read_text(page, "says") == FAULTS[number].says
    said = _run(page)
    assert said.startswith("Wrong numbers: ") and f"of {ROWS[0]} rows differ" in said


# --- the map of wrong rows ---------------------------------------------------------------------

MAP = "#webgpu-map"
OFFS = [0, 0.005, 0, 2, 0.5, "NaN", 0, 0.07, 1e-6]


def _draw(page, offs) -> None:
    given = ", ".join(map(str, offs))
    page.eval_on_selector(
        MAP, f"map => {{ kernelInBrowser.drawMap(map, [{given}]); map.hidden = false; }}"
    )


def _read_worst_row(page) -> str:
    """What the map says, without the list of wrong rows; the marked cell must be that of the row."""
    says = page.inner_text(f"{MAP} .row-map-where").rpartition(". Row ")[2].removeprefix("Row ")
    marked = page.locator(f"{MAP} .row-map-here")
    columns = int(page.get_attribute(f"{MAP} svg", "viewBox").split()[2])
    assert [int(marked.get_attribute(name)) for name in "yx"] == [
        *divmod(int(says.split()[0]), columns)
    ]
    return says


def test_the_map_has_a_cell_per_row_and_marks_the_worst(page):
    _draw(page, OFFS)
    levels = {"right": 3, "little": 2, "some": 1, "much": 1, "wild": 1, "lost": 1}
    for name, count in levels.items():
        assert page.get_attribute(f"{MAP} path.row-map-{name}", "d").count("M") == count
    assert page.locator(f"{MAP} li").all_inner_texts()[:2] == ["3 right", "2 off by up to 1 %"]
    assert page.inner_text(f"{MAP} .row-map-where").startswith("Wrong: rows 1, 3 to 5, 7 to 8. ")
    assert _read_worst_row(page) == "5 has elements that are not a number."
    _draw(page, [0, 0.3, 0.2])
    assert _read_worst_row(page) == "1 is off by up to 30.0 % of its largest value."
    assert page.locator(f"{MAP} li").all_inner_texts() == ["1 right", "2 off by up to 100 %"]


def test_a_run_draws_the_map_of_its_wrong_rows_and_a_right_one_none(page):
    _choose(page, dtype=0, fault=5, rows=0)
    _run(page)
    assert page.locator(f"{MAP} li").all_inner_texts() == [
        f"{ROWS[0]} with elements that are not a number"
    ]
    _choose(page, fault=3)
    said = _run(page)
    wrong = int(re.search(r"(\d+) of", said)[1])
    told = [text.split(" ", 1) for text in page.locator(f"{MAP} li").all_inner_texts()]
    assert sum(int(count) for count, words in told if words != "right") == wrong
    _choose(page, fault=0)
    _run(page)
    assert page.is_hidden(MAP)


def test_memory_that_webgpu_clears_hides_a_fault_without_poison(page):
    """The sums are never stored: with cleared memory the norm is large, and with poison it is 0."""
    _choose(page, dtype=0, fault=4, rows=0)
    page.click("#webgpu-poison")
    without = _run(page)
    page.click("#webgpu-poison")
    errors = [float(re.search(r"Largest error ([\d.e+]+) %", t)[1]) for t in (without, _run(page))]
    assert errors[0] > 1000 and 99 < errors[1] < 101


def test_a_missing_barrier_that_does_not_show_is_said_to_be_luck(opened):
    page = opened()
    page.evaluate("kernelInBrowser.facts.faults[0].races = true")
    _choose(page, dtype=0, fault=0, rows=0)
    said = _run(page)
    assert said.startswith("Right numbers") and "still wrong code" in said


def test_an_error_of_the_compiler_leads_to_its_line(page):
    _choose(page, dtype=0, fault=0, rows=0)
    _replace(page, "var partial", "var rows ! partial")
    assert _read_text(page, "says").startswith("Edited by you.")
    assert _run(page).startswith("The browser's compiler refuses this text.line ")
    page.click("#webgpu-verdict li button")
    selected = "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
    assert "partial" in page.evaluate(selected)
    page.click("#webgpu-reset")
    assert _read_text(page, "says") == FAULTS[0].says


@pytest.mark.parametrize(
    ("old", "new"),
    [("fn main_kernel", "fn another"), ("<storage, read> x1", "<storage, read_write> x1")],
)
def test_a_text_that_does_not_fit_the_launch_is_refused_in_words(page, old, new):
    _choose(page, dtype=0, fault=0, rows=0)
    _replace(page, old, new)
    assert _run(page).startswith("The browser's compiler refuses this text.")
    page.click("#webgpu-reset")


def test_keys_alone_are_enough(page):
    _choose(page, dtype=0, fault=0, rows=0)
    page.focus("#webgpu-text")
    before = page.locator("#webgpu-runs tbody tr").count()
    page.keyboard.press("Control+Enter")
    rows = "document.querySelectorAll('#webgpu-runs tbody tr').length"
    page.wait_for_function(f"{rows} > {before}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "webgpu-run"
    page.keyboard.press("Space")
    page.wait_for_function(f"{rows} > {before + 1}")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "webgpu-text"


DEFINE = "Object.defineProperty"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (f"{DEFINE}(navigator, 'gpu', {{ value: undefined }})", "This browser has no WebGPU"),
        (f"{DEFINE}(window, 'isSecureContext', {{ value: false }})", "only to pages from https"),
        ("navigator.gpu.requestAdapter = async () => null", "finds no device"),
    ],
)
def test_without_webgpu_one_sentence_says_so(opened, script, sentence):
    page = opened(f"<script>{script}</script>")
    assert sentence in _read_text(page, "device")
    assert page.is_disabled("#webgpu-run")
    assert "fn main_kernel(" in page.input_value("#webgpu-text")


KEEP_DEVICE = """<script>
const request = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...given) {
  return (window.lastDevice = await request.apply(this, given));
};
</script>"""


def test_a_lost_device_is_told_and_opened_anew(opened):
    page = opened(KEEP_DEVICE)
    _choose(page, dtype=0, fault=0, rows=2)
    page.click("#webgpu-run")
    page.evaluate("lastDevice.destroy()")
    page.wait_for_function("!document.getElementById('webgpu-run').disabled")
    assert _read_text(page, "verdict").startswith("The device was lost")
    _choose(page, rows=0)
    assert _run(page).startswith("Right numbers")


@pytest.mark.parametrize("number", [0, 1], ids=["float32", "float16"])
def test_the_check_is_that_of_numpy(page, number):
    """Right results pass, and a result off by three times what is allowed in one element does not."""
    kernel = describe_kernels()["kernels"][number]
    hidden, dtype = describe_kernels()["hidden"], kernel["dtype"]
    random = np.random.default_rng(number)
    x1, x2 = (random.standard_normal(2 * hidden).astype(dtype) for _ in "12")
    weight = random.standard_normal(hidden).astype(dtype)
    total = (x1 + x2).astype("float64")
    rows = total.reshape(2, hidden)
    mean = (rows**2).mean(-1, keepdims=True)
    exact = rows / np.sqrt(mean + describe_kernels()["epsilon"]) * weight.astype("float64")
    norm = exact.astype(dtype)
    off = norm.astype("float64")
    off[1, 5] += 3 * kernel["tolerance"] * np.abs(exact[1]).max()
    lost = off.copy()
    lost[0, 7] = np.nan
    inputs = {"x1": x1, "x2": x2, "weight": weight}
    summed = total.copy()
    summed[hidden] += 1  # in row 1
    found = []
    for result, sums in ((norm, total), (off, total), (lost, total), (norm, summed)):
        outputs = {"norm": result, "total": sums}
        given = [{k: np.ravel(a).tolist() for k, a in part.items()} for part in (inputs, outputs)]
        texts = ", ".join(json.dumps(part) for part in (*given, kernel))
        found.append(page.evaluate(f"kernelInBrowser.judge({texts})"))
    assert [verdict["wrong"] for verdict in found] == [0, 1, 2, 1]
    expected = [
        [0, 0],
        [0, 3 * kernel["tolerance"]],
        [np.nan, 3 * kernel["tolerance"]],
        [0, 1 / np.abs(total[hidden:]).max()],
    ]
    offs = [verdict["offs"] for verdict in found]
    assert np.allclose(offs, expected, rtol=0.5, atol=0, equal_nan=True)
