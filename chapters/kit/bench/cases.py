"""The cases of a results file, and the cells of tables about them.

A bench that times candidates has `measured["cases"]`. A case holds what was asked (sizes, dtype, threads) and its
"seconds": {candidate: seconds per call}, as numbers, or on a GPU as the fields of their Quantiles. A candidate that was
not measured has no entry, and its cell is a dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from chapters.kit.draw.table import Table, format_duration

Cell = Callable[[dict], str]  # the text of a case; KeyError if the case lacks a candidate


def select_medians(seconds: Mapping[str, float | dict]) -> dict[str, float]:
    """Each candidate's median seconds."""
    return {
        n: taken["median"] if isinstance(taken, dict) else taken for n, taken in seconds.items()
    }


def list_candidates(cases: Iterable[dict], what: str = "seconds") -> list[str]:
    """The names of all candidates of these cases, in the order in which they first occur."""
    return list(dict.fromkeys(name for case in cases for name in case[what]))


def find_fastest(seconds: Mapping[str, float | dict], names: Iterable[str]) -> str | None:
    """The fastest of those of `names` that were measured; None if none was."""
    medians = select_medians(seconds)
    return min((name for name in names if name in medians), key=medians.get, default=None)


def duration(name: str, write: Callable[[float], str] = format_duration) -> Cell:
    """The time of one candidate."""
    return lambda case: write(select_medians(case["seconds"])[name])


def divide(case: dict, name: str, base: str) -> float:
    """One candidate's time divided by another's."""
    medians = select_medians(case["seconds"])
    return medians[name] / medians[base]


def ratio(name: str, base: str, form: str = "{:.2f}×") -> Cell:
    """`divide` as a text."""
    return lambda case: form.format(divide(case, name, base))


def compare_times(
    seconds: Mapping[str, float],
    base: str,
    header: tuple[str, str, str],
    form: str = "{:.2f} ×",
    note: str = "",
) -> Table:
    """One row per candidate: its time, and its ratio to that of `base`."""
    rows = [
        (n, format_duration(time), form.format(time / seconds[base])) for n, time in seconds.items()
    ]
    return Table(header, rows, note)
