"""Measures the time to the first token: from the start of a process until it knows which token comes next.

The files are in memory already. Our decoder was compiled before, and its weights packed. All processes get FIRST_PROMPT
tokens, so no time goes into a tokenizer. `python -m chapters.ch11_a_real_model.first_token NAME INPUTS THREADS` is such
a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from chapters.ch11_a_real_model.bench_inputs import (
    FIRST_PROMPT,
    chat_model,
    read_facts,
)
from chapters.child import ROOT
from chapters.kit.bench.cases import compare_times
from chapters.kit.bench.timing import THREAD_VARIABLES
from chapters.kit.draw.table import Table
from chapters.kit.machine import baseline_python
from chapters.kit.measure.quantiles import measure_in_turns

ROUNDS, QUICK_ROUNDS = 5, 2
# of the largest logit: how much worse than the best token the first one may be, if the bench lets each logit be off by
# half of it
WITHIN = 0.2
# runtime -> its weights, as the bench names them
NAMES = {"fusion_by_hand": "file", "llama.cpp": "file", "llama.cpp, Q4_0": "Q4_0"}
OURS = "fusion_by_hand"


def measure(path: str, threads: int, quick: bool, say: Callable[[str], None]) -> dict[str, float]:
    """Seconds of each runtime, the median of several processes; a runtime that cannot start is left out.

    path: the bench's inputs. Raises ValueError if a process gives an unlikely token, or ours does not start.
    """
    names = list(NAMES)
    for name in NAMES:  # not timed: the files are read into memory, Python compiles its modules
        seconds, reason = time_once(name, path, threads)
        if seconds is None and name == OURS:
            raise ValueError(f"no first token of ours: {reason}")
        if seconds is None:
            say(f"no first token of {name}: {reason}")
            names.remove(name)

    def clock(name: str) -> list[float]:
        seconds, reason = time_once(name, path, threads)
        if seconds is None:
            raise ValueError(f"{name} failed in one round of several: {reason}")
        return [seconds]

    clocks = {name: partial(clock, name) for name in names}
    taken = measure_in_turns(clocks, QUICK_ROUNDS if quick else ROUNDS)
    return {name: quantiles.median for name, quantiles in taken.items()}


def time_once(name: str, path: str, threads: int) -> tuple[float | None, str]:
    """(seconds until the first token of a new process, ""), or (None, why there is none)."""
    python = sys.executable if name == OURS else baseline_python()
    asked = [python, "-m", __name__, name, path, str(threads)]
    # errors go to a file: a pipe that is full would stop the process
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        ways = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        counts = dict.fromkeys(THREAD_VARIABLES, str(threads))
        start = time.perf_counter()
        try:
            process = subprocess.Popen(asked, cwd=ROOT, env={**os.environ, **counts}, **ways)
        except OSError as error:
            return None, str(error)
        with process:
            line = process.stdout.readline()
            seconds = time.perf_counter() - start
        if not line.strip().isdecimal():
            errors.seek(0)
            return None, (errors.read().strip().splitlines() or ["it ended without a token"])[-1]
    check(int(line), path, NAMES[name])
    return seconds, ""


def check(token: int, path: str, weights: str) -> None:
    """Raise ValueError if `token` is clearly worse than the best one by the reference's logits with `weights`."""
    with np.load(path) as file:
        logits = file[f"{weights} first"]
    if logits[token] < logits.max() - WITHIN * np.abs(logits).max():
        raise ValueError(
            f"wrong numbers: the first token is {token}, and {logits.argmax()} is the best"
        )


def make_table(seconds: dict[str, float]) -> Table:
    """One row per runtime, beside ours."""
    note = (
        f"From the start of a process to the first token after {FIRST_PROMPT}, with everything read from disk "
        "before."
    )
    return compare_times(seconds, OURS, ("runtime", "first token after", "of ours"), note=note)


def main() -> None:
    """Print the number of the first token."""
    name, path, threads = sys.argv[1:]
    facts = read_facts(path)
    tokens = facts["tokens"][:FIRST_PROMPT]
    if name == OURS:
        logits = chat_model(path, exact=False).feed(tokens)
    else:
        from chapters.ch11_a_real_model import llama_cpp_baseline

        file = facts["models"][NAMES[name]]
        window = facts["config"]["context_window_size"]
        logits = llama_cpp_baseline.Context(
            llama_cpp_baseline.load(file), window, int(threads)
        ).feed(tokens, 0)
    print(int(logits.argmax()), flush=True)


if __name__ == "__main__":
    main()
