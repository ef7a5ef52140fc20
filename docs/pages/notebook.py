"""A lab as a notebook that runs wherever it is opened: in the course's folder, elsewhere with Jupyter, in Colab.

Its first cell finds the course or fetches it, and installs packages that are missing or of another version. Fetching
needs the course's public address: `repo_url` in mkdocs.yml. Without an address the notebook asks to be put into the
course's folder, and the lab's page has no Colab button.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from pathlib import Path
from urllib.parse import urlsplit

from chapters.runner.page_code import cells
from chapters.runner.versions import pins
from docs.pages.fences import map_prose

BRANCH = "notebooks"  # where .github/workflows/ci.yml puts the notebooks, since Colab opens only files of a repository
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")

FIRST = """\
# Run this cell first: it finds the course or fetches it, and installs what it needs.
# No GPU is needed. For kernels on an NVIDIA GPU, the driver must support CUDA 13 (nvidia-smi says so at its top).
import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

COURSE = {address!r}
PINS = {pins!r}


def installed(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_course(folder):
    return (folder / "chapters" / "kit").is_dir() and (folder / "pyproject.toml").exists()


here = Path.cwd()
course = next(filter(is_course, [here, *here.parents, here / "fusion-by-hand"]), None)
if course is None and COURSE:
    subprocess.run(["git", "clone", "--depth", "1", COURSE, "fusion-by-hand"], check=True)
    course = here / "fusion-by-hand"
if course is None:
    raise SystemExit("Put this notebook into the course's folder, the one that holds chapters/.")
if any(installed(package) != wanted for package, wanted in PINS.items()):
    print("Installing; this takes a minute.")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "-e", str(course)], check=True
    )
    importlib.invalidate_caches()
os.chdir(course)
sys.path.insert(0, str(course))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(course), os.environ.get("PYTHONPATH")])
)
"""


def name(slug: str) -> str:
    """The file name of the notebook of the chapter in folder `slug`."""
    return f"{slug}_lab.ipynb"


def notebook(lab: Path, root: Path, address: str | None) -> str:
    """The notebook of the percent script `lab`, as JSON, with the first cell that installs.

    Links between files of the course are made relative to its folder, or to `address` if there is one. The text is
    the same in every build: cells are numbered instead of getting random names.
    """
    folder = lab.parent.relative_to(root).as_posix()
    source = FIRST.format(address=address or "", pins=pins()).rstrip("\n")
    found = [_cell("code", source)]
    for cell in cells(lab.read_text(encoding="utf-8")):
        if cell.is_code:
            found.append(_cell("code", cell.text))
        else:
            found.append(_cell("markdown", _relinked(cell.text, folder, address)))
    made = {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(found)],
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, text: str) -> dict:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True), **more}


def _relinked(text: str, folder: str, address: str | None) -> str:
    def point(match: re.Match) -> str:
        target = match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:|/|#", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"{match[1]}{f'{address}/blob/main/' if address else ''}{path}{match[3]}"

    return map_prose(text, lambda prose: _LINK.sub(point, prose))


def colab(slug: str, address: str | None) -> str | None:
    """The address at which Colab opens the notebook; None if the course has no address on GitHub."""
    parts = urlsplit(address or "")
    if parts.hostname != "github.com":
        return None
    repository = parts.path.strip("/").removesuffix(".git")
    return f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{name(slug)}"


def links(slug: str, address: str | None) -> str:
    """The buttons for a lab's page: the notebook and, if it can open it, Colab."""
    found = [f'<a class="md-button" href="{name(slug)}" download>Download the notebook</a>']
    where = colab(slug, address)
    if where:
        found.append(f'<a class="md-button" href="{html.escape(where)}">Open in Colab</a>')
    return f'<p class="facts-links">{" ".join(found)}</p>'
