"""A lab as a notebook: executed, kept with what it showed, and offered so that it runs wherever it is opened.

The notebook that is kept holds the cells of lab.py and their outputs. The one that a page offers begins with one more
cell, which finds the course or fetches it, and installs packages that are missing or of another version. Fetching
needs the course's public address: `repo_url` in mkdocs.yml. Without an address the notebook asks to be put into the
course's folder, and the lab's page has no Colab button.
"""

from __future__ import annotations

import html
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode, v4

from chapters.child import patience
from chapters.runner.versions import pins

BRANCH = "notebooks"  # where .github/workflows/ci.yml puts the notebooks, since Colab opens only files of a repository
FACTS = "course"  # the notebook's metadata that say what its outputs depend on
# in order: {"printed": …}, {"text": …} or {"html": …}
Output = list[dict]

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


def read_lab(lab: str) -> NotebookNode:
    """The notebook of a lab in the percent format, without outputs. Cells are numbered, so its text is stable."""
    book = jupytext.reads(lab, fmt="py:percent")
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = NotebookNode(kernelspec=python, language_info={"name": "python"})
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"
    return book


def execute(lab: str, folder: Path, environment: dict[str, str], seconds: float) -> list[Output]:
    """Run a lab in a new kernel, in `folder`; returns the output of each code cell.

    seconds: the limit for one cell. Raises CellControlSignal or DeadKernelError if a cell fails, takes too long or ends
    the kernel.
    """
    book = read_lab(lab)
    where = {"metadata": {"path": str(folder)}}
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    client = NotebookClient(
        book, timeout=int(seconds * patience()), kernel_name="python3", resources=where
    )
    client.execute(
        env={**os.environ, **environment, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,  # a page shows what is printed, not what is warned of
    )
    return read_outputs(book)


def read_outputs(book: NotebookNode) -> list[Output]:
    """What each code cell showed: rendered if it can be, and without warnings."""
    return [
        [_read_output(output) for output in cell.outputs if output.get("name") != "stderr"]
        for cell in list_code_cells(book)
    ]


def list_code_cells(book: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def _read_output(output: NotebookNode) -> dict[str, str]:
    if output.output_type == "stream":
        return {"printed": output.text}
    html_of = output.data.get("text/html")
    return {"html": html_of} if html_of is not None else {"text": output.data["text/plain"]}


def _write_output(part: dict[str, str]) -> NotebookNode:
    ((kind, value),) = part.items()
    if kind == "printed":
        return v4.new_output("stream", text=value)
    return v4.new_output("display_data", {"text/html" if kind == "html" else "text/plain": value})


def write_executed(lab: str, page: dict) -> str:
    """The notebook to keep. page: its "outputs", one per code cell, and the facts that go into its metadata."""
    book = read_lab(lab)
    book.metadata[FACTS] = {key: value for key, value in page.items() if key != "outputs"}
    for cell, output in zip(list_code_cells(book), page["outputs"], strict=True):
        cell.outputs = [_write_output(part) for part in output]
    return nbformat.writes(book) + "\n"


def read_executed(text: str) -> dict:
    """What `write_executed` was given. Raises ValueError, KeyError or AttributeError if the text is damaged."""
    book = nbformat.reads(text, as_version=4)
    return {**book.metadata[FACTS], "outputs": read_outputs(book)}


def make_file_name(slug: str) -> str:
    """The file name of the notebook that the page of the chapter in folder `slug` offers."""
    return f"{slug}_lab.ipynb"


def make_download(executed: str, address: str | None, style: str) -> str:
    """The kept notebook as readers get it: with the first cell, and `style` in each output that is drawn."""
    book = nbformat.reads(executed, as_version=4)
    del book.metadata[FACTS]
    for output in (output for cell in list_code_cells(book) for output in cell.outputs):
        if drawn := output.get("data", {}).get("text/html"):
            output.data["text/html"] = f"<style data-course>{style}</style>{drawn}"
    source = FIRST.format(address=address or "", pins=pins()).rstrip("\n")
    book.cells.insert(0, v4.new_code_cell(source, id="course"))
    return nbformat.writes(book) + "\n"


def make_colab_address(slug: str, address: str | None) -> str | None:
    """The address at which Colab opens the notebook; None if the course has no address on GitHub."""
    parts = urlsplit(address or "")
    if parts.hostname != "github.com":
        return None
    repository = parts.path.strip("/").removesuffix(".git")
    return f"https://colab.research.google.com/github/{repository}/blob/{BRANCH}/{make_file_name(slug)}"


def render_links(slug: str, address: str | None) -> str:
    """The buttons for a lab's page: the notebook and, if it can open it, Colab."""
    found = [
        f'<a class="md-button" href="{make_file_name(slug)}" download>Download the notebook</a>'
    ]
    where = make_colab_address(slug, address)
    if where:
        found.append(f'<a class="md-button" href="{html.escape(where)}">Open in Colab</a>')
    return f'<p class="facts-links">{" ".join(found)}</p>'
