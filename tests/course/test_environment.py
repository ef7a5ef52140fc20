"""Where the course cannot be run, a process that starts says so in one sentence, before anything else is imported."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chapters.runner.course import ROOT

COMMANDS = ("chapters", "chapters.ch00_first_module", "chapters.kit.doctor")
STORY = "chapters.ch00_first_module"


def _run_python(folder: Path, root: Path, *arguments: str, **environment: str):
    """Run this Python in `folder`, with the course at `root` as if it were installed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def _read_refusal(result: subprocess.CompletedProcess) -> str:
    """The one sentence of a process that ended with status 2."""
    assert result.returncode == 2 and not result.stdout, result.stdout + result.stderr
    (sentence,) = result.stderr.splitlines()
    return sentence


def test_old_python_gets_a_sentence():
    """Python 3.6 can compile the files that are imported until the version is looked at."""
    for name in ("__init__", "environment"):
        text = (ROOT / "chapters" / f"{name}.py").read_text(encoding="utf-8")
        ast.parse(text, feature_version=(3, 6))
    probe = "import sys; sys.version_info = (3, 9, 1); sys.argv[0] = '-m'; import chapters"
    said = _read_refusal(_run_python(ROOT, ROOT, "-c", probe))
    assert "needs Python 3.10 or newer, and this is 3.9" in said


@pytest.mark.parametrize("module", COMMANDS)
def test_a_folder_of_another_checkout_is_not_mistaken_for_this_one(module, tmp_path):
    for folder in ("chapters/runner", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "chapters" / "runner" / "course.py").touch()
    said = _read_refusal(_run_python(tmp_path / "docs", ROOT, "-m", module))
    assert f"at {tmp_path}, but this Python uses the one at {ROOT}" in said
    if sys.version_info >= (3, 11):
        said = _read_refusal(_run_python(tmp_path, ROOT, "-m", module, PYTHONSAFEPATH="1"))
        assert f"`pip install -e .` in {tmp_path}" in said


def test_a_copy_that_was_installed_is_refused(tmp_path):
    package = tmp_path / "site-packages" / "chapters"
    package.mkdir(parents=True)
    for name in ("__init__", "environment", "__main__"):
        shutil.copy(ROOT / "chapters" / f"{name}.py", package)
    said = _read_refusal(_run_python(tmp_path, package.parent, "-m", "chapters"))
    assert "installed as a copy" in said and "`pip install -e .`" in said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("random.py", "random.py in {} hides Python's own module random: rename it."),
        ("queue/__init__.py", "queue in {} hides Python's own module queue: rename it."),
        ("tvm.py", "tvm.py in {} hides the package tvm: rename it."),
    ],
)
def test_a_file_that_hides_a_module_is_named(name, says, course):
    path = course.root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    for module in ("chapters", STORY, "chapters.child"):
        assert _read_refusal(_run_python(course.root, course.root, "-m", module)) == says.format(
            course.root
        )
    # `pytest`, unlike `python -m pytest`, has imported what it needs before the course's folder is on its path
    start = "import sys, pytest; sys.exit(pytest.main(['solutions/ch00_first_module', '-q']))"
    result = _run_python(course.root, course.root, "-c", f"import sys; sys.path[:2] = []; {start}")
    assert result.returncode == 4 and says.format(course.root) in result.stderr


def test_a_file_that_hides_a_module_is_found_where_the_command_is_typed(tmp_path):
    (tmp_path / "code.py").touch()
    said = _read_refusal(_run_python(tmp_path, ROOT, "-m", "chapters"))
    assert said == f"code.py in {tmp_path} hides Python's own module code: rename it."


def test_a_path_that_python_takes_for_another_encoding_is_refused(tmp_path):
    """The child processes and TVM use UTF-8, so they would not find the files."""
    root = tmp_path / "Übung"
    (root / "chapters").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    for name in ("__init__", "environment", "__main__"):
        shutil.copy(ROOT / "chapters" / f"{name}.py", root / "chapters")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = _read_refusal(_run_python(root, root, "-m", "chapters", **locale))
    assert "PYTHONUTF8=1" in said


def test_pytest_finds_the_checks_through_a_link(course, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(course.root, target_is_directory=True)
    asked = str(link / "solutions" / STORY.rpartition(".")[2])
    result = course.pytest(asked, "--collect-only", "-q")
    assert result.returncode == 0 and "first_module.py::exercise_0_1" in result.stdout


def test_pytest_refuses_to_check_another_checkout(course, tmp_path):
    shutil.copytree(course.root / "solutions", tmp_path / "solutions")
    shutil.copytree(course.root / "chapters" / "runner", tmp_path / "chapters" / "runner")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    asked = ("-p", "chapters.runner.plugin", "solutions")
    result = _run_python(
        tmp_path / "solutions", course.root, "-m", "pytest", *asked, "--rootdir", ".."
    )
    assert result.returncode == 4 and f"You are in the course at {tmp_path}" in result.stderr
