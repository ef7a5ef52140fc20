"""A lab as a notebook that runs where it is opened: in the course's folder, anywhere else with Jupyter, in Colab.

Its first cell finds the course or fetches it, and installs what is missing or of another version. Fetching needs the
course's public address: `repo_url` in mkdocs.yml. Without one the notebook asks to be put into the course's folder,
and there is no badge.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from urllib.parse import urlsplit

import jupytext
import nbformat
from fences import map_prose

from chapters.toolkit import machine

BRANCH = "notebooks"  # where .github/workflows/ci.yml puts the notebooks, since Colab opens only files of a repository
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")

FIRST = """\
# Run this cell first: it finds the course or fetches it, and installs what it needs.
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
    return (folder / "chapters" / "toolkit").is_dir() and (folder / "pyproject.toml").exists()


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

    Links between files of the course are made relative to its folder, or to `address` where it has one. The text is
    the same in every build: cells are numbered, not given random names.
    """
    made = jupytext.read(lab)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = _relinked(cell.source, lab.parent.relative_to(root).as_posix(), address)
    source = FIRST.format(address=address or "", pins=machine.pins()).rstrip("\n")
    made.cells.insert(0, nbformat.v4.new_code_cell(source))
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    made.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return nbformat.writes(made, version=4) + "\n"


def _relinked(text: str, folder: str, address: str | None) -> str:
    def point(match: re.Match) -> str:
        target = match[2]
        if re.match(r"[a-z][a-z0-9+.-]*:|/|#", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        return f"{match[1]}{f'{address}/blob/main/' if address else ''}{path}{match[3]}"

    return map_prose(text, lambda prose: _LINK.sub(point, prose))


def colab(slug: str, address: str | None) -> str | None:
    """Where Colab opens the notebook; None where the course has no address, or one that Colab does not know."""
    parts = urlsplit(address or "")
    if parts.hostname != "github.com":
        return None
    repository = parts.path.strip("/").removesuffix(".git")
    return f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{name(slug)}"


def links(slug: str, address: str | None) -> str:
    """The buttons for a lab's page: the notebook, and Colab where it can be."""
    found = [f'<a class="md-button" href="{name(slug)}" download>Download the notebook</a>']
    where = colab(slug, address)
    if where:
        found.append(f'<a class="md-button" href="{html.escape(where)}">Open in Colab</a>')
    return f'<p class="facts-links">{" ".join(found)}</p>'
