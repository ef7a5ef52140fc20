"""A lab's notebook: what is kept of a run, and what a page offers, which finds the course or asks for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from chapters.runner.course import ROOT, chapters
from chapters.runner.page_code import cells
from chapters.runner.versions import pins

pytest.importorskip("mkdocs_jupyter")
import nbclient
import nbformat

from docs.pages import notebook, outputs

LABS = [pytest.param(c.folder / "lab.py", id=c.short) for c in chapters() if not c.is_capstone]
ADDRESS = "https://github.com/someone/some-course"


def read_kept(lab: Path) -> str:
    return outputs.find_output_file(lab.relative_to(ROOT).as_posix()).read_text(encoding="utf-8")


@pytest.mark.parametrize("lab", LABS)
def test_each_kept_notebook_has_the_labs_cells_and_nothing_of_a_machine(lab):
    text = read_kept(lab)
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    found = [(cell.source, cell.cell_type == "code") for cell in book.cells]
    assert found == [(c.text, c.is_code) for c in cells(lab.read_text(encoding="utf-8"))]
    for foreign in (str(ROOT), str(Path.home()), "/tmp/", "<style data-course>", "\\u001b"):
        assert foreign not in text
    assert len(text) < 120_000, "large outputs do not belong in the repository"


@pytest.mark.parametrize("lab", LABS)
def test_each_offered_notebook_pins_the_courses_versions_and_brings_its_colours(lab):
    book = nbformat.reads(notebook.make_download(read_kept(lab), ADDRESS, "b{}"), as_version=4)
    nbformat.validate(book)
    assert repr(pins()) in book.cells[0].source and ADDRESS in book.cells[0].source
    assert join_outputs(book).count("<style data-course>b{}</style>") == read_kept(lab).count(
        '"text/html"'
    )


def make_offered(address: str | None = None):
    text = notebook.make_download(read_kept(chapters()[0].folder / "lab.py"), address, "")
    return nbformat.reads(text, as_version=4)


def execute_first_cell(book, folder, environment=None):
    where = {"metadata": {"path": str(folder)}}
    book.cells = [*book.cells[:1], nbformat.v4.new_code_cell("import os; print(os.getcwd())")]
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=where)
    return client.execute(env={**os.environ, **(environment or {})})


def join_outputs(book) -> str:
    return json.dumps([cell.get("outputs", []) for cell in book.cells]).replace('\\"', '"')


def test_within_the_course_the_first_cell_finds_it():
    printed = join_outputs(
        execute_first_cell(make_offered(), ROOT / "chapters" / "ch00_first_module")
    )
    assert f"{ROOT}\\n" in printed and "Installing" not in printed


def test_elsewhere_it_asks_for_the_course(tmp_path):
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="the course's folder"):
        execute_first_cell(make_offered(), tmp_path, {"PYTHONPATH": ""})


def test_with_an_address_it_fetches_the_course(tmp_path):
    """`git clone` of the address; a folder stands in for it here."""
    source = tmp_path / "published"
    (source / "chapters" / "kit").mkdir(parents=True)
    (source / "pyproject.toml").write_text("", encoding="utf-8")
    git = ["git", "-C", str(source), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (source / "chapters" / "kit" / "x.py").write_text("", encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    book = execute_first_cell(make_offered(source.as_uri()), elsewhere)
    assert str(elsewhere / "fusion-by-hand") in join_outputs(book)


@pytest.mark.parametrize("address", [None, "", "https://example.org/course"])
def test_without_an_address_that_colab_knows_there_is_no_badge(address):
    links = notebook.render_links("ch00_x", address)
    assert notebook.make_colab_address("ch00_x", address) is None
    assert "Colab" not in links and "ch00_x_lab.ipynb" in links


def test_colab_opens_the_notebook_of_the_branch():
    place = "github/someone/some-course/blob/notebooks/ch00_x_lab.ipynb"
    for address in (ADDRESS, ADDRESS + "/", ADDRESS + ".git"):
        assert (
            notebook.make_colab_address("ch00_x", address)
            == f"https://colab.research.google.com/{place}"
        )
    assert "Open in Colab" in notebook.render_links("ch00_x", ADDRESS)
