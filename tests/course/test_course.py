"""The course keeps its promises, chapter by chapter: stubs are TODO, wrong answers are named, right ones accepted."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
from pathlib import Path

import pytest

from chapters.runner.catalogue import designs, mistakes, mistakes_of
from chapters.runner.commands.quiz import questions
from chapters.runner.course import KINDS, PATHS, ROOT, chapters
from chapters.runner.engine import FINE, checks_of
from chapters.runner.learner_file import make_stub
from chapters.runner.loading import load
from chapters.runner.regions import regions, with_reference
from tests.course.new_exercise import list_unwritten
from tests.support.answers import may_differ, write_answer

CHAPTERS = [pytest.param(c, id=c.short) for c in chapters()]
WITH_QUIZ = [pytest.param(c, id=c.short) for c in chapters() if not c.is_capstone]
EXERCISES = [pytest.param(c, e, id=e.id) for c in chapters() for e in c.exercises]
MISTAKES = [pytest.param(m, id=f"{c.short}-{m.name}") for c in chapters() for m in mistakes(c)]
SECOND_WAYS = [(c, c.solution_folder / "second_way.py") for c in chapters()]
DESIGNS = [
    *(pytest.param(c, d, id=f"{c.short}-{d.name}") for c in chapters() for d in designs(c)),
    *(pytest.param(c, path, id=f"{c.short}-{path.stem}") for c, path in SECOND_WAYS),
]
MOST_LINES = 250  # of a learner's file, which is read in one sitting


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_learners_file_is_short_and_git_ignores_it(chapter):
    assert len(make_stub(chapter).splitlines()) <= MOST_LINES
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert f"/{chapter.stub.relative_to(ROOT).as_posix()}" in ignored


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_no_file_that_git_ignores_is_tracked():
    """If a learner's file were tracked, a pull could collide with an answer."""
    asked = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_front_matter_and_regions_agree(chapter):
    text, lesson = chapter.solution.read_text("utf-8"), chapter.lesson.read_text("utf-8")
    ids = [e.id for e in chapter.exercises]
    headings = re.findall(r"^### Exercise (\S+) · ", lesson, re.MULTILINE)
    assert ids == [f"{chapter.number}.{n}" for n in range(1, len(ids) + 1)]
    assert ids == headings, "exercises are numbered in the order in which they stand on the page"
    assert set(regions(text)) == set(ids)
    kinds = {e.kind for e in chapter.exercises}
    varied = len(kinds) >= min(4, len(ids))
    assert varied or chapter.is_capstone, "at least four kinds of exercise, if it has so many"
    assert all(e.kind in KINDS for e in chapter.exercises)
    assert sum(e.minutes for e in chapter.exercises) < chapter.minutes
    assert all(number < chapter.number for number in chapter.needs)
    assert all(re.search(rf"\b{re.escape(e.name)}\b", text) for e in chapter.exercises)


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_stub_runs_and_does_not_pass(examiner, tmp_path, chapter, exercise):
    path = write_answer(tmp_path, chapter, make_stub(chapter))
    last = examiner.run_exercise(chapter, exercise, path)[-1]
    if exercise.broken:
        assert last.state == "failed"
    else:
        assert last.state in ("todo", "waits") and last.reason.startswith("exercise ")


# of each shorter path, the chapters that it does not take whole
SHORTER = [
    pytest.param(c, path, id=f"{c.short} {path}")
    for path in PATHS[:-1]
    for c in chapters()
    if 0 < len(c.exercises_on(path)) < len(c.exercises)
]


@pytest.mark.parametrize(("chapter", "path"), SHORTER)
def test_a_path_holds_what_its_exercises_use(examiner, tmp_path, chapter, path):
    own = {exercise.id for exercise in chapter.exercises_on(path)}
    answer = write_answer(tmp_path, chapter, with_reference(make_stub(chapter), chapter, own))
    for exercise in chapter.exercises_on(path):
        last = examiner.run_exercise(chapter, exercise, answer)[-1]
        assert last.state in FINE, f"{exercise.id}: {last.state} {last.reason}"


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_exercise_is_complete(chapter, exercise):
    """A check, three hints, wrong answers to recognize."""
    assert any(check.exercise.id == exercise.id for check in checks_of(chapter))
    hints = 0 if exercise.kind == "capstone" else 3
    assert [type(hint) for hint in chapter.hints(exercise.id)] == [str] * hints
    fewest = {"write": 3, "fix": 3, "capstone": 8}.get(exercise.kind, 2)
    assert len(mistakes_of(chapter, exercise.id)) >= fewest


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_nothing_is_left_to_write(chapter):
    left = list_unwritten(chapter)
    assert not left, "\n".join(["still to write:", *left])


def _list_code_lines(text: str) -> set[str]:
    """Lines of code worth hiding: stripped, without comments, longer than a keyword or two."""
    stripped = (line.split("  # ")[0].strip(" `") for line in text.splitlines())
    return {line for line in stripped if len(line) >= 12 and not line.startswith("#")}


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_hints_do_not_leak(chapter, exercise):
    text = chapter.solution.read_text(encoding="utf-8")
    solution = _list_code_lines("\n".join(regions(text)[exercise.id]))
    for level, hint in enumerate(chapter.hints(exercise.id), 1):
        shown = {line for line in solution if line in hint}
        assert len(shown) <= (1 if level == 3 else 0), f"hint {level} shows {shown}"


TO_TWENTY = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen twenty"""
NUMBERS = TO_TWENTY.split()


def _find_numbers(text: str) -> set[int]:
    """The whole numbers above one in `text`, in digits or, to twenty, in words."""
    digits = {int(digits.replace(",", "")) for digits in re.findall(r"\d+(?:,\d{3})*", text)}
    words = {NUMBERS.index(word) for word in re.findall(r"[a-z]+", text.lower()) if word in NUMBERS}
    return (digits | words) - {0, 1}


def _find_predicted(chapter, exercise) -> set[int]:
    """The numbers that the reference predicts, if it predicts numbers and not a formula of its arguments."""
    if exercise.kind != "predict":
        return set()
    answer = load(chapter.solution)
    predicts = getattr(answer, exercise.name)
    if inspect.signature(predicts).parameters:
        return set()
    checks = importlib.import_module(f"chapters.{chapter.slug}.checks")
    observe = getattr(checks, "observe_" + exercise.id.replace(".", "_"))
    asked = _find_numbers(inspect.getdoc(predicts))  # what the question says itself
    return _find_numbers(" ".join(str(probe()) for probe in observe(answer))) - asked


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES)
def test_hints_do_not_say_what_is_to_be_predicted(chapter, exercise):
    predicted = _find_predicted(chapter, exercise)
    for level, hint in enumerate(chapter.hints(exercise.id)[:2], 1):
        said = predicted & _find_numbers(hint)
        assert not said, f"hint {level} of {exercise.id} says {said}"


def test_predicted_numbers_are_seen():
    assert _find_numbers("63 launches, or Seven; 360,448 bytes, one by one") == {63, 7, 360448}
    found = {
        e.id: _find_predicted(c, e) for c in chapters() for e in c.exercises if e.kind == "predict"
    }
    assert {7, 63} <= found["1.6"] and found["2.4"] and found["0.5"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_with_its_own_message(examiner, tmp_path, mistake):
    chapter, path = mistake.chapter, write_answer(tmp_path, mistake.chapter, mistake.text())
    last = examiner.run_exercise(chapter, chapter.exercise(mistake.exercise), path)[-1]
    assert last.state == "failed", f"{mistake.name} passes the checks of {mistake.exercise}"
    assert last.failure["like"].get("name") == mistake.name, last.failure
    assert last.failure["like"]["what"] == mistake.what and mistake.why


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_says_where_to_read(mistake):
    """Its `read` names a heading that exists."""
    path, _, heading = mistake.read.partition(", “")
    text = (ROOT / path.partition("#")[0]).read_text(encoding="utf-8")
    wanted = re.escape(heading.removesuffix("”"))
    assert re.search(rf"^#+ {wanted}", text, re.MULTILINE), mistake.read


@pytest.mark.parametrize(("chapter", "design"), DESIGNS)
def test_other_design_is_accepted(examiner, tmp_path, chapter, design):
    wanted = may_differ(chapter, design)
    assert wanted
    path = design
    if not isinstance(design, Path):
        path = write_answer(tmp_path, chapter, design.text())
    for exercise_id in wanted:
        for outcome in examiner.run_exercise(chapter, chapter.exercise(exercise_id), path):
            assert outcome.state in ("passed", "skipped"), outcome.failure


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_there_are_other_right_designs(chapter):
    assert len(designs(chapter)) >= 2


@pytest.mark.parametrize("chapter", WITH_QUIZ)
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
    words = set(re.findall(r"\w+", make_stub(chapter)))
    assert not later & words
