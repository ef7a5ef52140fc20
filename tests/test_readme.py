"""The README tells the truth: its commands are the ones CI runs, its picture is what the code draws."""

from __future__ import annotations

import re

from chapters.toolkit.course import ROOT, chapters
from chapters.toolkit.front_picture import IMAGE, document

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_command_that_the_readme_gives():
    commands = re.findall(r"^pip install -e \. && (.+)$", README, re.MULTILINE)
    assert commands == ["mkdocs serve", "pytest solutions/"]
    assert "pip install -e \\. && pytest solutions/" in (ROOT / ".ci" / "run").read_text(
        encoding="utf-8"
    )


def test_picture_is_what_the_code_draws():
    assert IMAGE.read_text(encoding="utf-8") == document(), (
        "python -m chapters.toolkit.front_picture"
    )


def test_every_chapter_is_in_the_table():
    for chapter in chapters():
        assert f"| {chapter.number} · {chapter.title} |" in README


def test_every_relative_link_exists():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
