"""Tries the course with the newest apache-tvm, in a new environment, and prints what broke. It never blocks a change.

    python -m tests.course.canary [TESTS …]

The environment gets the newest TVM and tvm-ffi, and the course's other dependencies as pyproject.toml asks for them.
There `doctor` says what is installed, a probe says whether tensorize works, and pytest runs TESTS: if none are named,
the checks on the reference, and the scripts of docs/upstream, of which a test fails if its fault is mended. The exit
code is pytest's, or pip's if the newest releases cannot be installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from chapters.runner.course import ROOT

UPSTREAM = "tests/website/test_upstream_findings.py"
PYTEST = ("-m", "pytest", "-q", "--tb=no", "-rfE", "--continue-on-collection-errors")


def read_requirements() -> list[str]:
    """The course's dependencies; the version is left out where it is pinned to one."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"(?m)^dependencies = \[[^\n]*\n(.*?)^\]", text, re.DOTALL)[1]
    return [asked.split("==")[0] for asked in re.findall(r'^\s*"([^"]+)"', block, re.MULTILINE)]


def main(tests: list[str]) -> int:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables = {**inherited, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "NO_COLOR": "1"}
    variables["COLUMNS"] = "160"  # pytest cuts its summary at the width of the terminal
    with tempfile.TemporaryDirectory(prefix="canary-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if failed := subprocess.run([python, *install, *read_requirements()]).returncode:
            return failed
        subprocess.run([python, "-m", "chapters", "doctor"], cwd=ROOT, env=variables)
        probe = [python, "-m", "chapters.kit.tensorize_probe"]
        ended = subprocess.run(probe, cwd=ROOT, env=variables).returncode
        print(f"The probe of tensorize ended with exit code {ended}.", flush=True)
        command = [python, *PYTEST, *(tests or ["solutions", UPSTREAM])]
        return subprocess.run(command, cwd=ROOT, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
