"""A picture with sliders for the sizes of a tile: what its kernel loads, its registers, spills and occupancy.

`python -m chapters.ch08_gpu_targets.tile_sizes` counts the kernels with NVIDIA's compiler and writes
`docs/results/ch08_tiles.json`, in a few minutes. It needs no GPU. The rest is computed when the page is built.
"""

from __future__ import annotations

import html
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from chapters.ch08_gpu_targets.given import ThreadTile
from chapters.ch08_gpu_targets.registers import SIZE
from chapters.ch08_gpu_targets.thread_schedule import shared_matmul
from chapters.kit.bench.kernel_counts import compiler, explain_missing
from chapters.kit.bench.results import measure_and_save, show_results
from chapters.kit.cases.example_programs import linear_bias
from chapters.kit.draw.stepper import Panel, Stepper, attributes, render_changing
from chapters.kit.draw.table import Table, count_noun
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.gpus import BOARDS, Board, architecture
from chapters.kit.gpu.kernel_report import measure_resources, occupancy, resident_blocks
from chapters.kit.gpu.limits import STATIC_SHARED_BYTES
from chapters.kit.gpu.targets import CUDA
from chapters.kit.gpu.warp_access import bytes_moved

NAME = "ch08_tiles"
COMMAND = "python -m chapters.ch08_gpu_targets.tile_sizes"
SHOWN = ("H100 SXM", "A100 SXM 40 GB", "RTX 4090", "T4")
BLOCKS, OWN, STEPS = (32, 64, 128, 256), (2, 4, 8, 16), (4, 8, 16)  # sides of tiles; block_k
START = (64, 4, 16)  # the tile of the lesson's traced occupancy
MOST_THREADS, MOST_REGISTERS = 1024, 255  # of a block, of a thread


def choose_tile(block: int, own: int, steps: int) -> ThreadTile | str:
    """The tile with these sizes, with the widest vectors that divide its copies; or why there is none."""
    threads, copied = (block // own) ** 2, block * steps
    if threads > MOST_THREADS:
        return f"{threads:,} threads per block, and a block has at most {MOST_THREADS:,}"
    if copied < threads:
        return f"A piece of A has {copied:,} elements, too few for a copy by {threads:,} threads"
    vector = next(v for v in (4, 2, 1) if copied % (threads * v) == 0)
    return ThreadTile(block, block, steps, own, own, vector)


def tiles() -> dict[str, ThreadTile | str]:
    """The tiles of all settings of the sliders, by name, in the order of the picture's steps."""
    settings = itertools.product(BLOCKS, OWN, STEPS)
    return {" ".join(map(str, setting)): choose_tile(*setting) for setting in settings}


def count_tiles() -> dict:
    """{tile: its counts}, and the compiler: `moved` are bytes of A and B, `used` is by architecture."""
    found = {}
    for name, tile in tiles().items():
        if isinstance(tile, str):
            continue
        func = shared_matmul(linear_bias(*SIZE, "float32"), tile)
        moved = bytes_moved(func, CUDA)
        used = {}
        for board in SHOWN:
            arch = architecture(BOARDS[board].arch).target
            one, threads = measure_resources(func, arch)
            used[arch] = [one.registers, one.spill_store_bytes, one.spill_load_bytes]
        found[name] = {
            "threads": threads,
            "shared": one.shared_bytes,
            "moved": moved["A"] + moved["B"],
            "used": used,
        }
    return {"compiler": compiler(), "tiles": found}


def table(measured: dict) -> Table:
    """One row per tile and architecture."""
    rows = [
        (name, arch, one["threads"], one["shared"], one["moved"], *used)
        for name, one in measured["tiles"].items()
        for arch, used in one["used"].items()
    ]
    spilled = ("stored for spills", "loaded for spills")
    return Table(("tile", "for", "threads", "shared", "moved", "registers", *spilled), rows)


# --- the picture ----------------------------------------------------------------------------------


def draw_tile_sizes(measured: dict) -> Stepper:
    """The picture, with a panel per board."""
    start = list(itertools.product(BLOCKS, OWN, STEPS)).index(START)
    panels = [_panel(BOARDS[name], measured["tiles"]) for name in SHOWN]
    rows, columns, steps = SIZE
    caption = (
        f"D has {rows} × {columns} elements, and a sum {steps} steps, in float32. A full bar is the limit: "
        f"{MOST_THREADS:,} threads, {MOST_REGISTERS} registers, {STATIC_SHARED_BYTES:,} bytes of shared memory. For "
        f"bytes loaded or spilled, it is the largest number that occurs. Registers and spills are counted by "
        f"{html.escape(measured['compiler'])}; no GPU was measured."
    )
    dials = {
        "Block": [f"{side} × {side}" for side in BLOCKS],
        "Thread": [f"{side} × {side}" for side in OWN],
        "Steps at a time": list(map(str, STEPS)),
    }
    label = "The sizes of a tile, and what its kernel needs"
    return Stepper(label, panels, "tile-sizes", start, "GPU", caption, dials)


show_tile_sizes = partial(show_results, draw_tile_sizes, NAME, command=COMMAND)


@dataclass(frozen=True)
class State:
    """What is shown of one tile on one board. resident: blocks of a multiprocessor; share: its occupancy, 0 to 1."""

    threads: int
    moved: int
    used: Resources
    resident: int
    share: float

    @property
    def spilled(self) -> int:
        return self.used.spill_store_bytes + self.used.spill_load_bytes


def compute_state(counts: dict, arch: str) -> State:
    """The state of a tile with these counts on `arch`."""
    registers, stored, loaded = counts["used"][arch]
    used, threads = Resources(registers, 0, stored, loaded, counts["shared"]), counts["threads"]
    resident = resident_blocks(used, threads, arch)
    return State(threads, counts["moved"], used, resident, occupancy(used, threads, arch))


def _panel(board: Board, found: dict) -> Panel:
    arch = architecture(board.arch).target
    states = [
        None if isinstance(tile, str) else compute_state(found[name], arch)
        for name, tile in tiles().items()
    ]
    says = [
        f"No kernel: {tile}." if one is None else _describe_state(one)
        for one, tile in zip(states, tiles().values(), strict=True)
    ]
    meters = "".join(_meter(*meter, states) for meter in METERS)
    sides = list(itertools.product(BLOCKS, OWN, STEPS))
    rows = SIZE[0]
    squares = (
        ("D, in blocks", "D, cut into blocks", [block / rows for block, *_ in sides]),
        ("a block, in threads", "a block, cut into threads", [own / b for b, own, _ in sides]),
    )
    drawn = "".join(_square(*square) for square in squares)
    body = f'<div class="ts">{drawn}<dl class="ts-meters">{meters}</dl></div>'
    return Panel(board.name, says, body)


def _describe_state(one: State) -> str:
    spills = f"{one.spilled:,} bytes spilled" if one.spilled else "nothing spilled"
    blocks = count_noun(one.resident, "block")
    return f"{one.used.registers} registers, {spills}; {blocks} resident, occupancy {100 * one.share:.1f} %"


METERS = (  # name, quantity, its largest value (None: the largest of the picture), its text
    ("bytes of A and B loaded", lambda one: one.moved, None, "{:,}"),
    ("threads per block", lambda one: one.threads, MOST_THREADS, "{:,}"),
    ("registers per thread", lambda one: one.used.registers, MOST_REGISTERS, "{}"),
    ("bytes spilled per thread", lambda one: one.spilled, None, "{:,}"),
    ("bytes of shared memory", lambda one: one.used.shared_bytes, STATIC_SHARED_BYTES, "{:,}"),
    ("occupancy", lambda one: one.share, 1, "{:.1%}"),
)


def _meter(
    name: str,
    quantity: Callable[[State], float],
    most: float | None,
    form: str,
    states: Sequence[State | None],
) -> str:
    values = [None if one is None else quantity(one) for one in states]
    most = most or max((value for value in values if value), default=1)
    texts = ["–" if value is None else form.format(value).replace("%", " %") for value in values]
    bar = attributes(shares=[(value or 0) / most for value in values])
    marks = ["bad" if name.startswith("bytes spilled") and value else "" for value in values]
    return (
        f'<div><dt>{name}</dt><dd class="ts-bar" aria-hidden="true"{bar}></dd>'
        f"{render_changing('dd', 'ts-value', texts, marks)}</div>"
    )


def _square(name: str, title: str, parts: Sequence[float]) -> str:
    """A square cut into parts, each with this share of a side; the first part is marked."""
    part = attributes(shares=parts)
    return (
        f'<figure class="ts-square"><div role="img" aria-label="{title}"{part}><i></i></div>'
        f"<figcaption>{name}</figcaption></figure>"
    )


if __name__ == "__main__":
    sys.exit(measure_and_save(NAME, count_tiles, table, COMMAND, explain_missing()))
