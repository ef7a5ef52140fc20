"""Links to the chapters, and their schedule, read from the lessons' front matter."""

from __future__ import annotations

import html

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import chapter, chapters


def chapter_link(number: int) -> Html:
    """A link to chapter `number` from a page beside the site's index. CourseError if it does not exist."""
    home = chapter(number)
    title = html.escape(home.title)
    return Html(f'<a href="chapters/{home.slug}/index.html">{number} · {title}</a>')


def hours(minutes: int) -> str:
    """`minutes` as hours and minutes: 100 is "1:40"."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def schedule() -> Table:
    """One row per chapter: minutes of reading and of exercises, and the time from the start of the course."""
    rows, at = [], 0
    for c in chapters():
        exercises = sum(exercise.minutes for exercise in c.exercises)
        times = (str(c.minutes - exercises), str(exercises), str(c.minutes))
        rows.append((chapter_link(c.number), *times, f"{hours(at)} to {hours(at + c.minutes)}"))
        at += c.minutes
    header = ("Chapter", "Reading and lab", "Exercises", "Together", "From the start")
    return Table(header, tuple(rows))
