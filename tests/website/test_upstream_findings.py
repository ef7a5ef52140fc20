"""Each script of docs/upstream shows its fault on the installed TVM, is short, and uses nothing of this course."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chapters.runner.course import ROOT
from chapters.runner.worker import WITHOUT_FILES
from docs.pages.upstream_page import KINDS, NONE_FOUND, Finding, read_findings
from tests.course.canary import read_requirements

FOUND = read_findings()
SECONDS = 300
# A process that imports stock TVM, and runs each script in a fork of itself. Its answer is the exit status.
FORKS = f"""
import faulthandler, inspect, json, os, runpy, sys
import tvm
inspect.modulesbyfile.update(dict.fromkeys({WITHOUT_FILES}, "builtins"))
for line in sys.stdin:
    path, output = json.loads(line)
    child = os.fork()
    if not child:
        for stream in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        faulthandler.dump_traceback_later({SECONDS}, exit=True)
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def find_imports(finding: Finding) -> set[str]:
    """The packages that a script imports."""
    names = set()
    for node in ast.walk(ast.parse(finding.path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("finding", FOUND, ids=lambda one: one.path.stem)
def test_it_is_a_script_for_a_stranger(finding):
    assert len(finding.path.read_text(encoding="utf-8").splitlines()) <= 40
    allowed = {"tvm", "tvm_ffi", "numpy", "time"}
    assert find_imports(finding) <= allowed | (
        {"torch"} if "(Needs PyTorch.)" in finding.should else set()
    )
    assert finding.kind in KINDS
    assert (ROOT / finding.avoided_in).exists()
    report = re.compile(r"https://github\.com/(apache/tvm|llvm/llvm-project)/(issues|pull)/\d+")
    assert finding.upstream == NONE_FOUND or report.fullmatch(finding.upstream)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Gives a function that runs a script, and returns its exit status and what it printed."""
    if sys.platform != "linux":  # a fork may not use what other systems have loaded
        yield run_alone
        return
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen([sys.executable, "-c", FORKS], cwd=ROOT.parent, **pipes) as forks:

        def run_in_a_fork(path: Path) -> tuple[int, str]:
            output = tmp_path_factory.mktemp(path.stem) / "output"
            print(json.dumps([str(path), str(output)]), file=forks.stdin, flush=True)
            return int(forks.stdout.readline()), output.read_text("utf-8", "replace")

        yield run_in_a_fork


def run_alone(path: Path) -> tuple[int, str]:
    captured = {"capture_output": True, "encoding": "utf-8"}
    command = [sys.executable, path]
    done = subprocess.run(command, cwd=ROOT.parent, timeout=SECONDS, check=False, **captured)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("finding", FOUND, ids=lambda one: one.path.stem)
def test_it_shows_its_fault_on_this_tvm(finding, run):
    if "torch" in find_imports(finding):
        pytest.importorskip("torch", reason='needs PyTorch: pip install -e ".[models]"')
    status, printed = run(finding.path)
    crashed = finding.kind == "a crash" and status not in (0, 1)
    why = "mended?" if status == 1 and "Traceback" not in printed else "cannot tell"
    assert status == 0 or crashed, f"{why}\n{printed}"
    assert "TVM gives " in printed and "should" in printed


def test_the_canary_loosens_the_pins_and_nothing_else():
    asked = read_requirements()
    assert {"apache-tvm", "apache-tvm-ffi"} <= set(asked)
    assert any(one.startswith("numpy>=") for one in asked)
    assert not any("==" in one for one in asked)
