"""Each script of docs/upstream shows its fault on the installed TVM, is short, and uses nothing of this course."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from chapters.runner.course import ROOT
from docs.pages.upstream_page import KINDS, NONE_FOUND, Finding, findings

FOUND = findings()


def imported(finding: Finding) -> set[str]:
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
    assert imported(finding) <= allowed | (
        {"torch"} if "(Needs PyTorch.)" in finding.should else set()
    )
    assert finding.kind in KINDS
    assert (ROOT / finding.avoided_in).exists()
    report = re.compile(r"https://github\.com/(apache/tvm|llvm/llvm-project)/(issues|pull)/\d+")
    assert finding.upstream == NONE_FOUND or report.fullmatch(finding.upstream)


@pytest.mark.parametrize("finding", FOUND, ids=lambda one: one.path.stem)
def test_it_shows_its_fault_on_this_tvm(finding):
    if "torch" in imported(finding):
        pytest.importorskip("torch", reason='needs PyTorch: pip install -e ".[models]"')
    done = subprocess.run(
        [sys.executable, finding.path],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    crashed = finding.kind == "a crash" and done.returncode not in (0, 1)
    assert done.returncode == 0 or crashed, f"mended?\n{done.stdout}{done.stderr}"
    assert "TVM gives " in done.stdout and "should" in done.stdout
