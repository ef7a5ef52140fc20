"""`python -m chapters chat --explain`: whose code made each kernel of a decode step, and its share of the time."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from functools import partial

from chapters.ch11_a_real_model.bench_kernels import time_calls
from chapters.ch11_a_real_model.passes import find_exercise, phases
from chapters.kit.chat.compile_decoder import kernel_passes
from chapters.kit.chat.gguf_file import GGUF
from chapters.kit.chat.run_decoder import ChatModel
from chapters.kit.chat.weights import Weights
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.draw.table import Table
from chapters.kit.machine import llvm_host
from chapters.kit.quantized.dot_products import lanes_of
from chapters.runner.earlier import describe_owner, find_owner

STEPS = 30
GIVEN = "given"


def explain(
    model: ChatModel, file: GGUF, config: LlamaConfig, exact: bool, without: str, token: int
) -> Table:
    """One row per kernel of a decode step: how often it runs, its share of the time, and whose code made it.

    The pass is the one that scheduled the kernel. model: the compiled decoder of `file`; it reads `token`.
    """
    target = llvm_host()["target"]
    weights = Weights(file, config, lanes_of(target))
    by = kernel_passes(weights, target, partial(phases, without=without), exact)
    seconds, calls = time_step(model, token)
    total, rows, shares = sum(seconds.values()), [], defaultdict(float)
    for name in sorted(seconds, key=seconds.get, reverse=True):
        made = by.get(name, GIVEN)
        exercise = find_exercise(made)
        owner = f"{_name_owner(exercise)} ({exercise})" if exercise else GIVEN
        shares[owner] += seconds[name] / total
        rows.append((name, str(calls[name]), f"{seconds[name] / total:.1%}", made, owner))
    note = "; ".join(
        f"{owner}: {share:.0%}" for owner, share in sorted(shares.items(), key=lambda one: -one[1])
    )
    heads = ("kernel", "runs per token", "share of its time", "made by", "whose code")
    worth = "A pass that fuses owns no kernel: `chat --without 3.1` shows what it is worth."
    return Table(heads, rows, f"Of the time in kernels, {note}. {worth}")


def _name_owner(exercise: str) -> str:
    """Whose answer it is. exercise: a chapter's number, or exercises with commas between them."""
    return find_owner(exercise.split(", ")) if "." in exercise else describe_owner(int(exercise))


def time_step(model: ChatModel, token: int) -> tuple[dict[str, float], dict[str, int]]:
    """(seconds of each kernel in the median step, how often it runs in one)."""
    at, steps = model.length, []

    def step() -> None:
        model.length = at  # the same step each time
        model.feed([token])

    for _ in range(STEPS):
        found = time_calls(model.vm, step)
        steps.append([(name, taken) for name, _, taken in found if not name.startswith("vm.")])
    calls = Counter(name for name, _ in steps[-1])
    seconds = {
        name: statistics.median(sum(t for other, t in one if other == name) for one in steps)
        for name in calls
    }
    return seconds, calls
