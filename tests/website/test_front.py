"""The front page: its numbers are those of the course and of the results files, and its film stops when told to."""

from __future__ import annotations

import re

import pytest

from chapters.kit.bench.results import load
from chapters.kit.draw.bars import Bars
from chapters.runner.course import chapters
from docs.pages import front
from docs.pages.course_map import hours
from solutions.ch00_first_module.first_module import from_script
from tests.website.conftest import alone


def test_facts_are_counted():
    text = str(front.facts())
    assert f"{len(chapters())} chapters" in text and "Python 3.10 to 3.14" in text
    hours = int(re.search(r"about (\d+) hours", text)[1])
    assert abs(60 * hours - sum(chapter.minutes for chapter in chapters())) <= 30


def test_each_chapter_has_a_card_with_its_time_and_exercises():
    cards = re.findall(r"<li>(.*?)</li>", front.chapter_cards().html)
    assert len(cards) == len(chapters())
    for card, chapter in zip(cards, chapters(), strict=True):
        assert f'href="chapters/{chapter.slug}/index.html">{chapter.number} · ' in card
        assert f"{hours(chapter.minutes)} h · {len(chapter.exercises)} exercises" in card
    assert hours(sum(chapter.minutes for chapter in chapters())) in str(front.chapter_cards())
    first = chapters()[0].exercises[0]
    assert f"check {first.id}" in str(front.first_exercise())


def test_the_conversation_is_the_recorded_one():
    turn = load("ch11_conversation")["measured"]["turns"][0]
    text = str(front.conversation())
    assert turn["answer"] in text and f"{turn['tokens_per_second']:.0f} per second" in text


def shares(drawn: Bars) -> list[tuple[float, str]]:
    """(length, words) of each bar."""
    found = re.findall(r"--w:([\d.]+)\".*?<b>([^<]*)</b>", drawn._repr_html_())
    return [(float(length), words) for length, words in found]


def test_bars_are_as_long_as_what_was_measured():
    seconds = load("ch09_decoder")["measured"]["middle"]["seconds"]
    measured = [seconds[f"{who} decode"] for who in ("TVM's default", "torch.compile", front.OURS)]
    drawn = shares(front.decode_bars())
    assert [length for length, _ in drawn] == pytest.approx(
        [t / max(measured) for t in measured], abs=1e-4
    )
    assert drawn[2][1] == f"{1e3 * measured[2]:.3g} ms"
    assert int(shares(front.chat_bars())[0][1]) > 0


def test_a_frame_for_each_pass_that_changes_the_graph():
    found = front.frames(from_script())
    assert found[0].drawn.count("op") == 4 and found[-1].drawn.count("kernel") == 1
    assert "AnnotateTIROpPattern" not in [frame.name for frame in found]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    page = tmp_path_factory.mktemp("film") / "page.html"
    film = front.Film("A film", front.frames(from_script()))
    page.write_text(alone(film, "front.css", "film.js"), encoding="utf-8")
    return page.as_uri()


def visible(page) -> list[int]:
    """The numbers of the frames that can be seen."""
    frames = page.query_selector_all(".film-frame")
    return [n for n, frame in enumerate(frames, 1) if frame.is_visible()]


def test_the_film_is_stopped_and_stepped_by_keyboard_and_mouse(chromium, address):
    page = chromium.new_page()
    page.clock.install()
    page.goto(address)
    page.wait_for_function("document.querySelector('.film')")
    assert visible(page) == [1]
    page.wait_for_timeout(50)  # until the observer has said that the film is in view
    page.clock.run_for(2700)
    assert visible(page) == [2]
    page.get_by_role("button", name="Pause").press("Enter")
    page.clock.run_for(20_000)
    assert visible(page) == [2]
    page.keyboard.press("ArrowRight")
    assert visible(page) == [3]
    page.get_by_role("button", name="Step 1").click()
    page.keyboard.press("ArrowLeft")
    assert visible(page) == [1]
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2700)
    assert visible(page) == [2]
    page.close()


def test_the_film_stands_still_for_readers_who_want_less_motion(chromium, address):
    page = chromium.new_page(reduced_motion="reduce")
    page.clock.install()
    page.goto(address)
    page.clock.run_for(20_000)
    assert visible(page) == [1] and page.get_by_role("button", name="Play").is_visible()
    page.close()


def test_without_scripts_the_first_and_the_last_frame_are_shown(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert visible(page) == [1, len(front.frames(from_script()))]
    context.close()
