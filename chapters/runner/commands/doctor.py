"""`python -m chapters doctor`: what this machine can do, in plain words, and what to do about what it lacks."""

from __future__ import annotations

import platform
import subprocess
import sys

from chapters.runner.course import ROOT
from chapters.runner.versions import MEND, installed_version, pins, wrong_versions

HELP = "what this machine can do, and what to do about what it lacks"


def run(_options) -> int:
    """Look at the installed versions here; then, in a process that TVM may crash, at the machine."""
    print(f"ok  Python {platform.python_version()} at {sys.executable}", flush=True)
    for package, wanted in pins().items():
        if installed_version(package) == wanted:
            print(f"ok  {package} {wanted}", flush=True)
    print(f"ok  numpy {installed_version('numpy')}", flush=True)
    wrong = wrong_versions()
    for sentence in wrong:
        print(f"!!  {sentence}\n    -> {MEND}")
    if wrong:
        print(f"\n{len(wrong)} thing(s) to fix.")
        return 1
    command = [sys.executable, "-m", "chapters.kit.doctor"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
