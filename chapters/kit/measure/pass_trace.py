"""What a pipeline does, pass by pass: the time of each pass, what it changed, and the IR before and after it.

`trace(pipeline, mod)` runs a pipeline with an instrument that keeps the module where each pass begins and ends. A pass
that runs others, as a `Sequential` does, is a step too, with `depth` one less than theirs. `print(trace(...))` is a
table; `docs/pages/pass_list.py` makes a page of it.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

import tvm
import tvm_ffi

from chapters.kit.draw.table import align, format_change
from chapters.kit.ir.ir_diff import IRDiff, diff
from chapters.kit.ir.relax_effects import calls_in, relax_functions

# Calls that run a kernel, and calls that are bookkeeping; every other operator still waits to be lowered.
LAUNCHING = ("relax.call_tir", "relax.call_tir_inplace", "relax.call_dps_packed")
BOOKKEEPING = ("relax.memory.", "relax.builtin.", "relax.vm.", "relax.call_", "relax.invoke_")
FREE = ("relax.reshape", "relax.null_value", "relax.shape_of", "relax.to_vdevice")

_FUNCTION = re.compile(r"(?m)^    @(?:R\.function|T\.prim_func)\b")
_NAME = re.compile(r"(?m)^    def (\w+)\(")


@dataclass(frozen=True)
class Counts:
    """What a module's code contains: operators not yet lowered, kernel launches, kernels.

    A function for the host, which computes sizes, does not count as a kernel.
    """

    operators: int
    launches: int
    kernels: int


def count_module(mod: tvm.IRModule) -> Counts:
    """Count `mod`. A function marked as one kernel (by FuseOps) is one launch where it is called."""
    one_kernel = {name for name, func in mod.functions_items() if _is_kernel(func)}
    straight = [func for func in relax_functions(mod).values() if not _is_kernel(func)]
    called = [call.op for func in straight for call in calls_in(func.body)]
    operators = [op.name for op in called if isinstance(op, tvm.ir.Op)]
    left = [name for name in operators if not name.startswith(BOOKKEEPING) and name not in FREE]
    launches = sum(name in LAUNCHING for name in operators)
    launches += sum(isinstance(op, tvm.ir.GlobalVar) and op in one_kernel for op in called)
    return Counts(len(left), launches, len(one_kernel))


def _is_kernel(func: tvm.ir.BaseFunc) -> bool:
    attrs = func.attrs or {}
    if isinstance(func, tvm.tirx.PrimFunc):
        return not attrs.get("tirx.is_host_func")
    return "Primitive" in attrs


@dataclass(frozen=True)
class TracedPass:
    """One pass of a trace. `seconds` include the passes within it, but not the time that recording took."""

    number: int
    depth: int
    name: str
    seconds: float
    before: tvm.IRModule
    after: tvm.IRModule

    @cached_property
    def _functions(self) -> list[dict[str, tvm.ir.BaseFunc]]:
        """The functions before and after the pass, by name."""
        modules = (self.before, self.after)
        return [{gvar.name_hint: func for gvar, func in m.functions_items()} for m in modules]

    @cached_property
    def added(self) -> tuple[str, ...]:
        """The functions that only the module after the pass has."""
        old, new = self._functions
        return tuple(name for name in new if name not in old)

    @cached_property
    def removed(self) -> tuple[str, ...]:
        """The functions that only the module before the pass has."""
        old, new = self._functions
        return tuple(name for name in old if name not in new)

    @cached_property
    def altered(self) -> tuple[str, ...]:
        """The functions that are in both modules and differ in more than the names of variables."""
        old, new = self._functions
        return tuple(name for name in old if name in new and not _are_equal(old[name], new[name]))

    @property
    def changed(self) -> bool:
        return bool(self.added or self.removed or self.altered)

    @cached_property
    def counts(self) -> tuple[Counts, Counts]:
        """The counts of the module before the pass and after it."""
        return count_module(self.before), count_module(self.after)

    def diff(self, function: str) -> IRDiff:
        """The listing of one function before and after; a side that lacks it is empty."""
        old, new = (listings(mod).get(function, "") for mod in (self.before, self.after))
        return diff(old, new)

    def summary(self) -> str:
        """What the pass changed, in a few words: "decode; 18 new, 4 gone"."""
        if not self.changed:
            return "–"
        parts = [f"{len(self.added)} new"] * bool(self.added)
        parts += [f"{len(self.removed)} gone"] * bool(self.removed)
        few = len(self.altered) < 4
        names = ", ".join(self.altered) if few else f"{len(self.altered)} functions"
        return "; ".join(filter(None, [names, ", ".join(parts)]))


def _are_equal(old: tvm.ir.BaseFunc, new: tvm.ir.BaseFunc) -> bool:
    return old.same_as(new) or tvm_ffi.structural_equal(old, new)


def listings(mod: tvm.IRModule) -> dict[str, str]:
    """The listing of each function, by name, as the whole module prints it, one indentation less.

    A function is cut out of its module's listing, because printed alone it would not show the names of others.
    """
    text = mod.script()
    starts = [match.start() for match in _FUNCTION.finditer(text)]
    found = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        name = _NAME.search(text, start)
        lines = text[start:end].rstrip().splitlines()
        found[name[1]] = "\n".join(line.removeprefix("    ").rstrip() for line in lines)
    return found


@dataclass(frozen=True)
class Trace:
    """A recorded run of a pipeline: its steps in the order in which the passes began."""

    steps: tuple[TracedPass, ...]
    result: tvm.IRModule

    def find(self, name: str) -> list[TracedPass]:
        """The steps called `name`, in upper or lower case, or the one with that number.

        Raises KeyError, whose message names the passes that ran, if there is no such step.
        """
        found = [s for s in self.steps if name.lower() == s.name.lower() or name == str(s.number)]
        if not found:
            known = list(dict.fromkeys(step.name for step in self.steps))
            near = get_close_matches(name.lower(), [k.lower() for k in known], n=3)
            meant = [k for k in known if k.lower() in near]
            others = f"These did: {', '.join(known)}."
            hint = f"Did you mean {' or '.join(meant)}?" if meant else others
            raise KeyError(f"No pass {name!r} ran. {hint}")
        return found

    @property
    def passes(self) -> tuple[TracedPass, ...]:
        """The passes of the pipeline itself: without sequences of passes, and without passes that other passes run."""
        found, within = [], None
        for index, step in enumerate(self.steps):
            if within is not None and step.depth > within:
                continue
            within = None
            if not self._holds(index):
                found.append(step)
                within = step.depth
        return tuple(found)

    def _holds(self, index: int) -> bool:
        """Whether the step is a sequence of passes, or only runs one."""
        step, *later = self.steps[index:]
        within = itertools.takewhile(lambda other: other.depth > step.depth, later)
        inner = [other.name for other in within if other.depth == step.depth + 1]
        return step.name == "sequential" or inner == ["sequential"]

    def cells(self) -> Iterator[tuple[str, ...]]:
        """The table's rows as texts, headings first."""
        yield "#", "pass", "ms", "operators", "launches", "changed"
        for step in self.steps:
            old, new = step.counts
            yield (
                str(step.number),
                "  " * step.depth + step.name,
                f"{step.seconds * 1000:.1f}",
                format_change(old.operators, new.operators),
                format_change(old.launches, new.launches),
                step.summary(),
            )

    def __str__(self) -> str:
        return "\n".join(align(list(self.cells()), (True, False, True, True, True, False)))

    __repr__ = __str__


@tvm.instrument.pass_instrument
class Recorder:
    """A pass instrument that keeps each pass's name, depth, time, and module at begin and end."""

    def __init__(self):
        self.steps = []
        self._open = []
        self._own = 0.0  # the time that recording took, which belongs to no pass

    def run_before_pass(self, mod, info):
        began = time.perf_counter()
        # a clone: a pass may write into the module it was given
        self._open.append((len(self.steps), info.name, mod.clone()))
        self.steps.append(None)
        now = time.perf_counter()
        self._own += now - began
        self._open[-1] += (now, self._own)

    def run_after_pass(self, mod, info):
        ended = time.perf_counter()
        index, name, before, began, own = self._open.pop()
        seconds = ended - began - (self._own - own)
        depth = len(self._open)
        self.steps[index] = TracedPass(index + 1, depth, name, seconds, before, mod.clone())
        self._own += time.perf_counter() - ended


def trace(
    pipeline: tvm.transform.Pass, mod: tvm.IRModule, target: tvm.target.Target | str = "llvm"
) -> Trace:
    """Run `pipeline` on `mod` for `target` and record every pass. `mod` itself is not changed.

    An exception of a pass is passed on, without a record.
    """
    recorder = Recorder()
    where = tvm.target.Target(target) if isinstance(target, str) else target
    with where, tvm.transform.PassContext(instruments=[recorder]):
        result = pipeline(mod.clone())
    return Trace(tuple(recorder.steps), result)
