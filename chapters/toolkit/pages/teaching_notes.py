"""What the page for teachers reads from the course itself: the goals of each chapter, the mistakes it knows.

Goals are the list under the heading of a lesson that says what one will be “able to” do; mistakes are the WHAT and
WHY of the catalogued wrong answers. Neither is written down a second time.
"""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass
from pathlib import Path

from chapters.toolkit.course import Chapter, chapters
from chapters.toolkit.course_map import Table, chapter_link


@dataclass(frozen=True)
class Mistake:
    """One catalogued wrong answer: the exercise it answers, what it does, why that is wrong."""

    exercise: str
    what: str
    why: str


def goals_of(chapter: Chapter) -> list[str]:
    """The items of the list under the heading with “able to” in the lesson, as Markdown; [] if there is none."""
    text = chapter.lesson.read_text(encoding="utf-8")
    section = re.search(
        r"^## [^\n]*able to[^\n]*\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if not section:
        return []
    items = re.findall(r"^[-*] (.+(?:\n[ ]{2,}\S.*)*)", section[1], re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in items]


def mistakes_of(chapter: Chapter) -> list[Mistake]:
    """The wrong answers in tests/wrong/chNN, by exercise, read without running them."""
    folder = chapter.root / "tests" / "wrong" / chapter.short
    found = [_mistake(path) for path in sorted(folder.glob("[!_]*.py"))]
    order = {exercise.id: number for number, exercise in enumerate(chapter.exercises)}
    return sorted(found, key=lambda mistake: order.get(mistake.exercise, len(order)))


def _mistake(path: Path) -> Mistake:
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""
        if name in ("EXERCISE", "WHAT", "WHY"):
            constants[name] = ast.literal_eval(node.value)
    return Mistake(constants["EXERCISE"], constants["WHAT"], constants["WHY"])


def goals() -> Table:
    """A row a chapter: what a learner can do after it."""
    rows = [
        (
            chapter_link(c.number),
            "<ul>" + "".join(f"<li>{_code(goal)}</li>" for goal in goals_of(c)) + "</ul>",
        )
        for c in chapters()
        if goals_of(c)
    ]
    return Table(("Chapter", "After it a learner can"), tuple(rows))


def mistakes() -> Table:
    """A row a catalogued mistake: the exercise, what the check says it looks like, and why it is wrong."""
    rows = [(m.exercise, _code(m.what), _code(m.why)) for c in chapters() for m in mistakes_of(c)]
    return Table(("Exercise", "The answer …", "Why it is wrong"), tuple(rows))


def _code(markdown: str) -> str:
    """A line of Markdown as HTML, as far as goals and mistakes need it: code spans, emphasis and links' texts."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", html.escape(markdown, quote=False))
    plain = re.sub(r"\*{1,2}([^*`]+)\*{1,2}", r"<em>\1</em>", plain)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", plain)
