"""The page that runs a kernel in the browser: its facts are TVM's, and in Chromium its verdicts are right.

Chromium brings a WebGPU device in software, so no GPU is needed; without Chromium the tests of the script are skipped.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from chapters.toolkit import browser_kernel
from chapters.toolkit.browser_kernel import FAULTS, ROWS, BrowserKernel, description
from tests.site import browser
from tests.site.browser import SOFTWARE_GPU, Browser

ROOT = Path(__file__).resolve().parents[1]
needs_browser = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>A kernel</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="stylesheet" href="course.css">'
)


# --- what the page is given --------------------------------------------------------------------


def test_every_text_is_another_and_begins_as_tvm_wrote_it():
    for kernel in description()["kernels"]:
        assert len(set(kernel["texts"])) == len(FAULTS) == len(description()["faults"])
        whole = kernel["texts"][0]
        assert whole.count("workgroupBarrier();") == 10 and f"fn {kernel['entry']}(" in whole
        for text in kernel["texts"][1:]:
            lines = whole.splitlines()
            assert all(line in lines for line in text.splitlines()) and len(text) < len(whole)


def test_arguments_are_bound_as_the_text_declares_them():
    for kernel in description()["kernels"]:
        declared = re.findall(r"@binding\((\d)\) var<storage, (\w+)> (\w+)_ptr", kernel["texts"][0])
        assert [(str(n), b["writable"], b["name"]) for n, b in enumerate(kernel["buffers"])] == [
            (number, mode == "read_write", name) for number, mode, name in declared
        ]
        for launch, rows in zip(kernel["launches"], ROWS, strict=True):
            assert launch == {"rows": rows, "grid": [rows, 1, 1], "scalars": [rows, rows - 1]}


def test_a_fault_that_finds_no_place_is_an_error():
    for fault in FAULTS[1:]:
        with pytest.raises(browser_kernel.FaultNotPlantedError, match="no match"):
            fault.change("fn main_kernel() {\n}\n")


def test_the_page_holds_its_facts_and_reads_without_a_script():
    text = BrowserKernel()._repr_html_()
    facts = re.search(r'id="webgpu-facts">(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(facts) == json.loads(json.dumps(description()))
    assert "fn main_kernel(" in text.split("<script")[0] and "JavaScript" in text


# --- what it does in a browser -----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the page as the site has it, less the theme."""
    folder = tmp_path_factory.mktemp("page")
    for file in ("js/webgpu.js", "styles/course.css"):
        shutil.copy(ROOT / "docs" / file, folder)
    _write(folder / "index.html", "")
    return folder


def _write(path: Path, before: str) -> None:
    body = f'<div class="md-typeset">{BrowserKernel()._repr_html_()}</div>'
    script = '<script src="webgpu.js" defer></script>'
    text = f'{HEAD}{before}<body data-md-color-scheme="default">{body}{script}</body></html>'
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def chromium():
    with Browser(*SOFTWARE_GPU) as running:
        yield running


@pytest.fixture(scope="module")
def page(chromium, folder):
    return _opened(chromium, (folder / "index.html").as_uri())


def _opened(chromium, url: str):
    page = chromium.open(url)
    page.wait_for("!document.getElementById('webgpu-device').textContent.startsWith('Looking')")
    return page


def _choose(page, **choices: int) -> None:
    for name, value in choices.items():
        page.evaluate(
            f"(() => {{ const e = document.getElementById('webgpu-{name}'); e.value = {value}; "
            "e.dispatchEvent(new Event('change')); })()"
        )


def _text(page, name: str) -> str:
    return page.evaluate(f"document.getElementById('webgpu-{name}').textContent")


def _run(page) -> str:
    page.evaluate("document.getElementById('webgpu-run').click()")
    return _verdict(page)


def _verdict(page) -> str:
    page.wait_for("!document.getElementById('webgpu-run').disabled")
    return _text(page, "verdict")


@needs_browser
def test_what_tvm_wrote_is_right(page):
    assert "swiftshader" in _text(page, "device").lower()
    _choose(page, dtype=0, fault=0, rows=0)
    assert _run(page).startswith(f"Right numbers: all {ROWS[0]} rows agree with float64.")
    row = page.evaluate(
        "[...document.querySelector('#webgpu-runs tbody tr').cells].map(c => c.textContent)"
    )
    assert row[1:5] == ["float32", "as TVM wrote it", str(ROWS[0]), "0"] and float(row[7]) > 0


@needs_browser
@pytest.mark.parametrize("number", range(1, len(FAULTS)), ids=lambda n: FAULTS[n].title)
def test_every_fault_shows(page, number):
    _choose(page, dtype=0, fault=number, rows=0)
    assert _text(page, "says") == FAULTS[number].says
    said = _run(page)
    assert said.startswith("Wrong numbers: ") and f"of {ROWS[0]} rows differ" in said


@needs_browser
def test_memory_that_webgpu_clears_hides_a_fault_without_rubbish(page):
    """Nothing is stored, nothing is summed: with cleared memory the norm is large, and with rubbish it is 0."""
    _choose(page, dtype=0, fault=4, rows=0)
    page.evaluate("document.getElementById('webgpu-rubbish').click()")
    without = _run(page)
    page.evaluate("document.getElementById('webgpu-rubbish').click()")
    errors = [float(re.search(r"Largest error ([\d.e+]+) %", t)[1]) for t in (without, _run(page))]
    assert errors[0] > 1000 and 99 < errors[1] < 101


@needs_browser
def test_a_missing_barrier_that_does_not_show_is_said_to_be_luck(chromium, folder):
    page = _opened(chromium, (folder / "index.html").as_uri())
    page.evaluate("kernelInBrowser.facts.faults[0].races = true")
    _choose(page, dtype=0, fault=0, rows=0)
    said = _run(page)
    assert said.startswith("Right numbers") and "still wrong code" in said


@needs_browser
def test_an_error_of_the_compiler_leads_to_its_line(page):
    _choose(page, dtype=0, fault=0, rows=0)
    page.evaluate(
        "(() => { const t = document.getElementById('webgpu-text'); "
        "t.value = t.value.replace('var partial', 'var rows ! partial'); "
        "t.dispatchEvent(new Event('input')); })()"
    )
    assert _text(page, "says").startswith("Edited by you.")
    assert _run(page).startswith("The browser's compiler refuses this text.line ")
    page.evaluate("document.querySelector('#webgpu-verdict li button').click()")
    selected = "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
    assert "partial" in page.evaluate(selected)
    page.evaluate("document.getElementById('webgpu-reset').click()")
    assert _text(page, "says") == FAULTS[0].says


@needs_browser
def test_a_text_that_does_not_fit_the_launch_is_refused_in_words(page):
    _choose(page, dtype=0, fault=0, rows=0)
    for old, new in (
        ("fn main_kernel", "fn another"),
        ("<storage, read> x1", "<storage, read_write> x1"),
    ):
        page.evaluate(
            "(() => { const t = document.getElementById('webgpu-text'), f = kernelInBrowser.facts; "
            f"t.value = f.kernels[0].texts[0].replace({old!r}, {new!r}); }})()"
        )
        assert _run(page).startswith("The browser's compiler refuses this text.")


@needs_browser
def test_keys_alone_are_enough(page):
    _choose(page, dtype=0, fault=0, rows=0)
    page.evaluate("document.getElementById('webgpu-text').focus()")
    before = page.evaluate("document.querySelectorAll('#webgpu-runs tbody tr').length")
    page.press("Enter", ctrl=True)
    page.wait_for(f"document.querySelectorAll('#webgpu-runs tbody tr').length > {before}")
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "webgpu-run"
    page.press(" ", text=" ")
    page.wait_for(f"document.querySelectorAll('#webgpu-runs tbody tr').length > {before + 1}")
    page.press("Tab", shift=True)
    assert page.evaluate("document.activeElement.id") == "webgpu-text"


@needs_browser
@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "Object.defineProperty(navigator, 'gpu', { value: undefined })",
            "This browser has no WebGPU",
        ),
        (
            "Object.defineProperty(window, 'isSecureContext', { value: false })",
            "only to pages from https",
        ),
        ("navigator.gpu.requestAdapter = async () => null", "finds no device"),
    ],
)
def test_without_webgpu_one_sentence_says_so(chromium, folder, script, sentence):
    path = folder / "without.html"
    _write(path, f"<script>{script}</script>")
    page = _opened(chromium, path.as_uri())
    assert sentence in _text(page, "device")
    assert page.evaluate("document.getElementById('webgpu-run').disabled")
    assert "fn main_kernel(" in page.evaluate("document.getElementById('webgpu-text').value")


@needs_browser
def test_a_page_from_a_server_runs_too(chromium, folder):
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = _opened(chromium, f"http://127.0.0.1:{server.server_port}/index.html")
        _choose(page, dtype=0, fault=0, rows=0)
        assert _run(page).startswith("Right numbers")
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@needs_browser
def test_on_a_phone_nothing_is_wider_than_the_screen(chromium, folder):
    page = _opened(chromium, (folder / "index.html").as_uri())
    page.screen(360, 740)
    page.wait_for("innerWidth === 360")
    wide = (
        "[...document.querySelectorAll('.webgpu *')].filter(e => !e.closest('table') "
        "&& e.getBoundingClientRect().right > innerWidth).map(e => e.id || e.className)"
    )
    assert page.evaluate(wide) == []


@needs_browser
def test_halves_are_those_of_numpy(page):
    every = np.arange(1 << 16, dtype="uint16").view("float16").astype("float64")
    values = page.evaluate(
        "Array.from({ length: 65536 }, (_, n) => String(kernelInBrowser.fromHalf(n)))"
    )
    found = np.array([float(v.replace("Infinity", "inf")) for v in values])
    assert np.array_equal(found, every, equal_nan=True)
    random = np.random.default_rng(0)
    finite = np.sort(every[np.isfinite(every)])
    ties = (finite[1:] + finite[:-1]) / 2  # halfway between neighbours: to the even one
    numbers = [*ties[::37], *random.standard_normal(500), 65519.9, 65520.0, -1e9, 1e-9, 0.0]
    given = page.evaluate(f"{json.dumps(numbers)}.map(kernelInBrowser.toHalf)")
    with np.errstate(over="ignore"):
        expected = np.array(numbers).astype("float16").view("uint16").tolist()
    assert given == expected


@needs_browser
@pytest.mark.parametrize("number", [0, 1], ids=["float32", "float16"])
def test_the_check_is_that_of_numpy(page, number):
    """Right results pass, and a result off by three times what is allowed in one element does not."""
    kernel = description()["kernels"][number]
    hidden, dtype = description()["hidden"], kernel["dtype"]
    random = np.random.default_rng(number)
    x1, x2 = (random.standard_normal(2 * hidden).astype(dtype) for _ in "12")
    weight = random.standard_normal(hidden).astype(dtype)
    total = (x1 + x2).astype("float64")
    rows = total.reshape(2, hidden)
    mean = (rows**2).mean(-1, keepdims=True)
    exact = rows / np.sqrt(mean + description()["epsilon"]) * weight.astype("float64")
    norm = exact.astype(dtype)
    off = norm.astype("float64")
    off[1, 5] += 3 * kernel["tolerance"] * np.abs(exact[1]).max()
    lost = off.copy()
    lost[0, 7] = np.nan
    wrong = []
    for result in (norm, off, lost):
        numbers = [
            json.dumps(np.asarray(a, "float64").ravel().tolist())
            for a in (x1, x2, weight, result, total)
        ]
        script = (
            "kernelInBrowser.judge({{x1: {}, x2: {}, weight: {}}}, {{norm: {}, total: {}}}, {})"
        )
        wrong.append(page.evaluate(script.format(*numbers, json.dumps(kernel)))["wrong"])
    assert wrong == [0, 1, 2]
