"""The site's pages have the right facts: schedule, goals, files of TVM, and what a fresh copy of the course prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import ROOT, CourseError, chapters
from chapters.runner.fresh_copy import FreshCopy
from chapters.runner.learner_file import make_stub
from docs.pages import course_map

UPSTREAM_FILES = (ROOT / "docs" / "what-you-can-read.md").read_text(encoding="utf-8")


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


def test_fresh_copy_is_as_at_the_start_and_apart():
    chapter = chapters()[0]

    def original() -> str | None:  # it is made by the learner's first command
        return chapter.stub.read_text(encoding="utf-8") if chapter.stub.exists() else None

    before = original()
    with FreshCopy() as course:
        path = course.file(chapter)
        assert path.read_text(encoding="utf-8") == make_stub(chapter) and path != chapter.stub
        course.edit(chapter, '"""Chapter 0', '"""Edited: chapter 0')
        assert "Edited" in path.read_text(encoding="utf-8")
        with pytest.raises(ValueError, match="0 times"):
            course.edit(chapter, "no such text", "")
        said = course.type("chapters", "next")
        assert re.search(r"edit chapters.ch00_first_module.first_module.py:\d+", said), said
        assert str(course.root) not in said
    assert not course.root.exists()
    assert original() == before


PROBE = """
import os
from chapters.runner.course import chapter
from chapters.runner.fresh_copy import FreshCopy
with FreshCopy() as course:
    stub = course.file(chapter(0))
    print(bool(stub.stat().st_mode & 0o200), "NotImplementedError" in stub.read_text(), os.listdir(stub.parent))
"""


def test_an_editors_lock_and_a_read_only_answer_do_not_hinder_it(course):
    """An editor's lock is a link to something that is no file."""
    (course.stub.parent / ".#lesson.md").symlink_to("user@host.12345")
    course.solve()
    course.stub.chmod(0o444)
    result = course.python("-c", PROBE)
    assert result.stdout.startswith("True True") and not result.stderr
    assert ".#lesson.md" not in result.stdout and "lesson.md" in result.stdout


# --- what you can now read ------------------------------------------------------------------------


def test_every_chapter_has_its_files():
    for chapter in chapters():
        assert re.search(rf"^## Chapter {chapter.number} · ", UPSTREAM_FILES, re.MULTILINE), (
            chapter.slug
        )


def test_every_python_file_of_tvm_is_in_the_release():
    package = Path(tvm.__file__).parent
    named = re.findall(r"`python/tvm/([\w/]+\.py)`", UPSTREAM_FILES)
    assert len(named) >= 10
    assert [name for name in named if not (package / name).exists()] == []


def test_every_link_has_its_address_at_one_commit_of_each_project():
    addresses = dict(re.findall(r"(?m)^\[(\w+)\]: (\S+)$", UPSTREAM_FILES))
    used = set(re.findall(r"\]\[(\w+)\]", UPSTREAM_FILES))
    assert used == set(addresses)
    place = re.compile(r"github\.com/([\w/-]+)/(?:blob|tree)/(\w+)")
    commits = {place.search(address).groups() for address in addresses.values()}
    assert len(commits) == 2 and all(len(commit) == 40 for _, commit in commits)
    for _, commit in commits:
        assert f"`{commit[:7]}`" in UPSTREAM_FILES
