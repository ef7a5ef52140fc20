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
from functools import cache

import pytest

from chapters.ch04_add_rms_norm import bench as norm_bench
from chapters.ch05_schedules_and_their_limits import bench as matmul_bench
from chapters.ch09_the_compiler import bench as decoder_bench
from chapters.ch11_a_real_model import bench_inputs, bench_kernels
from chapters.ch11_a_real_model.bench_inputs import FIRST_PROMPT
from chapters.ch12_combine_products import bench as projections_bench
from chapters.kit.bench.cases import select_medians
from chapters.kit.bench.gpu_tables import least_bytes
from chapters.kit.bench.results import FOLDER, load
from chapters.kit.decoder.llama_config import LlamaConfig
from chapters.kit.gpu.gpus import BOARDS, Board
from docs.pages.results_page import find_peaks

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
class Work:
    """What took `seconds` on so many threads: the operations and the bytes that it needs at least. unit: see FASTER."""

    what: str
    seconds: float
    threads: int
    operations: float = 0
    bytes: float = 0
    unit: str = ""


@dataclass(frozen=True)
class Machine:
    """Ceilings of one machine. read: threads -> bytes per second from memory; empty if none was measured."""

    flops: float
    read: dict[int, float]

    def rates(self, work: Work) -> Iterator[Rate]:
        flops = self.flops * work.threads
        ceiling = flops * FASTER.get(work.unit, 1)
        yield Rate(work.what, work.operations / work.seconds, ceiling)
        ceiling = flops * CACHE_BYTES
        if work.bytes > CACHE and self.read:
            ceiling = self.read[min(work.threads, max(self.read))]
        yield Rate(work.what, work.bytes / work.seconds, ceiling)


@cache
def find_machine(device: str) -> Machine:
    """The ceilings of `device`, from all results files that measured some."""
    read: dict[int, float] = {}
    kernels, chat = load("ch05_kernels"), load("ch11_chat")
    if kernels["device"] == device:
        for case in kernels["measured"]["cases"]:
            rate, threads = 4 * case["n"] * case["k"] / case["seconds"]["read w"], case["threads"]
            read[threads] = max(rate, read.get(threads, 0))
    if chat["device"] == device:
        read |= {case["threads"]: case["bandwidth"] for case in chat["measured"]["cases"]}
        # one thread reads alone twice in that file, and machines beside this one may take more of the memory once
        read[1] = max(read.get(1, 0), chat["measured"]["kernels"]["bytes"]["read per second"])
    return Machine(find_peaks()[device], read)


# --- the rates of each file -----------------------------------------------------------------------


def each_time(m: dict) -> Iterator[tuple[dict, str, float]]:
    """(case, candidate, seconds) of everything that was timed."""
    for case in m["cases"]:
        for name, time in select_medians(case["seconds"]).items():
            yield case, name, time


def products(m: dict) -> Iterator[Work]:
    """ch03_pass, ch05_kernels and ch09_epilogues."""
    for case, name, time in each_time(m):
        size, threads = case["n"] * case["k"], case.get("threads", 1)
        count, moved = 2 * case["rows"] * size, 4 * size
        if name in ("multiply-add", "tile"):
            count, moved = matmul_bench.peak(case, name) * time, 0
        if name != "read w":
            yield Work(f"{name}, {case['rows']} rows", time, threads, count, moved)


def norms(m: dict) -> Iterator[Work]:
    for case, name, time in each_time(m):
        what = f"{name}, {case['dtype']} {case['shape']}"
        yield Work(what, time, case["threads"], bytes=norm_bench.count_bytes(case))


def projections(m: dict) -> Iterator[Work]:
    """ch12_projections: the query, the key and the value of a layer."""
    for case, name, time in each_time(m):
        k, widths = projections_bench.MODELS[case["model"]]
        what, size = f"{case['model']}, {case['rows']} rows, {name}", sum(widths) * k
        yield Work(what, time, case["threads"], 2 * case["rows"] * size, 4 * size)


def attention(m: dict) -> Iterator[Work]:
    """ch13_attention: two products of the queries, on one thread."""
    for case, name, time in each_time(m):
        size = case["keys"] * case["width"]
        what = f"attention of {case['keys']} keys, {name}"
        yield Work(what, time, 1, 4 * case["rows"] * size, 8 * size)


def count_weights(config: LlamaConfig) -> int:
    """The elements that a token multiplies with: the layers' and the head's."""
    width = config.hidden_size
    layer = width * config.head_dim * (config.qkv_heads + config.num_attention_heads)
    layer += 3 * width * config.intermediate_size
    return config.num_hidden_layers * layer + width * config.vocab_size


def decode_steps(m: dict) -> Iterator[Work]:
    count = count_weights(matmul_bench.DECODER)
    for _, name, time in each_time(m):
        yield Work(name, time, 1, 2 * count, 4 * count)


def int8(m: dict) -> Iterator[Work]:
    for case, name, time in each_time(m):
        what, size = f"{name}, K = {case['k']}", case["m"] * case["n"]
        if name == "bias pass alone":
            yield Work(what, time, 1, bytes=12 * size)
        else:
            unit = "vpdpbusd" if name.startswith("vpdpbusd") else "AMX"
            yield Work(what, time, 1, 2 * size * case["k"], 4 * size, unit)


def decoders(m: dict) -> Iterator[Work]:
    for case, name, time in each_time(m):
        config = decoder_bench.config_of(case["decoder"])
        count, head = count_weights(config), 2 * config.hidden_size * config.vocab_size
        tokens = case["prompt"] if name.endswith(" prefill") else 1
        # a prefill may multiply only its last token with the head's weights
        operations = tokens * (2 * count - head)
        yield Work(f"{case['decoder']}, {name}", time, case["threads"], operations, 4 * count)


def chat(m: dict) -> Iterator[Rate | Work]:
    """A decode step reads all weights, and they fit in no cache; so does each of its kernels that has weights."""
    for case, key, time in each_time(m):
        threads, (name, function) = case["threads"], key.rsplit(" ", 1)
        size = m["bytes"].get(name) or m["bytes"][bench_inputs.BEST]
        if function == "decode":
            yield Rate(f"{key}, {threads}", size / time, case["bandwidth"])
        else:
            elements = m["bytes"]["Transformers"] / 4
            # the head, a fifth of the weights, multiplies one token
            count = 2 * m["prefill"] * elements * 0.75
            yield Work(f"{key}, {threads}", time, threads, count, unit="vpdpbusd")
    for name, time in m["first token"].items():
        size = m["bytes"].get(name, 0)
        yield Work(f"first token, {name}", time, 2, 2 * FIRST_PROMPT * size, size, "vpdpbusd")
    for name, parts in m["kernels"].items():
        if name == bench_kernels.BYTES:
            continue
        size = m["bytes"]["Transformers" if name == "float32 weights" else bench_inputs.OURS]
        reading = m["kernels"][bench_kernels.BYTES][bench_kernels.PER_SECOND]
        yield Rate(name, size / sum(parts.values()), reading)


def conversation(m: dict) -> Iterator[Rate]:
    measured = load("ch11_chat")["measured"]
    most = max(case["bandwidth"] for case in measured["cases"])
    for turn in m["turns"]:
        rate = turn["tokens_per_second"] * measured["bytes"][bench_inputs.OURS]
        yield Rate(turn["user"], rate, most)
        # a first token reads all weights too
        first = measured["bytes"][bench_inputs.OURS] / turn["first_token_seconds"]
        yield Rate(f"first token: {turn['user']}", first, most)


def find_board(name: str) -> Board:
    """The data sheet of the GPU on which a results file was measured; NVIDIA's driver says "NVIDIA H200"."""
    driver = {"NVIDIA H100 80GB HBM3": "H100 SXM"}.get(load(name)["gpu"], load(name)["gpu"])
    return next(board for board in BOARDS.values() if driver.endswith(board.name))


def make_gpu_rates(name: str) -> Callable[[dict], Iterator[Rate]]:
    """The rates of a GPU's results file beside its data sheet: of arithmetic, and of memory or of first-level caches.

    Those caches give 128 bytes per multiprocessor and cycle, in which its lanes do 256 float32 operations.
    """

    def rates(m: dict) -> Iterator[Rate]:
        board = find_board(name)
        yield Rate("a large copy", m["ceilings"]["copy_rate"], board.bandwidth)
        yield Rate("a large product", m["ceilings"]["matrix_rate"], board.tensor)
        for case in m["cases"]:
            moved = least_bytes(case)
            most = board.bandwidth if moved > 4 * board.cache_bytes else board.float32 / 2
            for times in (case["seconds"], case.get("graph_seconds", {})):
                for which, seconds in times.items():
                    for part in {"median", "low", "high"} & set(seconds):
                        what = f"{which}, {part}"
                        yield Rate(what, moved / seconds[part], most)
                        yield Rate(what, case["operations"] / seconds[part], board.tensor)

    return rates


def stores(m: dict) -> Iterator[Rate]:
    board = find_board("ch08_stores")
    for kernel, busy in m["profiles"].items():
        for part in ("memory", "second-level cache", "tensor cores"):
            yield Rate(f"{kernel}, {part}", busy[part], 1.0)
    for case in m["stores"]:
        operations = 2 * case["m"] * case["n"] * case["k"]
        for how in ("two", "eight"):
            for which, seconds in case[how].items():
                yield Rate(f"{which}, {how}", operations / seconds, board.tensor)


ON_GPUS = ("ch08_norm", "ch08_linear", "ch08_steps", "ch08_gelu")
RATES: dict[str, Callable[[dict], Iterable[Rate | Work]]] = {
    "ch03_pass": products,
    "ch04_cpu": norms,
    "ch05_kernels": products,
    "ch05_decode": decode_steps,
    "ch06_int8": int8,
    "ch08_stores": stores,
    "ch09_decoder": decoders,
    "ch09_epilogues": products,
    "ch11_chat": chat,
    "ch11_conversation": conversation,
    "ch12_projections": projections,
    "ch13_attention": attention,
    **{name: make_gpu_rates(name) for name in ON_GPUS if load(name)},
}


def test_each_results_file_is_covered():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files <= {*RATES, *NO_RATES}, "say in this file which rates these have, or why none"
    assert not set(RATES) & set(NO_RATES)


def list_rates(name: str, results: dict) -> Iterator[Rate]:
    for one in RATES[name](results["measured"]):
        yield from [one] if isinstance(one, Rate) else find_machine(results["device"]).rates(one)


@pytest.mark.parametrize("name", RATES)
def test_no_rate_is_above_what_its_machine_measured(name):
    rates = list(list_rates(name, load(name)))
    wrong = [
        f"{r.what}: {r.value:.3g} of {r.ceiling:.3g} per second"
        for r in rates
        if not (math.isfinite(r.value) and r.value <= r.ceiling)
    ]
    assert rates and not wrong, "\n".join(wrong)
