"""The README tells the truth: its commands are the ones CI runs, its picture is what the code draws."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from chapters.runner.course import ROOT, chapters
from docs.pages.front_picture import IMAGE, draw_document

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_command_that_the_readme_gives():
    commands = re.findall(r"^pip install -e (.+) && (.+)$", README, re.MULTILINE)
    assert commands == [("'.[site]'", "mkdocs serve"), (".", "pytest solutions/")]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "pip install -e \\. && pytest solutions/" in ci


def test_the_container_has_what_ci_executes_gpu_code_with():
    wanted = r"g\+\+ (?:git )?mesa-vulkan-drivers libvulkan1"
    for name in (
        ".ci/run",
        ".devcontainer/Dockerfile",
        ".github/workflows/ci.yml",
        "docs/setup.md",
    ):
        assert re.search(wanted, (ROOT / name).read_text(encoding="utf-8")), name
    extras = {"gpu", "model", "remote"}
    for name in ("Dockerfile", "devcontainer.json"):
        installed = re.search(
            r"--editable '\.\[(.+?)\]'", (ROOT / ".devcontainer" / name).read_text("utf-8")
        )
        assert set(installed[1].split(",")) == extras, name
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in project for extra in extras)


def test_picture_is_what_the_code_draws():
    assert IMAGE.read_text(encoding="utf-8") == draw_document(), (
        "python -m docs.pages.front_picture"
    )


def test_the_thirty_seconds_print_what_is_shown(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    script = tmp_path / "thirty_seconds.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    shown = re.search(r"```diff\n(.*?)```", README, re.DOTALL)[1]
    assert done.stdout == shown, done.stderr


def test_every_chapter_is_in_the_table():
    for chapter in chapters():
        assert f"| {chapter.number} · {chapter.title} |" in README


def test_every_relative_link_exists():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
