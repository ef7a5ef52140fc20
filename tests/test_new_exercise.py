"""The command for contributors makes a whole exercise, and the course's tests name what is left to write."""

from __future__ import annotations

import pytest

MAKE = (
    "-m",
    "tests.new_exercise",
    "0",
    "--name",
    "column_sums",
    "--title",
    "Sum, “quoted”: the columns",
)


def test_it_makes_every_part_and_the_tests_list_what_is_left(course):
    made = course.python(*MAKE, "--kind", "write")
    assert made.returncode == 0, made.stdout + made.stderr
    assert (
        len(made.stdout.splitlines()) == 9 and "pytest tests/test_course.py -k ch00" in made.stdout
    )
    status = course.learner("check", "0.7").stdout
    assert "0.7" in status and "TODO" in status
    chosen = "(left_to_write or generated) and ch00 or complete and 0.7"
    result = course.pytest("-q", "tests/test_course.py", "-k", chosen)
    assert "1 failed, 2 passed" in result.stdout
    assert "test_nothing_is_left_to_write[ch00]" in result.stdout
    for place in (
        "chapters/ch00_first_module/lesson.md:",
        "solutions/ch00_first_module/first_module.py:",
        "tests/checks/ch00.py:",
        "tests/hints/ch00.yml:",
        "tests/wrong/ch00/column_sums_wrong_3.py:",
    ):
        assert place in result.stdout
    assert "test_stub_is_generated_from_the_solution" not in result.stdout
    assert "test_exercise_is_complete" not in result.stdout


def test_a_fix_starts_from_its_wrong_answer(course):
    assert course.python(*MAKE, "--kind", "fix").returncode == 0
    assert "return 1" in course.stub.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kind", "guess"), "There is no kind 'guess'"),
        (("--kind", "write", "--name", "two words"), "'two words' must be a Python name"),
        (("--kind", "write", "--name", "row_sums"), "does not use yet"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(course, arguments, says):
    before = {p: p.read_bytes() for p in (course.root / "tests").rglob("*ch00*.*")}
    result = course.python(*MAKE, *arguments)
    assert result.returncode == 2 and says in result.stdout
    assert before == {p: p.read_bytes() for p in (course.root / "tests").rglob("*ch00*.*")}
