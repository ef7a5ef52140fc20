"""The mutation tests of the checks: each kind of fault is made, and recorded equivalent mutants must exist."""

from __future__ import annotations

import dataclasses

import pytest

from chapters.runner.course import CourseError, chapter, chapters
from tests.course import mutants as tool
from tests.course.faults import Source, find_splices


def apply_faults(text: str) -> set[str]:
    """The lines of `text` after each fault, spaces in a row as one."""
    source = Source(text)
    found = set()
    for one in find_splices(source):
        start, end = source.text(0, one.start), source.text(one.end, len(source.bytes))
        found.add(" ".join((start + one.new + end).split()))
    return found


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = (a or b) and c\n", {"x = c", "x = (a or b) ", "x = (b) and c", "x = (a) and c"}),
        ("x = not (a in b)\n", {"x = (a in b)", "x = not (a not in b)"}),
        ("x = a < (b) == c\n", {"x = a >= (b) == c", "x = a <= (b) == c", "x = a < (b) != c"}),
        ("if p:\n  f()\n", {"if not (p): f()", "if False: f()", "if p: pass"}),
        ("f()\ng(\n  a\n)\n", {"f()", "g( a )"}),
        (
            "x = [a for a in b if a.c]\n",
            {"x = [a for a in b if not (a.c)]", "x = [a for a in b if True]"},
        ),
        ("x = f(a=b, c=(d))\n", {"x = f(c=(d))", "x = f(a=b)"}),
        ("x = f((a), b, c.d)\n", {"x = f(b, (a), c.d)"}),
        ("x = -7\n", {"x = -8"}),
        ("x = f(True)\n", {"x = f(False)"}),
        ('x = (a + b) * c + "é"\n', {'x = (a + b) // c + "é"', 'x = (a - b) * c + "é"'}),
        (
            "x = [f(), g(), h]\n",
            {
                "x = [g(), h]",
                "x = [f(), h]",
                "x = [f(), g()]",
                "x = [g(), f(), h]",
                "x = [f(), h, g()]",
            },
        ),
        ("x = [f()] + [a, b]\n", {"x = [f()] - [a, b]"}),
        ("x += y // 2\n", {"x -= y // 2", "x += y * 2", "x += y // 3"}),
        ('x = f"{a + b}"\n', set()),
    ],
)
def test_each_kind_of_fault_is_made(text, made):
    assert apply_faults(text) == {" ".join(one.split()) for one in made}


@pytest.mark.parametrize("home", [pytest.param(c, id=c.short) for c in chapters()])
def test_recorded_equivalent_mutants_exist(home):
    """make_mutants() refuses a record of one that is not there."""
    assert any(tool.make_mutants(home, exercise.id) for exercise in home.exercises)
    assert not set(tool.read_yaml(home.solution_folder / tool.EQUIVALENT)) - {
        e.id for e in home.exercises
    }


def test_an_equivalent_mutant_that_is_gone_is_named(tmp_path):
    home = chapter(0)
    away = dataclasses.replace(home, root=tmp_path)
    away.solution_folder.mkdir(parents=True)
    away.solution.write_text(home.solution.read_text(encoding="utf-8"), encoding="utf-8")
    entry = '"0.5":\n  - {was: "return 1", now: "return 2", why: none}\n'
    (away.solution_folder / tool.EQUIVALENT).write_text(entry, encoding="utf-8")
    with pytest.raises(CourseError, match=r"0\.5 has no mutant 1 of “return 1” → “return 2”"):
        tool.make_mutants(away, "0.5")


def test_a_mutant_stays_in_its_region_and_is_killed(examiner):
    home = chapter(0)
    found = tool.make_mutants(home, "0.4")
    reference = home.solution.read_text(encoding="utf-8")
    assert [m.was for m in found] and all(m.text != reference for m in found)
    wrong = next(m for m in found if m.now == "total[vi] = total[vi] - a[vi, vk]")
    assert tool.find_killer(examiner, home, wrong).startswith("test_0_4_")
    assert not tool.find_killer(examiner, home, dataclasses.replace(wrong, text=reference))
