"""The site's pages compute the right facts from the chapters: schedule, goals, the fresh copy."""

from __future__ import annotations

import itertools
import re

import pytest

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import CourseError, chapters
from chapters.runner.fresh_copy import FreshCopy
from chapters.runner.learner_file import stub_text
from docs.pages import course_map


def test_schedule_is_without_gaps():
    rows = course_map.list_schedule().rows
    spans = [row[4].split(" to ") for row in rows]
    assert spans[0][0] == "0:00"
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(int(row[1]) + int(row[2]) == int(row[3]) for row in rows)


def test_a_link_is_made_only_to_a_chapter_that_exists():
    assert f"chapters/{chapters()[0].slug}/index.html" in course_map.link_chapter(0)
    with pytest.raises(CourseError, match="no chapter '99'"):
        course_map.link_chapter(99)


def test_text_of_a_table_has_no_tags():
    table = Table(("a",), [(Html("<b>x &amp; y</b>"),)])
    assert str(table).splitlines() == ["a", "-----", "x & y"]


def test_every_lesson_states_goals():
    for chapter in chapters():
        goals = course_map.read_goals(chapter)
        assert len(goals) >= 2, f"{chapter.lesson} has no list under a heading with “able to”"
        assert not any("\n" in goal for goal in goals)


def test_markdown_in_notes_becomes_html():
    assert course_map.render_inline("*a* `x < y` [b](c.md)") == "<em>a</em> <code>x &lt; y</code> b"


def test_fresh_copy_is_as_at_the_start_and_apart():
    chapter = chapters()[0]

    def original() -> str | None:  # it is made by the learner's first command
        return chapter.stub.read_text(encoding="utf-8") if chapter.stub.exists() else None

    before = original()
    with FreshCopy() as course:
        path = course.file(chapter)
        assert path.read_text(encoding="utf-8") == stub_text(chapter) and path != chapter.stub
        course.edit(chapter, '"""Chapter 0', '"""Edited: chapter 0')
        assert "Edited" in path.read_text(encoding="utf-8")
        with pytest.raises(ValueError, match="0 times"):
            course.edit(chapter, "no such text", "")
        said = course.type("chapters", "next")
        assert re.search(r"edit chapters.ch00_first_module.first_module.py:\d+", said), said
        assert str(course.root) not in said
    assert not course.root.exists()
    assert original() == before
