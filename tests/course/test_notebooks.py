"""A lab's notebook finds the course from any folder within it, and asks for it elsewhere."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from chapters.runner.course import ROOT, chapters
from chapters.runner.versions import pins
from docs.pages import notebook

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

LABS = [pytest.param(c, id=c.short) for c in chapters()]
ADDRESS = "https://github.com/someone/some-course"


def made(number: int, address: str | None = None):
    text = notebook.notebook(chapters()[number].folder / "lab.py", ROOT, address)
    return nbformat.reads(text, as_version=4)


@pytest.mark.parametrize("chapter", LABS)
def test_each_notebook_is_valid_and_pins_the_courses_versions(chapter):
    text = notebook.notebook(chapter.folder / "lab.py", ROOT, None)
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert repr(pins()) in book.cells[0].source
    assert any(cell.cell_type == "markdown" for cell in book.cells)
    assert text == notebook.notebook(chapter.folder / "lab.py", ROOT, None), "in every build"
    assert json.loads(text)["metadata"]["kernelspec"]["name"] == "python3"


def execute(book, folder, kernel_environment=None):
    where = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=where)
    return client.execute(env={**os.environ, **(kernel_environment or {})})


def outputs(book) -> str:
    return json.dumps([cell.get("outputs", []) for cell in book.cells])


def test_a_notebook_runs_as_it_is():
    book = made(0)
    shown = outputs(execute(book, ROOT / "chapters" / "ch00_first_module"))
    assert "ir-picture" in shown and '"error"' not in shown and "Installing" not in shown


def test_elsewhere_it_asks_for_the_course(tmp_path):
    book = made(0)
    book.cells = book.cells[:1]
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="the course's folder"):
        execute(book, tmp_path, {"PYTHONPATH": ""})


def test_with_an_address_it_fetches_the_course(tmp_path):
    """`git clone` of the address; a folder stands in for it here."""
    source = tmp_path / "published"
    (source / "chapters" / "kit").mkdir(parents=True)
    (source / "pyproject.toml").write_text("", encoding="utf-8")
    git = ["git", "-C", str(source), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (source / "chapters" / "kit" / "x.py").write_text("", encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    book = made(0, source.as_uri())
    book.cells = [*book.cells[:1], nbformat.v4.new_code_cell("import os; print(os.getcwd())")]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert str(elsewhere / "fusion-by-hand") in outputs(execute(book, elsewhere))


def test_links_lead_into_the_folder_or_to_the_address():
    link = "See [a](lesson.md#x), [b](../kit/y.py), [c](https://example.org), [d](#e) and `[f](g)`."
    folder = "chapters/ch00_first_module"
    assert notebook._relinked(link, folder, None) == (
        "See [a](chapters/ch00_first_module/lesson.md#x), [b](chapters/kit/y.py), "
        "[c](https://example.org), [d](#e) and `[f](g)`."
    )
    online = notebook._relinked(link, folder, ADDRESS)
    assert f"[b]({ADDRESS}/blob/main/chapters/kit/y.py)" in online


@pytest.mark.parametrize("address", [None, "", "https://example.org/course"])
def test_without_an_address_that_colab_knows_there_is_no_badge(address):
    links = notebook.links("ch00_x", address)
    assert notebook.colab("ch00_x", address) is None
    assert "Colab" not in links and "ch00_x_lab.ipynb" in links


def test_colab_opens_the_notebook_of_the_branch():
    place = "github/someone/some-course/blob/notebooks/ch00_x_lab.ipynb"
    for address in (ADDRESS, ADDRESS + "/", ADDRESS + ".git"):
        assert notebook.colab("ch00_x", address) == f"https://colab.research.google.com/{place}"
    assert "Open in Colab" in notebook.links("ch00_x", ADDRESS)
