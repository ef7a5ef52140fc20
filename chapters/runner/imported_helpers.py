"""Which files of the learner's, besides the answer itself, a check has loaded: helpers that the answer imports.

A record of a check that covered only the answer would still say "passed" after a helper was edited.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cached_property
from pathlib import Path

from chapters.runner.course import ROOT, chapters
from chapters.runner.earlier import MADE_OF
from chapters.runner.regions import file_digest

FOLDERS = ("solutions", "tests", "docs", "chapters/kit", "chapters/runner", "chapters/checking")
FILES = ("__init__", "child", "environment", "opened", "program", "code_owner")
COURSE = tuple(ROOT / part for part in (*FOLDERS, *(f"chapters/{name}.py" for name in FILES)))
IMPORT = re.compile(r"chapters\.(ch\d\d_\w+)(?:\.(\w+)|\s+import\s+([\w, ]+))")


class LearnersFiles:
    """Finds them among the modules of this process. Each check must load them anew, as it does the answer."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self._installed = [Path(paths[kind]).resolve() for kind in ("stdlib", "purelib", "platlib")]
        self._answers = {chapter.stub for chapter in chapters()}
        # what this process itself needs, and then each module that turned out not to be the learner's
        self._others = dict(sys.modules)
        self._seen: dict[Path, str] = {}  # digests when they were seen first

    def forget(self) -> None:
        """Let the next import of each execute it again; other chapters' answers stay, because the course holds them."""
        for name, path in self._find_modules().items():
            if path not in self._answers:
                package, _, own = name.rpartition(".")
                vars(sys.modules.get(package, sys)).pop(own, None) if package else None
                del sys.modules[name]
                self._seen.pop(path, None)

    def loaded(self) -> dict[str, str]:
        """{path, relative to the course's folder if it lies in it: digest} of those that this process has loaded.

        The digest is "" if the file is another one now than when this was asked first.
        """
        found = {}
        for path in self._find_modules().values():
            name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            now = file_digest(path)
            same = self._seen.setdefault(path, now) == now
            found[name.as_posix()] = now if same else ""
        return found

    def _find_modules(self) -> dict[str, Path]:
        found = {}
        for name, module in list(sys.modules.items()):
            if self._others.get(name) is module or name.startswith("answer_"):
                continue
            file = getattr(module, "__file__", None)
            has_file = isinstance(file, str)
            path = (
                self._find_learners_path(str(vars(module).get(MADE_OF, file))) if has_file else None
            )
            if not path:
                self._others[name] = module
            elif os.path.isabs(file):
                found[name] = path
        return found

    def _find_learners_path(self, file: str) -> Path | None:
        """The path of a file of the learner's; None for the course's own and for installed ones."""
        path = Path(file).resolve()
        if path in self._answers:
            return path
        known = any(path.is_relative_to(folder) for folder in (*self._installed, *COURSE))
        return None if path.suffix != ".py" or known or path in self._given else path

    @cached_property
    def _given(self) -> set[Path]:
        """The files in chapters' folders that the course itself imports."""
        found = {chapter.checks for chapter in chapters()}
        left = [*(ROOT / "solutions").glob("*/*.py"), *found]
        while left:
            text = left.pop().read_text(encoding="utf-8", errors="replace")
            for folder, module, names in IMPORT.findall(text):
                for name in [module] if module else names.split(","):
                    path = ROOT / "chapters" / folder / f"{name.strip()}.py"
                    if path not in found and path.exists() and path not in self._answers:
                        found.add(path)
                        left.append(path)
        return found
