"""What this machine can do with TVM: the second half of `python -m chapters doctor`, run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from chapters.kit import machine
from chapters.kit.gpu.executors import executors

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Finding:
    """One line of the report. mark: "ok", "--" (absent, not needed) or "!!" (must be mended)."""

    mark: str
    text: str
    advice: str = ""


def _cpu() -> Finding:
    host = machine.llvm_host()
    lanes = host["bits"] // 32
    return Finding(
        "ok",
        f"{machine.cpu_name()}, {os.cpu_count()} cores; LLVM {host['version']} takes it for {host['cpu']}: vectors of "
        f"{host['bits']} bits, {lanes} float32 lanes",
    )


def _tensorize() -> Finding:
    """Tensorize in another process, which a wrong tvm-ffi ends."""
    command = [sys.executable, "-m", "chapters.kit.tensorize_probe"]
    probe = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=120, check=False)
    if probe.returncode == 0:
        return Finding("ok", "Schedule.tensorize works (with a wrong tvm-ffi it ends the process)")
    return Finding(
        "!!",
        f"Schedule.tensorize ended its process with exit code {probe.returncode}",
        "run `pip install -e .` in the course's folder; it installs the apache-tvm-ffi that works",
    )


def _gpus() -> list[Finding]:
    state, sentence = machine.cuda_state()
    sentence = sentence[0].upper() + sentence[1:]
    nothing = "nothing is needed for the course"
    setup = "with an NVIDIA GPU see “With an NVIDIA GPU” in docs/setup.md"
    advice = {"not loaded": f"{nothing}; {setup}", "no gpu": nothing}
    findings = [Finding("ok" if state == "gpu" else "--", sentence, advice.get(state, ""))]
    if machine.metal_exists():
        findings.append(Finding("ok", "Metal: a GPU that TVM can run kernels on"))
    if not any(finding.mark == "ok" for finding in findings):
        text = "No GPU is needed: GPU code is generated and read on this machine all the same"
        findings.append(Finding("ok", text))
    return findings


def _executors() -> list[Finding]:
    """What runs GPU code without a GPU."""
    found = []
    for executor in executors():
        reason = executor.missing()
        text = reason[0].upper() + reason[1:] if reason else executor.what
        found.append(Finding("--" if reason else "ok", text, executor.install if reason else ""))
    return found


def main() -> int:
    """Print what was found; 1 if something must be mended."""
    findings = [_cpu(), _tensorize(), *_gpus(), *_executors()]
    for finding in findings:
        print(f"{finding.mark}  {finding.text}")
        if finding.advice:
            print(f"    -> {finding.advice}")
    broken = sum(finding.mark == "!!" for finding in findings)
    print(f"\n{broken} thing(s) to mend." if broken else "\nEverything the course needs is here.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
