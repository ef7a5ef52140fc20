"""No rate in a results file is above what its machine can do.

Each file of docs/results has a function here that computes its rates, or a reason why it has none. The ceilings:
- arithmetic: float32 multiply-adds that one core reached in registers on the same machine, times what an instruction
  does more (Intel's manuals: per cycle and core 64 operations on float32, 256 on int8 with vpdpbusd,
  and 2048 on int8 with AMX);
- bytes: a kernel that only reads, on the same machine, if the operands cannot stay in a cache; else the first-level
  cache, which gives 128 bytes and takes 64 in a cycle of 64 operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from chapters.ch04_add_rms_norm import bench as norm_bench
from chapters.ch05_schedules_and_their_limits import bench as matmul_bench
from chapters.ch09_the_compiler import bench as decoder_bench
from chapters.ch11_a_real_model import bench_inputs, bench_kernels
from chapters.ch11_a_real_model.bench_inputs import FIRST_PROMPT
from chapters.ch12_combine_products import bench as projections_bench
from chapters.kit.bench.gpu_results import least_bytes
from chapters.kit.bench.results import FOLDER, load
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.gpu.gpus import BOARDS, Board
from docs.pages.results_page import peaks_by_device

CACHE = 256 << 20  # bytes: more than the caches of any machine measured here
FASTER = {"vpdpbusd": 4, "AMX": 32}  # than float32 in vector registers
CACHE_BYTES = 3  # per float32 operation: 192 bytes while the registers do 64
NO_RATES = {
    "ch04_registers": "registers of GPU kernels",
    "ch08_registers": "registers of GPU kernels",
    "ch08_tiles": "registers of GPU kernels, bytes and occupancy",
    "ch08_other_compilers": "texts and counts",
    "ch10_models": "models of other packages, whose operations nobody has counted",
    "ch11_perplexity": "perplexities",
    "ch11_answers": "one model that lacks an answer beside the whole one, whose rate ch11_chat has",
    "cpu_peak": "the ceiling itself",
}


@dataclass(frozen=True)
class Rate:
    """Per second, and the most that the machine can do."""

    what: str
    value: float
    ceiling: float


@dataclass(frozen=True)
class Machine:
    """Ceilings of one machine. read: threads -> bytes per second from memory; empty if none was measured."""

    flops: float
    read: dict[int, float]

    def arithmetic(
        self, what: str, operations: float, seconds: float, threads: int, unit=""
    ) -> Rate:
        ceiling = self.flops * threads * FASTER.get(unit, 1)
        return Rate(what, operations / seconds, ceiling)

    def moving(self, what: str, moved: float, seconds: float, threads: int) -> Rate:
        ceiling = self.flops * CACHE_BYTES * threads
        if moved > CACHE and self.read:
            ceiling = self.read[min(threads, max(self.read))]
        return Rate(what, moved / seconds, ceiling)


def machine(device: str) -> Machine:
    """The ceilings of `device`, from all results files that measured some."""
    read: dict[int, float] = {}
    kernels, chat = load("ch05_kernels"), load("ch11_chat")
    if kernels["device"] == device:
        size = 4 * kernels["measured"]["n"] * kernels["measured"]["k"]
        for threads, by_rows in kernels["measured"]["threads"].items():
            read[int(threads)] = max(size / one["read w"] for one in by_rows.values())
    if chat["device"] == device:
        read |= {int(n): one["bandwidth"] for n, one in chat["measured"]["threads"].items()}
        # one thread reads alone twice in that file, and machines beside this one may take more of the memory once
        read[1] = max(read.get(1, 0), chat["measured"]["kernels"]["bytes"]["read per second"])
    return Machine(peaks_by_device()[device], read)


# --- the rates of each file -----------------------------------------------------------------------


def products(m: dict, on: Machine) -> Iterator[Rate]:
    """ch03_pass and, by threads, ch05_kernels."""
    n, k = m["n"], m["k"]
    for threads, by_rows in m.get("threads", {"1": m.get("rows")}).items():
        for rows, seconds in by_rows.items():
            for name, time in seconds.items():
                what, work = f"{name}, {rows} rows", 2 * int(rows) * n * k
                if name in ("multiply-add", "tile"):
                    yield Rate(
                        what,
                        matmul_bench.peak(seconds, int(threads), name),
                        on.flops * int(threads),
                    )
                elif name != "read w":
                    yield on.arithmetic(what, work, time, int(threads))
                    yield on.moving(what, 4 * n * k, time, int(threads))


def norms(m: dict, on: Machine) -> Iterator[Rate]:
    for threads, by_case in m.items():
        for case, seconds in by_case.items():
            dtype, shape = case.split(" ", 1)
            moved = norm_bench.bytes_counted(tuple(map(int, shape.strip("()").split(","))), dtype)
            for name, time in seconds.items():
                yield on.moving(f"{name}, {case}", moved, time, int(threads))


def projections(m: dict, on: Machine) -> Iterator[Rate]:
    """ch12_projections: the query, the key and the value of a layer."""
    for model, by_rows in m["models"].items():
        k, widths = projections_bench.MODELS[model]
        for rows, seconds in by_rows.items():
            for name, time in seconds.items():
                what, n = f"{model}, {rows} rows, {name}", sum(widths)
                yield on.arithmetic(what, 2 * int(rows) * n * k, time, m["threads"])
                yield on.moving(what, 4 * n * k, time, m["threads"])


def attention(m: dict, on: Machine) -> Iterator[Rate]:
    """ch13_attention: two products of the queries, on one thread."""
    for case in m["cases"]:
        rows, keys, width = case["rows"], case["keys"], case["width"]
        for name, time in case["seconds"].items():
            what = f"attention of {keys} keys, {name}"
            yield on.arithmetic(what, 4 * rows * keys * width, time, m.get("threads", 1))
            yield on.moving(what, 8 * keys * width, time, m.get("threads", 1))


def weights(config: LlamaConfig) -> int:
    """The elements that a token multiplies with: the layers' and the head's."""
    width = config.hidden_size
    layer = width * config.head_dim * (config.qkv_heads + config.num_attention_heads)
    layer += 3 * width * config.intermediate_size
    return config.num_hidden_layers * layer + width * config.vocab_size


def decode_steps(m: dict, on: Machine) -> Iterator[Rate]:
    count = weights(matmul_bench.DECODER)
    for name, time in m.items():
        yield on.arithmetic(name, 2 * count, time, 1)
        yield on.moving(name, 4 * count, time, 1)


def int8(m: dict, on: Machine) -> Iterator[Rate]:
    cases = [(m["m"], int(k), seconds) for k, seconds in m["steps"].items()]
    cases.append((m["tall"]["m"], m["tall"]["k"], m["tall"]["seconds"]))
    for rows, k, seconds in cases:
        for name, time in seconds.items():
            what, work = f"{name}, K = {k}", 2 * rows * m["n"] * k
            if name == "bias pass alone":
                yield on.moving(what, 12 * rows * m["n"], time, 1)
                continue
            unit = "vpdpbusd" if name.startswith("vpdpbusd") else "AMX"
            yield on.arithmetic(what, work, time, 1, unit)
            yield on.moving(what, 4 * rows * m["n"], time, 1)


def decoders(m: dict, on: Machine) -> Iterator[Rate]:
    for name, one in m.items():
        count, threads = weights(decoder_bench.config_of(name)), one["threads"]
        for key, time in one["seconds"].items():
            tokens = one["prompt"] if key.endswith(" prefill") else 1
            # a prefill may multiply only its last token with the head's weights
            yield on.arithmetic(f"{name}, {key}", tokens * (2 * count - _head(name)), time, threads)
            yield on.moving(f"{name}, {key}", 4 * count, time, threads)


def _head(name: str) -> int:
    config = decoder_bench.config_of(name)
    return 2 * config.hidden_size * config.vocab_size


def epilogues(m: dict, on: Machine) -> Iterator[Rate]:
    for rows, seconds in m["rows"].items():
        for name, time in seconds.items():
            work = 2 * int(rows) * m["n"] * m["k"]
            yield on.arithmetic(f"{name}, {rows} rows", work, time, m["threads"])
            yield on.moving(f"{name}, {rows} rows", 4 * m["n"] * m["k"], time, m["threads"])


def chat(m: dict, on: Machine) -> Iterator[Rate]:
    """A decode step reads all weights, and they fit in no cache; so does each of its kernels that has weights."""
    for threads, one in m["threads"].items():
        for key, time in one["seconds"].items():
            name, function = key.rsplit(" ", 1)
            size = m["bytes"].get(name) or m["bytes"][bench_inputs.BEST]
            if function == "decode":
                yield Rate(f"{key}, {threads}", size / time, one["bandwidth"])
            else:
                elements = m["bytes"]["Transformers"] / 4
                work = (
                    2 * m["prefill"] * elements * 0.75
                )  # the head, a fifth of the weights, multiplies one token
                yield on.arithmetic(f"{key}, {threads}", work, time, int(threads), "vpdpbusd")
    for name, time in m["first token"].items():
        size = m["bytes"].get(name, 0)
        yield on.moving(f"first token, {name}", size, time, 2)
        yield on.arithmetic(f"first token, {name}", 2 * FIRST_PROMPT * size, time, 2, "vpdpbusd")
    for name, parts in m["kernels"].items():
        if name == bench_kernels.BYTES:
            continue
        size = m["bytes"]["Transformers" if name == "float32 weights" else bench_inputs.OURS]
        reading = m["kernels"][bench_kernels.BYTES][bench_kernels.PER_SECOND]
        yield Rate(name, size / sum(parts.values()), reading)


def conversation(m: dict, _: Machine) -> Iterator[Rate]:
    measured = load("ch11_chat")["measured"]
    most = max(one["bandwidth"] for one in measured["threads"].values())
    for turn in m["turns"]:
        rate = turn["tokens_per_second"] * measured["bytes"][bench_inputs.OURS]
        yield Rate(turn["user"], rate, most)
        # a first token reads all weights too
        first = measured["bytes"][bench_inputs.OURS] / turn["first_token_seconds"]
        yield Rate(f"first token: {turn['user']}", first, most)


def board_of(name: str) -> Board:
    """The data sheet of the GPU on which a results file was measured; NVIDIA's driver says "NVIDIA H200"."""
    driver = {"NVIDIA H100 80GB HBM3": "H100 SXM"}.get(load(name)["gpu"], load(name)["gpu"])
    return next(board for board in BOARDS.values() if driver.endswith(board.name))


def on_gpu(name: str) -> Callable[[dict, Machine | None], Iterator[Rate]]:
    """The rates of a GPU's results file beside its data sheet: of arithmetic, and of memory or of first-level caches.

    Those caches give 128 bytes per multiprocessor and cycle, in which its lanes do 256 float32 operations.
    """

    def rates(m: dict, _: Machine | None) -> Iterator[Rate]:
        board = board_of(name)
        yield Rate("a large copy", m["ceilings"]["copy_rate"], board.bandwidth)
        yield Rate("a large product", m["ceilings"]["matrix_rate"], board.tensor)
        for case in m["cases"]:
            moved = least_bytes(case)
            most = board.bandwidth if moved > 4 * board.cache_bytes else board.float32 / 2
            for times in (case["seconds"], case.get("graph_seconds", {})):
                for which, seconds in times.items():
                    kept = [part for part in ("median", "low", "high") if part in seconds]
                    for part in kept:
                        what = f"{which}, {part}"
                        yield Rate(what, moved / seconds[part], most)
                        yield Rate(what, case["operations"] / seconds[part], board.tensor)

    return rates


def stores(m: dict, _: Machine | None) -> Iterator[Rate]:
    board = board_of("ch08_stores")
    for kernel, busy in m["profiles"].items():
        for part in ("memory", "second-level cache", "tensor cores"):
            yield Rate(f"{kernel}, {part}", busy[part], 1.0)
    for case in m["stores"]:
        operations = 2 * case["m"] * case["n"] * case["k"]
        for how in ("two", "eight"):
            for which, seconds in case[how].items():
                yield Rate(f"{which}, {how}", operations / seconds, board.tensor)


ON_GPUS = ("ch04_gpu", "ch08_norm", "ch08_linear", "ch08_steps", "ch08_gelu")
RATES: dict[str, Callable[[dict, Machine | None], Iterable[Rate]]] = {
    "ch03_pass": products,
    "ch04_cpu": norms,
    "ch05_kernels": products,
    "ch05_decode": decode_steps,
    "ch06_int8": int8,
    "ch08_stores": stores,
    "ch09_decoder": decoders,
    "ch09_epilogues": epilogues,
    "ch11_chat": chat,
    "ch11_conversation": conversation,
    "ch12_projections": projections,
    "ch13_attention": attention,
    **{name: on_gpu(name) for name in ON_GPUS if load(name)},
}


def test_each_results_file_is_covered():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files <= {*RATES, *NO_RATES}, "say in this file which rates these have, or why none"
    assert not set(RATES) & set(NO_RATES)


@pytest.mark.parametrize("name", RATES)
def test_no_rate_is_above_what_its_machine_measured(name):
    results = load(name)
    on = None if name in ON_GPUS else machine(results["device"])
    rates = list(RATES[name](results["measured"], on))
    wrong = [
        f"{r.what}: {r.value:.3g} of {r.ceiling:.3g} per second"
        for r in rates
        if not (math.isfinite(r.value) and r.value <= r.ceiling)
    ]
    assert rates and not wrong, "\n".join(wrong)
