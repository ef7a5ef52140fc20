"""The film of the front page is stepped through; what the page counts is in its kept output."""

from __future__ import annotations

from docs.pages import front
from solutions.ch00_first_module.first_module import from_script
from tests.website.conftest import alone


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
