"""The course keeps its promises, chapter by chapter: stubs are TODO, wrong answers are named, right ones accepted."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from chapters.toolkit.course import KINDS, chapters, exercise
from chapters.toolkit.quiz import questions
from chapters.toolkit.stub import regions, stub_text
from tests.harness.diagnose import catalogue
from tests.harness.loading import load
from tests.harness.runner import checks_of
from tests.new_exercise import to_write

CHAPTERS = [pytest.param(c, id=c.short) for c in chapters()]
EXERCISES = [pytest.param(c, e, id=e.id) for c in chapters() for e in c.exercises]
WRONG = [pytest.param(c, p, id=f"{c.short}-{p.stem}") for c in chapters() for p in catalogue(c)]
RIGHT = [
    pytest.param(c, p, id=f"{c.short}-{p.stem}")
    for c in chapters()
    for p in [c.solution_folder / "second_way.py", *catalogue(c, "right")]
]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_stub_is_generated_from_the_solution(chapter):
    assert chapter.solution.exists()
    expected = stub_text(chapter)
    assert chapter.stub.read_text(encoding="utf-8") == expected, (
        f"{chapter.stub} is not what its solution generates; `python -m chapters reset {chapter.number}` makes it so"
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_front_matter_and_regions_agree(chapter):
    marked = regions(chapter.solution.read_text(encoding="utf-8"))
    assert list(marked) == [e.id for e in chapter.exercises]
    assert len({e.kind for e in chapter.exercises}) >= 4, (
        "a chapter has at least four kinds of exercise"
    )
    assert all(e.kind in KINDS for e in chapter.exercises)
    assert sum(e.minutes for e in chapter.exercises) < chapter.minutes
    assert all(number < chapter.number for number in chapter.needs)
    text = chapter.solution.read_text(encoding="utf-8")
    assert all(re.search(rf"\b{re.escape(e.name)}\b", text) for e in chapter.exercises)


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_stub_runs_and_does_not_pass(runner, chapter, exercise):
    last = runner.run_exercise(chapter, exercise, chapter.stub)[-1]
    if exercise.broken:
        assert last.state == "failed"
    else:
        assert last.state == "todo" and last.reason.startswith("exercise ")


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_exercise_is_complete(chapter, exercise):
    """A check, three hints, wrong answers to recognise, a heading in the lesson."""
    assert any(check.exercise.id == exercise.id for check in checks_of(chapter))
    assert [type(hint) for hint in chapter.hints(exercise.id)] == [str] * 3
    wrong = [p for p in catalogue(chapter) if exercise.id == load(p).EXERCISE]
    assert len(wrong) >= (3 if exercise.kind in ("write", "fix") else 2)
    lesson = chapter.lesson.read_text(encoding="utf-8")
    assert f"### Exercise {exercise.id} · " in lesson


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_nothing_is_left_to_write(chapter):
    left = to_write(chapter)
    assert not left, "\n".join(["still to write:", *left])


def _code_lines(text: str) -> set[str]:
    """Lines of code worth hiding: stripped, without comments, longer than a keyword or two."""
    stripped = (line.split("  # ")[0].strip(" `") for line in text.splitlines())
    return {line for line in stripped if len(line) >= 12 and not line.startswith("#")}


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_hints_do_not_leak(chapter, exercise):
    solution = _code_lines(
        "\n".join(regions(chapter.solution.read_text(encoding="utf-8"))[exercise.id])
    )
    for level, hint in enumerate(chapter.hints(exercise.id), 1):
        shown = {line for line in solution if line in hint}
        assert len(shown) <= (1 if level == 3 else 0), f"hint {level} shows {shown}"


NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = (
    NUMBERS + " thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"
).split()


def _numbers(text: str) -> set[int]:
    """The whole numbers above one in `text`, in digits or, to twenty, in words."""
    digits = {int(digits.replace(",", "")) for digits in re.findall(r"\d+(?:,\d{3})*", text)}
    words = {NUMBERS.index(word) for word in re.findall(r"[a-z]+", text.lower()) if word in NUMBERS}
    return (digits | words) - {0, 1}


def _predicted(chapter, exercise) -> set[int]:
    """The numbers that the reference predicts, if it predicts numbers and not a formula of its arguments."""
    if exercise.kind != "predict":
        return set()
    answer = load(chapter.solution)
    predicts = getattr(answer, exercise.name)
    if inspect.signature(predicts).parameters:
        return set()
    checks = importlib.import_module(f"tests.checks.{chapter.short}")
    observe = getattr(checks, "observe_" + exercise.id.replace(".", "_"))
    asked = _numbers(inspect.getdoc(predicts))  # what the question says itself
    return _numbers(" ".join(str(probe()) for probe in observe(answer))) - asked


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_hints_do_not_say_what_is_to_be_predicted(chapter, exercise):
    predicted = _predicted(chapter, exercise)
    for level, hint in enumerate(chapter.hints(exercise.id)[:2], 1):
        said = predicted & _numbers(hint)
        assert not said, f"hint {level} of {exercise.id} says {said}"


def test_predicted_numbers_are_seen():
    assert _numbers("63 launches, or Seven; 360,448 bytes, one by one") == {63, 7, 360448}
    found = {e.id: _predicted(c, e) for c in chapters() for e in c.exercises if e.kind == "predict"}
    assert {7, 63} <= found["1.6"] and found["2.9"] and found["0.5"]


MOST_WORDS = 1_400  # of prose; a lesson that needs more has two ideas


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_lesson_is_short_enough_to_be_read(chapter):
    """Words outside of front matter, code, tables and headings; a link counts by its text."""
    text = chapter.lesson.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(\||#).*$", "", text, flags=re.MULTILINE)
    words = re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", prose))
    assert 700 <= len(words) <= MOST_WORDS, f"{len(words)} words"


@pytest.mark.parametrize(("chapter", "path"), WRONG)
def test_wrong_answer_is_rejected_with_its_own_message(runner, chapter, path):
    wrong = load(path)
    _home, wanted = exercise(wrong.EXERCISE)
    last = runner.run_exercise(chapter, wanted, path)[-1]
    assert last.state == "failed", f"{path.name} passes the checks of exercise {wanted.id}"
    assert last.failure["like"].get("file") == path.name, last.failure
    assert last.failure["like"]["what"] == wrong.WHAT and wrong.WHY and wrong.READ


@pytest.mark.parametrize(("chapter", "path"), RIGHT)
def test_right_design_is_accepted(runner, chapter, path):
    for wanted in chapter.exercises:
        for outcome in runner.run_exercise(chapter, wanted, path):
            assert outcome.state in ("passed", "skipped"), outcome.failure


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_there_are_other_right_designs(chapter):
    assert len(catalogue(chapter, "right")) >= 2


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_trees_run_the_same_checks(chapter):
    files = [
        chapter.folder / f"test_{chapter.short}.py",
        chapter.solution_folder / f"test_{chapter.short}.py",
    ]
    texts = [path.read_text(encoding="utf-8") for path in files]
    assert texts[0] == texts[1] and f"from tests.checks.{chapter.short} import *" in texts[0]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_quiz_answers_are_among_the_choices(chapter):
    asked = questions(chapter)
    assert len(asked) >= 3
    for question in asked:
        assert len(question.choices) >= 3 and len(set(question.choices)) == len(question.choices)
        assert question.answer() in range(len(question.choices))
        assert question.because


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_stub_names_nothing_of_a_later_chapter(chapter):
    names = (e.name for c in chapters() if c.number > chapter.number for e in c.exercises)
    later = {name for name in names if re.search(r"_|[a-z][A-Z]", name)}  # one word may be prose
    words = set(re.findall(r"\w+", chapter.stub.read_text(encoding="utf-8")))
    assert not later & words


def test_every_folder_under_wrong_and_right_belongs_to_a_chapter():
    known = {c.short for c in chapters()}
    for folder in ("wrong", "right", "hints", "checks"):
        here = {
            p.stem
            for p in (chapters()[0].root / "tests" / folder).iterdir()
            if p.stem.startswith("ch")
        }
        assert here <= known, f"tests/{folder} has {here - known} and no chapter"
