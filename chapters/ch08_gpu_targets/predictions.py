"""Predicts what the course's GPU kernels cost on GPUs that are not here, and compares the model with published times.

`python -m chapters.ch08_gpu_targets.predictions` writes `docs/results/gpu_predictions.json`, in about three minutes. It
needs NVIDIA's compiler and disassembler (`pip install -e '.[gpu]'`) and no GPU. `python -m chapters bench 8` measures
the same kernels on an NVIDIA GPU; without one it shows this file.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tvm import te, tirx

from chapters.ch04_add_rms_norm.gpu_norms import kernels as norm_kernels
from chapters.ch08_gpu_targets import bench
from chapters.ch08_gpu_targets.bench import STEPS, steps
from chapters.ch08_gpu_targets.predicted_and_measured import (
    NAME,
    describe_details,
    describe_error,
    find_pairs,
    find_sources,
    find_steps,
    pairs_table,
)
from chapters.kit.bench import gpu_norm_bench, gpu_results
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.bench.kernel_counts import compiler, save_counts
from chapters.kit.bench.results import Several, Shown, load, made_with
from chapters.kit.draw.table import Table, si
from chapters.kit.gpu import cuda_resources, machine_code
from chapters.kit.gpu.cost_model import Counts, DoesNotFitError, counted, predicted
from chapters.kit.gpu.few_rows import few_rows_body
from chapters.kit.gpu.gpus import ARCHITECTURES, BOARDS, PORTABLE, Board, Portable, architecture
from chapters.kit.gpu.limits import block_shared_bytes
from chapters.kit.gpu.linear_layer import linear_layer
from chapters.kit.gpu.mma import mma_matmul, tile_for
from chapters.kit.gpu.published_kernels import PUBLISHED, Published
from chapters.kit.gpu.targets import DLIGHT_CUDA
from chapters.kit.gpu.traffic import Traffic, wgmma_traffic
from chapters.kit.gpu.wgmma import wgmma_matmul
from chapters.kit.gpu.wgmma_tile import best_tile
from chapters.kit.quantized.blocks import Form
from chapters.kit.quantized.coded_products_on_gpu import schedule
from chapters.kit.quantized.dequantize import kernel as unpacking
from chapters.runner.earlier import earlier

COMMAND = "python -m chapters.ch08_gpu_targets.predictions"
SHOWN_BOARD = "H100 SXM"
MEASURE = "python -m chapters bench 8"
NO_SOURCE = "no source"
SIDE = 4096  # of the weight of the layers with few rows
NORMS = ((1, 4096, 4096), (8192, 8192))
DTYPE = "float16"  # of the norms: TVM's text for bfloat16 does not compile for sm_75
ROWS = ("seq_len", "rows_0")  # the names that chapter 4's kernels give the number of rows
CODED = Form(4, 32, True, "float16", 16)  # chapter 11's, as Q4_1 is coded


@dataclass(frozen=True)
class Case:
    """A kernel to predict. make: for a board. operations: of one launch. needs: instructions, of gpus.INSTRUCTIONS.

    least: bytes that must move once. traffic: for a kernel that does not show it. sizes: of symbolic dimensions.
    is_product: tensor cores could compute it.
    """

    make: Callable[[Board], tirx.PrimFunc]
    operations: float
    least: int
    needs: tuple[str, ...] = ()
    traffic: Callable[[Board], Traffic] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    is_product: bool = True


CASES_NEED = {
    "tensor cores, 64 × 64": ("wmma float16",),
    "tensor cores, 128 × 128": ("wmma float16",),
    "tensor cores, copies in flight": ("wmma float16", "cp.async"),
    "mma.sync": ("mma.sync m16n8k16", "ldmatrix", "cp.async"),
    "wgmma": ("wgmma", "bulk copy"),
}


def cases() -> dict[str, Case]:
    """name -> case: every step of the chapter's linear layer, kernels for few rows, add and RMSNorm, 4-bit weights."""
    found = {}
    layer = STEPS
    for name, make in steps(layer).items():
        out = layer.dtype if name in ("mma.sync", "wgmma") else "float32"
        case = Case(
            lambda board, make=make: make(),
            layer.operations,
            layer.bytes_moved(out),
            CASES_NEED.get(name, ()),
        )
        found[f"{layer.m} rows: {name}"] = case
    sizes = layer.m, layer.n, layer.k
    found[f"{layer.m} rows: mma.sync"] = Case(
        lambda board: _mma(layer, board),
        layer.operations,
        layer.bytes_moved(layer.dtype),
        CASES_NEED["mma.sync"],
    )
    found[f"{layer.m} rows: wgmma"] = Case(
        lambda board: wgmma_matmul(
            *sizes, layer.dtype, layer.dtype, multiprocessors=board.multiprocessors
        ),
        layer.operations,
        layer.bytes_moved(layer.dtype),
        CASES_NEED["wgmma"],
        lambda board: wgmma_traffic(
            *sizes, layer.dtype, best_tile(*sizes[:2], board.multiprocessors)
        ),
    )
    found |= _few_rows() | _norms()
    return found


def _mma(layer: Layer, board: Board) -> tirx.PrimFunc:
    tile = tile_for(layer.m, layer.n, layer.k, block_shared_bytes(board.arch))
    return mma_matmul(layer.m, layer.n, layer.k, layer.dtype, layer.dtype, tile)


def _few_rows() -> dict[str, Case]:
    """Layers of 1 and 8 rows, with weights of 16 and of 4 bits."""
    one, eight = Layer(1, SIDE, SIDE, "float16"), Layer(8, SIDE, SIDE, "float16")
    few = linear_layer(8, SIDE, SIDE, "float16", "float16")
    body = partial(tirx.PrimFunc, [few.x, few.w, few.start.source, few.out])
    coded_bytes = SIDE * SIDE // 2 + 2 * 2 * SIDE * SIDE // CODED.group
    return {
        "1 row: decode": Case(
            lambda board: earlier(8).decode_matmul(SIDE, SIDE, "float16"),
            one.operations,
            one.bytes_moved("float32"),
        ),
        "1 row, 4-bit weights": Case(
            lambda board: coded(1), one.operations, coded_bytes + 8 * SIDE
        ),
        "8 rows: few_rows": Case(
            lambda board: body(few_rows_body(few, 8)).with_attrs(
                {"global_symbol": "main", "tirx.noalias": True}
            ),
            eight.operations,
            eight.bytes_moved("float16"),
        ),
    }


def coded(rows: int) -> tirx.PrimFunc:
    """Chapter 11's kernel: `rows` rows times a matrix of 4-bit codes, which it unpacks in registers."""
    shape = [tirx.IntImm("int64", SIDE)] * 2
    w = te.placeholder(shape, "float32", "w")
    x = te.placeholder([tirx.IntImm("int64", rows), shape[0]], "float32", "x")
    product = earlier(3).nt_matmul(w, x, "float32")
    both = earlier(11).joined(
        unpacking(CODED, (SIDE, SIDE)), te.create_prim_func([w, x, product], "int64")
    )
    return schedule(both, DLIGHT_CUDA).with_attr("global_symbol", "main")


def _norms() -> dict[str, Case]:
    found = {}
    for shape in NORMS:
        for name in ("wide_kernel", "row_kernel"):
            found[f"add and RMSNorm {shape[-2]} × {shape[-1]}: {name}"] = Case(
                lambda board, shape=shape, name=name: norm_kernels(shape, DTYPE)[name],
                gpu_norm_bench.operations(shape),
                gpu_norm_bench.bytes_moved(shape, DTYPE),
                sizes=dict.fromkeys(ROWS, shape[-2]),
                is_product=False,
            )
    return found


# --- predictions ----------------------------------------------------------------------------------


def predictions(
    boards: tuple[str, ...] = tuple(BOARDS), say: Callable[[str], None] = print
) -> list[dict]:
    """One entry per kernel and board: what was counted and predicted, or "why" there is nothing."""
    found = []
    for name, case in cases().items():
        for board in map(BOARDS.get, boards):
            say(f"{name}, {board.name}")
            found.append({"kernel": name, "board": board.name, **_entry(case, board)})
    return found


def _entry(case: Case, board: Board) -> dict:
    one = ARCHITECTURES[board.arch]
    lacking = [need for need in case.needs if need not in one.instructions]
    if lacking:
        return {"why": f"{one.target} has no {lacking[0]}"}
    known = case.traffic(board) if case.traffic else None
    try:
        counts = counted(case.make(board), one.target, case.operations, known, case.sizes)
        return {**_counts(counts), **_costs(counts, case, board)}
    except DoesNotFitError as reason:
        return {**_counts(counts), "why": str(reason)}
    except cuda_resources.CompileError as reason:
        first = next(line for line in str(reason).splitlines() if "error" in line)
        return {"why": f"NVIDIA's compiler refuses it for {one.target}: {first}"}


def _counts(counts: Counts) -> dict:
    """What is known without a board: numbers of the kernel on an architecture."""
    memory, used = counts.memory, counts.used
    sectors, least_sectors = memory.sectors_per_request
    threads = counts.resident * memory.threads
    return {
        "arch": counts.arch,
        "blocks": memory.blocks,
        "threads": memory.threads,
        "registers": used.registers,
        "spilled": used.spill_store_bytes + used.spill_load_bytes,
        "shared_bytes": used.shared_bytes,
        "resident": counts.resident,
        "occupancy": min(1.0, threads / architecture(counts.arch).multiprocessor.threads),
        "sectors": sectors,
        "least_sectors": least_sectors,
        "conflict": memory.worst_conflict,
        "l2_bytes": sum(memory.read.values()) + sum(memory.written.values()),
        "instructions": dict(counts.kinds if counts.kinds is not None else counts.static),
        "executed": counts.kinds is not None,
    }


def _costs(counts: Counts, case: Case, board: Board) -> dict:
    found = predicted(counts, board)
    rate = board.tensor if case.is_product else board.float32
    roofline = None
    if rate and board.bandwidth:
        roofline = max(case.least / board.bandwidth, case.operations / rate)
    return {
        "operations": case.operations,
        "dram_bytes": found.dram_bytes,
        "least_bytes": case.least,
        "least_seconds": dict(found.least),
        "waiting": found.waiting,
        "busiest": found.busiest,
        "seconds": None if found.lacking else found.seconds,
        "lacking": list(found.lacking),
        "roofline": roofline,
    }


# --- the model against published times ------------------------------------------------------------


def validation(say: Callable[[str], None] = print) -> list[dict]:
    """One entry per published kernel: its time, the model's, and where it was published."""
    found = []
    for one in (*PUBLISHED, _published_norm()):
        say(f"published: {one.name}")
        board = BOARDS[one.board]
        known = wgmma_traffic(*one.wgmma) if one.wgmma else None
        target = ARCHITECTURES[board.arch].target
        counts = counted(one.make(), target, one.operations, known, one.sizes)
        model = predicted(counts, board)
        entry = {"kernel": one.name, "board": one.board, "published": one.seconds}
        entry |= {"bound": model.bound, "predicted": model.seconds, "busiest": model.busiest}
        found.append({**entry, "source": one.source})
    return found


def _published_norm() -> Published:
    """RMSNorm as chapter 4 writes it, with its addition: the page gives bytes per second, which time them."""
    shape = NORMS[1]
    moved = gpu_norm_bench.bytes_moved(shape, DTYPE)
    return Published(
        "RMSNorm, 8192 columns",
        SHOWN_BOARD,
        lambda: norm_kernels(shape, DTYPE)["wide_kernel"],
        gpu_norm_bench.operations(shape),
        moved / 3e12,
        "github.com/Dao-AILab/quack, media/2025-07-10-membound-sol.md: about 3 TB/s",
        sizes=dict.fromkeys(ROWS, shape[0]),
    )


def computed() -> dict:
    """What the results file holds."""
    return {
        "compiler": compiler(),
        "disassembler": machine_code.disassembler_version(),
        "validation": validation(),
        "predictions": predictions(),
    }


# --- tables ---------------------------------------------------------------------------------------


def validation_table(entries: list[dict]) -> Table:
    """One row per published kernel; the note says how far off the model is."""
    rows = [
        (
            e["kernel"],
            e["board"],
            si(e["published"], "s"),
            si(e["predicted"], "s"),
            f"{e['predicted'] / e['published']:.2f}",
            e["busiest"],
            e["source"],
        )
        for e in entries
    ]
    ratios = sorted(e["predicted"] / e["published"] for e in entries)
    note = (
        f"Of {len(ratios)} published kernels, the predicted time is {ratios[0]:.2f} to {ratios[-1]:.2f} of the "
        f"published one, in the middle {statistics.median(ratios):.2f}."
    )
    header = ("published kernel", "GPU", "published", "predicted", "ratio", "busiest", "source")
    return Table(header, rows, note)


def kernel_table(entries: list[dict], board: str = SHOWN_BOARD) -> Table:
    """One row per kernel on one board: what was counted, and what it costs."""
    header = (
        "kernel",
        "registers",
        "occupancy",
        "sectors per request",
        "bank conflict",
        "from and to DRAM",
    )
    header += (
        "arithmetic intensity",
        "warp instructions per block",
        "predicted",
        "busiest",
        "roofline allows",
    )
    rows = []
    for e in (e for e in entries if e["board"] == board):
        if "seconds" not in e:
            rows.append((e["kernel"], *["–"] * 7, e["why"], "–", "–"))
            continue
        conflict = f"{e['conflict']}-way" if e["conflict"] else "no shared memory"
        least = (
            f"{si(e['dram_bytes'], 'B')} ({e['dram_bytes'] / e['least_bytes']:.2g} times the least)"
        )
        executed = sum(e["instructions"].values()) * -(-e["threads"] // 32)
        rows.append(
            (
                e["kernel"],
                f"{e['registers']}{', spills' if e['spilled'] else ''}",
                f"{e['occupancy']:.0%}",
                f"{e['sectors']:.3g} ({e['least_sectors']:.3g} at least)"
                if e["sectors"]
                else "bulk copies",
                conflict if e["sectors"] else "–",
                least,
                gpu_results.format_intensity(e["operations"] / e["dram_bytes"]),
                si(executed, "") if e["executed"] else "loops not read",
                _time(e["seconds"]),
                e["busiest"],
                _time(e["roofline"]),
            )
        )
    note = (
        f"Predicted for one {board}, with kernels compiled for it. 4096 rows: a linear layer of 4096 × 4096 × 4096 in "
        "float16. Fewer rows: weights of 4096 × 4096. Add and RMSNorm: float16."
    )
    return Table(header, rows, note)


def board_table(entries: list[dict]) -> Table:
    """One row per kernel, one column per board: the predicted time, or why there is none."""
    boards = list(dict.fromkeys(e["board"] for e in entries))
    cells = {(e["kernel"], e["board"]): _cell(e) for e in entries}
    names = dict.fromkeys(e["kernel"] for e in entries)
    rows = [(name, *(cells.get((name, board), "–") for board in boards)) for name in names]
    note = "The same on each board, compiled for its own architecture; a kernel that cannot run there says why."
    return Table(("predicted", *boards), rows, note)


def resources_table(entries: list[dict]) -> Table:
    """One row per kernel, one column per GPU: its registers and occupancy there, or whether its blocks fit."""
    boards = list(dict.fromkeys(e["board"] for e in entries))
    by_kernel: dict[str, dict[str, dict]] = {}
    for e in entries:
        by_kernel.setdefault(e["kernel"], {})[e["board"]] = e
    rows = []
    for name, found in by_kernel.items():
        cells = [_resources(found[board]) if board in found else "–" for board in boards]
        rows.append((name, *cells, *(_fits(name, found, one) for one in PORTABLE.values())))
    note = (
        "Registers per thread, and the share of a multiprocessor's threads that are resident. On GPUs of other makers "
        "only the size of the block counts; a kernel is scheduled again for them."
    )
    return Table(("registers, occupancy", *boards, "Apple", "integrated"), rows, note)


def _resources(entry: dict) -> str:
    if "registers" not in entry:
        return entry["why"]
    spills = " (spills)" if entry["spilled"] else ""
    return f"{entry['registers']}{spills}, {entry['occupancy']:.0%}"


def _fits(name: str, found: dict[str, dict], gpu: Portable) -> str:
    """Whether the blocks of a kernel, as compiled for NVIDIA's GPUs, have a size that `gpu` can run."""
    if any(name.endswith(cores) for cores in CASES_NEED):
        return "NVIDIA only"
    one = next(e for e in found.values() if "threads" in e)
    why = gpu.refuses(one["threads"], one["shared_bytes"])
    return f"{one['threads']} threads: {'too large' if why else 'fits'}"


def _cell(entry: dict) -> str:
    if "seconds" not in entry:
        return (
            entry["why"].split(" with ")[0]
            if "does not fit" not in entry["why"]
            else "does not fit"
        )
    if entry["seconds"] is None:
        return f"rate of {' and '.join(entry['lacking'])} unknown"
    return si(entry["seconds"], "s")


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else si(seconds, "s")


GPU_HEADER = (
    "GPU",
    "target",
    "multiprocessors",
    "threads, blocks each",
    "shared memory, per block",
)
GPU_HEADER += ("products by", "DRAM", "float32", "tensor cores", "cache", "source")


def gpus_table() -> Table:
    """One row per board: what its multiprocessors hold, its instructions and its rates; then GPUs of other makers."""
    rows = [_board_row(board) for board in BOARDS.values()]
    for one in PORTABLE.values():
        name, bandwidth = one.board or (one.name, None)
        facts = name, "–", "–", f"{one.threads} per block", f"–, {one.shared_bytes // 1024} KiB"
        rows.append((*facts, "float32", _rate(bandwidth, "B/s"), *[NO_SOURCE] * 3, one.source))
    return Table(GPU_HEADER, rows)


def _board_row(board: Board) -> tuple:
    one = ARCHITECTURES[board.arch]
    limit = one.multiprocessor
    shared = f"{limit.shared_bytes // 1024} KiB, {limit.block_shared_bytes // 1024} KiB"
    facts = (
        board.name,
        one.target,
        board.multiprocessors,
        f"{limit.threads}, {limit.blocks}",
        shared,
    )
    cache = f"{board.cache_bytes >> 20} MiB" if board.cache_bytes else NO_SOURCE
    rates = (
        _rate(board.bandwidth, "B/s"),
        _rate(board.float32, "FLOP/s"),
        _rate(board.tensor, "FLOP/s"),
    )
    return *facts, best_product(board.arch), *rates, cache, board.source


def _rate(value: float | None, unit: str) -> str:
    return si(value, unit, 4) if value else NO_SOURCE


def best_product(arch: str) -> str:
    """The instruction of the chapter's fastest kernel that an architecture has."""
    have = ARCHITECTURES[arch].instructions
    return next(name for name in ("wgmma", "mma.sync m16n8k16", "wmma float16") if name in have)


LABEL = (
    "A prediction, not a measurement. The model counts what a kernel asks of memory and of the multiprocessors, and "
    "divides by data-sheet rates."
)
NOT_YET = f"Nothing is predicted yet: `{COMMAND}` does it, without a GPU."


def shown() -> Several | Shown:
    """What was measured beside what was predicted, then each kernel's counts; or that nothing is predicted yet."""
    results = load(NAME)
    if results is None:
        return Shown(None, NOT_YET)
    measured = results["measured"]
    pairs = find_pairs(load)
    beside = []
    if pairs:
        told = f"{describe_error(pairs)} {describe_details(pairs)}"
        sources = (Shown(None, one) for one in find_sources(load))
        beside = [Shown(None, told), pairs_table(pairs), *sources]
    label = LABEL if pairs else f"{LABEL} `{MEASURE}` measures on an NVIDIA GPU."
    published = validation_table(measured["validation"]).note
    return Several(
        [
            *beside,
            Shown(None, label),
            kernel_table(measured["predictions"]),
            Shown(None, published),
            Shown(None, source(results)),
        ]
    )


def source(results: dict) -> str:
    """The line that says how the file of predictions was made."""
    measured = results["measured"]
    return f"{measured['compiler']}, {measured['disassembler']}; {made_with(results)}"


def steps_shown() -> Several | Shown:
    """The chapter's steps on one layer: as measured, with the predictions for the same GPU; else as predicted."""
    results = load("ch08_steps")
    if results is not None:
        layer = f"{STEPS.m} rows: "
        pairs = [pair for pair in find_pairs(load) if pair.case.startswith(layer)]
        if not pairs:  # no prediction for this GPU
            return bench.shown("ch08_steps")
        table = pairs_table(pairs)
        rows = [(row[0].removeprefix(layer), *row[1:]) for row in table.rows]
        case = next(case for case in results["measured"]["cases"] if find_steps(case))
        if library := case["seconds"].get(gpu_results.LINEAR):
            rows.append((gpu_results.LINEAR, si(library["median"], "s"), "–", "–", rows[-1][-1]))
        return Several([Table(table.header, rows), gpu_results.source(results)])
    results = load(NAME)
    if results is None:
        return Shown(None, NOT_YET)
    entries = [e for e in results["measured"]["predictions"] if e["board"] == SHOWN_BOARD]
    rows = []
    for e in entries:
        rows_of_layer, _, step = e["kernel"].partition(": ")
        if rows_of_layer == f"{STEPS.m} rows":
            rows.append((step, _time(e["seconds"]), _time(e["roofline"])))
    header = ("kernel", f"predicted for one {SHOWN_BOARD}", "the roofline allows")
    return Several([Shown(None, LABEL), Table(header, rows)])


def main() -> int:
    """Compute, print, and write the results file; exit status 1 if the compiler or the disassembler is missing."""
    lacking = cuda_resources.missing() or machine_code.missing()
    return save_counts(
        NAME, computed, lambda found: validation_table(found["validation"]), lacking, COMMAND
    )


if __name__ == "__main__":
    sys.exit(main())
