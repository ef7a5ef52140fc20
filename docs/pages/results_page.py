"""The parts of the page of results: a claim and a chart for each thing that a bench measured, and the tables."""

from __future__ import annotations

from dataclasses import replace

from chapters.kit.bench import peak
from chapters.kit.bench.results import Note, Parts, list_tables, load
from chapters.kit.draw.table import Table, format_si
from docs.pages import cpu_results, gpu_results
from docs.pages.course_map import import_from_chapter
from docs.pages.plots import Details

# what the columns of a chapter's tables mean, where their names do not say it
COLUMNS = {
    3: "“Gain of the pass” is the first time divided by the second.",
    4: (
        "“Of plain copy” and “of best copy” compare our speed with that of a kernel that only copies as many bytes, "
        "with ordinary stores and with the better of two kinds. Above 100 %, ours is faster than that copy. “Takes” is "
        "the other's time divided by ours. In the last table, registers are per thread; a spilled byte is one "
        "for which the registers did not suffice."
    ),
    5: (
        "“Share of the bound”: a product cannot be faster than reading w, nor than multiplying and adding in "
        "registers; the later of the two is the bound. “Its tile alone” repeats one block of the product on operands "
        "in the first-level cache. The others' times are divided by ours."
    ),
    6: (
        "“Fused”, “predicted” and “at the tile” are times as fast as with a separate bias pass: with sums that start "
        "from the bias, as predicted for them, and with the bias added when a tile is done. “Unit” is what multiplies: "
        "the vector instruction vpdpbusd, or AMX tiles."
    ),
    9: (
        "“Of our decode” is the time of a decode step divided by ours. “Launches” counts calls of kernels in a decode "
        "step, “bytes moved” what these kernels read and write, and “planned” the bytes that the compiler sets aside "
        "for tensors between kernels."
    ),
    11: (
        "“GB/s of weights” is the bytes of all weights divided by the time of a decode step; “of reading them” "
        "compares it with a kernel that only reads them. A loss is the logarithm of the perplexity "
        "over that of float32."
    ),
}


def show_chapter(number: int) -> Parts:
    """Everything that `bench <number>` measured: a chart for each claim, then all tables, folded; or a note."""
    bench = import_from_chapter(number)
    own = f"ch{number:02}_"  # bench 4 also measures what is shown with bench 8
    measured = [
        name
        for name, (_, files) in list_tables(bench.TABLES).items()
        if files[0].startswith(own) and any(map(load, files))
    ]
    if not measured:
        return bench.show_results()
    charts: list = []
    for name, plot in {**cpu_results.PLOTS, **gpu_results.PLOTS}.items():
        results = load(name)
        if results is not None and name.startswith(own):
            machine = f"{results['cores']} cores of an {results['device']}"
            if name in gpu_results.PLOTS:
                machine = f"one {results['gpu']}"
            where = f"Measured {results['date']} on {machine}."
            charts += [replace(drawn, measured=where) for drawn in plot(results["measured"])]
    words = [Note(COLUMNS[number])] if number in COLUMNS else []
    tables = map(bench.show_results, measured)
    return Parts([*charts, Details(f"All tables of bench {number}", [*words, *tables])])


def list_machines() -> Table:
    """The machines of the results files, and how fast one core of each can multiply and add."""
    peaks, files = find_peaks(), {}
    for name in cpu_results.PLOTS:
        if found := load(name):
            files.setdefault((found["device"], found["cores"]), []).append(name)
    rows = []
    for (device, cores), names in files.items():
        numbers = sorted({int(name[2:4]) for name in names})
        rate = format_si(peaks[device], "FLOP/s") if device in peaks else "not measured"
        rows.append((device, cores, rate, ", ".join(map(str, numbers))))
    return Table(("machine", "cores", "peak per core", "chapters"), rows)


def find_peaks() -> dict[str, float]:
    """device -> operations per second on float32 that one core reached in registers, in any results file."""
    found: dict[str, list[float]] = {}
    if alone := load(peak.NAME):
        found.setdefault(alone["device"], []).append(
            alone["measured"]["float32_operations_per_second"]
        )
    if kernels := load("ch05_kernels"):
        bench = import_from_chapter(5)
        alone = [case for case in kernels["measured"]["cases"] if case["threads"] == 1]
        found.setdefault(kernels["device"], []).extend(map(bench.peak, alone))
    return {device: max(rates) for device, rates in found.items() if rates}
