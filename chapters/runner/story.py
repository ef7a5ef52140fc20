"""Tells a chapter in the terminal: `python -m chapters.ch06_reduction_epilogue`.

It runs the chapter's lab, cell by cell: the heading, one sentence, and what the cell shows. The learner's own code is
used where it passes its checks, the reference elsewhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from typing import NoReturn

from chapters.code_owner import LEARNER, REFERENCE, set_owner
from chapters.program import run_program
from chapters.runner.course import CourseError
from chapters.runner.course import chapter as find
from chapters.runner.earlier import describe_owners
from chapters.runner.page_code import Cell, Namespace, cells

BOLD, DIM, CYAN, PLAIN = "\033[1m", "\033[2m", "\033[36m", "\033[0m"
SHORT = 40  # characters; a shorter sentence is told with the next one


def tell(package: str) -> NoReturn:
    """Tell the chapter whose package is called `package`, and end the process: with status 1 if its code fails."""
    try:
        sys.exit(run_program(lambda: _tell_chapter(package)))
    except CourseError as error:
        sys.exit(str(error))


def _tell_chapter(package: str) -> int:
    home = find(package.rpartition(".")[2])
    about = f"Chapter {home.number}, {home.title}, by its lab."
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    parser.add_argument("--pause", action="store_true", help="wait for Enter after each step")
    parser.add_argument("--solutions", action="store_true", help="use the reference throughout")
    options = parser.parse_args()
    set_owner(REFERENCE if options.solutions else LEARNER)
    story = Story(pause=options.pause)
    story.title(f"Chapter {home.number} · {home.title}")
    story.say(describe_owners([*home.needs, home.number]))
    lab = (home.folder / "lab.py").read_text(encoding="utf-8")
    if not all(map(story.cell, cells(lab))):
        return 1
    story.say(f"Read on in chapters/{home.slug}/lesson.md; change and run lab.py beside it.")
    return 0


def _first_sentence(paragraph: str) -> str:
    """The first sentence of a paragraph; with a very short one, also the next."""
    said = ""
    for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])", paragraph):
        said = f"{said} {sentence}".strip()
        if len(said) >= SHORT:
            break
    return said


class Story:
    """Prints prose and what cells show. Colours only where a terminal reads them."""

    def __init__(self, *, pause: bool = False):
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.width = min(shutil.get_terminal_size((100, 24)).columns, 100)
        self.pause = pause and sys.stdin is not None and sys.stdin.isatty()
        self._names = Namespace("lab")
        # IR has colours where a terminal reads them
        sys.displayhook = lambda value: print(repr(value))

    def title(self, text: str) -> None:
        line = "─" * min(len(text), self.width)
        print(f"\n{self._style(BOLD, text)}\n{self._style(DIM, line)}")

    def say(self, text: str) -> None:
        for line in textwrap.wrap(text, self.width):
            print(re.sub(r"`([^`]+)`", lambda m: self._style(CYAN, m[1]), line))
        print()

    def cell(self, cell: Cell) -> bool:
        """Tell one cell; False if its code failed."""
        if not cell.is_code:
            self._prose(cell.text)
            return True
        try:
            self._names.run(cell.text, cell.line)
        except Exception as error:
            told = self._names.describe(error)
            print(f"\nLine {told['line']} of lab.py failed: {told['lines'][-1]}")
            return False
        print(flush=True)
        if self.pause:
            input(self._style(DIM, "Enter for the next step "))
        return True

    def _prose(self, text: str) -> None:
        """Headings, and one sentence beneath each; the page has the rest."""
        for part in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
            heading = re.match(r"(#+) (.+)\n?", part)
            body = part[heading.end() :] if heading else part
            if heading and len(heading[1]) > 1:
                self.title(heading[2])
            paragraph = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", body.strip().split("\n\n")[0])
            if paragraph and not (heading and len(heading[1]) == 1):
                self.say(_first_sentence(re.sub(r"\s+", " ", paragraph)))

    def _style(self, style: str, text: str) -> str:
        return f"{style}{text}{PLAIN}" if self.colour else text
