"""Compiles a model that someone else wrote: `python -m chapters compile MODEL.py`.

It imports the model from PyTorch, brings its graph into canonical form, compiles it with chapter 9's pipeline, and
compares the numbers with PyTorch's. It prints launches and bytes before and after, the pass that scheduled each kernel,
and why a kernel was left to the fallback. At the end it measures the time, beside PyTorch and torch.compile.

If the file defines `passes()`, these passes run on the canonical form, and it says what they change.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass

from chapters.ch09_the_compiler.trace import describe_owners
from chapters.kit.bench.cases import compare_times
from chapters.kit.bench.timing import Candidate, CandidateFailed, Timing, bind_torch, compare
from chapters.kit.draw.table import Table
from chapters.kit.ir.relax_effects import calls_of_module, relax_functions
from chapters.kit.machine import llvm_host
from chapters.kit.measure import scoreboard
from chapters.kit.models.apply_rules import known_shape
from chapters.kit.models.from_torch import (
    ModelRefused,
    arguments,
    export_program,
    import_program,
    load,
    load_passes,
    refuse_failures,
    resize_inputs,
    run_torch,
    runnable,
    sizes_of,
    tensors_of,
)
from chapters.kit.schedules.warn_of_fallback import (
    FALLBACK,
    explain_fallback,
    kernel_bytes,
    trace_schedulers,
)
from chapters.program import run_program
from chapters.runner.earlier import earlier

FLOAT32 = 2.0**-23  # its epsilon
# by how much the layers behind it may enlarge the error of a sum, and of rounding
MANY_LAYERS, ROUNDED = 32, 4
# operators of Relax by which a NaN may become a number, or its comparison false, where PyTorch keeps it
CLIPS = ("nn.relu", "nn.relu6", "maximum", "minimum", "clip")
CHOOSES = ("max", "min", "argmax", "argmin", "sort", "topk")
LOSE_NAN = {*CLIPS, *CHOOSES, *(f"nn.max_pool{dims}d" for dims in (1, 2, 3))}
WHERE_TO_LOOK = (
    'To find the cause, compile the imported module with TVM\'s own pipeline, relax_pipeline="default". If that gives '
    "the same wrong numbers, the importer made the mistake. Otherwise one of our passes did: leave out one after the "
    "other of `phases` in chapter 9."
)
ROUNDS = 5
OURS = 10  # the number of this chapter
HERE = "chapters.ch10_imported_models.compile_model"  # the name for candidates; run as a program, this file is __main__
# the phases that make the kernels and schedule them
KERNELS = ("attach", "graph and lower", "schedule")
CANNOT_COMPILE = "The pipeline cannot compile the imported model"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    try:
        show(options.model)
        if not options.quick:
            print(f"\n{time_table(options.model)}")
    except ModelRefused as reason:
        print(reason)
        return 2
    except WrongNumbers as reason:
        print(reason)
        return 1
    except CandidateFailed as reason:
        print(f"\nThe times could not be measured: {str(reason).strip().splitlines()[-1]}")
        return 1
    return 0


class WrongNumbers(Exception):
    """The results of the compiled model differ from PyTorch's."""


def show(name: str) -> None:
    """Import, compile and compare the model, and print everything but the times."""
    model, inputs = load(name)
    expected = run_torch(model, inputs)
    program = export_program(model, inputs)
    mod = import_program(program, inputs)
    print(f"compiling {name} with fusion_by_hand{describe_owners(OURS)}", flush=True)
    if mended := mod.attrs["mended"]:
        print(
            f"The importer gives other dtypes than PyTorch. Results that were converted: {mended}."
        )
    canonical = earlier(OURS).canonicalize()(mod)
    print(f"\n{describe_recognized(mod, canonical)}")
    known = sizes_of(program)
    if own := load_passes(name):
        plain, canonical = kernels(canonical)[0], apply_passes(own, canonical, name)
        names = ", ".join(str(one.info.name) for one in own)
        print(f"\nWithout and with the passes of {name} ({names}), both fused:")
    lowered, by = kernels(canonical)
    if own:
        print(f"\n{compare_costs(plain, lowered, known)}")
    print(
        f"\n{compare_costs(mod, lowered, known)}\n"
        "Before: one kernel per imported operator; reshapes launch none. After: the fused kernels."
    )
    print(f"\n{make_table(lowered, by)}", flush=True)
    run, allowed = compile_module(canonical), tolerance(mod)
    error = largest_error(run(*tensors_of(inputs)), expected, allowed)
    print(
        f"\nnumbers: the results differ from PyTorch's by at most {error:.1e} of the largest number; "
        f"{allowed:.0e} is allowed"
    )
    lossy = sorted({call.op.name.removeprefix("relax.") for call in operators(mod)} & LOSE_NAN)
    if lossy:
        print(f"These operators of TVM do not keep a NaN as PyTorch's do: {', '.join(lossy)}")
    for chosen, others in resize_inputs(program, inputs):
        sizes = ", ".join(f"{name} = {size}" for name, size in chosen.items())
        try:
            expected = run_torch(model, others)
        except ModelRefused:
            print(f"{sizes}: PyTorch itself does not run the program")
            continue
        error = largest_error(run(*tensors_of(others)), expected, allowed)
        print(f"{sizes}: at most {error:.1e}, with the same compiled code")


def apply_passes(passes: Sequence[Pass], mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """`mod` after the passes of the file `name`. Raises ModelRefused if one fails or gives an ill-formed module."""
    for one in passes:
        with refuse_failures(f"The pass {one.info.name} of {name} fails"):
            mod = one(mod)
        if not relax.analysis.check_well_formed(mod):
            raise ModelRefused(
                f"The pass {one.info.name} of {name} gives a module that is ill-formed."
            )
    return mod


def compare_costs(before: tvm.IRModule, after: tvm.IRModule, sizes: Mapping[str, int]) -> str:
    """Launches and bytes of two modules of kernels, as a table."""
    boards = [earlier(1).scoreboard(mod, sizes) for mod in (before, after)]
    return str(scoreboard.compare(*boards))


def tolerance(mod: tvm.IRModule) -> float:
    """How far two right results of an imported model may differ, relative to the largest number of an output.

    A sum of n numbers in another order differs by about sqrt(n) times the epsilon of its dtype, and a result that is
    rounded to float16 or bfloat16 by about that one's. The factors allow for the layers that follow.
    """
    results = [call for call in operators(mod) if isinstance(call.ty, relax.TensorType)]
    dtypes = {str(value.ty.dtype) for value in (*results, *mod["main"].params)}
    epsilons = [float(ml_dtypes.finfo(dtype).eps) for dtype in dtypes if "float" in dtype]
    narrow = max((epsilon for epsilon in epsilons if epsilon > FLOAT32), default=0.0)
    wide = max((epsilon for epsilon in epsilons if epsilon <= FLOAT32), default=FLOAT32)
    longest = max([64, *map(_count_summed, results)])
    return MANY_LAYERS * wide * longest**0.5 + ROUNDED * narrow


def _count_summed(call: relax.Call) -> int:
    """How many numbers a product, a convolution or a reduction adds for one result; 1 for others or if it varies."""
    name, tensors = call.op.name, [one for one in call.args if isinstance(one.ty, relax.TensorType)]
    *operands, result = [
        [int(dim) if isinstance(dim, tirx.IntImm) else 1 for dim in known_shape(one) or ()]
        for one in (*tensors, call)
    ]
    if name == "relax.matmul":
        return operands[0][-1] if operands[0] else 1
    if "conv" in name:
        return prod(operands[1][1:])
    return prod(operands[0]) // max(1, prod(result)) if name in ("relax.sum", "relax.mean") else 1


def describe_recognized(mod: tvm.IRModule, canonical: tvm.IRModule) -> str:
    """A sentence with the number of operators before and after, and of the norms and products among them."""
    before, after = (operators(m) for m in (mod, canonical))
    names = Counter(call.op.name for call in after)
    products = [call for call in after if call.op.name == "relax.matmul"]
    linear = sum(call.args[1].ty.ndim == 2 for call in products)
    return (
        f"{len(before)} imported operators became {len(after)}. RMSNorms among them: {names['relax.nn.rms_norm']}, "
        f"linear layers: {linear}, other products: {len(products) - linear}"
    )


def operators(mod: tvm.IRModule) -> list[relax.Call]:
    """The calls of operators in all Relax functions of an imported module: `main`, and the branches of torch.cond."""
    return [call for call in calls_of_module(mod) if isinstance(call.op, tvm.ir.Op)]


def kernels(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, str]]:
    """(the module after the phases that make kernels, the pass that scheduled each kernel)."""
    target = llvm_host()["target"]
    phases = earlier(9).phases(target)
    with refuse_failures(CANNOT_COMPILE):
        return trace_schedulers(mod, [one for phase in KERNELS for one in phases[phase]], target)


def make_table(mod: tvm.IRModule, by: dict[str, str]) -> Table:
    """One row per kernel, sorted by the bytes that it moves. The last column says why the fallback scheduled it."""
    counted = map(kernel_bytes, relax_functions(mod).values())
    launches, moved = (sum(one, Counter()) for one in zip(*counted, strict=True))
    total, left = max(moved.total(), 1), sum(moved[k] for k in moved if by[k] == FALLBACK)
    rows = []
    for kernel, count in moved.most_common():
        why = explain_fallback(mod[kernel]) if by[kernel] == FALLBACK else ""
        short = kernel if len(kernel) <= 40 else f"{kernel[:37]}…"
        share = f"{count / total:.1%}"
        rows.append((short, launches[kernel], scoreboard.size(count), share, by[kernel], why))
    note = (
        f"Kernels that only the fallback scheduled move {left / total:.0%} of the bytes. "
        "A lookup in a table counts as if it read the whole table."
        if left
        else ""
    )
    return Table(
        ("kernel", "launches", "bytes", "share", "scheduled by", "left because it has"), rows, note
    )


def compile_module(mod: tvm.IRModule) -> Callable:
    """Compile the module with chapter 9's pipeline, and return its `main`, which takes TVM's tensors."""
    target = llvm_host()["target"]
    with refuse_failures(CANNOT_COMPILE):
        executable = tvm.compile(mod, target, relax_pipeline=earlier(9).fusion_pipeline(target))
        return relax.VirtualMachine(executable, tvm.cpu())["main"]


def largest_error(found, expected: list[np.ndarray], allowed: float = 1e-4) -> float:
    """The largest difference from `expected`, relative to the largest number of the same output.

    Raises WrongNumbers if it is not below `allowed`, if an output has another shape or dtype, if integers or truth
    values differ at all, or if NaN or an infinity is in another place.
    """
    found = [found] if hasattr(found, "numpy") else [one for one in found if one is not None]
    errors = [
        _error(number, got.numpy(), wanted, allowed)
        for number, (got, wanted) in enumerate(zip(found, expected, strict=True), 1)
    ]
    return max(errors, default=0.0)


def _error(number: int, got: np.ndarray, wanted: np.ndarray, allowed: float) -> float:
    """The largest difference of one output, relative to its largest number; raises WrongNumbers."""
    for what in ("shape", "dtype"):
        ours, pytorchs = getattr(got, what), getattr(wanted, what)
        if ours != pytorchs:
            raise WrongNumbers(
                f"Output {number} has {what} {ours}, and PyTorch's has {pytorchs}. TVM's importer gives an operator "
                "another meaning than PyTorch does."
            )
    if wanted.dtype.kind in "biu":
        if (got != wanted).any():
            raise WrongNumbers(
                f"Output {number} is {wanted.dtype}, and {np.count_nonzero(got != wanted):,} of its {wanted.size:,} "
                f"elements differ from PyTorch's. {WHERE_TO_LOOK}"
            )
        return 0.0
    got, wanted = got.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(wanted)
    if (
        not np.array_equal(got[~finite], wanted[~finite], equal_nan=True)
        or not np.isfinite(got[finite]).all()
    ):
        raise WrongNumbers(
            f"Output {number} has NaN or an infinity in other places than PyTorch's. {WHERE_TO_LOOK}"
        )
    got, wanted = got[finite], wanted[finite]
    largest = float(np.abs(wanted).max(initial=0)) or 1.0
    error = float(np.abs(got - wanted).max(initial=0)) / largest
    if error >= allowed:
        raise WrongNumbers(
            f"Output {number} differs from PyTorch's by {error:.1e} of its largest number; {allowed:.0e} is "
            f"allowed. {WHERE_TO_LOOK}"
        )
    return error


# --- times: each candidate loads the model in its own process -------------------------------------


def time_table(name: str) -> Table:
    """The median time of a run: ours, PyTorch's and, if it works here, torch.compile's. All use `threads` threads."""
    threads = os.cpu_count() or 1
    timings, missing = time_model(name, threads, ROUNDS)
    seconds = {name: timing.seconds for name, timing in timings.items()}
    note = "\n".join([f"Medians of {ROUNDS} interleaved rounds, {threads} threads each.", *missing])
    return compare_times(seconds, "fusion_by_hand", ("run by", "time", "of ours"), note=note)


def time_model(name: str, threads: int, rounds: int) -> tuple[dict[str, Timing], list[str]]:
    """({who ran the model: its Timing}, a sentence for each who could not)."""
    given = {"name": name, "folder": os.getcwd()}
    functions = ("tvm_pipeline", "torch_baseline", "torch_compile")
    candidates = [Candidate(HERE, function, given) for function in functions]
    return compare(candidates, threads=threads, rounds=rounds)


def make_graphs(name: str) -> tuple:
    """(model, example inputs, imported module, its canonical form, and that after the passes of the file `name`)."""
    model, inputs = load(name)
    mod = import_program(model, inputs)
    canonical = earlier(OURS).canonicalize()(mod)
    return model, inputs, mod, canonical, apply_passes(load_passes(name), canonical, name)


def measure_error(name: str) -> float:
    """The largest difference between the compiled model and PyTorch's, as `largest_error`, with its exceptions."""
    model, inputs, mod, _, changed = make_graphs(name)
    found = compile_module(changed)(*tensors_of(inputs))
    return largest_error(found, run_torch(model, inputs), tolerance(mod))


def tvm_pipeline(name: str, folder: str) -> dict:
    """The model in canonical form, compiled by chapter 9's pipeline."""
    os.chdir(folder)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    import torch

    torch.set_num_threads(1)  # with more, PyTorch's threads would stay awake and compete with TVM's
    model, inputs = load(name)
    if cores:  # PyTorch's OpenMP may have bound this thread to one of them
        os.sched_setaffinity(0, cores)
    mods = {"fusion_by_hand": earlier(OURS).canonicalize()(import_program(model, inputs))}
    if own := load_passes(name):
        plain = mods["fusion_by_hand"]
        mods = {"fusion_by_hand": apply_passes(own, plain, name), "without its passes": plain}
    tensors = tensors_of(inputs)
    return {key: (partial(compile_module(mod), *tensors), None) for key, mod in mods.items()}


def torch_baseline(name: str, folder: str, by: str = "PyTorch") -> dict:
    """The model as PyTorch runs it, operator by operator, or by "torch.compile", which needs a C++ compiler."""

    os.chdir(folder)
    model, inputs = load(name)
    args, kwargs = arguments(inputs)
    compiled = by == "torch.compile"
    call, _ = bind_torch(runnable(model), *args, compiled=compiled, **kwargs)
    return {by: (call, None)}


torch_compile = partial(torch_baseline, by="torch.compile")


if __name__ == "__main__":
    sys.exit(run_program(main))
