"""`python -m chapters bench 3`: measure a chapter's kernels on this machine and write the results file."""

from __future__ import annotations

import subprocess
import sys

from chapters.runner.course import ROOT, CourseError, chapters
from chapters.runner.course import chapter as find

HELP = "measure a chapter's kernels on this machine (3)"


def arguments(parser) -> None:
    parser.add_argument("chapter")
    parser.add_argument("--quick", action="store_true", help="measure little, write no file")


def run(options) -> int:
    """Run the chapter's `bench.py` as a program of its own."""
    chapter = find(options.chapter)
    if not (chapter.folder / "bench.py").exists():
        having = ", ".join(str(c.number) for c in chapters() if (c.folder / "bench.py").exists())
        raise CourseError(f"Chapter {chapter.number} measures nothing; {having or 'none'} do.")
    quick = ["--quick"] if options.quick else []
    command = [sys.executable, "-m", "chapters.kit.bench", chapter.slug, *quick]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
