"""The cost model beside what `bench 8` measured: each kernel that has a prediction and a time for the same GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chapters.ch08_gpu_targets.bench import STEPS
from chapters.kit.bench import gpu_results
from chapters.kit.bench.results import load
from chapters.kit.draw.table import Table, si
from chapters.kit.gpu.gpus import find_board

# from the name of a results file to its contents, None if there is none
Read = Callable[[str], "dict | None"]

NAME = "gpu_predictions"
MODEL_DATE = "2026-11-23"  # of the last change to cost_model.py and traffic.py
CLOSE = 0.1  # a prediction that is off by less counts as right
# what limits a kernel by the model's counts -> how a sentence names such kernels, in the order of the sentence
GROUPS = ("matmuls without tensor cores", "matmuls on tensor cores", "kernels that memory limits")


@dataclass(frozen=True)
class Pair:
    """One kernel on one board: predicted and measured seconds. case: as the file of predictions names it."""

    case: str
    board: str
    group: str
    predicted: float
    measured: float
    roofline: float | None

    @property
    def ratio(self) -> float:
        """Predicted over measured: below 1 the model is too optimistic."""
        return self.predicted / self.measured


def find_pairs(read: Read = load) -> list[Pair]:
    """Every kernel that was both predicted and measured on the same board, in the order of the predictions."""
    predictions = read(NAME)
    if predictions is None:
        return []
    times = dict(_measured(read))
    pairs = []
    for entry in predictions["measured"]["predictions"]:
        measured = times.get((entry["kernel"], entry["board"]))
        if measured and entry.get("seconds"):
            facts = _group(entry), entry["seconds"], measured, entry["roofline"]
            pairs.append(Pair(entry["kernel"], entry["board"], *facts))
    return pairs


def _measured(read: Read) -> Iterable[tuple[tuple[str, str], float]]:
    """((kernel, board), median seconds), named as the predictions are; of two with one name the last counts."""
    for name, names_of in NAMES.items():
        results = read(name)
        board = results and find_board(results.get("gpu", ""))
        if not board:
            continue
        # predictions are for float16; bfloat16 has as many bytes and operations
        cases = results["measured"]["cases"]
        for case in sorted(cases, key=lambda case: case["dtype"] == "float16"):
            for kernel, predicted_as in names_of(case).items():
                yield (predicted_as, board.name), case["seconds"][kernel]["median"]


def find_steps(case: dict) -> dict[str, str]:
    """step -> what the predictions call it, if this is the layer that they are for; else empty."""
    same = all(case[name] == getattr(STEPS, name) for name in ("m", "n", "k", "dtype"))
    return {step: f"{STEPS.m} rows: {step}" for step in gpu_results.steps_of(case) if same}


def _norms(case: dict) -> dict[str, str]:
    *rows, columns = case["shape"]
    title = f"add and RMSNorm {math.prod(rows)} × {columns}"
    return {n: f"{title}: {n}" for n in gpu_results.NORM_OURS if n in case["seconds"]}


def _decode(case: dict) -> dict[str, str]:
    same = (case["m"], case["n"], case["k"]) == (1, STEPS.n, STEPS.k)
    return {"decode": "1 row: decode"} if same and "decode" in case["seconds"] else {}


# name of a results file -> from one of its cases to {kernel: what the predictions call it}
NAMES = {"ch08_steps": find_steps, "ch08_norm": _norms, "ch08_linear": _decode}


def find_sources(read: Read = load) -> list[str]:
    """The lines that say how the measured times were made, each once."""
    there = filter(None, map(read, NAMES))
    return list(dict.fromkeys(gpu_results.source(results).source for results in there))


def _group(entry: dict) -> str:
    if entry["busiest"] == "DRAM":
        return GROUPS[2]
    return GROUPS["tensor core" in entry["instructions"]]


def describe_error(pairs: Sequence[Pair]) -> str:
    """How far off the model is: for each group of kernels the least and the largest ratio, in a sentence."""
    told = []
    for group in GROUPS:
        ratios = [pair.ratio for pair in pairs if pair.group == group]
        if ratios:
            low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
            told.append(f"{low if low == high else f'{low} to {high}'} for {group}")
    return f"Predicted over measured time is {', '.join(told)}."


def describe_details(pairs: Sequence[Pair]) -> str:
    """How often the model is right, where it is furthest off, and whether it found the steps that make things worse.

    Raises ValueError if `pairs` is empty.
    """
    close = sum(abs(pair.ratio - 1) < CLOSE for pair in pairs)
    worst = max(pairs, key=lambda pair: abs(math.log(pair.ratio)))
    told = (
        f"{close} of {len(pairs)} predictions are within {CLOSE:.0%} of the measured time. The furthest off is "
        f"“{worst.case}”: {si(worst.predicted, 's')} predicted, {si(worst.measured, 's')} measured."
    )
    steps = [pair for pair in pairs if pair.group != GROUPS[2]]
    expected = _slower_than_before(steps, lambda pair: pair.predicted)
    found = _slower_than_before(steps, lambda pair: pair.measured)
    if expected or found:
        same = "the same" if expected == found else _quoted(found)
        told += f" Predicted to be slower than the step before: {_quoted(expected)}; measured to be slower: {same}."
    return told


def describe_rates(read: Read = load) -> str:
    """The measured ceilings as shares of the data sheet's rates, which the model believes; "" if none was measured."""
    results = read("ch08_steps") or read("ch08_norm")
    board = results and find_board(results.get("gpu", ""))
    if not board or not board.bandwidth or not board.tensor:
        return ""
    ceilings = results["measured"]["ceilings"]
    copy, matrix = ceilings["copy_rate"] / board.bandwidth, ceilings["matrix_rate"] / board.tensor
    return (
        f"The model believes the data sheet: of its rates a large copy reached {copy:.0%}, and PyTorch's product of "
        f"large matrices {matrix:.0%}."
    )


def _slower_than_before(steps: Sequence[Pair], seconds: Callable[[Pair], float]) -> list[str]:
    return [
        after.case.partition(": ")[2]
        for before, after in itertools.pairwise(steps)
        if seconds(after) > seconds(before)
    ]


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"“{name}”" for name in names) or "none"


def pairs_table(pairs: Sequence[Pair]) -> Table:
    """One row per kernel: measured, predicted, their ratio, and the least time that the data sheet allows."""
    boards = " and ".join(dict.fromkeys(pair.board for pair in pairs))
    header = ("kernel", f"measured on one {boards}", "predicted", "predicted / measured")
    rows = [
        (p.case, si(p.measured, "s"), si(p.predicted, "s"), f"{p.ratio:.2f}", _least(p.roofline))
        for p in pairs
    ]
    return Table((*header, "the roofline allows"), rows)


def _least(seconds: float | None) -> str:
    return "–" if seconds is None else si(seconds, "s")
