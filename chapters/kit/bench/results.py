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
from collections.abc import Callable, Iterable
from pathlib import Path

from chapters.child import ROOT
from chapters.kit.draw.bars import Bars
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


def load(name: str, folder: Path = FOLDER) -> dict | None:
    """The results file `name`, as `save` wrote it; None if there is no such file."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def describe_origin(results: dict) -> str:
    """One line: devices, versions, date and command of a results file."""
    gpu = f"{results['gpu']}, driver {results['driver']}; " if "gpu" in results else ""
    packages = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    return (
        f"{gpu}{results['device']}, {results['cores']} cores, {results['system']}; {packages}; "
        f"{results['date']}; {results['command']}"
    )


def describe_missing(chapter: int) -> SourcedTable:
    """The sentence that nothing was measured yet, and which command does it."""
    sentence = f"Not yet measured: `python -m chapters bench {chapter}` does it on your machine."
    return SourcedTable(None, sentence)


def sourced_table(
    results: dict | None, chapter: int, table: Callable[[dict], Table | Bars]
) -> SourcedTable:
    """`table`, or bars, of what was measured, with the line that says how; `describe_missing` if `results` is None."""
    if results is None:
        return describe_missing(chapter)
    return SourcedTable(table(results["measured"]), describe_origin(results))


class SourcedTable:
    """A table, or bars, and the line that says where it comes from; without a table, only a sentence."""

    def __init__(self, table: Table | Bars | None, source: str):
        self.table, self.source = table, source

    def __str__(self) -> str:
        return self.source if self.table is None else f"{self.table}\n\n{self.source}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = "" if self.table is None else self.table._repr_html_()
        source = re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(self.source, quote=False))
        return f"{table}<p><small>{source}</small></p>"


class Parts:
    """Several figures, tables or `SourcedTable` objects, shown one below the other."""

    def __init__(self, parts: Iterable[object]):
        self.parts = list(parts)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(part._repr_html_() for part in self.parts)
