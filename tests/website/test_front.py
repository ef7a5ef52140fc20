"""The front page: it counts what the course has, and its film is stepped through."""

from __future__ import annotations

import re

from chapters.runner.course import PATHS, chapters
from docs.pages import front
from docs.pages.course_map import hours, hours_of, without_capstones
from solutions.ch00_first_module.first_module import from_script
from tests.website.conftest import alone


def test_facts_are_counted():
    text = str(front.facts())
    assert f"{len(without_capstones())} chapters" in text and "Python 3.10 to 3.14" in text
    stated = re.search(r"about (\d+) , (\d+) or (\d+) hours", text).groups()
    for path, stated_hours in zip(PATHS, stated, strict=True):
        minutes = sum(chapter.minutes_on(path) for chapter in without_capstones())
        assert abs(60 * int(stated_hours) - minutes) <= 30


def test_each_chapter_has_a_card_with_its_time_and_exercises():
    blocks = front.chapter_cards().html.split('<div class="tabbed-block">')[1:]
    for path, block in zip(PATHS, blocks, strict=True):
        on_path = [chapter for chapter in chapters() if chapter.minutes_on(path)]
        for card, chapter in zip(re.findall(r"<li>(.*?)</li>", block), on_path, strict=True):
            assert f'href="chapters/{chapter.slug}/index.html">{chapter.number} · ' in card
            exercises = len(chapter.exercises_on(path))
            assert f"{hours(chapter.minutes_on(path))} h · {exercises} exercise" in card
        assert hours_of(path) in block
    first = chapters()[0].exercises[0]
    assert f"check {first.id}" in str(front.first_exercise())


def test_the_film_steps_from_the_first_frame_to_the_last(chromium, tmp_path):
    film = front.film("A film", front.frames(from_script()))
    address = tmp_path / "page.html"
    address.write_text(alone(film, "pictures.css", "stepper.js"), encoding="utf-8")
    every = list(range(1, len(film.panels[0].says) + 1))
    for scripts, seen in ((True, [[1], [2]]), (False, [every])):
        page = chromium.new_page(java_script_enabled=scripts)
        page.goto(address.as_uri())
        frames = page.query_selector_all(".film > div")
        for number, wanted in enumerate(seen):
            if number:
                page.get_by_label("A film: Step on").click()
            assert [n for n, frame in enumerate(frames, 1) if frame.is_visible()] == wanted
        page.close()
