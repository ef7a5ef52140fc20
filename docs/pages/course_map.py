"""What pages say of the chapters: links, the schedule from the lessons' front matter, goals, and catalogued mistakes.

Goals are the list under the lesson's heading that says what a learner will be “able to” do.
"""

from __future__ import annotations

import html
import importlib
import re
from types import ModuleType

from chapters.kit.draw.table import Html, Table
from chapters.runner import catalogue
from chapters.runner.course import Chapter, chapter, chapters


def import_from_chapter(number: int, module: str = "bench") -> ModuleType:
    """A module of chapter `number`, such as its bench."""
    return importlib.import_module(f"chapters.{chapter(number).slug}.{module}")


def link_chapter(number: int, words: str = "") -> Html:
    """A link to chapter `number` from a page beside the site's index. CourseError if it does not exist."""
    home = chapter(number)
    words = html.escape(words or f"{number} · {home.title}")
    return Html(f'<a href="chapters/{home.slug}/index.html">{words}</a>')


def format_hours(minutes: int) -> str:
    """`minutes` as hours and minutes: 100 is "1:40"."""
    return f"{minutes // 60}:{minutes % 60:02d}"


PATH_NAMES = {"day": "A day", "course": "The course", "all": "All of it"}


def select_timed_chapters() -> list[Chapter]:
    """The chapters whose hours count: a capstone takes as long as it takes."""
    return [chapter for chapter in chapters() if not chapter.is_capstone]


def format_path_hours(path: str) -> str:
    """The hours of a path, without capstones, as "6:50"."""
    return format_hours(sum(chapter.minutes_on(path) for chapter in select_timed_chapters()))


def list_schedule(path: str = "all") -> Table:
    """One row per chapter of a path: minutes of reading and of exercises, and the time from the start of the path."""
    rows, at = [], 0
    for c in chapters():
        together = c.minutes_on(path)
        if not together:
            continue
        times = (str(c.reading[path]), str(together - c.reading[path]), str(together))
        rows.append(
            (link_chapter(c.number), *times, f"{format_hours(at)} to {format_hours(at + together)}")
        )
        at += together
    header = ("Chapter", "Reading and lab", "Exercises", "Together", "From the start")
    return Table(header, tuple(rows))


def list_paths() -> Table:
    """One row per path: what chooses it, its hours, and how many exercises it has, without capstones."""
    rows = []
    for path, words in PATH_NAMES.items():
        exercises = sum(len(c.exercises_on(path)) for c in select_timed_chapters())
        command = Html(f"<code>python -m chapters path {path}</code>")
        rows.append((words, command, format_path_hours(path), str(exercises)))
    return Table(("Path", "Chosen by", "Hours", "Exercises"), tuple(rows))


def list_exercises(path: str) -> Table:
    """One row per chapter with exercises on `path`: their titles, with links."""
    rows = []
    for c in chapters():
        links = [
            f'<a href="chapters/{c.slug}/index.html#{e.anchor}">{e.id} · {html.escape(e.title)}</a>'
            for e in c.exercises_on(path)
        ]
        if links:
            rows.append((link_chapter(c.number), Html("<br>".join(links))))
    return Table(("Chapter", "Exercises"), tuple(rows))


def read_goals(chapter: Chapter) -> list[str]:
    """The items of the list under the heading with “able to” in the lesson, as Markdown; [] if there is none."""
    text = chapter.lesson.read_text(encoding="utf-8")
    section = re.search(r"^## [^\n]*able to[^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not section:
        return []
    items = re.findall(r"^[-*] (.+(?:\n[ ]{2,}\S.*)*)", section[1], re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in items]


def list_goals() -> Table:
    """One row per chapter: what a learner can do after it."""
    rows = []
    for c in chapters():
        items = "".join(f"<li>{render_inline(goal)}</li>" for goal in read_goals(c))
        rows.append((link_chapter(c.number), Html(f"<ul>{items}</ul>")))
    return Table(("Chapter", "After it a learner can"), tuple(rows))


def list_mistakes() -> Table:
    """One row per catalogued mistake: the exercise, what the check says it looks like, and why it is wrong."""
    known = (mistake for c in chapters() for mistake in catalogue.mistakes(c))
    rows = [(m.exercise, render_inline(m.what), render_inline(m.why)) for m in known]
    return Table(("Exercise", "The answer …", "Why it is wrong"), tuple(rows))


def render_inline(markdown: str) -> Html:
    """A line of Markdown as HTML, as far as goals and mistakes need it: code spans, emphasis and links' texts."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", html.escape(markdown, quote=False))
    plain = re.sub(r"\*{1,2}([^*`]+)\*{1,2}", r"<em>\1</em>", plain)
    return Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", plain))
