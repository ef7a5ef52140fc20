"""The 32 banks of shared memory, and a slider for the padding of a tile's rows: which words a warp's lanes ask for.

`bank_picture({"name": [StagedRead, …]})` draws a panel per tile, with a read per padding. Which bank delivers which
words, and how many cycles that takes, comes from `warp_access.Access`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import tirx

from chapters.kit.draw.drawing import label, svg
from chapters.kit.draw.stepper import Panel, Stepper, step_attribute, table_row
from chapters.kit.draw.table import count_noun
from chapters.kit.gpu.limits import BANK_BYTES, BANKS, WARP
from chapters.kit.gpu.warp_access import Access, accesses

WIDE, HIGH, BAR = 11, 8, 2.5  # pixels: a word in memory, and a word in the queue of a bank
LEFT, TOP = 2, 16


@dataclass(frozen=True)
class StagedRead:
    """One read of a tile in shared memory by a warp. row, padding: bytes of a row, and of what follows it unused."""

    access: Access
    rows: int
    row: int
    padding: int


def read_of_kernel(
    func: tirx.PrimFunc, target: tvm.target.Target, buffer: str, rows: int, row: int, padding: int
) -> StagedRead:
    """The first warp's first read of `buffer`, in the kernel of `func`."""
    reads = (a for a in accesses(func, target) if a.buffer == buffer and not a.writes)
    return StagedRead(next(reads), rows, row, padding)


def read_of_column(padding: int) -> StagedRead:
    """A warp reads the first column of 32 × 32 float32: each lane a row."""
    stride = WARP + padding // BANK_BYTES
    first = tuple(lane * stride for lane in range(WARP))
    access = Access("tile", "shared", False, 1, BANK_BYTES, 1, first)
    return StagedRead(access, WARP, WARP * BANK_BYTES, padding)


def bank_picture(tiles: Mapping[str, Sequence[StagedRead]]) -> Stepper:
    """The picture. All tiles have the same paddings."""
    paddings = [[read.padding for read in reads] for reads in tiles.values()]
    if any(one != paddings[0] for one in paddings):
        raise ValueError(f"The tiles have different paddings: {paddings}.")
    panels = [_make_panel(name, reads) for name, reads in tiles.items()]
    caption = (
        "A column is a bank, and a cell is a word of 4 bytes. The bars below count the words that each bank delivers. "
        "Blue: one word. Orange: several, one per cycle. Grey: padding. Lanes that want the same word get it together."
    )
    dials = {"Padding per row": [f"{padding} bytes" for padding in paddings[0]]}
    title = "The 32 banks of shared memory, and the words that a warp reads"
    return Stepper(title, panels, "banks", asks="Tile", caption=caption, dials=dials)


def _make_panel(name: str, reads: Sequence[StagedRead]) -> Panel:
    paddings = table_row("bytes of padding", (read.padding for read in reads))
    cycles = table_row("cycles", (sum(read.access.bank_cycles) for read in reads))
    table = f'<table class="step-table bk-table"><tbody>{paddings}{cycles}</tbody></table>'
    return Panel(name, [_describe_read(read) for read in reads], _draw_memory(name, reads) + table)


def _describe_read(read: StagedRead) -> str:
    words, cycles = _words_of_banks(read), sum(read.access.bank_cycles)
    total = sum(map(len, words.values()))
    conflict = "no conflict" if read.access.ways == 1 else f"{read.access.ways}-way conflict"
    banks = count_noun(len(words), "bank")
    return f"{total} words in {banks}, {conflict}, {count_noun(cycles, 'cycle')}"


def _words_of_banks(read: StagedRead) -> dict[int, set[int]]:
    (words,) = read.access.bank_words  # one group: a lane reads up to 4 bytes
    return words


def _draw_memory(name: str, reads: Sequence[StagedRead]) -> str:
    """Shared memory, 32 words per line, above the queue of words at each bank."""
    lines = max(-(-r.rows * (r.row + r.padding) // (BANKS * BANK_BYTES)) for r in reads)
    floor = TOP + lines * HIGH + 8  # the queues hang from here
    most = max(read.access.ways for read in reads)
    width, height = 2 * LEFT + BANKS * WIDE, floor + most * BAR + 14
    shapes = [
        label(LEFT + (bank + 0.5) * WIDE, 11, bank) for bank in (*range(0, BANKS, 4), BANKS - 1)
    ]
    grid = [f"M{LEFT + bank * WIDE} {TOP}v{lines * HIGH}" for bank in range(BANKS + 1)]
    grid += [f"M{LEFT} {TOP + line * HIGH}h{BANKS * WIDE}" for line in range(lines + 1)]
    shapes.append(f'<path class="rule" d="{"".join(grid)}"/>')
    for step, read in enumerate(reads):
        words, at = _words_of_banks(read), step_attribute(step)
        banks = {
            "alone": [bank for bank, asked in words.items() if len(asked) == 1],
            "queued": [bank for bank, asked in words.items() if len(asked) > 1],
        }
        if read.padding:
            shapes.append(f'<path class="bk-pad" d="{_draw_cells(_padding_words(read))}"{at}/>')
        for kind, those in banks.items():
            if those:
                cells = _draw_cells(word for bank in those for word in words[bank])
                bars = (
                    f"M{LEFT + (bank + 0.5) * WIDE:g} {floor}v{len(words[bank]) * BAR:g}"
                    for bank in sorted(those)
                )
                shapes.append(f'<path class="bk-{kind}" d="{cells}"{at}/>')
                shapes.append(f'<path class="bk-{kind} bk-bar" d="{"".join(bars)}"{at}/>')
        worst = max(words, key=lambda bank: (len(words[bank]), -bank))
        x, y = LEFT + (worst + 0.5) * WIDE, floor + len(words[worst]) * BAR + 11
        place = (LEFT, y) if worst == 0 else (x, y)
        anchor = "start" if worst == 0 else "middle"
        most = count_noun(len(words[worst]), "word")
        shapes.append(label(*place, most, anchor, f' class="strong"{at}'))
    title = f"{name}: the words that a warp reads at once, in 32 banks"
    return svg("bk", width, height, title, shapes)


def _padding_words(read: StagedRead) -> list[int]:
    """The words that the tile's rows leave unused."""
    row, padding = read.row // BANK_BYTES, read.padding // BANK_BYTES
    return [
        n * (row + padding) + row + unused for n in range(read.rows) for unused in range(padding)
    ]


def _draw_cells(words: Iterable[int]) -> str:
    """A stroke per word in memory; neighbours in a line share one."""
    runs: list[list[int]] = []
    for word in sorted(words):
        if runs and word == runs[-1][0] + runs[-1][1] and word % BANKS:
            runs[-1][1] += 1
        else:
            runs.append([word, 1])
    corners = ((LEFT + word % BANKS * WIDE, TOP + word // BANKS * HIGH, n) for word, n in runs)
    return "".join(f"M{x} {y + HIGH // 2}h{n * WIDE}" for x, y, n in corners)
