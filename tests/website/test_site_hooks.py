"""What hooks add to pages: exercises, links, solutions, facts; and a sentence for each mistake of an author."""

import re
import time
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest

from chapters.runner import course
from chapters.runner.course import ROOT, Chapter, CourseError, Exercise

pytest.importorskip("mkdocs")
from docs.pages import exercises, repo_links, solution_page

# --- What a keyboard or a screen reader needs -------------------------------------------------


def test_an_empty_cell_of_a_tables_head_is_a_plain_cell(hook):
    head = '<tr><th></th><th style="text-align: right;"> </th><th>a</th></tr>'
    cells = '<tr><td></td><td style="text-align: right;"></td><th>a</th></tr>'
    assert hook("machine_readable").replace_empty_heads(head) == cells


# --- Where the course is ----------------------------------------------------------------------


@pytest.mark.parametrize("page", ["index.md", "setup.md"])
def test_a_page_says_what_to_clone(hook, page):
    with_address = hook("publish").insert_address
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "`git clone https://x.org/course`." in with_address(text, "https://x.org/course")
    assert with_address(text, "") == text


# --- Exercises --------------------------------------------------------------------------------


@pytest.fixture
def chapter(tmp_path):
    folder = tmp_path / "chapters" / "ch02_name"
    folder.mkdir(parents=True)
    (folder / "hints.yml").write_text(
        '"2.1": [first, "second\\n\\nmore", third]\n', encoding="utf-8"
    )
    (tmp_path / "solutions" / "ch02_name").mkdir(parents=True)
    (tmp_path / "solutions" / "ch02_name" / "file.py").write_text(SOLUTION, encoding="utf-8")
    exercise = Exercise("2.1", "write", 8, "Attach `it`", "attach", 2)
    return Chapter(
        2,
        folder,
        "Name",
        {"day": 0, "course": 22, "all": 22},
        (),
        "no",
        "file.py",
        (exercise,),
        tmp_path,
    )


LESSON = (
    "# T\n\n### Exercise 2.1 · Attach `it`\n\nTask.\n\n```python\n## no heading\n```\n\n## Next\n"
)


def test_an_exercise_gets_anchor_facts_and_nested_hints_at_its_end(chapter):
    lines = exercises.complete_exercises(LESSON, chapter).split("\n")
    assert "### Exercise 2.1 · Attach `it` { #exercise-2-1 .exercise }" in lines
    assert any("8 minutes" in line and "python -m chapters check 2.1" in line for line in lines)
    hints = [line for line in lines if "tip hint" in line]
    assert hints == [f'{" " * 4 * n}??? tip hint "Hint {n + 1}"' for n in range(3)]
    assert "        more" in lines and "            third" in lines
    assert lines.index("## no heading") < lines.index(hints[0]) < lines.index("## Next")


def test_an_exercise_shows_what_is_in_the_learners_file_and_links_to_its_solution(chapter):
    page = exercises.complete_exercises(LESSON, chapter)
    todo = (
        '    # BEGIN exercise 2.1 (1 line): task\n    raise NotImplementedError("exercise 2.1")\n'
    )
    code = f"@decorator\ndef solved():\n    a = 1\n{todo}    # END exercise 2.1"
    block = indent(f"```python\n{code}\n```", "    ")
    folded = f'??? abstract start "In your file"\n\n{block}'
    assert folded in page
    assert page.index(folded) < page.index("Hint 1") < page.index("](solution.md#exercise-2-1)")


def test_the_code_that_a_fix_exercise_mends_is_not_folded(chapter):
    fixing = replace(chapter, exercises=(replace(chapter.exercises[0], kind="fix"),))
    assert "???+ abstract start" in exercises.complete_exercises(LESSON, fixing)


def test_methods_stand_below_the_line_of_their_class():
    stub = (
        "class A:\n    x = 1\n\n    def f(self):\n        # BEGIN exercise 2.1: a\n        ...\n"
        "        # END exercise 2.1\n\n    def g(self):\n        # BEGIN exercise 2.1: b\n"
        "        ...\n        # END exercise 2.1\n\n\ndef h():\n    # BEGIN exercise 2.1: c\n    ...\n"
        "    # END exercise 2.1\n"
    )
    assert exercises.extract_stubs(stub) == {"2.1": stub.replace("    x = 1\n\n", "").rstrip()}


@pytest.mark.parametrize("chapter", [pytest.param(c, id=c.short) for c in course.chapters()])
def test_every_exercise_of_the_course_has_its_start_its_hints_and_its_solution(chapter):
    _, _, lesson = chapter.lesson.read_text(encoding="utf-8").split("---\n", 2)
    sections = re.split(
        r"^### Exercise ", exercises.complete_exercises(lesson, chapter), flags=re.M
    )[1:]
    solution = solution_page.make_solution_page(chapter)
    titles = [section.partition(" { #")[0] for section in sections]
    assert titles == [f"{e.id} · {e.title}" for e in chapter.exercises]
    for section, exercise in zip(sections, chapter.exercises, strict=True):
        given = exercise.kind != "capstone"
        assert section.count(" abstract start ") == given
        assert [section.count(f'tip hint "Hint {n}"') for n in (1, 2, 3)] == [given] * 3
        assert section.count(f"](solution.md#{exercise.anchor})") == 1
        heading = f"## Exercise {exercise.id} · {exercise.title} {{ #{exercise.anchor} }}"
        assert f"{heading}\n\n[Task and hints](lesson.md#{exercise.anchor}) · " in solution


def test_a_heading_of_an_exercise_that_is_not_listed_is_refused(chapter):
    with pytest.raises(CourseError, match=r"no exercise 2\.2 in chapter 2"):
        exercises.complete_exercises(f"{LESSON}### Exercise 2.2 · More\n", chapter)


# --- Links ------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    names = "docs/glossary.md docs/hooks/publish.py chapters/kit/cost.py"
    names += " chapters/ch02_name/lesson.md chapters/ch02_name/lab.py solutions/ch02_name/file.py"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    return repo_links.Repository(tmp_path, tmp_path / "docs")


@pytest.mark.parametrize(
    ("link", "page_link"),
    [
        ("lab.py", "lab.md"),
        ("../../docs/glossary.md#init", "../../glossary.md#init"),
        ("../kit/cost.py", "../../source/chapters/kit/cost.py.md"),
        ("../../docs/hooks/publish.py", "../../source/docs/hooks/publish.py.md"),
        ("../../solutions/ch02_name/file.py", "solution.md"),
        ("../ch02_name/", "lesson.md"),
        ("missing.py", "missing.py"),
        ("https://example.org/lab.py", "https://example.org/lab.py"),
        ("#anchor", "#anchor"),
    ],
)
def test_repository_links_lead_to_pages(repository, link, page_link):
    folder = repository.root / "chapters" / "ch02_name"
    text = f"[a]({link}) `[a]({link})`"
    relinked = repository.relink(text, folder, "chapters/ch02_name/lesson.md")
    assert relinked == f"[a]({page_link}) `[a]({link})`"


def test_docs_pages_link_chapters_as_they_lie(repository):
    text = "[a](../chapters/ch02_name/lesson.md#x)"
    relinked = "[a](chapters/ch02_name/lesson.md#x)"
    assert repository.relink(text, repository.docs, "index.md") == relinked


# --- Solution page ----------------------------------------------------------------------------

SOLUTION = '''"""Summary.

More.
"""

import tvm

LIMIT = 1


# about helper
@decorator
def solved():
    a = 1
    # BEGIN exercise 2.1 (1 line): task
    return a
    # END exercise 2.1


def plain():
    return 2
'''


def test_the_reference_is_split_by_exercise_with_its_lines_marked(chapter):
    parts = solution_page.render_reference(SOLUTION, chapter)
    text = "\n".join(parts)
    assert parts[0] == "Summary.\n\nMore."
    assert "```python\nimport tvm\n\nLIMIT = 1\n```" in parts
    assert "## Exercise 2.1 · Attach `it` { #exercise-2-1 }" in parts
    marked = '```python hl_lines="4"\n@decorator\ndef solved():\n    a = 1\n    return a\n```'
    assert marked.replace("@decorator", "# about helper\n@decorator").replace("4", "5") in parts
    assert parts[-2] == "```python\ndef plain():\n    return 2\n```"
    assert "BEGIN" not in text and "END" not in text


# --- Facts ------------------------------------------------------------------------------------


def test_stamp_honours_source_date_epoch(hook, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert ", 2 January 1970, " in hook("publish").describe_build()


def test_facts_stand_beneath_the_title(hook, chapter):
    publish = hook("publish")
    facts = publish.render_facts(chapter)
    said = "30 minutes (22 for the course) · needs no other chapter · no"
    assert facts.startswith(f'<div class="facts" markdown>\n\n{said}')
    assert (
        publish.insert_beneath_title("# Title\n\nText\n", facts)
        == f"# Title\n\n{facts}\n\n\nText\n"
    )
    assert publish.insert_beneath_title("Text\n", facts).strip() == f"{facts}\n\nText"


def test_navigation_has_the_pages_of_each_chapter(hook, chapter, monkeypatch):
    monkeypatch.setattr(hook("publish"), "_chapters", {"chapters/ch02_name/lesson.md": chapter})
    home = "chapters/ch02_name"
    lesson, lab = {"Lesson 2": f"{home}/lesson.md"}, {"Lab 2": f"{home}/lab.md"}
    pages = [lesson, lab, {"Solution 2": f"{home}/solution.md"}]
    assert hook("publish").build_navigation() == [{"2 · Name": pages}]


def test_every_page_of_docs_is_in_the_navigation(hook):
    pages = hook("publish").PAGES_BEFORE + hook("publish").PAGES_AFTER
    listed = [uri for page in pages for uri in page.values()]
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_a_site_that_is_served_is_built_again_for_its_sources_alone(hook, tmp_path):
    """Not when a learner saves an answer, when a cache is written, or for what an editor keeps beside a file."""
    livereload = pytest.importorskip("mkdocs.livereload")
    for folder in ("docs", "chapters/ch00_first_module/__pycache__", "chapters/.kept"):
        (tmp_path / folder).mkdir(parents=True)
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8")
    (tmp_path / ".gitignore").write_text(ignored, encoding="utf-8")
    home = tmp_path / "chapters" / "ch00_first_module"
    config = SimpleNamespace(
        config_file_path=str(tmp_path / "mkdocs.yml"), docs_dir=tmp_path / "docs"
    )
    server = livereload.LiveReloadServer(
        lambda: None, "127.0.0.1", 0, str(tmp_path), polling_interval=0.02
    )
    server.watch(config.docs_dir)
    server = hook("watched_files").on_serve(server, config=config, builder=None)
    server.watch(tmp_path / "chapters")
    server.observer.start()

    def builds_after_saving(path: Path, seconds: float) -> bool:
        server._want_rebuild = False
        path.write_text(f"{time.time_ns()}\n", encoding="utf-8")
        end = time.monotonic() + seconds
        while not server._want_rebuild and time.monotonic() < end:
            time.sleep(0.02)
        return server._want_rebuild

    try:
        for source in (home / "lesson.md", tmp_path / "docs" / "setup.md"):
            assert builds_after_saving(source, 20)
        time.sleep(0.2)  # until the folders' own changes have been noticed
        names = (
            "first_module.py",
            "__pycache__/given.pyc",
            ".lesson.md.swp",
            "lesson.md~",
            "#lesson.md#",
        )
        for name in (*names, "../.kept/first_module-1.py"):
            assert not builds_after_saving(home / name, 0.3), name
        assert builds_after_saving(home / "given.py", 20)
    finally:
        server.observer.stop()
        server.server_close()
