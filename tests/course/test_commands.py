"""`python -m chapters …` as a learner types it, in a copy of the course."""

from __future__ import annotations

import re
import sys
import time

import pytest

from chapters.child import patience

WRONG_CALLS = {
    "There is no command 'chek'": ["chek"],
    "There is no chapter '77'; the course has chapters 0": ["check", "77"],
    "There is no exercise 0.99 in chapter 0; it has 0.1": ["check", "0.99"],
    "'zero.one' is not an exercise number": ["check", "zero.one"],
    "required: exercise": ["hint"],
    "'0' is not an exercise number": ["hint", "0"],
    "There is no chapter 'x'": ["quiz", "x"],
    "There is no exercise 0.77": ["reset", "0.77"],
    "There is no chapter '9999": ["check", "9" * 5000],
    "`python -m chapters chat --help` shows how to call it.": ["chat", "--promt", "Hi"],
    "`python -m chapters --help` shows how to call it.": ["--promt"],
}
CALL_ALL = f"""
from chapters.runner.command_line import run
for arguments in {list(WRONG_CALLS.values())}:
    try:
        print(run(arguments))
    except SystemExit as end:
        print(end)
"""


def test_status_on_a_fresh_clone_names_the_next_exercise(untouched):
    result = untouched.learner()
    assert result.returncode == 0
    assert "0/6" in result.stdout and "python -m chapters check 0.1" in result.stdout
    assert "first_module.py:" in result.stdout


def test_wrong_calls_get_one_sentence(untouched):
    result = untouched.python("-c", CALL_ALL)
    lines = result.stdout.splitlines()
    assert lines[1::2] == ["2"] * len(WRONG_CALLS) and not result.stderr, result
    for says, line in zip(WRONG_CALLS, lines[::2], strict=True):
        assert says in line


def test_a_damaged_lesson_gets_one_sentence(course):
    lesson = course.stub.parent / "lesson.md"
    lesson.write_text("<<<<<<< ours\n", encoding="utf-8")
    for result in (course.learner(), course.python("-m", "chapters.ch00_first_module")):
        said = (result.stdout + result.stderr).splitlines()
        assert result.returncode and len(said) == 1 and "has no front matter" in said[0]
    result = course.pytest("solutions/ch00_first_module")
    assert result.returncode == 4 and result.stderr.startswith(f"ERROR: {lesson} has no front")


@pytest.mark.skipif(sys.platform == "win32", reason="the system keeps the folder of a process")
def test_a_command_works_in_a_folder_that_has_been_removed(untouched):
    probe = "import os, runpy, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
    probe += "sys.argv = ['chapters', 'next']; runpy.run_module('chapters', run_name='__main__')"
    result = untouched.python("-c", probe)
    assert result.returncode == 0 and f"edit {untouched.stub}:" in result.stdout


def test_exercises_can_be_solved_one_after_the_other(course):
    """An edit in one region does not affect the state of the others; an edit outside of all regions does."""
    course.solve()
    assert course.learner("check", "0.5").returncode == 0
    assert "1/6" in course.learner().stdout
    assert course.learner("check", "0.1").returncode == 0
    course.text = course.text.replace("(5, 16)", "(6, 16)")
    assert "2/6" in course.learner().stdout
    course.text = course.text.replace("import tvm\n", "import tvm as tvm\n", 1)
    assert "0/6" in course.learner().stdout
    course.solve("return {", "return None and {")
    result = course.learner("check", "0.5")
    assert result.returncode == 1 and "✗" in result.stdout and "hint 0.5" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_hints_come_one_at_a_time(course):
    first, second = course.learner("hint", "0.1").stdout, course.learner("hint", "0.1").stdout
    assert "Hint 1 of 3" in first and "Hint 2" not in first
    assert "Hint 2 of 3" in second and "Hint 3" not in second
    course.learner("hint", "0.1")
    assert "--give-up" in course.learner("hint", "0.1").stdout


def test_reset_of_one_exercise_keeps_a_copy_and_the_rest(course):
    course.solve()
    mine = course.text
    result = course.learner("reset", "0.3")
    assert result.returncode == 0 and str(course.data) in result.stdout
    assert set(course.kept()) == {mine, course.text}
    assert 'NotImplementedError("exercise 0.3")' in course.text and "nn.Linear(16, 8" in course.text
    course.learner("reset", "0")
    assert len(course.kept()) == 2, "each copy has a name of its own"


def test_check_takes_several(untouched):
    said = untouched.learner("check", "0.2", "0.1", "0.2").stdout
    assert said.index("0.2 TODO") < said.index("0.1 TODO") and "0 of 2 passed" in said


def test_reset_keeps_every_line_of_the_other_regions(course):
    """To Python, form feeds and Unicode line separators do not end a line."""
    todo = 'raise NotImplementedError("exercise 0.3")'
    mine = course.text.replace(todo, 'return "a\u2028b\x0cc"')
    course.text = mine
    course.learner("reset", "0.4")
    assert course.stub.read_bytes() == mine.encode()
    course.solve("nn.Linear(16, 8, bias=True)", 'nn.Linear(16, 8, bias=True), "a\u2028b\x0cc"')
    course.learner("reset", "0.3")
    assert "a\u2028b\x0cc" in course.stub.read_bytes().decode()


def test_a_file_that_is_not_utf8_gets_one_sentence(course):
    course.stub.write_bytes(course.stub.read_bytes() + b"# \xe9\n")
    assert "first_module.py is not Python: byte" in course.learner("check", "0.4").stdout
    for command in (("reset", "0.3"), ("diff", "0.3", "--give-up"), ("update", "0")):
        result = course.learner(*command)
        assert result.returncode == 2 and "is not UTF-8 text" in result.stdout and not result.stderr
    assert course.learner("reset", "0").returncode == 0


def test_a_damaged_marker_names_the_way_out(course):
    course.text = course.text.replace("# BEGIN exercise 0.6", "# exercise 0.6")
    result = course.learner("reset", "0.1")
    assert result.returncode == 2 and "python -m chapters reset 0" in result.stdout


def test_reset_restores_a_deleted_or_mangled_file(course):
    course.stub.unlink()
    made = course.learner("check", "0.1")
    assert made.returncode == 1 and "Made chapters" in made.stdout and course.stub.exists()
    assert "0/6" in course.learner().stdout
    course.text = "# nothing left\n"
    result = course.learner("reset", "0.3")
    assert result.returncode == 2 and "are gone" in result.stdout
    assert course.learner("reset", "0").returncode == 0
    assert "# nothing left" in course.kept()[0]


def test_update_moves_answers_into_the_file_of_a_newer_course(course):
    course.stub.unlink()
    course.learner()  # makes it, and remembers what from
    solution = course.root / "solutions/ch00_first_module/first_module.py"
    course.solve()
    course.text = mine = course.text + "\n# a note of mine\n"
    assert "up to date" in course.learner("update").stdout
    text = solution.read_text(encoding="utf-8")
    solution.write_text(text.replace("import numpy as np\n", "import numpy as np\n\nNEW = 1\n", 1))
    assert "is older than the course" in course.learner("check", "0.5").stdout
    assert "Your file is kept as" in course.learner("update").stdout
    assert course.text == solution.read_text(encoding="utf-8")
    assert mine in course.kept()
    assert "Every file is up to date" in course.learner("update").stdout


def test_update_loses_no_answer(course):
    """An answer below the line that raises is one, and one without BEGIN is only in the copy, which is said."""
    todo = 'raise NotImplementedError("exercise 0.1")'
    course.text = mine = course.text.replace(todo, f"{todo}\n    return 5")
    assert "up to date" in course.learner("update", "0").stdout and course.text == mine
    lines = [line for line in mine.splitlines(keepends=True) if "exercise 0.1" not in line]
    course.text = mine = "".join(lines)
    said = course.learner("update", "0").stdout
    assert (
        "Only in the copy (the line `# BEGIN exercise` is gone): 0.1." in said
        and mine in course.kept()
    )
    course.text = mine = course.text.replace("    # END exercise 0.2\n", "", 1)
    result = course.learner("update", "0")
    assert result.returncode == 2 and course.text == mine
    assert "first_module.py: The line `# END exercise 0.2` is missing" in result.stdout


def test_update_follows_an_exercise_that_has_a_new_number(course):
    """Answers stay in their functions when a newer course numbers its exercises otherwise."""
    solution = course.root / "solutions/ch00_first_module/first_module.py"
    course.solve()
    text = solution.read_text(encoding="utf-8")
    for old, new in (("0.2", "0.0"), ("0.3", "0.2"), ("0.0", "0.3")):
        text = text.replace(f"exercise {old}", f"exercise {new}")
    solution.write_text(text, encoding="utf-8")
    said = course.learner("update", "0").stdout
    assert course.text == text and "Only in the copy" not in said
    assert said.splitlines()[-1] == "New numbers: 0.2 is 0.3, 0.3 is 0.2."


def test_update_says_which_exercise_is_given_now(course):
    """A newer course may give the code of an exercise; the answer to it stays in the copy."""
    solution = course.root / "solutions/ch00_first_module/first_module.py"
    course.solve("return {", "return 0 or {")
    mine, text = course.text, solution.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if "exercise 0.5" not in line]
    solution.write_text("".join(lines), encoding="utf-8")
    said = course.learner("update", "0").stdout
    assert "Only in the copy (no exercise any more, and the code is given): 0.5." in said
    assert course.text == "".join(lines) and mine in course.kept()


def test_a_missing_file_is_made_and_an_edited_one_is_left(course):
    course.text = "# mine\n"
    other = course.root / "chapters/ch01_walk_the_ir/walk_the_ir.py"
    other.unlink()
    assert "Made chapters/ch01_walk_the_ir/walk_the_ir.py" in course.learner().stdout
    assert course.text == "# mine\n" and other.exists()
    other.unlink()
    course.pytest("--collect-only", "-q", "chapters/ch01_walk_the_ir")
    assert other.exists(), "pytest makes it too"
    other.unlink()
    other.symlink_to(course.root / "nowhere" / "walk_the_ir.py")
    for result in (course.learner(), course.pytest("chapters")):
        said = result.stdout + result.stderr
        assert result.returncode and "must be able to read and write its folder" in said
        assert "Traceback" not in said and "INTERNALERROR" not in said


def test_lost_markers_are_noticed(course):
    lines = course.text.splitlines()
    lines = [line for line in lines if "exercise 0.6" not in line or "raise" in line]
    course.text = "\n".join(lines) + "\n"
    says = "has lost the lines `# BEGIN exercise` and `# END exercise` of 0.6"
    for command in (["check", "0.1"], []):
        assert says in course.learner(*command).stdout
    assert says in course.pytest("-q", "chapters/ch00_first_module", "-k", "0_1").stdout


def test_a_syntax_error_elsewhere_leaves_no_failure_behind(course):
    """0.1 has not failed because 0.5 cannot be read."""
    course.solve()
    course.record_as_passed(0)
    right = course.text
    course.text = right.replace("return {", "return = {")
    assert "is not Python" in course.learner("check", "0.1").stdout
    course.text = right
    assert "6/6" in course.learner().stdout


def test_diff_waits_for_a_pass(course):
    assert course.learner("diff", "0.2").returncode == 2
    assert "+        self.linear" in course.learner("diff", "0.2", "--give-up").stdout
    course.solve("self.linear = nn.Linear(16, 8, bias=True)", "self.linear = nn.Linear(16, 8)")
    course.learner("check", "0.2")
    result = course.learner("diff", "0.2")
    assert result.returncode == 0 and "-        self.linear = nn.Linear(16, 8)" in result.stdout
    course.text += "\n# edited\n"
    assert course.learner("diff", "0.2").returncode == 2, "the edit may have broken it"


def test_quiz_without_a_terminal_prints_questions_and_computed_answers(untouched):
    result = untouched.learner("quiz", "0")
    assert result.returncode == 0 and result.stdout.count("TVM says") == 5


def test_an_exercise_that_cannot_run_here_is_not_the_next(course):
    course.solve()
    stand_in = 'from chapters.runner.failure import Skip\n\n\ndef test_0_1_skips(impl):\n    raise Skip("no GPU")\n'
    (course.root / "chapters/ch00_first_module/checks.py").write_text(stand_in, encoding="utf-8")
    assert "0.1 SKIPPED" in course.learner("watch", "0.1").stdout, "watch ends"
    assert "0.1 skipped" in course.learner().stdout
    assert course.learner("next").stdout.startswith("0.2 ")


def test_doctor_finds_what_the_course_needs(untouched, monkeypatch):
    """Also for a terminal that lacks characters, which its second process must replace too."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = untouched.learner("doctor")
    assert result.returncode == 0, result.stdout
    for word in ("apache-tvm-ffi 0.1.14.post1", "bits", "tensorize works", "GPU"):
        assert word in result.stdout


def test_doctor_and_every_check_say_that_a_version_is_wrong_and_what_to_do(course):
    project = course.root / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("0.1.14.post1", "9.9.9"), encoding="utf-8")
    result = course.learner("doctor")
    assert result.returncode == 1 and "pip install -e ." in result.stdout
    assert "is installed; the course needs 9.9.9" in result.stdout
    collect = course.pytest("--collect-only", "solutions/ch00_first_module")
    for result in (course.learner("check", "0.1"), collect):
        assert "the course needs 9.9.9: run `pip install -e .`" in result.stdout


def test_watch_checks_every_save(course):
    """A save is answered in well under a second, because TVM is imported already; 5 s here, more on a busy machine.

    It keeps no process in which an older text has run, and waits for a file that an editor replaces.
    """
    course.solve("return {", "np._mine = 1\n    return None and {")
    watching = course.begin("watch", "0.5")
    try:
        assert any(line.strip().endswith(" s)") for line in watching.stdout)
        text = course.stub.read_bytes()
        for seconds in (5, 0):  # it comes back, and is gone again after longer than watch waits
            course.stub.unlink()
            time.sleep(0.5)
            assert watching.poll() is None
            course.stub.write_bytes(text)
            time.sleep(seconds)
        course.solve("return {", "np._mine\n    return {")
        assert any("has no attribute '_mine'" in line for line in watching.stdout)
        assert any(line.strip().endswith(" s)") for line in watching.stdout)
        began = time.perf_counter()
        course.solve()
        assert any("✓ 0.5" in line for line in watching.stdout)
        assert time.perf_counter() - began < 5 * patience()
        assert watching.wait(20) == 0, "nothing is left, so watch ends"
    finally:
        watching.kill()


def test_next_and_status_follow_the_chosen_path(course):
    lesson = course.root / "chapters/ch00_first_module/lesson.md"
    text = re.sub(r", path: \w+", "", lesson.read_text(encoding="utf-8"))
    text = re.sub(r'(id: "(0\.\d)")', r"\1, path: course", text)
    lesson.write_text(text.replace('"0.3", path: course', '"0.3", path: day'), encoding="utf-8")
    assert "* all " in course.learner("path").stdout, "until a path is chosen"
    said = course.learner("path", "day").stdout
    assert "* day " in said and "  all " in said
    assert course.learner("next").stdout.startswith("0.3 ")
    assert "of the path `day` left" in course.learner().stdout and "0/1" in course.learner().stdout
    course.learner("path", "course")
    assert course.learner("next").stdout.startswith("0.1 ")
    assert "invalid choice" in course.learner("path", "night").stdout
    assert "0.6" in course.learner("check", "0.6").stdout, "nothing is locked"
