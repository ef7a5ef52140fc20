"""`python -m chapters compile MODEL.py`: a PyTorch model through the course's pipeline, beside PyTorch itself."""

from __future__ import annotations

import os
import subprocess
import sys

from chapters.child import name_exit
from chapters.runner.course import ROOT, CourseError, chapter

HELP = "compile a PyTorch model that you bring, and compare it with PyTorch (model.py)"
CHAPTER = 10  # the one about imported models


def arguments(parser) -> None:
    parser.add_argument("model", help="a file, or a module's dotted path, that defines model()")
    parser.add_argument("--quick", action="store_true", help="compile and compare, measure no time")


def run(options) -> int:
    """Run the chapter's `compile_model.py` as a program of its own, which TVM or PyTorch may crash."""
    program = f"chapters.{chapter(CHAPTER).slug}.compile_model"
    quick = ["--quick"] if options.quick else []
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", program, options.model, *quick],
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        stderr=subprocess.PIPE,  # warnings of three libraries
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        raise CourseError(f"Compiling {options.model} failed: {name_exit(done.returncode)}. {last}")
    return done.returncode
