"""Fuses and runs hard cases with the built-in and with a primitive of one's own, and says what came of it.

`verdicts(names)` gives each case a process of its own, because a miscompiled program may write anywhere; a case that
kills its process is reported as such. `python -m chapters.toolkit.cases.side_by_side NAME` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import s_tir

from chapters.toolkit.cases.guarded import WroteOutside, run_compiled
from chapters.toolkit.cases.hard_cases import CASES, Case
from chapters.toolkit.course import ROOT
from chapters.toolkit.ir.tensor_ir import nodes

SECONDS = 120  # for one case, compilation included
BAD = (
    "wrong",
    "outside its arrays",
    "not well-formed",
    "does not compile",
    "reads not declared",
    "died",
)


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
    """Compare `mod` with the case unfused: "right", "refused" where it is None, or one of `BAD`."""
    if mod is None:
        return "refused"
    try:
        s_tir.Schedule(mod)
    except Exception:
        return "not well-formed"
    expected = run_compiled(tvm.IRModule({"main": case.func}), case.arguments())
    try:
        got = run_compiled(mod, case.arguments())
    except WroteOutside:
        return "outside its arrays"
    except Exception:
        return "does not compile"
    if not all(_same(a, b) for a, b in zip(got, expected, strict=True)):
        return "wrong"
    return "right" if _declares_its_reads(mod) else "reads not declared"


def _same(got: np.ndarray, expected: np.ndarray) -> bool:
    """Equal, NaN to NaN; floats within 0.1 %, which no mistake of this kind stays in."""
    if got.dtype.kind in "iu":
        return np.array_equal(got, expected)
    wide = got.astype("float64"), expected.astype("float64")
    return np.allclose(*wide, rtol=1e-3, atol=1e-4, equal_nan=True)


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


def judge_ours(case: Case, ours: Callable) -> tuple[str, str]:
    """What came of a case with the primitive `ours`, and the way it took or the condition that is missed."""
    mod, how = fused(case, ours)
    return outcome(case, mod), how


def judge_builtin(case: Case) -> str:
    """What came of a case with the primitive of the release."""
    try:
        mod, _ = fused(case, lambda sch, *blocks: sch.fuse_reduction_epilogue(*blocks))
    except tvm.error.InternalError:
        return "internal error"
    return outcome(case, mod)


def verdict(name: str) -> Verdict:
    """Both primitives on the case called `name`, in a process of its own."""
    command = [sys.executable, "-m", "chapters.toolkit.cases.side_by_side", name]
    try:
        child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS, check=False)
        said = child.stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    lines = [json.loads(line) for line in said.decode("utf-8").splitlines()]
    ours, how = lines[0] if lines else ("died", "")
    return Verdict(name, lines[1] if len(lines) > 1 else "died", ours, how)


def verdicts(names: Iterable[str] = CASES) -> list[Verdict]:
    """What the built-in and the course's `fuse_epilogue` make of the cases called `names`, in this order."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(verdict, names))


def main(name: str) -> None:
    """Print what came of one case, a line of JSON for each primitive: ours first, for the other may do anything."""
    from chapters.toolkit.earlier import earlier

    case = CASES[name]
    print(json.dumps(judge_ours(case, earlier(7).fuse_epilogue)), flush=True)
    print(json.dumps(judge_builtin(case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
