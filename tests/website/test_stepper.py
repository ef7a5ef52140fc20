"""The stepper in a browser: buttons, arrow keys, the menu, the address, and the list where scripts do not run."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.pipeline.pass_trace import trace
from docs.pages.pass_stepper import Stepper
from tests.website.conftest import alone

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
    shown = Stepper(made, "Passes", "main")
    page.write_text(alone(shown, "stepper.css", "stepper.js"), encoding="utf-8")
    return page.as_uri()


def now(page) -> str:
    """The pass that the page says it shows; it must be the visible one."""
    said = page.inner_text(".stepper-where").split(" · ")[0]
    [step] = [step for step in page.query_selector_all(".step") if step.is_visible()]
    assert step.query_selector(".step-name").text_content() == said.split(": ")[1]
    page.wait_for_selector(".step:not([hidden]) > .step-body:not(:empty)")
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


def test_a_pass_is_unpacked_when_it_is_shown(page):
    assert now(page) == "Pass 1 of 3: LegalizeOps"
    assert page.locator("#pass-1 figure.ir-diff").count() and not page.inner_html(
        "#pass-4 .step-body"
    )
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert now(page) == "Pass 3 of 3: FuseOps"
    page.click("#pass-4 summary >> text=new: ")
    copy = page.locator("#pass-4 .md-code__button:visible").first
    assert page.inner_text(copy.get_attribute("data-clipboard-target")).startswith("@R.function(")
    ids = page.eval_on_selector_all("[id]", "all => all.map(element => element.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_controls_stay_in_view_and_a_pass_begins_at_its_top(page, width):
    page.set_viewport_size({"width": width, "height": 400})
    page.add_style_tag(content="html { font-size: 20px } figure { min-height: 200rem }")
    now(page)
    page.mouse.wheel(0, 2000)
    page.wait_for_function("scrollY > 1500")
    for name in ("Previous", "Next"):
        assert 48 <= page.locator(f"text={name}").bounding_box()["y"] < 120
    page.click("text=Next")
    now(page)
    bar, where = (page.locator(f".stepper-{part}").bounding_box() for part in ("bar", "where"))
    assert 48 <= bar["y"] <= 52 and bar["y"] + bar["height"] <= where["y"] < 200


def test_without_scripts_every_pass_is_listed_and_the_first_change_is_shown(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator(".step > .step-title:visible").count() == 4
    assert page.locator("figure.ir-diff:visible").count() == 1
    assert page.locator("#pass-1 figure.ir-diff").is_visible()
    assert "python -m chapters trace --pass NAME" in page.inner_text(".stepper-plain")
    context.close()
