"""The course grows no heavier: what a new feature adds, something else gives."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import PurePosixPath

import pytest

from chapters.runner.course import ROOT

MOST_FILES, MOST_LINES = 693, 111_000  # of what people write; lower them when something has gone
MOST_IN_A_FOLDER = 20  # of the kit
WRITTEN_BY_COMMANDS = ("docs/outputs/", "docs/results/")
PICTURES = (".png", ".svg")


@pytest.fixture(scope="module")
def files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        name
        for name in tracked.stdout.split("\n")
        if name and not name.startswith(WRITTEN_BY_COMMANDS) and not name.endswith(PICTURES)
    ]


def test_a_feature_pays_for_itself(files):
    lines = sum((ROOT / name).read_bytes().count(b"\n") for name in files)
    assert len(files) <= MOST_FILES and lines <= MOST_LINES, f"{len(files)} files, {lines:,} lines"


def test_a_folder_of_the_kit_can_be_looked_through(files):
    counts = Counter(
        str(PurePosixPath(name).parent) for name in files if name.startswith("chapters/kit/")
    )
    assert max(counts.values()) <= MOST_IN_A_FOLDER, counts.most_common(3)
