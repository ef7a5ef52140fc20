"""What the page of results is made of: every results file that a chapter's bench writes, shown by that bench."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from chapters.toolkit.course import chapter, chapters
from chapters.toolkit.gpu_results import SHOWN, Several
from chapters.toolkit.results import FOLDER, Shown, load, made_with
from chapters.toolkit.table import Table


def of_chapter(number: int) -> Several:
    """All that `bench <number>` measures; each part says where its numbers come from, or that there are none."""
    bench = importlib.import_module(f"chapters.{chapter(number).slug}.bench")
    tables = getattr(bench, "TABLES", None)
    return Several([bench.shown(name) for name in tables] if tables else [bench.shown()])


def drawn(name: str):
    """A part of `bench 8`'s results: "roofline", or the plots and tables of one of its files."""
    return SHOWN[name]()


def others(shown: Iterable[int], folder: Path = FOLDER):
    """Results files of chapters that are not in `shown`, each as a plain table of what it holds."""
    prefixes = tuple(f"ch{number:02}_" for number in shown)
    names = sorted(
        path.stem for path in folder.glob("*.json") if not path.stem.startswith(prefixes)
    )
    if not names:
        return Shown(None, f"Nothing else: {_named(shown)} have all the files there are.")
    return Several([_plain(name, folder) for name in names])


def _named(numbers: Iterable[int]) -> str:
    there = {c.number for c in chapters()}
    return "chapters " + ", ".join(str(n) for n in numbers if n in there)


def _plain(name: str, folder: Path) -> Shown:
    results = load(name, folder)
    rows = [(path, value) for path, value in leaves(results["measured"])]
    return Shown(Table((name, "value"), rows), made_with(results))


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
