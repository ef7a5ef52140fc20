"""Measures where the time of a decode step goes: seconds of each kernel, in groups, on one thread.

`python -m chapters.ch11_a_real_model.bench_kernels INPUTS STEPS` prints them as JSON. The same decoder is compiled
three times: with the weights in float32, with the file's codes, and with codes and activations in 8 bits.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

from chapters.child import ROOT
from chapters.kit.bench.timing import THREAD_VARIABLES
from chapters.kit.draw.table import Table

HEAD, REST = "head", "rest"
IDLE = "vm.builtin.null_value"  # forgets a tensor: a function that does next to nothing
# group -> a part of its kernels' names; the first that fits counts
GROUPS = {
    "linear layers": "matmul",
    "attention": "attention",
    "append to the cache": "append",
    "norms and residuals": "norm",
}
ORDER = (*list(GROUPS)[:1], HEAD, *list(GROUPS)[1:], REST)
FLOATS, CODES, ROUNDED = (
    "float32 weights",
    "codes, float32 activations",
    "codes, 8-bit activations",
)
STEPS, QUICK_STEPS = 50, 5


def measure(path: str, quick: bool) -> dict[str, dict[str, float]]:
    """{variant: {group: seconds per step}}, measured in a process with one thread. path: the bench's inputs."""
    variables = {variable: "1" for variable in THREAD_VARIABLES}
    asked = [sys.executable, "-m", __name__, path, str(QUICK_STEPS if quick else STEPS)]
    done = subprocess.run(
        asked, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def table_of(measured: dict[str, dict[str, float]]) -> Table:
    """One row per group, one column per variant: milliseconds, and their share of the step."""
    totals = {variant: sum(seconds.values()) for variant, seconds in measured.items()}

    def cell(variant: str, seconds: float) -> str:
        return f"{1e3 * seconds:.2f} ms ({seconds / totals[variant]:.0%})"

    rows = [
        (group, *(cell(variant, seconds[group]) for variant, seconds in measured.items()))
        for group in ORDER
    ]
    rows.append(("a step", *(f"{1e3 * total:.2f} ms" for total in totals.values())))
    note = "On one thread. The rest: the activation, the embedding, and the virtual machine between the kernels."
    return Table(("kernels", *measured), rows, note)


def group_of(name: str, shapes: Sequence[Sequence[int]], vocab_size: int) -> str:
    """The group of the kernel `name`, whose arguments have these shapes; the last is its result's.

    The head is the linear layer whose result is as wide as the vocabulary.
    """
    group = next((group for group, part in GROUPS.items() if part in name), REST)
    is_head = shapes and group == ORDER[0] and shapes[-1][-1] == vocab_size
    return HEAD if is_head else group


def grouped(model, step, steps: int) -> dict[str, float]:
    """Seconds of each group in the median step. `step()` runs one step of a ChatModel.

    The virtual machine reports each call of a kernel and its return. The reports take time: as long as IDLE seems to
    take, because it does nothing. That time is subtracted from each kernel. Steps with and without reports alternate.
    REST is the time of a step without reports, less the kernels' time.
    """
    starts: list[float] = []
    found: dict[str, list[float]] = defaultdict(list)
    telling: list[float] = []

    def note(_func, name, before, _result, *args) -> int:
        now = time.perf_counter()
        if not before:
            seconds = now - starts.pop()
            if str(name) == IDLE:
                telling.append(seconds)
            elif not str(name).startswith("vm."):
                shapes = [one.shape for one in args if hasattr(one, "shape")]
                found[group_of(str(name), shapes, model.config.vocab_size)].append(seconds)
        else:
            starts.append(time.perf_counter())
        return 0

    whole, by_step = [], []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        whole.append(time.perf_counter() - start)
        model.vm.set_instrument(note)
        step()
        model.vm.set_instrument(None)
        by_step.append(dict(found))
        found.clear()
    idle = statistics.median(telling or [0.0])

    def seconds_of(group: str) -> float:
        return statistics.median(
            sum(max(0.0, one - idle) for one in kernels.get(group, ())) for kernels in by_step
        )

    medians = {group: seconds_of(group) for group in ORDER if group != REST}
    return medians | {REST: max(0.0, statistics.median(whole) - sum(medians.values()))}


def main() -> None:
    """Print `measure`'s result as JSON."""
    from chapters.ch11_a_real_model import bench
    from chapters.ch11_a_real_model.float_weights import FloatWeights
    from chapters.ch11_a_real_model.passes import phases
    from chapters.kit.chat.compiled import ChatModel, cache_dtype, compile_decoder
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.weights import read_config
    from chapters.kit.machine import llvm_host

    path, steps = sys.argv[1], int(sys.argv[2])
    facts, target = bench.read_facts(path), llvm_host()["target"]
    file = read_gguf(facts["models"][bench.FILE])
    floats = FloatWeights(file, read_config(file), lanes=1)

    def of_floats() -> ChatModel:
        executable, names = compile_decoder(floats, target, phases, exact=True)
        return ChatModel(executable, floats, names, cache_dtype(target, exact=True))

    variants = {
        FLOATS: (of_floats, bench.EXACT_LIMIT),
        CODES: (lambda: bench.chat_model(path, exact=True), bench.EXACT_LIMIT),
        ROUNDED: (lambda: bench.chat_model(path, exact=False), bench.ROUNDED_LIMIT),
    }
    found = {}
    for name, (make, limit) in variants.items():
        model = make()
        calls = bench.calls_of(model, facts["tokens"])
        for function, call in calls.items():
            bench.checked(call(), path, f"{bench.FILE} {function}", limit)
        found[name] = grouped(model, calls["decode"], steps)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
