"""Measures the compiled decoder on this CPU: `python -m chapters bench 9`.

A prefill and a decode step run through TVM's default pipeline, the default pipeline after `zero` (which fuses
elementwise operators), fusion_by_hand, and PyTorch, eager and compiled: all with the same weights, in the same rounds.
There are two decoders: `tiny` shows what a launch costs, and a middle one shows what memory costs. Before the timing,
logits are compared with NumPy's in float64.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from chapters.ch09_the_compiler import bench_epilogues
from chapters.ch09_the_compiler.decoder_inputs import check_logits, read_inputs, write_inputs
from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.bench.results import show_one
from chapters.kit.bench.timing import Candidate, compare
from chapters.kit.draw.table import Table, format_duration, tabulate
from chapters.kit.measure.scoreboard import size

TORCH = "chapters.ch09_the_compiler.torch_decoder"
PIPELINES = ("TVM's default", "TVM's zero, default", "fusion_by_hand")
TORCH_NAMES = ("PyTorch", "torch.compile")
NAMES = (*PIPELINES, *TORCH_NAMES)
FUNCTIONS = ("prefill", "decode")
PROMPTS = {"tiny": 32, "middle": 8}
ROUNDS = {"tiny": 15, "middle": 5}
WINDOW = 64


def config_of(name: str):
    """The sizes of `tiny`, or of a decoder whose weights (112 MB) are larger than second-level caches."""
    from chapters.kit.decoder.llama_config import CONFIGS, LlamaConfig

    middle = LlamaConfig(1024, 2816, 2, 16, 4, 64, 4096, WINDOW)
    return CONFIGS["tiny"] if name == "tiny" else middle


def run(quick: bool, say: Callable[[str], None]) -> dict[str, dict]:
    """{name of the results file: what was measured}."""
    from chapters.runner.earlier import describe_owner

    say("passes: " + ", ".join(f"chapter {n} {describe_owner(n)}" for n in (2, 3, 4, 5, 7)))
    threads, cases = os.cpu_count() or 1, []
    for name in ("tiny",) if quick else PROMPTS:
        with tempfile.TemporaryDirectory() as folder:
            config = replace(config_of(name), context_window_size=WINDOW)
            path = str(write_inputs(Path(folder), config, PROMPTS[name], threads))
            candidates, rounds = [], 3 if quick else ROUNDS[name]
            for by in PIPELINES:
                given = {"name": by, "config": name, "path": path}
                candidates.append(Candidate(__name__, "tvm_pipeline", given))
            for by in TORCH_NAMES:
                given = {"name": by, "path": path}
                candidates.append(Candidate(TORCH, "torch_baseline", given, ("torch",)))
            timings, missing = compare(candidates, threads=threads, rounds=rounds)
        times = [f"  {key}: {format_duration(one.seconds)}" for key, one in timings.items()]
        say("\n".join([name, *missing, *times]))
        cases.append(
            {
                "decoder": name,
                "prompt": PROMPTS[name],
                "threads": threads,
                "seconds": {key: timing.seconds for key, timing in timings.items()},
                "errors": {key: timing.error for key, timing in timings.items()},
                "costs": count_costs(name),
            }
        )
    return {"ch09_decoder": {"cases": cases}} | bench_epilogues.run(quick, say)


def make_table(decoder: str, measured: dict) -> Table | list:
    """One row per compiler: times of a prefill and a decode step, and the second relative to ours."""
    case = next((one for one in measured["cases"] if one["decoder"] == decoder), None)
    if case is None:
        return []
    seconds, costs = case["seconds"], case["costs"]
    columns = {
        "compiled by": lambda name: name,
        "prefill": lambda name: format_duration(seconds[f"{name} prefill"]),
        "decode": lambda name: format_duration(seconds[f"{name} decode"]),
        "of our decode": lambda name: (
            f"{seconds[f'{name} decode'] / seconds['fusion_by_hand decode']:.1f} ×"
        ),
        "launches": lambda name: costs[name]["launches"],
        "bytes moved": lambda name: size(costs[name]["bytes"]),
        "planned": lambda name: size(costs[name]["planned"]),
    }
    return tabulate((name for name in NAMES if f"{name} decode" in seconds), columns)


TABLES = {name: (partial(make_table, name), "ch09_decoder") for name in PROMPTS}
TABLES |= {"epilogues": (bench_epilogues.make_table, "ch09_epilogues")}
show_results = partial(show_one, TABLES)


# --- candidates: each runs in its own process -----------------------------------------------------


def make_facts(config) -> dict:
    """The facts that the caller passes to the pipeline: one sequence, a window, a vocabulary."""
    bounds = {"batch_size": 1, "seq_len": WINDOW, "context_window": WINDOW}
    return {"variable_bounds": bounds, "metadata": {"vocab_size": config.vocab_size}}


def _pipeline(name: str, target, config):
    """The pipeline by its name in PIPELINES: this chapter's, TVM's default, or `zero` and then TVM's default."""
    import tvm
    from tvm import relax

    from chapters.runner.earlier import earlier

    if name == "fusion_by_hand":
        return earlier(9).fusion_pipeline(target, **make_facts(config))
    default = relax.get_pipeline("default_build")
    if name == "TVM's default":
        return default
    return tvm.transform.Sequential([relax.get_pipeline("zero"), default])


def tvm_pipeline(name: str, config: str, path: str) -> dict:
    """The decoder, compiled with the pipeline `name`; ours is the learner's if it passes its checks."""
    import tvm

    from chapters.kit.decoder.llama_generator import Generator
    from chapters.kit.machine import llvm_host

    sizes, target = config_of(config), llvm_host()["target"]
    facts, weights = read_inputs(path)
    prompt = facts["prompt"]
    pipeline = _pipeline(name, target, sizes)
    generator = Generator(
        sizes, weights=weights, target=target, relax_pipeline=pipeline, context_window=WINDOW
    )
    # the same kind of memory as PyTorch's weights
    generator.weights = [in_numpy_memory(weight.numpy()) for weight in generator.weights]
    cache = generator.create_kv_cache()
    inputs = {"prefill": (prompt, 0), "decode": (prompt[-1:], len(prompt))}
    found = {}
    for function, (tokens, position) in inputs.items():
        x = generator.embed(np.asarray([tokens]))
        at = tvm.runtime.tensor(np.asarray([position], "int32"))

        def call(run=generator.vm[function], x=x, at=at):
            return run(x, at, cache, generator.weights)[0]

        found[f"{name} {function}"] = (call, check_logits(call().numpy(), path, function))
    return found


# --- costs that need no clock ---------------------------------------------------------------------------


def count_costs(config: str) -> dict[str, dict[str, int]]:
    """Launches, bytes moved and bytes planned of one decode step, for each of TVM's pipelines and ours."""
    from chapters.kit.machine import llvm_host

    sizes, target = config_of(config), llvm_host()["target"]
    return {name: count_cost(name, sizes, target) for name in PIPELINES}


def count_cost(name: str, sizes, target) -> dict[str, int]:
    """The same for one pipeline, counted by chapter 1 in the module that `lower_to_kernels` returns."""
    from chapters.kit.decoder.llama import decoder
    from chapters.kit.passes.planned_storage import plan_storage
    from chapters.runner.earlier import earlier

    mod = lower_to_kernels(name, decoder(sizes, "float32", ["decode"])[0], target, sizes)
    dims = {"context_window": WINDOW, "vocab_size": sizes.vocab_size}
    row = earlier(1).scoreboard(mod, dims).row("decode")
    storage = plan_storage(mod).bytes(dims)
    return {"launches": row.launches, "bytes": row.read + row.written, "planned": storage}


def lower_to_kernels(name: str, mod, target, sizes):
    """`mod` after the part of the pipeline `name` that decides which kernels there are."""
    import tvm
    from tvm import relax

    from chapters.runner.earlier import earlier

    if name == "TVM's default":
        return mod  # it turns each operator into a kernel, as the counting does
    if name != "fusion_by_hand":
        return relax.get_pipeline("zero")(mod)
    found = earlier(9).phases(target, **make_facts(sizes))
    passes = [one for phase in ("attach", "graph and lower", "schedule") for one in found[phase]]
    with target:
        return tvm.transform.Sequential(passes)(mod)
