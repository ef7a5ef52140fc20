"""The page of upstream files names each chapter, and only files of TVM's Python that the installed release has."""

from __future__ import annotations

import re
from pathlib import Path

import tvm

from chapters.runner.course import ROOT, chapters

PAGE = (ROOT / "docs" / "what-you-can-read.md").read_text(encoding="utf-8")


def test_every_chapter_has_its_files():
    for chapter in chapters():
        assert re.search(rf"^## Chapter {chapter.number} · ", PAGE, re.MULTILINE), chapter.slug


def test_every_python_file_of_tvm_is_in_the_release():
    package = Path(tvm.__file__).parent
    named = re.findall(r"`python/tvm/([\w/]+\.py)`", PAGE)
    assert len(named) >= 10
    assert [name for name in named if not (package / name).exists()] == []


def test_every_link_has_its_address_at_one_commit_of_each_project():
    addresses = dict(re.findall(r"(?m)^\[(\w+)\]: (\S+)$", PAGE))
    used = set(re.findall(r"\]\[(\w+)\]", PAGE))
    assert used == set(addresses)
    place = re.compile(r"github\.com/([\w/-]+)/(?:blob|tree)/(\w+)")
    commits = {place.search(address).groups() for address in addresses.values()}
    assert len(commits) == 2 and all(len(commit) == 40 for _, commit in commits)
    for _, commit in commits:
        assert f"`{commit[:7]}`" in PAGE
