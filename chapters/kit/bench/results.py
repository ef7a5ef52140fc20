"""Results files: what was measured, on which machine, with which versions, when, by which command.

`python -m chapters bench N` writes `docs/results/<name>.json`. Pages read it through `load`, and say so if there is no
file. Every number on a page comes from a results file or is computed while the page is built.
"""

from __future__ import annotations

import contextlib
import datetime
import html
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from chapters.child import ROOT
from chapters.kit.draw.table import Table
from chapters.kit.kept_files import json_text
from chapters.kit.machine import baseline_python, cpu_name, nvidia_gpu, versions

PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "triton", "flashinfer-python", "quack-kernels")
# baselines, in the interpreter that has them
ELSEWHERE = ("torch", "torchao", "transformers", "llama-cpp-python")
ASK = "import json, sys; from chapters.kit.machine import versions; print(json.dumps(versions(*sys.argv[1:])))"
FOLDER = ROOT / "docs" / "results"


def save(name: str, measured: dict, command: str, folder: Path = FOLDER) -> Path:
    """Write `measured`, with the facts of this machine, as the results file `name`."""
    facts = {
        **nvidia_gpu(),
        "device": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json_text({**facts, "measured": measured}) + "\n", encoding="utf-8")
    return path


def measure_and_save(
    name: str,
    measure: Callable[[], dict],
    show: Callable[[dict], object],
    command: str,
    lacking: str = "",
) -> int:
    """Measure, write the results file `name`, and print what `show` makes of it: a program's exit status.

    lacking: what is missing for that, "" if nothing is; it is then printed, and the exit status is 1.
    """
    if lacking:
        print(lacking, file=sys.stderr)
        return 1
    measured = measure()
    path = save(name, measured, command)  # first: nothing that was measured may be lost
    print(f"{show(measured)}\nwritten: {path}")
    return 0


def _versions() -> dict[str, str]:
    """The installed versions of PACKAGES, and of ELSEWHERE in the interpreter that the benches run those in."""
    found = versions(*PACKAGES)
    if baseline_python() == sys.executable:
        return found | versions(*ELSEWHERE)
    asked = [baseline_python(), "-c", ASK, *ELSEWHERE]
    with contextlib.suppress(OSError):  # that interpreter is not there
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
        if not done.returncode:
            found |= json.loads(done.stdout)
    return found


def load(name: str, folder: Path | None = None) -> dict | None:
    """The results file `name`, as `save` wrote it; None if there is no such file."""
    path = (folder or FOLDER) / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def describe_origin(results: dict) -> str:
    """One line: devices, versions, date and command of a results file, and the cases that it lacks."""
    gpu = f"{results['gpu']}, driver {results['driver']}" if "gpu" in results else ""
    packages = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    machine = f"{results['device']}, {results['cores']} cores, {results['system']}"
    parts = [results["measured"].get("compiler"), gpu, machine, packages]
    parts += [results["date"], results["command"]]
    if skipped := results["measured"].get("skipped"):
        parts.append(f"not measured for want of time: {', '.join(skipped)}")
    return "; ".join(filter(None, parts))


def show_results(make: Callable, *names: str, command: str = "") -> Parts:
    """What `make` makes of the results files `names`, and the lines that say how they were measured.

    make: from what was measured, of those files that are there, to a table, bars, or a list of tables; tables without
    rows are left out. command: what measures it, for the sentence if there is no file; by default the chapter's bench.
    """
    found = [results for results in map(load, names) if results is not None]
    if not found:
        command = command or f"python -m chapters bench {int(names[0][2:4])}"
        return Parts([Note(f"Not yet measured: `{command}` does it on your machine.")])
    made = list_parts(make(*(results["measured"] for results in found)))
    return Parts([*made, *(Note(describe_origin(results)) for results in found)])


def list_tables(
    tables: Mapping[str, Callable | tuple],
) -> dict[str, tuple[Callable, tuple[str, ...]]]:
    """{name: (make, its results files)} of a bench's TABLES, which has `make` alone where the file has that name."""
    return {n: (t[0], t[1:]) if isinstance(t, tuple) else (t, (n,)) for n, t in tables.items()}


def show_one(tables: Mapping[str, Callable | tuple], name: str = "") -> Parts:
    """`show_results` of one of a bench's TABLES; without a name, of the first."""
    make, names = list_tables(tables)[name or next(iter(tables))]
    return show_results(make, *names)


def list_parts(made: object) -> list:
    """The parts of what was made, without tables that have no rows."""
    parts = made if isinstance(made, list) else [made]
    return [part for part in parts if not isinstance(part, Table) or part.rows]


class Note(str):
    """A small line, such as where a table's numbers come from; on a page, what is between backticks is code."""

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        text = re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(self, quote=False))
        return f"<p><small>{text}</small></p>"


class Parts:
    """Several figures, tables or notes, shown one below the other."""

    def __init__(self, parts: Iterable[object]):
        self.parts = list(parts)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(part._repr_html_() for part in self.parts)
