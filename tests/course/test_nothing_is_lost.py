"""Answers, copies and progress survive whatever happens to the checkout, to the disk, and to two commands at once.

Every command keeps copies of what has changed. Where no check is needed, the tests use `next`, which starts no TVM.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading

import pytest

from chapters.runner import copies

FORGOTTEN = "is not offered again"
NOT_HERE = 'raise NotImplementedError("exercise 0.3")'


def find_record(course):
    return next(course.data.rglob("progress.sqlite"))


def run_git(course, *arguments):
    name = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "core.autocrlf=false"]
    subprocess.run(["git", *name, *arguments], cwd=course.root, check=True, capture_output=True)


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_an_answer_that_git_overwrites_and_then_deletes_is_offered_back(course):
    """The file was once tracked: checking out the old commit replaces it without a word, and going back removes it."""
    run_git(course, "init", "-q")
    run_git(course, "add", "-fA")
    run_git(course, "commit", "-qm", "old")
    ignored = course.stub.relative_to(course.root).as_posix()
    (course.root / ".gitignore").write_text(f"/{ignored}\n", encoding="utf-8")
    run_git(course, "rm", "-q", "--cached", ignored)
    run_git(course, "add", ".gitignore")
    run_git(course, "commit", "-qm", "new")
    course.solve()
    mine = course.text
    course.learner("hint", "0.1")
    run_git(course, "checkout", "-q", "HEAD~1")
    assert NOT_HERE in course.text
    said = course.learner().stdout
    assert "lacks what a copy of it has for 0.1, 0.2, 0.3" in said and "restore 0" in said
    run_git(course, "checkout", "-q", "-")
    assert not course.stub.exists()
    said = course.learner("check", "0.1").stdout
    assert "Made chapters" in said and "lacks what a copy" in said, "whatever the command is"
    assert "is as in" in course.learner("restore", "0").stdout and course.text == mine
    assert "lacks what a copy" not in course.learner().stdout


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_git_clean_removes_neither_copies_nor_progress(course):
    run_git(course, "init", "-q")
    course.solve()
    course.learner("check", "0.5")
    mine = course.text
    course.stub.unlink()
    parts = ("pyproject.toml", "chapters", "solutions", "tests", "docs")
    run_git(course, "clean", "-fdxq", *(f"-e{part}" for part in parts))
    course.learner("restore")
    assert course.text == mine and "1/6" in course.learner().stdout


def test_a_file_that_is_as_it_was_before_is_noticed(course):
    course.solve()
    first = course.text
    course.learner("next")
    course.solve("(5, 16)", "(6, 16)")
    second = course.text
    course.learner("next")
    course.text = first
    assert "lacks what a copy" in course.learner().stdout
    course.learner("restore", "0")
    assert course.text == second


def test_what_was_reset_is_not_offered_and_what_was_refused_neither(course):
    course.solve()
    course.learner("reset", "0.3")
    assert "lacks what a copy" not in course.learner().stdout
    course.solve()
    course.learner("next")
    course.stub.unlink()
    assert "lacks what a copy" in course.learner().stdout
    assert FORGOTTEN in course.learner("restore", "--forget").stdout
    assert "lacks what a copy" not in course.learner().stdout
    assert "No copy has an answer" in course.learner("restore").stdout


def delete_answer(course):
    course.stub.unlink()
    return course.learner().stdout


def test_an_answer_that_is_lost_twice_is_offered_twice(course):
    course.solve()
    mine = course.text
    for _ in range(2):
        course.learner("next")
        assert "lacks what a copy" in delete_answer(course)
        course.learner("restore", "0")
        assert course.text == mine


def test_what_was_reset_and_written_again_is_kept_again(course):
    course.solve()
    mine = course.text
    course.learner("next")
    course.learner("reset", "0.5")
    course.text = mine
    course.learner("next")
    assert "0.5" in delete_answer(course)


def test_the_answers_beside_one_that_was_reset_are_offered(course):
    course.solve()
    course.learner("check", "0.5")
    course.learner("reset", "0.6")
    said = delete_answer(course)
    assert "0.5" in said and "0.6." not in said.partition("lacks what")[2].partition("`")[0]
    course.learner("restore", "0")
    assert (
        "exercise 0.6" in course.text and 'NotImplementedError("exercise 0.5")' not in course.text
    )


def test_an_answer_without_its_markers_and_notes_beside_it_are_kept_too(course):
    course.text = course.text.replace(
        "import numpy as np\n", "import numpy as np\n\nTABLE = 1\n", 1
    )
    course.learner("hint", "0.1")
    assert any("TABLE = 1" in text for text in course.kept())
    course.solve()
    course.text = "".join(
        line for line in course.text.splitlines(keepends=True) if "exercise 0." not in line
    )
    mine = course.text
    course.learner("next")
    assert "lacks what a copy" in delete_answer(course)
    course.learner("restore", "0")
    assert course.text == mine


def test_an_answer_that_was_taken_back_is_the_newest(course):
    course.solve()
    first = course.text
    for text in (first, first.replace("(5, 16)", "(6, 16)"), first):
        course.text = text
        course.learner("next")
    said = course.learner().stdout
    assert "lacks what" not in said and f"are in {course.data}" in said
    delete_answer(course)
    course.learner("restore", "0")
    assert course.text == first


def test_a_clock_that_goes_backwards_changes_no_order(course):
    course.solve()
    course.learner("next")
    for copy in course.data.rglob("copies/*/*.py"):
        os.utime(copy, (2e9, 2e9))
    course.solve("(5, 16)", "(6, 16)")
    newest = course.text
    course.learner("next")
    assert "lacks what" not in course.learner().stdout
    delete_answer(course)
    course.learner("restore", "0")
    assert course.text == newest


def test_a_copy_comes_back_byte_by_byte(course):
    course.solve()
    course.stub.write_bytes(course.stub.read_bytes().replace(b"\n", b"\r\n") + b"# caf\xe9\r\n")
    mine = course.stub.read_bytes()
    course.learner("next")
    delete_answer(course)
    result = course.learner("restore", "0")
    assert course.stub.read_bytes() == mine and "Traceback" not in result.stdout + result.stderr


def test_a_checkout_with_another_name_keeps_its_progress(course):
    course.solve()
    course.learner("check", "0.5")
    course.root = course.root.rename(course.root.with_name("renamed"))
    said = course.learner().stdout
    assert "has another name now" in said and "1/6" in said
    assert "another name" not in course.learner().stdout


def test_an_exercise_saved_while_another_is_checked_is_not_recorded(course):
    """0.5 is to be written when the check begins, and solved while 0.6 is checked: it is not recorded as TODO."""
    wait = "(open('started', 'w').close(), __import__('time').sleep(3), (5, 16))[2]"
    course.solve("(5, 16)", wait)
    solved = course.text
    course.learner("reset", "0.5")
    checking = course.begin("check", "0.6", "0.5")
    while not (course.root / "started").exists():
        assert checking.poll() is None
    course.text = solved
    said = checking.communicate(timeout=60)[0]
    assert "0.5 edited, not checked yet" in course.learner().stdout, said


def test_each_answer_has_one_copy(course):
    for text in ("(5, 16)", "(6, 16)", "(6, 16)", "(7, 16)"):
        course.solve("(5, 16)", text)
        course.learner("next")
    assert len(course.kept()) == 3


def test_a_file_that_appears_while_it_is_made_is_left_alone(tmp_path):
    """Another process, or the learner, saves an answer between the look and the writing."""
    path = tmp_path / "answer.py"
    path.write_text("mine")
    assert not copies.create_file(path, b"stub") and path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["answer.py"]
    path.unlink()
    assert copies.create_file(path, b"stub") and path.read_bytes() == b"stub"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that can be full")
@pytest.mark.parametrize("write", [copies.create_file, copies.replace_file])
def test_a_full_disk_leaves_no_empty_file(tmp_path, monkeypatch, write):
    path = tmp_path / "answer.py"
    if write is copies.replace_file:
        path.write_text("mine")
    opened = copies.Path.open
    full = lambda self, mode="r", *more: opened(  # noqa: E731
        copies.Path("/dev/full") if "w" in mode else self, mode, *more
    )
    monkeypatch.setattr(copies.Path, "open", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, b"new")
    monkeypatch.undo()
    left = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert left == ({"answer.py": "mine"} if write is copies.replace_file else {})


def test_hints_asked_at_once_are_all_counted(course):
    course.learner()
    running = [course.begin("hint", "0.1") for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert sorted("Hint 2 of 3" in one for one in said) == [False, True]


def test_a_damaged_record_is_kept_and_replaced(course):
    course.learner("hint", "0.6")
    find_record(course).write_text("{not a database" * 99, encoding="utf-8")
    result = course.learner("hint", "0.6")
    assert result.returncode == 0 and "could not be read; it is kept as" in result.stdout
    assert any("not a database" in text for text in course.kept("damaged-*.sqlite"))
    assert "Hint 2 of 3" in course.learner("hint", "0.6").stdout


def test_a_record_that_is_damaged_further_on_is_kept_and_replaced(course):
    course.solve()
    course.learner("hint", "0.1")
    with find_record(course).open("r+b") as record:
        record.seek(4096)
        record.write(b"x" * 200)
    for command in ([], ["check", "0.5"], []):
        result = course.learner(*command)
        assert "Traceback" not in result.stdout + result.stderr, result.stderr
    assert "1/6" in course.learner().stdout or "0/6" in course.learner().stdout
    assert list(course.data.rglob("damaged-*.sqlite"))


def test_an_entry_of_another_form_leaves_the_others(course):
    course.solve()
    course.learner("check", "0.5")
    with sqlite3.connect(find_record(course)) as record:
        rows = [("0.2", "{not json"), ("0.3", '{"hints": "x"}'), ("0.4", "null"), ("0.6", "[]")]
        record.executemany("INSERT OR REPLACE INTO record VALUES (?, ?)", [*rows, ("new", "{}")])
    record.close()
    assert "1/6" in course.learner().stdout
    assert "Hint 1 of 3" in course.learner("hint", "0.3").stdout


def test_a_record_of_an_older_course_is_taken_over(course):
    (course.root / ".progress.json").write_text('{"0.1": {"hints": 2}, "0.2": 5}', encoding="utf-8")
    assert "Hint 3 of 3" in course.learner("hint", "0.1").stdout
    assert "Hint 1 of 3" in course.learner("hint", "0.2").stdout


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_without_a_place_for_the_record_a_check_still_says_what_it_found(course):
    course.solve()
    course.data.mkdir()
    course.data.chmod(0o500)
    result = course.learner("check", "0.5")
    assert "✓ 0.5" in result.stdout and "not recorded" in result.stdout and not result.stderr


def test_a_data_folder_that_is_a_file_gets_one_sentence(course):
    course.solve()
    course.data.write_text("")
    result = course.learner("check", "0.5")
    assert "✓ 0.5" in result.stdout and "not recorded" in result.stdout and not result.stderr
    assert "Traceback" not in course.learner().stdout + course.learner("hint", "0.1").stderr


def test_answers_of_a_chapter_with_another_name_are_pointed_out(course):
    course.solve()
    old = course.root / "chapters" / "ch00_before" / "first_module.py"
    old.parent.mkdir()
    old.write_text(course.text, encoding="utf-8")
    assert "ch00_before/first_module.py has answers" in course.learner().stdout


def test_an_answer_in_a_function_with_another_name_is_told(course):
    course.solve()
    solution = course.root / "solutions/ch00_first_module/first_module.py"
    text = solution.read_text(encoding="utf-8")
    solution.write_text(
        text.replace("def from_block_builder(", "def by_builder("), encoding="utf-8"
    )
    said = course.learner("update", "0").stdout
    assert (
        "with your answers in it" in said
        and "(the function is not in this file any more): 0.1." in said
    )


def test_lines_that_end_otherwise_are_the_same_answer(course):
    course.solve()
    course.learner("check", "0.5")
    course.stub.write_bytes(course.text.replace("\n", "\r\n").encode())
    assert "1/6" in course.learner().stdout


def test_checks_that_changed_ask_for_a_new_check(course):
    course.solve()
    course.learner("check", "0.5")
    checks = course.root / "chapters/ch00_first_module/checks.py"
    checks.write_text(checks.read_text(encoding="utf-8") + "\n# sharper\n", encoding="utf-8")
    said = course.learner().stdout
    assert "0/6" in said and "0.5 not checked since the checks changed" in said
    course.learner("check", "0.5")
    assert "1/6" in course.learner().stdout


def test_a_verdict_is_about_the_text_that_ran(course):
    """Wrong when the check begins, right for a moment, wrong again at its end: nothing may be recorded."""
    course.solve()
    right = course.text
    swap = (
        "import pathlib as _p, time as _t\n"
        "_p.Path('started').touch()\n"
        "while not _p.Path('go').exists(): _t.sleep(0.05)\n"
    )
    course.text = wrong = right.replace("import numpy as np\n", f"import numpy as np\n{swap}", 1)
    checking = course.begin("check", "0.5")
    while not (course.root / "started").exists():
        assert checking.poll() is None
    course.text = right
    (course.root / "go").touch()
    while checking.poll() is None:
        course.text = right
    course.text = wrong
    assert "0/6" in course.learner().stdout


def test_a_command_that_waits_for_another_says_so(course):
    course.solve()
    assert course.learner("reset", "0.1").returncode == 0  # makes the lock
    mine = course.text
    other = sqlite3.connect(next(course.data.rglob("lock.sqlite")), check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    ended = threading.Timer(5, other.rollback)
    ended.start()
    result = course.learner("reset", "0.2")
    ended.join()
    other.close()
    assert result.returncode == 0 and result.stderr.startswith("Another command is working")
    assert mine in course.kept()


def test_an_empty_file_is_replaced_without_a_word_of_answers(course):
    course.text = ""
    assert "is new; yours was empty." in course.learner("update", "0").stdout
