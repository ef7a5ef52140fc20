"""A lab's notebook: it runs as it is where the course lies, finds it from within, and asks for it elsewhere."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from chapters.toolkit import machine
from chapters.toolkit.course import ROOT, chapters

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("jupytext")

LABS = [pytest.param(c, id=c.short) for c in chapters() if (c.folder / "lab.py").exists()]
ADDRESS = "https://github.com/someone/some-course"


@pytest.fixture(scope="module")
def hook():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    yield importlib.import_module("notebook")
    sys.path.remove(str(ROOT / "docs" / "hooks"))


def made(hook, number: int, address: str | None = None):
    text = hook.notebook(chapters()[number].folder / "lab.py", ROOT, address)
    return nbformat.reads(text, as_version=4)


@pytest.mark.parametrize("chapter", LABS)
def test_each_notebook_is_valid_and_pins_the_courses_versions(hook, chapter):
    text = hook.notebook(chapter.folder / "lab.py", ROOT, None)
    book = nbformat.reads(text, as_version=4)
    nbformat.validate(book)
    assert repr(machine.pins()) in book.cells[0].source
    assert any(cell.cell_type == "markdown" for cell in book.cells)
    assert text == hook.notebook(chapter.folder / "lab.py", ROOT, None), "the same in every build"
    assert json.loads(text)["metadata"]["kernelspec"]["name"] == "python3"


def execute(book, folder, kernel_environment=None):
    client = nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    return client.execute(env={**os.environ, **(kernel_environment or {})})


def outputs(book) -> str:
    return json.dumps([cell.get("outputs", []) for cell in book.cells])


def test_a_notebook_runs_as_it_is(hook):
    book = made(hook, 0)
    shown = outputs(execute(book, ROOT / "chapters" / "ch00_first_module"))
    assert "ir-picture" in shown and '"error"' not in shown and "Installing" not in shown


def test_elsewhere_it_asks_for_the_course(hook, tmp_path):
    book = made(hook, 0)
    book.cells = book.cells[:1]
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="the course's folder"):
        execute(book, tmp_path, {"PYTHONPATH": ""})


def test_with_an_address_it_fetches_the_course(hook, tmp_path):
    """`git clone` of the address; a folder stands in for it here."""
    source = tmp_path / "published"
    (source / "chapters" / "toolkit").mkdir(parents=True)
    (source / "pyproject.toml").write_text("", encoding="utf-8")
    git = ["git", "-C", str(source), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (source / "chapters" / "toolkit" / "x.py").write_text("", encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    book = made(hook, 0, source.as_uri())
    book.cells = [*book.cells[:1], nbformat.v4.new_code_cell("import os; print(os.getcwd())")]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert str(elsewhere / "fusion-by-hand") in outputs(execute(book, elsewhere))


def test_links_lead_into_the_folder_or_to_the_address(hook):
    link = "See [a](lesson.md#x), [b](../toolkit/y.py), [c](https://example.org), [d](#e) and `[f](g)`."
    folder = "chapters/ch00_first_module"
    assert hook._relinked(link, folder, None) == (
        "See [a](chapters/ch00_first_module/lesson.md#x), [b](chapters/toolkit/y.py), "
        "[c](https://example.org), [d](#e) and `[f](g)`."
    )
    assert f"[b]({ADDRESS}/blob/main/chapters/toolkit/y.py)" in hook._relinked(
        link, folder, ADDRESS
    )


@pytest.mark.parametrize("address", [None, "", "https://example.org/course"])
def test_without_an_address_that_colab_knows_there_is_no_badge(hook, address):
    assert hook.colab("ch00_x", address) is None
    assert "Colab" not in hook.links("ch00_x", address) and "ch00_x_lab.ipynb" in hook.links(
        "ch00_x", address
    )


def test_colab_opens_the_notebook_of_the_branch(hook):
    for address in (ADDRESS, ADDRESS + "/", ADDRESS + ".git"):
        assert hook.colab("ch00_x", address) == (
            "https://colab.research.google.com/github/someone/some-course/blob/notebooks/ch00_x_lab.ipynb"
        )
    assert "Open in Colab" in hook.links("ch00_x", ADDRESS)
