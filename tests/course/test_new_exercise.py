"""The command for contributors makes every part of an exercise, and the course's tests list what is left to write."""

from __future__ import annotations

import pytest

NAMED = ("--name", "column_sums", "--title", "Sum, “quoted”: the columns")
MAKE = ("-m", "tests.course.new_exercise", "0", *NAMED)


def test_it_makes_every_part_and_the_tests_list_what_is_left(course):
    made = course.python(*MAKE, "--kind", "write")
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(made.stdout.splitlines()) == 7
    assert "pytest tests/course/test_course.py -k ch00" in made.stdout
    assert "is new, with your answers" in course.learner("update", "0").stdout
    status = course.learner("check", "0.7").stdout
    assert "0.7" in status and "TODO" in status
    chosen = "(left_to_write or front_matter) and ch00 or complete and 0.7"
    result = course.pytest("-q", "tests/course/test_course.py", "-k", chosen)
    assert "1 failed, 2 passed" in result.stdout
    assert "test_nothing_is_left_to_write[ch00]" in result.stdout
    assert "chapters/ch00_first_module/lesson.md:" in result.stdout
    assert "solutions/ch00_first_module/first_module.py:" in result.stdout
    for name in ("chapters/{}/checks.py", "chapters/{}/hints.yml", "solutions/{}/mistakes.yml"):
        assert f"{name.format('ch00_first_module')}:" in result.stdout
    assert "test_front_matter_and_regions_agree" not in result.stdout
    assert "test_exercise_is_complete" not in result.stdout


def test_a_fix_starts_from_its_wrong_answer(course):
    assert course.python(*MAKE, "--kind", "fix").returncode == 0
    course.learner("update", "0")
    assert "return 1" in course.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kind", "guess"), "There is no kind 'guess'"),
        (("--kind", "write", "--name", "two words"), "'two words' must be a Python name"),
        (("--kind", "write", "--name", "row_sums"), "does not use yet"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(course, arguments, says):
    files = [path for path in course.root.glob("*/ch00*/*") if path.is_file()]
    before = [path.read_bytes() for path in files]
    result = course.python(*MAKE, *arguments)
    assert result.returncode == 2 and says in result.stdout
    assert len(files) > 8 and before == [path.read_bytes() for path in files]
