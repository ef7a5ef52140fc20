"""`python -m chapters doctor`: what this machine can do, in plain words, and what to do about what it lacks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass

from chapters.toolkit import machine
from chapters.toolkit.course import ROOT
from chapters.toolkit.executors import executors


@dataclass
class Finding:
    """One line of the doctor's. mark: "ok", "--" (absent, not needed) or "!!" (must be mended)."""

    mark: str
    text: str
    advice: str = ""


def _versions() -> list[Finding]:
    wrong = [Finding("!!", sentence, machine.MEND) for sentence in machine.wrong_versions()]
    right = [
        Finding("ok", f"{package} {machine.installed(package)}")
        for package, wanted in machine.pins().items()
        if machine.installed(package) == wanted
    ]
    python = Finding("ok", f"Python {platform.python_version()} at {sys.executable}")
    return [python, *right, *wrong, Finding("ok", f"numpy {machine.installed('numpy')}")]


def _tensorize() -> Finding:
    """Tensorize in a child process, which a wrong tvm-ffi kills."""
    probe = subprocess.run(
        [sys.executable, "-m", "chapters.toolkit.tensorize_probe"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if probe.returncode == 0:
        return Finding("ok", "Schedule.tensorize works (with a wrong tvm-ffi it ends the process)")
    return Finding(
        "!!",
        f"Schedule.tensorize ended its process with exit code {probe.returncode}",
        f"pip install apache-tvm-ffi=={machine.pins()['apache-tvm-ffi']}   (later ones do this)",
    )


def _cpu() -> Finding:
    host = machine.llvm_host()
    lanes = host["bits"] // 32
    return Finding(
        "ok",
        f"{machine.cpu_name()}, {os.cpu_count()} cores; LLVM {host['version']} takes it for {host['cpu']}: vectors of "
        f"{host['bits']} bits, {lanes} float32 lanes",
    )


def _gpus() -> list[Finding]:
    state, sentence = machine.cuda_state()
    sentence = sentence[0].upper() + sentence[1:]
    advice = {
        "not loaded": "nothing is needed for the course; with an NVIDIA GPU see “With an NVIDIA GPU” "
        "in docs/setup.md",
        "no gpu": "nothing is needed for the course",
    }
    findings = [Finding("ok" if state == "gpu" else "--", sentence, advice.get(state, ""))]
    if machine.metal_exists():
        findings.append(Finding("ok", "Metal: a GPU that TVM can run kernels on"))
    if not any(finding.mark == "ok" for finding in findings):
        findings.append(
            Finding(
                "ok",
                "No GPU is needed: GPU code is generated and read on this machine all the same",
            )
        )
    return findings


def _executors() -> list[Finding]:
    """What runs GPU code without a GPU."""
    found = []
    for executor in executors():
        reason = executor.missing()
        text = reason[0].upper() + reason[1:] if reason else executor.what
        found.append(Finding("--" if reason else "ok", text, executor.install if reason else ""))
    return found


def run(_options) -> int:
    """Print what was found; 1 if something must be mended."""
    findings = _versions()
    if not any(finding.mark == "!!" for finding in findings):
        findings += [_cpu(), _tensorize(), *_gpus(), *_executors()]
    for finding in findings:
        print(f"{finding.mark}  {finding.text}")
        if finding.advice:
            print(f"    -> {finding.advice}")
    broken = sum(finding.mark == "!!" for finding in findings)
    print(f"\n{broken} thing(s) to mend." if broken else "\nEverything the course needs is here.")
    return 1 if broken else 0
