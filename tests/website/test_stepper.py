"""The stepper in a browser: buttons, arrow keys, the menu, the address, and the list where scripts do not run."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.pipeline.pass_trace import trace
from chapters.runner.course import ROOT
from docs.pages.pass_stepper import Stepper

ONE = relax_module("def main(x: (2, 3)): a = R.exp(R.nn.relu(x))")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteCUDAGraph(),  # changes nothing here
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
    ]
    made = trace(tvm.transform.Sequential(passes), ONE)
    assert [s.changed for s in made.passes] == [True, False, True, True]
    page = tmp_path_factory.mktemp("stepper") / "page.html"
    docs = (ROOT / "docs").as_uri()
    page.write_text(
        f'<!doctype html><html lang="en"><title>x</title><body class="md-typeset">'
        f'<link rel="stylesheet" href="{docs}/styles/stepper.css">'
        f"{Stepper(made, 'Passes', 'main')._repr_html_()}"
        f'<script src="{docs}/js/stepper.js"></script></body></html>',
        encoding="utf-8",
    )
    return page.as_uri()


@pytest.fixture
def page(chromium, address):
    page = chromium.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    yield page
    page.close()
    assert errors == []


def now(page) -> str:
    """The pass that the page says it shows; it must be the visible one."""
    said = page.inner_text(".stepper-where").split(" · ")[0]
    [step] = [step for step in page.query_selector_all(".step") if step.is_visible()]
    assert step.query_selector(".step-name").text_content() == said.split(": ")[1]
    assert step.query_selector("details").get_attribute("open") is not None
    return said


def test_buttons_step_through_what_changed_something(page):
    assert now(page) == "Pass 1 of 3: LegalizeOps"
    page.click("text=Next")
    assert now(page) == "Pass 2 of 3: AnnotateTIROpPattern"
    page.click("text=Previous")
    page.click("text=Previous", force=True)  # it looks disabled, and keeps the keyboard's focus
    assert now(page) == "Pass 1 of 3: LegalizeOps"
    assert page.get_attribute("text=Previous", "aria-disabled") == "true"


def test_arrow_keys_step_and_stop_at_the_ends(page):
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert now(page) == "Pass 3 of 3: FuseOps"
    page.keyboard.press("ArrowLeft")
    assert now(page) == "Pass 2 of 3: AnnotateTIROpPattern"
    page.keyboard.press("Alt+ArrowLeft")  # the browser's own
    page.focus("select")
    page.keyboard.press("ArrowRight")  # the menu's own: one step, not two
    assert now(page) == "Pass 3 of 3: FuseOps"


def test_passes_that_change_nothing_are_shown_when_asked_for(page):
    page.check("input[type=checkbox]")
    assert now(page) == "Pass 1 of 4: LegalizeOps"
    page.keyboard.press("ArrowRight")
    assert now(page) == "Pass 2 of 4: RewriteCUDAGraph"
    assert "left the module as it was" in page.inner_text(".stepper")
    page.uncheck("input[type=checkbox]")
    assert now(page) == "Pass 1 of 3: LegalizeOps"


def test_the_menu_and_the_address_choose_a_pass(page, address):
    page.select_option("select", "pass-4")
    assert now(page) == "Pass 3 of 3: FuseOps" and page.url.endswith("#pass-4")
    page.goto(address + "#pass-3")
    assert now(page) == "Pass 2 of 3: AnnotateTIROpPattern"
    page.goto("about:blank")
    page.goto(address + "#pass-2")
    assert now(page) == "Pass 2 of 4: RewriteCUDAGraph"


def test_a_bar_of_the_strip_chooses_its_pass(page):
    page.click(".stepper-strip i:nth-child(4)")
    assert now(page) == "Pass 3 of 3: FuseOps"


def test_without_scripts_every_pass_is_there_to_open(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator(".step > details > summary:visible").count() == 4
    page.click("summary >> text=FuseOps")
    assert page.locator("#pass-4 figure.ir-diff").first.is_visible()
    context.close()
