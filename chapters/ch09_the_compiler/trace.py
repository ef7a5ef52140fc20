"""Runs a pipeline on one function of the decoder, pass by pass, for `python -m chapters trace`.

The pipelines have names: TVM's own two, and this chapter's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import tvm
from tvm import relax

from chapters.kit.decoder.llama import decoder
from chapters.kit.decoder.llama_config import LlamaConfig, find_config
from chapters.kit.draw.table import Table
from chapters.kit.ir.ir_diff import DIM, PLAIN, in_colours
from chapters.kit.measure.pass_trace import Trace, TracedPass, trace
from chapters.kit.schedules.warn_of_fallback import (
    FALLBACK,
    UNBOUNDED,
    FallbackKernel,
    FallbackWarning,
    find_fallback_kernels,
)
from chapters.runner.earlier import describe_owner, earlier, explain_unused

OURS = 9  # the number of this chapter
USES = (2, 3, 4, 5, 6, 7, OURS)  # the chapters whose code its pipeline runs
MANY = 3  # functions whose differences are shown in full


def _default(target: tvm.target.Target) -> tvm.transform.Pass:
    """The pipeline that `tvm.compile` chooses: for a GPU the target's, else the general one, which does not fuse."""
    if "gpu" in target.keys:
        return relax.get_default_pipeline(target)
    return relax.get_pipeline("default")


def _zero(_target: tvm.target.Target) -> tvm.transform.Pass:
    """TVM's general fusion, then its lowering."""
    names = ("zero", "default_build")
    return tvm.transform.Sequential([relax.get_pipeline(name) for name in names])


# name -> makes the pipeline for a target
PIPELINES: dict[str, Callable[[tvm.target.Target], tvm.transform.Pass]] = {
    "zero": _zero,
    "default": _default,
    "fusion_by_hand": lambda target: earlier(OURS).fusion_pipeline(target),
}


def trace_decoder(
    pipeline: str = "zero",
    config: str | LlamaConfig = "tiny",
    function: str = "decode",
    target: str = "llvm",
    layers: int | None = None,
) -> Trace:
    """Run the pipeline of that name on one function of the decoder, recording each pass.

    layers: the number of layers, if not that of the configuration. Raises ValueError for an unknown name.
    """
    if pipeline not in PIPELINES:
        known = ", ".join(PIPELINES)
        raise ValueError(f"There is no pipeline {pipeline!r}; there are {known}.")
    sizes = find_config(config)
    sizes = replace(sizes, num_hidden_layers=layers) if layers else sizes
    mod, _ = decoder(sizes, functions=[function])
    where = _find_target(target)
    with where:
        passes = PIPELINES[pipeline](where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the table says more
        return trace(passes, mod, where)


def _find_target(name: str) -> tvm.target.Target:
    try:
        return tvm.target.Target(name)
    except ValueError:
        raise ValueError(
            f"TVM knows no target {name!r}; there are llvm, cuda, and tags such as nvidia/nvidia-h100."
        ) from None


def show(pipeline: str, config: str, function: str, target: str, pass_name: str | None) -> None:
    """Print the table of a traced pipeline, or what the pass of that name or number changed.

    Raises ValueError or KeyError, with one sentence, for an unknown name.
    """
    made = trace_decoder(pipeline, config, function, target)
    title = f"pipeline {pipeline} on {function} of {config}, for {target}"
    title += describe_owners() if pipeline == "fusion_by_hand" else ""
    if pass_name is None:
        print(f"{title}\n\n{made}\n")
        for step in made.steps:
            if step.name == FALLBACK:
                print(f"{make_table(find_fallback_kernels(step.before))}\n")
        print("python -m chapters trace --pass FuseOps shows what one of them changed (or its #).")
        return
    steps = made.find(pass_name)
    print(title)
    for step in [s for s in steps if s.changed] or steps[:1]:
        _show_step(step, function)


def make_table(kernels: Sequence[FallbackKernel]) -> Table:
    """The kernels that only the fallback schedules, one per row."""
    headings = ("left to the fallback", "in", "launches", "of its bytes", "because it is or has")
    rows = [(k.kernel, k.function, k.launches, f"{k.share:.1%}", k.why) for k in kernels]
    note = f"A symbolic size counts as its upper bound, or as {UNBOUNDED} if it has none."
    return Table(headings, rows, note)


def describe_owners(*also: int) -> str:
    """Lines that say whose code the course's pipeline runs, and why not the learner's where a chapter is begun.

    also: further chapters whose code is used.
    """
    numbers: dict[str, list[str]] = {}
    for number in (*USES, *also):
        numbers.setdefault(describe_owner(number), []).append(str(number))
    parts = [f"{owner}: {', '.join(several)}" for owner, several in numbers.items()]
    lines = [f"\nwith the code of these chapters, {'; '.join(parts)}"]
    return "\n".join([*lines, *explain_unused((*USES, *also))])


def _show_step(step: TracedPass, main: str) -> None:
    colour = in_colours()
    print(f"\n{step.number} · {step.name}, {step.seconds * 1000:.1f} ms: {step.summary()}")
    if not step.changed:
        print("It left the module as it was.")
    altered = sorted(step.altered, key=lambda name: name != main)
    for name in altered[:MANY]:
        print(f"\n{name}: {step.diff(name).text(colour)}")
    rest = {"also changed": altered[MANY:], "new": step.added, "gone": step.removed}
    for what, names in rest.items():
        if names:
            text = f"\n{what}: {', '.join(names)}"
            print(f"{DIM}{text}{PLAIN}" if colour else text)
