"""Measures where the time of a decode step goes: seconds of each kernel, over all layers, on one thread.

The same decoder is compiled three times: with the weights in float32, with the file's codes, and with codes and
activations in 8 bits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from chapters.ch11_a_real_model import bench_inputs
from chapters.kit.bench.timing import Candidate, call_apart
from chapters.kit.draw.bars import Bar, Bars
from chapters.kit.draw.table import Table

if TYPE_CHECKING:  # these need TVM, and the candidates of the bench import this without it
    from chapters.kit.chat.weights import Weights
    from chapters.kit.decoder.llama_config import LlamaConfig

REST = "rest"
PRODUCT = "matmul"  # a part of the name of each product's kernel
Q_K_V, OUTPUT, GATE_UP, DOWN, HEAD = "q, k, v", "attention's output", "gate, up", "down", "head"
PRODUCTS = (Q_K_V, OUTPUT, GATE_UP, DOWN, HEAD)
IDLE = "vm.builtin.null_value"  # forgets a tensor: a function that does next to nothing
# group of other kernels -> a part of their names; the first that fits counts
GROUPS = {
    "attention": "attention",
    "append to the cache": "append",
    "norms and residuals": "norm",
}
ORDER = (*PRODUCTS, *GROUPS, REST)
FLOATS, CODES, ROUNDED = (
    "float32 weights",
    "codes, float32 activations",
    "codes, 8-bit activations",
)
BYTES, PER_SECOND = "bytes", "read per second"
STEPS, QUICK_STEPS = 50, 5


def measure(path: str, quick: bool) -> dict[str, dict[str, float]]:
    """{variant: {group: seconds per step}}, and {BYTES: {product: bytes of its weights in the file}}.

    BYTES also has PER_SECOND, the bandwidth of reading, measured before and after each variant.
    It is measured in a process with one thread. path: the bench's inputs.
    """
    asked = {"path": path, "steps": QUICK_STEPS if quick else STEPS}
    return call_apart(Candidate(__name__, "time_variants", asked), threads=1)


def make_table(measured: dict[str, dict[str, float]]) -> Table:
    """One row per group, one column per variant: milliseconds, and their share of the step."""
    measured = {variant: seconds for variant, seconds in measured.items() if variant != BYTES}
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


def make_figure(measured: dict[str, dict[str, float]]) -> Bars:
    """A step with codes and activations in 8 bits as bars, one per group.

    A mark says how long it would take only to read a product's weights.
    """
    seconds, bandwidth = measured[ROUNDED], measured[BYTES][PER_SECOND]
    total, bars = sum(seconds.values()), []
    for group in ORDER:
        words = f"{1e3 * seconds[group]:.2f} ms, {seconds[group] / total:.0%}"
        mark = measured[BYTES][group] / bandwidth if group in PRODUCTS else None
        bars.append(Bar(group, seconds[group], words, group in PRODUCTS, mark))
    note = (
        f"{1e3 * total:.2f} ms in all, on one thread. Colour: the products. Line: how long it takes only to read the "
        f"product's weights, at the {bandwidth / 1e9:.0f} GB/s measured beside it. The rest: the activation, the "
        "embedding, and the virtual machine between the kernels."
    )
    return Bars("A decode step with 4-bit weights, kernel by kernel", bars, note)


def find_group(name: str, shapes: Sequence[Sequence[int]], config: LlamaConfig) -> str:
    """The group of the kernel `name`, whose arguments have these shapes; the last is its result's."""
    if PRODUCT not in name or not shapes:
        return next((group for group, part in GROUPS.items() if part in name), REST)
    wide = {
        config.vocab_size: HEAD,
        config.qkv_heads * config.head_dim: Q_K_V,
        2 * config.intermediate_size: GATE_UP,
    }
    columns = shapes[-1][-1]
    if columns > config.vocab_size:  # with the rows of 0 that fill the lanes
        wide.setdefault(columns, HEAD)
    x_of_down = config.intermediate_size in (shape[-1] for shape in shapes[:-1])
    return wide.get(columns, DOWN if x_of_down else OUTPUT)


def count_product_bytes(weights: Weights) -> dict[str, int]:
    """The bytes of the weights that each product reads in a step, over all layers. The head may be the embedding."""
    ends = {"qkv_proj": Q_K_V, "o_proj": OUTPUT, "gate_up_proj": GATE_UP, "down_proj": DOWN}
    ends["embed_tokens.matrix" if weights.tied else "lm_head"] = HEAD
    found = dict.fromkeys(PRODUCTS, 0)
    for layer in weights.matrices:
        for end, product in ends.items():
            if layer.endswith(end):
                found[product] += sum(spec.nbytes for spec in weights.specs(layer))
    return found


def time_calls(vm, step: Callable[[], object]) -> list[tuple[str, list, float]]:
    """(name, shapes of the tensors, seconds) of each call that a virtual machine makes in one `step()`."""
    starts: list[float] = []
    found: list[tuple[str, list, float]] = []

    def note(_func, name, before, _result, *args) -> int:
        now = time.perf_counter()
        if before:
            starts.append(time.perf_counter())
        else:
            shapes = [one.shape for one in args if hasattr(one, "shape")]
            found.append((str(name), shapes, now - starts.pop()))
        return 0

    vm["set_instrument"](note)
    step()
    vm["set_instrument"](None)
    return found


def time_groups(model, step: Callable[[], object], steps: int) -> dict[str, float]:
    """Seconds of each group in the median step. `step()` runs one step of a ChatModel.

    The virtual machine reports each call of a kernel and its return. The reports take time: as long as IDLE seems to
    take, because it does nothing. That time is subtracted from each kernel. Steps with and without reports alternate.
    REST is the time of a step without reports, less the kernels' time.
    """
    whole, by_step = [], []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        whole.append(time.perf_counter() - start)
        by_step.append(time_calls(model.vm, step))
    telling = [taken for calls in by_step for name, _, taken in calls if name == IDLE]
    idle = statistics.median(telling or [0.0])

    def seconds_of(group: str) -> float:
        return statistics.median(
            sum(
                max(0.0, taken - idle)
                for name, shapes, taken in calls
                if not name.startswith("vm.") and find_group(name, shapes, model.config) == group
            )
            for calls in by_step
        )

    medians = {group: seconds_of(group) for group in ORDER if group != REST}
    return medians | {REST: max(0.0, statistics.median(whole) - sum(medians.values()))}


def time_variants(path: str, steps: int) -> dict[str, dict[str, float]]:
    """What `measure` returns, measured in this process."""
    from chapters.ch11_a_real_model.float_weights import FloatWeights
    from chapters.ch11_a_real_model.passes import phases
    from chapters.kit.chat.compile_decoder import compile_decoder
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.run_decoder import ChatModel
    from chapters.kit.chat.weights import Weights, read_config
    from chapters.kit.machine import llvm_host
    from chapters.kit.quantized.dot_products import lanes_of

    facts, target = bench_inputs.read_facts(path), llvm_host()["target"]
    file = read_gguf(facts["models"][bench_inputs.FILE])
    floats = FloatWeights(file, read_config(file), lanes=1)

    of_floats = partial(compile_decoder, floats, target, phases, exact=True)
    variants = {
        FLOATS: (lambda: ChatModel(of_floats(), floats), bench_inputs.EXACT_LIMIT),
        CODES: (lambda: bench_inputs.chat_model(path, exact=True), bench_inputs.EXACT_LIMIT),
        ROUNDED: (lambda: bench_inputs.chat_model(path, exact=False), bench_inputs.ROUNDED_LIMIT),
    }
    found, readings = {}, []
    kernel = bench_inputs.reading(path)["reading"][0]

    def read() -> None:
        for _ in range(steps):
            start = time.perf_counter()
            kernel()
            readings.append(time.perf_counter() - start)

    for name, (make, limit) in variants.items():
        model = make()
        calls = bench_inputs.make_calls(model, facts["tokens"])
        for function, call in calls.items():
            bench_inputs.check_logits(call(), path, f"{bench_inputs.FILE} {function}", limit)
        read()
        found[name] = time_groups(model, calls["decode"], steps)
        read()
    products = count_product_bytes(Weights(file, read_config(file), lanes_of(target)))
    found[BYTES] = {
        **products,
        PER_SECOND: facts["bytes"][bench_inputs.FILE] / statistics.median(readings),
    }
    return found
