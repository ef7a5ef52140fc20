"""Fuses and runs hard cases with the built-in and with a primitive of one's own, and says what came of it.

`verdicts(names)` runs the cases in a process apart, because a miscompiled program may write anywhere; a case that kills
the process is reported as such, and the next one gets a new process. `python -m chapters.toolkit.side_by_side` is that
process: it reads a line of JSON for each case and writes a line back.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
import tvm
from tvm import s_tir

from chapters.toolkit.course import ROOT
from chapters.toolkit.guarded import run_compiled
from chapters.toolkit.hard_cases import CASES, Case
from chapters.toolkit.tensor_ir import nodes

SECONDS = 60  # for one case, compilation included
BAD = ("wrong", "outside its arrays", "does not compile", "reads not declared", "died")


@dataclass(frozen=True)
class Verdict:
    """What came of one case. builtin, ours: a word or two; how: the way ours took, or the condition it misses."""

    name: str
    builtin: str
    ours: str
    how: str


def fused(case: Case, fuse: Callable) -> tuple[tvm.IRModule | None, str]:
    """The module after `fuse(sch, "matmul", "bias")` and what it returned; None and the sentence if it refused."""
    sch = s_tir.Schedule(case.func)
    try:
        told = fuse(sch, "matmul", "bias")
    except s_tir.ScheduleError as error:
        return None, str(error).strip().splitlines()[-1]
    return sch.mod, "" if told is None else str(told)


def outcome(case: Case, mod: tvm.IRModule | None) -> str:
    """Compare `mod` with the case unfused: right, wrong, outside its arrays, does not compile, or refused for None."""
    if mod is None:
        return "refused"
    expected = run_compiled(tvm.IRModule({"main": case.func}), case.arguments())
    try:
        got = run_compiled(mod, case.arguments())
    except AssertionError:
        return "outside its arrays"
    except Exception:
        return "does not compile"
    if not all(_same(a, b) for a, b in zip(got, expected, strict=True)):
        return "wrong"
    return "right" if _declares_its_reads(mod) else "reads not declared"


def _same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Equal; floats within 0.1 %, which no mistake of this kind stays in."""
    if got.dtype.kind in "iu":
        return np.array_equal(got, expected)
    return np.allclose(got.astype("float64"), expected.astype("float64"), rtol=1e-3, atol=1e-4)


def _declares_its_reads(mod: tvm.IRModule) -> bool:
    """Whether the block `matmul` declares as many elements of each operand as TVM's own analysis finds it reads."""
    sch = s_tir.Schedule(mod)
    block = sch.get(sch.get_sblock("matmul"))
    buffers = {v: v for v in nodes(block, tvm.ir.Var) if tvm.tirx.is_buffer_var(v)}
    reads, writes, _ = s_tir.analysis.get_sblock_access_region(block, buffers)
    written = [region.source for region in writes]
    found = {r.source: r for r in reads if not any(r.source.same_as(w) for w in written)}
    declared = {region.source: region for region in block.reads}
    return all(source in declared and _box(declared[source], r) for source, r in found.items())


def _box(declared, found) -> bool:
    """Whether a declared region is as wide as the one found, or wider, along each axis."""
    prove = tvm.sym.Analyzer()
    pairs = zip(declared.region, found.region, strict=True)
    return all(
        prove.can_prove_equal(a.extent, b.extent) or prove.can_prove(a.extent >= b.extent)
        for a, b in pairs
    )


def judge(name: str, ours: Callable) -> Verdict:
    """Both primitives on the case called `name`, in this process."""
    case = CASES[name]
    try:
        mod, _ = fused(case, lambda sch, *blocks: sch.fuse_reduction_epilogue(*blocks))
        builtin = outcome(case, mod)
    except tvm.error.InternalError:
        builtin = "internal error"
    mod, how = fused(case, ours)
    return Verdict(name, builtin, outcome(case, mod), how)


class _Process:
    """A child that judges cases."""

    def __init__(self):
        self.child = subprocess.Popen(
            [sys.executable, "-m", "chapters.toolkit.side_by_side"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
            encoding="utf-8",
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put("")

    def ask(self, name: str) -> dict | None:
        """The child's answer; None if it died or took too long."""
        try:
            self.child.stdin.write(json.dumps(name) + "\n")
            self.child.stdin.flush()
            line = self.lines.get(timeout=SECONDS)
        except (OSError, queue.Empty):
            return None
        return json.loads(line) if line else None

    def close(self) -> None:
        self.child.kill()
        self.child.wait(10)
        self.child.stdout.close()


def verdicts(names: Iterable[str] = CASES) -> list[Verdict]:
    """What the built-in and the course's `fuse_epilogue` make of the cases called `names`."""
    found, process = [], _Process()
    for name in names:
        answer = process.ask(name)
        if answer is None:
            process.close()
            process, answer = _Process(), asdict(Verdict(name, "died", "not reached", ""))
        found.append(Verdict(**answer))
    process.close()
    return found


def main() -> None:
    from chapters.toolkit.earlier import earlier

    ours = earlier(7).fuse_epilogue
    for line in sys.stdin:
        print(json.dumps(asdict(judge(json.loads(line), ours))), flush=True)


if __name__ == "__main__":
    main()
