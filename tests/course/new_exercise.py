"""Makes the files and lines of a new exercise. It marks what is left to write, and the course's tests list the marks.

    python -m tests.course.new_exercise 2 --kind write --name sum_of_rows --title "Sum the rows"

The exercise gets the chapter's next number. The command writes its region in the reference, its line in the front
matter, its heading in the lesson, a check, the texts that recognize a mistake, mistakes, and hints.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from chapters.runner.course import KINDS, ROOT, Chapter, CourseError, chapter

TO_WRITE = "TO WRITE"  # tests/course/test_course.py finds what still has this mark

SOLUTION = '''

def {name}():
    """{mark}: shapes, dtypes, what is returned, the hard cases."""
    # BEGIN exercise {id} (about 1 line): {mark} what to do, in one line
    return None
    # END exercise {id}
'''
CHECK = '''

def test_{key}_is_right(impl) -> None:
    """{mark}: the title that a learner sees"""
    expect.that(
        impl.{name}() == "{mark}",
        "{mark}: what is wrong, in one sentence.",
        expected="{mark}",
        yours=repr(impl.{name}()),
        why="{mark}",
        read=f"{{LESSON}}, “{mark}”",
    )


def observe_{key}(impl):
    return [lambda: repr(impl.{name}()), lambda: "{mark}: what it does on another input"]
'''
MISTAKES = """
"{id}":
"""
MISTAKE = """\
  {name}_wrong_{count}:
    what: "{mark}: completes “This looks like: …”"
    why: "{mark}: one to three sentences that teach"
    read: "{mark}: a heading of the lesson"
    patch: |2
      -return None
      +return {count}
"""
LESSON = """### Exercise {id} · {title}

{mark}: the task, a worked input or the IR before and after, and what a reader sees while it is unsolved.

"""
HINTS = """"{id}":
  - "{mark}: a question, or a place to look"
  - "{mark}: the idea, and the API's name"
  - "{mark}: almost the line"
"""


def make_exercise(home: Chapter, kind: str, name: str, title: str, minutes: int = 5) -> list[Path]:
    """Write a new exercise's skeleton into `home`'s files and return these. Raises CourseError before writing any."""
    taken = home.solution.read_text(encoding="utf-8")
    if kind not in KINDS:
        raise CourseError(f"There is no kind {kind!r} of exercise; there are {', '.join(KINDS)}.")
    if not name.isidentifier() or re.search(rf"\b{name}\b", taken):
        raise CourseError(f"{name!r} must be a Python name that {home.file} does not use yet.")
    number = max(int(e.id.split(".")[1]) for e in home.exercises) + 1
    values = {"id": f"{home.number}.{number}", "key": f"{home.number}_{number}", "kind": kind}
    values |= {"name": name, "title": title, "minutes": minutes, "mark": TO_WRITE}
    count = 3 if kind in ("write", "fix") else 2
    mistakes = "".join(MISTAKE.format(count=n, **values) for n in range(1, count + 1))
    return [
        _append(home.solution, SOLUTION.format(**values)),
        _append(home.checks, CHECK.format(**values)),
        _append(home.folder / "hints.yml", HINTS.format(**values)),
        _append(home.solution_folder / "mistakes.yml", MISTAKES.format(**values) + mistakes),
        _insert_into_lesson(home, values),
    ]


def _append(path: Path, text: str) -> Path:
    before = path.read_text(encoding="utf-8").rstrip("\n") + "\n"
    path.write_text(before + text, encoding="utf-8", newline="\n")
    return path


def _insert_into_lesson(home: Chapter, values: dict) -> Path:
    """Add the exercise at the end of the front matter and its section after that of the last exercise."""
    text = home.lesson.read_text(encoding="utf-8")
    broken = f", broken: {values['name']}_wrong_1" if values["kind"] == "fix" else ""
    title = '"' + values["title"].replace('"', '\\"') + '"'
    fact = (
        f'  - {{id: "{values["id"]}", kind: {values["kind"]}, minutes: {values["minutes"]}, '
        f"title: {title}, name: {values['name']}{broken}}}\n"
    )
    end = text.index("\n---\n", 4) + 1
    text = text[:end] + fact + text[end:]
    last = text.rindex("\n### Exercise ") + 1
    after = re.compile(r"^#{1,3} ", re.MULTILINE).search(text, last + 4)
    at = after.start() if after else len(text)
    text = text[:at].rstrip("\n") + "\n\n" + LESSON.format(**values) + text[at:]
    home.lesson.write_text(text.rstrip("\n") + "\n", encoding="utf-8", newline="\n")
    return home.lesson


def list_unwritten(home: Chapter) -> list[str]:
    """Each line of the chapter's files that is still marked, as `file:line: text`."""
    files = [home.lesson, home.checks, home.folder / "hints.yml"]
    files += [home.solution, home.solution_folder / "mistakes.yml"]
    return [
        f"{path.relative_to(home.root).as_posix()}:{number}: {line.strip()}"
        for path in files
        if path.exists()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if TO_WRITE in line
    ]


def main(arguments: list[str]) -> int:
    """Make the exercise and say what comes next. The exit code is 2 if the arguments are wrong."""
    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.course.new_exercise", description=about)
    parser.add_argument("chapter", help="its number")
    parser.add_argument("--kind", required=True, help=", ".join(KINDS))
    parser.add_argument("--name", required=True, help="the function that the learner writes")
    parser.add_argument("--title", required=True, help="a few words")
    parser.add_argument("--minutes", type=int, default=5)
    options = parser.parse_args(arguments)
    try:
        home = chapter(options.chapter)
        files = make_exercise(home, options.kind, options.name, options.title, options.minutes)
    except CourseError as error:
        print(error)
        return 2
    print("\n".join(f"written: {path.relative_to(ROOT).as_posix()}" for path in files))
    print(
        f"What is left is marked {TO_WRITE}; pytest tests/course/test_course.py -k {home.short} lists it.\n"
        f"python -m chapters update {home.number} puts the exercise into your own file."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
