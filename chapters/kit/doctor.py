"""What this machine can do with TVM: the second half of `python -m chapters doctor`, run in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

from chapters.child import ROOT
from chapters.kit import machine
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.emulator.executors import executors, find_skipped
from chapters.program import run_program

SECONDS = 120  # at most, to import TVM from a cold disk and to tensorize one block


@dataclass
class Finding:
    """One line of the report. mark: "ok", "--" (absent, not needed) or "!!" (must be fixed)."""

    mark: str
    text: str
    advice: str = ""


def _cpu() -> Finding:
    host = machine.llvm_host()
    registers = vector_registers(host["target"])
    return Finding(
        "ok",
        f"{machine.cpu_name()}, {machine.physical_cores()} cores; LLVM {host['version']} takes it for {host['cpu']}: "
        f"vectors of {registers.bits} bits, {registers.lanes('float32')} float32 lanes",
    )


def _threads() -> Finding:
    used, cores = os.environ["TVM_NUM_THREADS"], machine.physical_cores()
    text = f"compiled kernels run on {used} threads, of {cores} cores"
    return Finding(
        "ok",
        text,
        "" if used == str(cores) else "TVM_NUM_THREADS is set; unset it to use all cores",
    )


def _tensorize() -> Finding:
    """Tensorize in another process, because a wrong tvm-ffi kills the process."""
    command = [sys.executable, "-m", "chapters.kit.tensorize_probe"]
    try:
        probe = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        text = f"Schedule.tensorize did not finish within {SECONDS} seconds"
        return Finding("!!", text, "run `python -m chapters doctor` again when the machine is idle")
    if probe.returncode == 0:
        return Finding("ok", "Schedule.tensorize works (a wrong tvm-ffi would kill the process)")
    return Finding(
        "!!",
        f"Schedule.tensorize ended its process with exit code {probe.returncode}",
        "run `pip install -e .` in the course's folder; it installs the apache-tvm-ffi that works",
    )


def _gpus() -> list[Finding]:
    state, sentence = machine.cuda_state()
    sentence = sentence[0].upper() + sentence[1:]
    optional = "the course does not need one"
    setup = "if this machine has an NVIDIA GPU, see “With an NVIDIA GPU” in docs/setup.md"
    advice = {"not loaded": f"{optional}; {setup}", "no gpu": optional}
    findings = [Finding("ok" if state == "gpu" else "--", sentence, advice.get(state, ""))]
    if state != "gpu" and (old := machine.driver_problem()):
        findings = [Finding("--", old.partition(". ")[0], old.partition(". ")[2])]
    if machine.metal_exists():
        findings.append(Finding("ok", "Metal: a GPU that TVM can run kernels on"))
    if not any(finding.mark == "ok" for finding in findings):
        text = "No GPU is needed: this machine can generate GPU code for you to read"
        findings.append(Finding("ok", text))
    return findings


def _executors() -> list[Finding]:
    """What can run or compile GPU code without a GPU."""
    found = []
    for executor in executors():
        reason = executor.missing()
        text = reason[0].upper() + reason[1:] if reason else executor.what
        found.append(Finding("--" if reason else "ok", text, executor.install if reason else ""))
    if lacking := find_skipped():
        found.append(
            Finding(
                "--",
                f"{len(lacking)} exercises cannot be checked to the end here and are shown as SKIPPED: "
                f"{', '.join(lacking)}",
                "install what the lines above name; “GPU code, run without a GPU” in docs/setup.md says more",
            )
        )
    return found


def _verdict(broken: int, skipped: int) -> str:
    if broken:
        return f"{broken} thing(s) to fix."
    if skipped:
        return (
            f"Nothing is broken. {skipped} exercises will be skipped until this machine has what the lines with -- "
            "name; all others can be checked."
        )
    return "Everything the course needs is here."


def main() -> int:
    """Print the findings; returns the exit status, 1 if something must be fixed."""
    findings = [_cpu(), _threads(), _tensorize(), *_gpus(), *_executors()]
    for finding in findings:
        print(f"{finding.mark}  {finding.text}")
        if finding.advice:
            print(f"    -> {finding.advice}")
    broken = sum(finding.mark == "!!" for finding in findings)
    print(f"\n{_verdict(broken, len(find_skipped()))}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(run_program(main))
