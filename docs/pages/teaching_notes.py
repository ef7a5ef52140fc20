"""What the page for teachers takes from the chapters: their goals and their catalogued mistakes.

Goals are the list under the lesson's heading that says what a learner will be “able to” do.
"""

from __future__ import annotations

import html
import re

from chapters.kit.draw.table import Html, Table
from chapters.runner import catalogue
from chapters.runner.course import Chapter, chapters
from docs.pages.course_map import chapter_link


def goals_of(chapter: Chapter) -> list[str]:
    """The items of the list under the heading with “able to” in the lesson, as Markdown; [] if there is none."""
    text = chapter.lesson.read_text(encoding="utf-8")
    section = re.search(r"^## [^\n]*able to[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not section:
        return []
    items = re.findall(r"^[-*] (.+(?:\n[ ]{2,}\S.*)*)", section[1], re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in items]


def goals() -> Table:
    """One row per chapter: what a learner can do after it."""
    rows = []
    for chapter in chapters():
        items = "".join(f"<li>{inline(goal)}</li>" for goal in goals_of(chapter))
        rows.append((chapter_link(chapter.number), Html(f"<ul>{items}</ul>")))
    return Table(("Chapter", "After it a learner can"), tuple(rows))


def mistakes() -> Table:
    """One row per catalogued mistake: the exercise, what the check says it looks like, and why it is wrong."""
    known = (mistake for chapter in chapters() for mistake in catalogue.mistakes(chapter))
    rows = [(m.exercise, inline(m.what), inline(m.why)) for m in known]
    return Table(("Exercise", "The answer …", "Why it is wrong"), tuple(rows))


def inline(markdown: str) -> Html:
    """A line of Markdown as HTML, as far as goals and mistakes need it: code spans, emphasis and links' texts."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", html.escape(markdown, quote=False))
    plain = re.sub(r"\*{1,2}([^*`]+)\*{1,2}", r"<em>\1</em>", plain)
    return Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", plain))
