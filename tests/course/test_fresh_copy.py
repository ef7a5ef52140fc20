"""A fresh copy of the course can be made from a checkout in use."""

from __future__ import annotations

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
