"""Links to the chapters, and their schedule, read from the lessons' front matter."""

from __future__ import annotations

import html

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import Chapter, chapter, chapters


def chapter_link(number: int) -> Html:
    """A link to chapter `number` from a page beside the site's index. CourseError if it does not exist."""
    home = chapter(number)
    title = html.escape(home.title)
    return Html(f'<a href="chapters/{home.slug}/index.html">{number} · {title}</a>')


def hours(minutes: int) -> str:
    """`minutes` as hours and minutes: 100 is "1:40"."""
    return f"{minutes // 60}:{minutes % 60:02d}"


PATH_NAMES = {"day": "A day", "course": "The course", "all": "All of it"}


def without_capstones() -> list[Chapter]:
    """The chapters whose hours count: a capstone takes as long as it takes."""
    return [chapter for chapter in chapters() if not chapter.is_capstone]


def hours_of(path: str) -> str:
    """The hours of a path, without capstones, as "6:50"."""
    return hours(sum(chapter.minutes_on(path) for chapter in without_capstones()))


def schedule(path: str = "all") -> Table:
    """One row per chapter of a path: minutes of reading and of exercises, and the time from the start of the path."""
    rows, at = [], 0
    for c in chapters():
        together = c.minutes_on(path)
        if not together:
            continue
        times = (str(c.reading[path]), str(together - c.reading[path]), str(together))
        rows.append((chapter_link(c.number), *times, f"{hours(at)} to {hours(at + together)}"))
        at += together
    header = ("Chapter", "Reading and lab", "Exercises", "Together", "From the start")
    return Table(header, tuple(rows))


def paths() -> Table:
    """One row per path: what chooses it, its hours, and how many exercises it has, without capstones."""
    rows = []
    for path, words in PATH_NAMES.items():
        exercises = sum(len(c.exercises_on(path)) for c in without_capstones())
        command = Html(f"<code>python -m chapters path {path}</code>")
        rows.append((words, command, hours_of(path), str(exercises)))
    return Table(("Path", "Chosen by", "Hours", "Exercises"), tuple(rows))


def exercises_on(path: str) -> Table:
    """One row per chapter with exercises on `path`: their titles, with links."""
    rows = []
    for c in chapters():
        links = [
            f'<a href="chapters/{c.slug}/index.html#{e.anchor}">{e.id} · {html.escape(e.title)}</a>'
            for e in c.exercises_on(path)
        ]
        if links:
            rows.append((chapter_link(c.number), Html("<br>".join(links))))
    return Table(("Chapter", "Exercises"), tuple(rows))
