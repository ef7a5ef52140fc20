"""The code of pages: how blocks are written and run, when a kept output still holds, and how a lab becomes a
page."""

from __future__ import annotations

import json
import re
import threading
import time
from types import SimpleNamespace

import pytest

from docs.pages import outputs
from docs.pages.fences import fence_code, find_fences, map_prose
from docs.pages.page_blocks import Block, PageError, find_blocks


def split_lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


def run_text_page(text: str) -> outputs.PageOutput:
    return outputs.run_page(find_blocks(split_lines(text), "docs/page.md"), "docs/page.md")


def run_text(text: str) -> list[outputs.Output]:
    return run_text_page(text).outputs


@pytest.fixture
def run_blocks(hook):
    return hook("run_blocks")


# --- fences ---------------------------------------------------------------------------------------


def test_a_fence_inside_a_longer_fence_is_no_block():
    text = "````markdown\n```python run\n1\n```\n````\n    ~~~python run\n    2\n    ~~~"
    found = find_fences(split_lines(text))
    facts = [(f.first, f.last, f.indent, f.info) for f in found]
    assert facts == [(0, 4, "", "markdown"), (5, 7, "    ", "python run")]


def test_only_prose_is_changed():
    text = "[a](x) `[a](x)`\n```\n[a](x)\n```"
    assert map_prose(text, lambda t: t.replace("x", "y")) == "[a](y) `[a](x)`\n```\n[a](x)\n```"


def test_code_with_fences_gets_a_longer_fence():
    assert fence_code("a\n```\nb") == "````python\na\n```\nb\n````"


# --- running blocks -------------------------------------------------------------------------------


MODULE = """
from tvm.script import ir as I, relax as R
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        return R.exp(x)
"exp" in Module.script()"""
# what each block of a page runs, and what it shows
BLOCKS = {
    'x = 20\nprint("printed", x)': [{"printed": "printed 20"}],
    "x + 1": [{"text": "21"}],
    "None": [],
    'from chapters.kit.draw.display import display\nprint("one")\ndisplay("two")\nprint("three")\n"four"': [
        {"printed": "one"},
        {"text": "'two'"},
        {"printed": "three"},
        {"text": "'four'"},
    ],
    MODULE: [{"text": "True"}],
    MODULE.replace("exp", "tanh"): [{"text": "True"}],
    'class Shown:\n    def _repr_html_(self): return "<style data-course>b{}</style><b>bold</b>"\nShown()': [
        {"html": "<b>bold</b>"}
    ],
    'print("\\x1b[31m<red>\\x1b[0m")': [{"printed": "<red>"}],
}


def test_blocks_share_names_and_show_what_they_print_and_their_values_in_order(run_blocks):
    text = "".join(f"```python run\n{code}\n```\n" for code in BLOCKS)
    *found, error, after = run_text(
        f"{text}```python run raises=LookupError\n{{}}['key']\n```\n```python run\n5\n```"
    )
    assert found == list(BLOCKS.values()) and after == [{"text": "5"}]
    html = [run_blocks.render_output(output) for output in (*found, error)]
    assert "run-output" in html[0] and "value" in html[1] and html[2] == ""
    assert "<code>&lt;red&gt;</code>" in html[7] and "KeyError: 'key'" in html[8]
    assert "tabindex" not in html[7], "no stop of the Tab key by itself"


def test_a_failing_block_names_the_page_the_line_and_the_error():
    with pytest.raises(PageError) as caught:
        run_text("text\n\n```python run\nx = 1\n\nx.missing\n```")
    said = "AttributeError: 'int' object has no attribute 'missing'"
    assert str(caught.value) == f"docs/page.md, line 6, in the block `x = 1`: {said}"
    with pytest.raises(PageError, match=r"docs/page.md, line 3, in the block `x = 1`: SyntaxError"):
        run_text("```python run\nx = 1\nx = = 2\n```")


def test_an_expected_error_must_occur_and_be_the_one_named():
    with pytest.raises(PageError, match="should raise KeyError, and raised nothing"):
        run_text("```python run raises=KeyError\n1\n```")
    with pytest.raises(PageError, match=r"ZeroDivisionError: .* \(expected KeyError\)"):
        run_text("```python run raises=KeyError\n1 / 0\n```")


def test_a_dying_process_is_reported():
    text = "```python run\nx = 1\n```\n\n```python run\nimport os\nos._exit(3)\n```"
    with pytest.raises(PageError, match=r"docs/page.md, line 6: the process died .*exit code 3"):
        run_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python run quietly\n1\n```", "`quietly` is no option"),
        ("```python run\n--8<-- 'x.py'\n```", "cannot include a snippet"),
        ("    ```python run\n1\n    ```", "indented less than its fence"),
    ],
)
def test_what_cannot_be_run_is_refused(text, message):
    with pytest.raises(PageError, match=message):
        find_blocks(text.split("\n"), "docs/page.md")


# --- several pages --------------------------------------------------------------------------------


def _make_blocks(code: str, mark: str = "") -> list[Block]:
    return [Block(code, 2, mark=mark)]


def test_pages_run_side_by_side_and_those_that_measure_alone(monkeypatch):
    monkeypatch.setattr(outputs.os, "cpu_count", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)  # broken if one page waits for the other's end
    running, together = [], {}

    def stand_in(blocks, where):
        running.append(where)
        if where[0] != "m":
            meeting.wait()
        time.sleep(0.05)
        together[where] = list(running)
        running.remove(where)
        return outputs.PageOutput([], "", [])

    monkeypatch.setattr(outputs, "run_page", stand_in)
    done, said = [], []
    pages = {
        "a.md": _make_blocks("1"),
        "m.md": _make_blocks("2", "measured"),
        "b.md": _make_blocks("3"),
    }
    outputs.run_all(pages, lambda where, _: done.append(where), said.append)
    assert sorted(done) == ["a.md", "b.md", "m.md"] and together["m.md"] == ["m.md"]
    assert said[0].startswith("[1/3] ran m.md") and said[-1].startswith("[3/3]")


def test_a_page_that_fails_leaves_the_others(monkeypatch):
    def stand_in(blocks, where):
        if where == "bad.md":
            raise PageError("bad.md failed")
        return outputs.PageOutput([], "", [])

    monkeypatch.setattr(outputs, "run_page", stand_in)
    came = {}
    pages = {"bad.md": _make_blocks("1"), "good.md": _make_blocks("1")}
    outputs.run_all(pages, came.__setitem__, lambda _: None)
    assert str(came["bad.md"]) == "bad.md failed" and came["good.md"].outputs == []


# --- kept outputs ---------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course: a page's code imports `used`, and nothing imports `other`."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "docs" / "outputs").mkdir(parents=True)
    for name in ("used", "other"):
        (tmp_path / "chapters" / f"{name}.py").write_text("a = 1\n", encoding="utf-8")
    monkeypatch.setattr(outputs, "ROOT", tmp_path)
    monkeypatch.setattr(outputs, "KEPT", tmp_path / "docs" / "outputs")
    monkeypatch.setattr(outputs, "CACHE", tmp_path / ".cache" / "outputs")
    outputs._hash_file_version.cache_clear()
    return tmp_path


def test_a_kept_output_holds_until_its_code_or_what_it_read_changes(course):
    blocks = _make_blocks("import chapters.used")
    assert outputs.load_valid("docs/page.md", blocks) is None
    shown = outputs.PageOutput([[{"text": "1"}]], "", ["chapters/used.py"])
    outputs.save_output("docs/page.md", blocks, shown, outputs.KEPT)
    assert outputs.load_valid("docs/page.md", blocks) == shown
    assert outputs.load_valid("docs/page.md", _make_blocks("import chapters.other")) is None
    (course / "chapters" / "other.py").write_text("a = 2\n", encoding="utf-8")
    assert outputs.load_valid("docs/page.md", blocks) == shown, "it does not depend on this file"
    (course / "chapters" / "used.py").write_text("a = 33\n", encoding="utf-8")
    assert outputs.load_valid("docs/page.md", blocks) is None
    (course / "chapters" / "used.py").unlink()
    assert outputs.load_valid("docs/page.md", blocks) is None


def test_a_page_that_lists_a_folder_is_stale_when_a_file_appears_there(course):
    blocks = _make_blocks("1")
    outputs.save_output(
        "docs/page.md", blocks, outputs.PageOutput([[]], "", ["chapters/"]), outputs.KEPT
    )
    (course / "chapters" / "other.pyc").write_bytes(b"")
    assert outputs.load_valid("docs/page.md", blocks)
    (course / "chapters" / "new.py").write_text("", encoding="utf-8")
    assert outputs.load_valid("docs/page.md", blocks) is None


def test_a_page_depends_on_the_folders_that_it_lists_and_not_on_those_of_imports():
    listing = (
        "import os\nfrom pathlib import Path\nimport chapters.kit.quiz\nos.close(os.open('docs', 0))\n"
        "len(list(Path('docs/results').glob('*.json'))) > 9"
    )
    ran = run_text_page(f"```python run\n{listing}\n```")
    assert ran.outputs == [[{"text": "True"}]]
    assert "docs/results/" in ran.files and not {"chapters/kit/", "docs"} & set(ran.files)


def test_parts_that_were_printed_at_once_are_one():
    parts = [
        {"printed": "one"},
        {"printed": "\ntwo\n"},
        {"text": "3"},
        {"text": "4"},
        {"printed": "\n"},
    ]
    assert outputs._clean_output(parts) == [{"printed": "one\ntwo"}, {"text": "3"}, {"text": "4"}]


@pytest.mark.parametrize("text", ["", '{"code": "', "[]", '{"code": 1}', "<<<<<<< ours"])
def test_a_damaged_kept_output_is_stale_and_named(course, capsys, text):
    (course / "docs" / "outputs" / "page.json").write_text(text, encoding="utf-8")
    assert outputs.load_valid("docs/page.md", _make_blocks("1")) is None
    said = capsys.readouterr().err
    assert (
        said
        == f"{course / 'docs' / 'outputs' / 'page.json'} is damaged, so its page is run again.\n"
    )


def test_a_page_depends_on_every_file_that_was_read_for_it():
    """Imports of imports, data files, and what its own child processes read; not on other pages."""
    code = (
        "```python run\nimport subprocess, sys\nfrom chapters.kit.bench.results import load\n"
        "from chapters.runner.earlier import earlier\nearlier(0)\nload('ch03_pass')\n"
        "from chapters.child import Child\n"
        "with Child('chapters.runner.page_code', 'x') as child:\n"
        "    child.ask({'code': 'import chapters.kit.quiz', 'line': 1}, 60)\n```"
    )
    files = run_text_page(code).files
    read = ["docs/results/ch03_pass.json", "solutions/ch00_first_module/first_module.py"]
    read += [f"chapters/kit/{name}.py" for name in ("bench/results", "draw/table", "quiz")]
    assert set(read) <= set(files)
    assert not [name for name in files if name.endswith(("lesson.md", ".pyc"))]


ALIKE = [("", "took 11 ms"), ("measured", "took 9.75 ms"), ("here", "anything")]
UNLIKE = [("", "took 12 ms"), ("measured", "took 9.75 s")]


@pytest.mark.parametrize(("mark", "now"), ALIKE + UNLIKE)
def test_what_is_compared(course, mark, now):
    blocks = _make_blocks("1", mark)
    kept = outputs.PageOutput([[{"printed": "took 11 ms"}]], "", [])
    outputs.save_output("docs/page.md", blocks, kept, outputs.KEPT)
    said = outputs.diff_outputs("docs/page.md", blocks, [[{"printed": now}]])
    assert ("docs/page.md, line 2" in said) if (mark, now) in UNLIKE else not said


def test_an_output_that_was_made_from_other_code_is_stale(course):
    outputs.save_output(
        "docs/page.md", _make_blocks("1"), outputs.PageOutput([[]], "", []), outputs.KEPT
    )
    assert "from other code" in outputs.diff_outputs("docs/page.md", _make_blocks("2"), [[]])
    assert "no output is kept" in outputs.diff_outputs("docs/other.md", _make_blocks("2"), [[]])


def test_a_mark_of_a_picture_is_compared_and_the_colour_of_code_is_not(course):
    blocks = _make_blocks("1")
    kept = outputs.PageOutput(
        [[{"html": '<span class="k">if</span> <span data-at="3">x</span>'}]], "", []
    )
    outputs.save_output("docs/page.md", blocks, kept, outputs.KEPT)

    def said(html: str) -> str:
        return outputs.diff_outputs("docs/page.md", blocks, [[{"html": html}]])

    assert not said('<span class="nb">if</span> <span data-at="3">x</span>')
    assert "data-at" in said('<span class="k">if</span> <span data-at="4">x</span>')


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_page_whose_package_is_not_installed_says_how_to_get_it(
    course, monkeypatch, capsys, is_kept
):
    """It is not run, what is kept of it stays, and it is a fault only if what is kept does not hold."""
    path = course / "docs" / "page.md"
    path.write_text("```python run\nfrom torch import nn\n```\n", encoding="utf-8")
    monkeypatch.setattr(outputs, "list_pages", lambda: {"docs/page.md": path})
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    blocks = outputs.read_blocks(path, "docs/page.md")
    if is_kept:
        outputs.save_output("docs/page.md", blocks, outputs.PageOutput([[]], "", []), outputs.KEPT)
    for arguments in ([], ["--check"]):
        assert outputs.main(arguments) == (0 if is_kept else 1)
    said = capsys.readouterr().out
    assert "docs/page.md imports torch" in said and "pip install -e '.[models]'" in said
    assert bool(outputs.load_valid("docs/page.md", blocks)) == is_kept


def test_every_page_of_the_course_has_a_kept_output_that_holds():
    """Else the first `mkdocs serve` of a fresh clone must run it; `python -m docs.pages.outputs` keeps it."""
    blocks = {
        where: outputs.read_blocks(path, where) for where, path in outputs.list_pages().items()
    }
    stale = [
        where for where, some in blocks.items() if some and not outputs.load_valid(where, some)
    ]
    assert not stale, "run `python -m docs.pages.outputs`"


# --- the hook -------------------------------------------------------------------------------------


def build_page(run_blocks, course) -> tuple[str, str]:
    """A page with one block that is hidden: its Markdown, and the HTML of the paragraph with the output."""
    text = "---\ntitle: T\n---\n# T\n\n```python run hide\nprint('shown')\n```\n"
    source = course / "page.md"
    source.write_text(text, encoding="utf-8")
    file = SimpleNamespace(src_uri="page.md", abs_src_path=str(source))
    config = SimpleNamespace(config_file_path=str(course / "mkdocs.yml"))
    files = SimpleNamespace(documentation_pages=lambda: [file])
    on_page = SimpleNamespace(file=file)
    run_blocks.on_nav(None, config, files)
    markdown = run_blocks.on_page_markdown(text.split("---\n", 2)[2], on_page, config, files)
    assert "OUTPUT-OF-BLOCK-0-END" in markdown and "print" not in markdown
    content = run_blocks.on_page_content("<p>OUTPUT-OF-BLOCK-0-END</p>", on_page, config, files)
    return markdown, content


def test_a_build_puts_each_output_beneath_its_block(run_blocks, course, monkeypatch):
    shown = outputs.PageOutput([[{"printed": "shown"}]], "", [])
    monkeypatch.setattr(outputs, "run_page", lambda blocks, where: shown)
    assert "<code>shown</code>" in build_page(run_blocks, course)[1]
    assert json.loads((outputs.CACHE / "page.json").read_text())["outputs"]
    monkeypatch.setattr(outputs, "run_page", None)
    assert "<code>shown</code>" in build_page(run_blocks, course)[1], "it is remembered"


def test_a_package_that_is_not_installed_stops_only_a_strict_build(
    run_blocks, course, monkeypatch, caplog
):
    def lacking(blocks, where):
        raise outputs.NotInstalled("page.md imports torch, which is not installed")

    monkeypatch.setattr(outputs, "run_page", lacking)
    assert "which is not installed</code>" in build_page(run_blocks, course)[1]
    assert [one.levelname for one in caplog.records].count("WARNING") == 1
    assert not outputs.CACHE.exists()


# --- labs -----------------------------------------------------------------------------------------

LAB = """# %% [markdown]
# # Lab
#
# ## Part
#
# See [the next](../ch01_y/lab.py).

# %% tags=["measured"]
import sys
from IPython.display import HTML, display

x = 1
print("took", x)
print("a warning", file=sys.stderr)
print("\\x1b[31mred\\x1b[0m")
display(HTML("<style data-course>b{}</style><p><i>    </i>a &lt; b</p>"))
x + 1

# %%
"""
WHERE = "chapters/ch00_x/lab.py"


@pytest.fixture
def lab(course):
    path = course / WHERE
    path.parent.mkdir()
    path.write_text(LAB, encoding="utf-8")
    return path


def test_a_lab_runs_in_jupyter_and_is_kept_as_its_notebook(lab):
    blocks = outputs.read_blocks(lab, WHERE)
    assert (blocks[0].line, blocks[0].mark) == (9, "measured")
    ran = outputs.run_page(blocks, WHERE)
    drawn = {"html": "<p><i>    </i>a &lt; b</p>"}
    assert ran.outputs == [[{"printed": "took 1\nred"}, drawn, {"text": "2"}], []]
    outputs.save_output(WHERE, blocks, ran, outputs.KEPT)
    assert outputs.load_valid(WHERE, blocks) == ran
    assert outputs.diff_outputs(WHERE, blocks, ran.outputs) == ""
    lab.write_text(LAB.replace("x = 1", "x = 2"), encoding="utf-8")
    changed = outputs.read_blocks(lab, WHERE)
    assert outputs.load_valid(WHERE, changed) is None
    assert "from other code" in outputs.diff_outputs(WHERE, changed, ran.outputs)


@pytest.mark.parametrize(
    ("code", "message"),
    [("y = 1\n1 / 0", "1 / 0\n(.|\n)*ZeroDivisionError"), ("import os\nos._exit(3)", "died")],
)
def test_a_lab_that_fails_is_named_with_its_error(lab, code, message):
    lab.write_text(f"# %%\n{code}\n", encoding="utf-8")
    with pytest.raises(PageError, match=f"{WHERE}: (.|\n)*{message}"):
        outputs.run_page(outputs.read_blocks(lab, WHERE), WHERE)


def test_a_build_runs_no_lab_and_says_which_has_changed(run_blocks, lab, monkeypatch, caplog):
    monkeypatch.setattr(outputs, "run_page", None)
    config = SimpleNamespace(config_file_path=str(lab.parents[2] / "mkdocs.yml"))
    page = SimpleNamespace(src_uri="chapters/ch00_x/lab.md", abs_src_path=None)
    files = SimpleNamespace(
        documentation_pages=lambda: [page], get_file_from_path={page.src_uri: page}.get
    )
    run_blocks.on_nav(None, config, files)
    assert [r.levelname for r in caplog.records] == ["WARNING"] and WHERE in caplog.text
    caplog.clear()
    outputs.save_output(
        WHERE,
        outputs.read_blocks(lab, WHERE),
        outputs.PageOutput([[], []], "", []),
        outputs.KEPT,
    )
    run_blocks.on_nav(None, config, files)
    assert not caplog.records and page.abs_src_path == str(outputs.find_output_file(WHERE))


def test_a_labs_page_is_made_of_its_notebook_with_the_elements_of_other_pages(hook, lab):
    blocks = outputs.read_blocks(lab, WHERE)
    shown = [[{"printed": "a < b"}, {"html": "<p><i>    </i>a &lt; b</p>"}, {"text": "2"}], []]
    outputs.save_output(WHERE, blocks, outputs.PageOutput(shown, "a CPU", []), outputs.KEPT)
    publish = hook("publish")
    publish.notebook_settings.templates_dir = publish.TEMPLATES
    from mkdocs_jupyter.convert import nb2html

    rendered = nb2html(str(outputs.find_output_file(WHERE)))
    (lab.parents[1] / "ch01_y").mkdir()
    (lab.parents[1] / "ch01_y" / "lab.py").touch()
    config = SimpleNamespace(
        config_file_path=str(lab.parents[2] / "mkdocs.yml"),
        docs_dir=str(lab.parents[2] / "docs"),
        repo_url="",
    )
    other = SimpleNamespace(url_relative_to=lambda page: "../ch01_y/lab.html")
    files = SimpleNamespace(get_file_from_path={"chapters/ch01_y/lab.md": other}.get)
    file = SimpleNamespace(src_uri="chapters/ch00_x/lab.md")
    page = publish.on_page_content(rendered, SimpleNamespace(file=file), config, files)
    assert '<a href="../ch01_y/lab.html">the next</a>' in page
    assert '<h2 id="part">Part<a class="headerlink"' in page
    assert page.index("</h1>") < page.index('<div class="facts">') < page.index('id="part"')
    assert (
        '<div class="language-python highlight"><pre><code><span></span><span class="kn">import'
        in page
    )
    assert page.count("took") == 1, "the code is there once"
    output_html = hook("run_blocks").render_output(shown[0], "a CPU")
    assert output_html in re.sub(r">\n(?=<div)", ">", page)
    assert "<style" not in page and "<script" not in page and "http" not in page
