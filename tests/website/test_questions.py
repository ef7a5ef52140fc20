"""Question cards in a browser: by keyboard, by mouse, and without scripts; and every lesson has its cards."""

from __future__ import annotations

import importlib
import re

import pytest

from chapters.kit.quiz import Cards, Question
from chapters.runner.course import chapters
from docs.pages.page_blocks import read_blocks
from tests.website.conftest import render_alone

CHAPTERS = [
    pytest.param(chapter, id=chapter.short) for chapter in chapters() if not chapter.is_capstone
]
ASKED = [
    Question("How many?", ("0", "1", "2"), lambda: 1, "Because of `a < b`.", show="x = 1\ny = 2"),
    Question("Is it `so`?", ("yes", "no", "it raises"), lambda: "yes", "It is."),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    page = tmp_path_factory.mktemp("questions") / "page.html"
    page.write_text(render_alone(Cards(ASKED), "questions.css", "questions.js"), encoding="utf-8")
    return page.as_uri()


def read_card(page, number: int = 0) -> tuple[str, list[str | None], bool]:
    """What a card says, the mark of each choice, and whether its answer is unfolded."""
    card = page.locator("form.question").nth(number)
    marks = [choice.get_attribute("data-mark") for choice in card.locator("label").all()]
    is_open = card.locator("details").evaluate("details => details.open")
    return card.locator("[role=status]").inner_text(), marks, is_open


def test_a_wrong_choice_by_mouse_gets_the_computed_answer(page):
    page.click("label:has-text('2') >> nth=0")
    assert read_card(page) == ("", [None, None, None], False)  # a choice alone tells nothing
    page.click("button >> nth=0")
    said = "You chose “2”. The computed answer is: 1"
    assert read_card(page) == (said, [None, "right", "wrong"], True)
    assert "Because of a < b." in page.inner_text("details >> nth=0")
    assert read_card(page, 1) == ("", [None, None, None], False)


def test_a_right_choice_by_keyboard(page):
    page.keyboard.press("Tab")  # into the choices
    page.keyboard.press("ArrowDown")  # the second one
    page.keyboard.press("Enter")
    assert read_card(page) == ("Right: 1", [None, "right", None], True)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Check"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Tab")  # the next card
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert read_card(page, 1) == ("Right: yes", ["right", None, None], True)


def test_a_new_choice_takes_the_verdict_back(page):
    page.click("label >> nth=0")
    page.click("button >> nth=0")
    page.click("label >> nth=1")
    assert read_card(page) == ("", [None, None, None], True)
    page.click("button >> nth=0")
    assert read_card(page) == ("Right: 1", [None, "right", None], True)


def test_without_a_choice_nothing_is_told(page, address):
    page.click("button >> nth=0")
    assert read_card(page) == ("Choose an answer first.", [None, None, None], False)
    assert page.url == address


def test_without_scripts_the_answer_is_there_to_unfold(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("button").count() == 0
    assert not page.locator("text=Computed:").first.is_visible()
    page.click("summary >> nth=0")
    assert page.locator("text=Computed: 1").is_visible()
    page.focus("input >> nth=1")
    page.keyboard.press("Enter")
    assert page.url == address  # Enter sends nothing anywhere
    context.close()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_answers_of_predictions_are_among_the_choices(chapter):
    if chapter.number == 10:
        pytest.importorskip("torch", reason="chapter 10's lesson imports a model from PyTorch")
    asked = importlib.import_module(f"chapters.{chapter.slug}.quiz").PREDICT
    assert asked
    for question in asked:
        assert len(question.choices) >= 3 and len(set(question.choices)) == len(question.choices)
        assert question.answer() in range(len(question.choices))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_lesson_shows_its_predictions_and_its_quiz_as_cards(chapter):
    text = chapter.lesson.read_text(encoding="utf-8")
    shown = [block for block in read_blocks(chapter.lesson, chapter.slug) if "Cards(" in block.code]
    sections = [
        re.findall(r"^## (.+)$", "\n".join(text.split("\n")[: b.line]), re.M)[-1] for b in shown
    ]
    assert sections == ["Predict", "Check yourself"]
    for block, name in zip(shown, ("PREDICT", "QUESTIONS"), strict=True):
        assert f"from chapters.{chapter.slug}.quiz import {name}" in block.code
        assert f"Cards({name})" in block.code and block.hide
