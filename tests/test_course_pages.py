"""What the site's pages compute from the chapters adds up: map, schedule, notes for teachers, the fresh copy."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from chapters.toolkit import course_map
from chapters.toolkit.course import chapters
from chapters.toolkit.fresh_copy import FreshCopy
from chapters.toolkit.pages import teaching_notes
from chapters.toolkit.stub import stub_text
from tests.harness.diagnose import catalogue


def test_map_has_every_chapter_and_the_sum_of_minutes():
    table = course_map.course_map()
    assert [row[0] for row in table.rows] == [course_map.chapter_link(c.number) for c in chapters()]
    assert [int(row[1]) for row in table.rows] == [c.minutes for c in chapters()]
    assert course_map.hours(sum(c.minutes for c in chapters())) in table.note


def test_schedule_is_without_gaps():
    rows = course_map.schedule().rows
    spans = [row[4].split(" to ") for row in rows]
    assert spans[0][0] == "0:00"
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(int(row[1]) + int(row[2]) == int(row[3]) for row in rows)


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        (range(10), ""),
        (range(9), "Chapter 9 is being written."),
        (range(3), "Chapters 3 to 9 are being written."),
        ([0, 1, 2, 4, 5, 6, 7, 8], "Chapters 3 and 9 are being written."),
    ],
)
def test_what_is_unwritten_is_said(monkeypatch, there, sentence):
    stand_ins = [dataclasses.replace(chapters()[0], number=number) for number in there]
    monkeypatch.setattr(course_map, "chapters", lambda: stand_ins)
    assert course_map.unwritten() == sentence


def test_a_link_is_made_only_to_a_chapter_that_exists():
    assert f"chapters/{chapters()[0].slug}/index.html" in course_map.chapter_link(0)
    assert "<a" not in course_map.chapter_link(99)


def test_text_of_a_table_has_no_tags():
    table = course_map.Table(("a",), (("<b>x &amp; y</b>",),))
    assert str(table) == "a\nx & y"


def test_every_lesson_states_goals():
    for chapter in chapters():
        goals = teaching_notes.goals_of(chapter)
        assert len(goals) >= 2, f"{chapter.lesson} has no list under a heading with “able to”"
        assert not any("\n" in goal for goal in goals)


def test_mistakes_are_the_catalogued_ones_in_order():
    for chapter in chapters():
        found = teaching_notes.mistakes_of(chapter)
        assert len(found) == len(catalogue(chapter))
        order = [e.id for e in chapter.exercises]
        places = [order.index(mistake.exercise) for mistake in found]
        assert places == sorted(places)


def test_markdown_in_notes_becomes_html():
    assert teaching_notes._code("*a* `x < y` [b](c.md)") == "<em>a</em> <code>x &lt; y</code> b"


def test_fresh_copy_is_as_at_the_start_and_apart():
    chapter = chapters()[0]
    original = chapter.stub.read_text(encoding="utf-8")
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
    assert chapter.stub.read_text(encoding="utf-8") == original
