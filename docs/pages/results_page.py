"""The parts of the page of results: every results file that a chapter's bench writes, shown by that bench."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from chapters.kit.bench.results import FOLDER, Several, Shown, load, made_with, not_yet
from chapters.kit.draw.table import Table
from chapters.runner.course import chapter
from docs.pages.cpu_results import PLOTS
from docs.pages.gpu_results import SHOWN


def of_chapter(number: int) -> Several | Shown:
    """Everything that `bench <number>` measured: tables, plots and their sources, or a note that no file exists yet."""
    parts: list = [part for part in _tables(number) if not _empty(part)]
    if not parts:
        return not_yet(number)
    for name, plot in PLOTS.items():
        results = load(name)
        if results is not None and name.startswith(f"ch{number:02}_"):
            parts += plot(results["measured"])
    return Several(parts)


def _tables(number: int) -> list:
    bench = importlib.import_module(f"chapters.{chapter(number).slug}.bench")
    if hasattr(bench, "TABLES"):
        return [drawn(name) if name in SHOWN else bench.shown(name) for name in bench.TABLES]
    return [bench.shown()]


def _empty(part: object) -> bool:
    return isinstance(part, Shown) and part.table is None and "Not yet" in part.source


def drawn(name: str):
    """The measurements of a GPU called `name`: "roofline", or the plots and tables of one results file."""
    return SHOWN[name]()


def others(shown: Iterable[int], folder: Path = FOLDER) -> Several | Shown:
    """Results files of chapters that are not in `shown`, and not of GPUs, each as a plain table of what it holds."""
    prefixes = ("gpu_", *(f"ch{number:02}_" for number in shown))
    names = sorted(p.stem for p in folder.glob("*.json") if not p.stem.startswith(prefixes))
    if not names:
        return Shown(None, "Nothing: every results file belongs to a part above.")
    return Several([_plain(name, folder) for name in names])


def _plain(name: str, folder: Path) -> Shown:
    results = load(name, folder)
    return Shown(Table((name, "value"), list(leaves(results["measured"]))), made_with(results))


def leaves(value: object, path: str = "") -> Iterable[tuple[str, str]]:
    """(where, what) of each number or word in nested dictionaries and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path} {key}".strip())
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path} {number}".strip())
    else:
        yield path, f"{value:.4g}" if isinstance(value, float) else str(value)
