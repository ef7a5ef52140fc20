"""The site's hooks: what they add to a page is right, and what an author gets wrong stops the build with a sentence."""

import importlib
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from chapters.toolkit.course import Chapter, Exercise

pytest.importorskip("mkdocs")
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def hook():
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "docs" / "hooks"))


def page(text):
    return text.strip("\n").split("\n")


def run(hook, text):
    blocks = hook("run_blocks").find_blocks(page(text), "docs/page.md")
    return blocks, hook("run_blocks").run(blocks, ROOT, "docs/page.md")


# --- Fences -----------------------------------------------------------------------------------


def test_a_fence_inside_a_longer_fence_is_no_block(hook):
    text = "````markdown\n```python run\n1\n```\n````\n    ~~~python run\n    2\n    ~~~"
    found = hook("fences").fences(page(text))
    assert [(f.first, f.last, f.indent, f.info) for f in found] == [
        (0, 4, "", "markdown"),
        (5, 7, "    ", "python run"),
    ]


def test_only_prose_is_changed(hook):
    text = "[a](x) `[a](x)`\n```\n[a](x)\n```"
    assert hook("fences").map_prose(text, lambda t: t.replace("x", "y")) == (
        "[a](y) `[a](x)`\n```\n[a](x)\n```"
    )


def test_code_with_fences_gets_a_longer_fence(hook):
    assert hook("fences").fenced("a\n```\nb") == "````python\na\n```\nb\n````"


# --- Running blocks ---------------------------------------------------------------------------


def test_blocks_share_names_print_and_show_their_last_value(hook):
    _, (first, second, third) = run(
        hook,
        """
```python run
x = 20
print("printed", x)
```
```python run
x + 1
```
```python run
None
```""",
    )
    output = hook("run_blocks").output_html
    assert "printed 20" in output(first) and "run-output" in output(first)
    assert "21" in output(second) and "run-value" in output(second)
    assert output(third) == ""


def test_a_value_with_html_is_shown_as_it_is_and_text_is_escaped(hook):
    _, (first, second) = run(
        hook,
        """
```python run
class Shown:
    def _repr_html_(self):
        return "<b>bold</b>"
Shown()
```
```python run hide
print("\\x1b[31m<red>\\x1b[0m")
```""",
    )
    output = hook("run_blocks").output_html
    assert "<b>bold</b>" in output(first)
    assert "<code>&lt;red&gt;</code>" in output(second)


def test_tvmscript_in_two_blocks_with_one_name_is_read_from_each(hook):
    _, results = run(
        hook,
        """
```python run
from tvm.script import ir as I, relax as R
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        return R.exp(x)
"exp" in Module.script()
```
```python run
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        return R.tanh(x)
"tanh" in Module.script()
```""",
    )
    assert [r["text"] for r in results] == ["True", "True"]


def test_a_failing_block_names_the_page_the_line_and_the_error(hook):
    text = "text\n\n```python run\nx = 1\n\nx.missing\n```"
    with pytest.raises(PluginError) as caught:
        run(hook, text)
    assert str(caught.value) == (
        "docs/page.md, line 6, in the block `x = 1`: "
        "AttributeError: 'int' object has no attribute 'missing'"
    )


def test_a_syntax_error_names_its_line(hook):
    with pytest.raises(
        PluginError, match=r"docs/page.md, line 3, in the block `x = 1`: SyntaxError"
    ):
        run(hook, "```python run\nx = 1\nx = = 2\n```")


def test_an_expected_error_is_shown_and_later_blocks_still_run(hook):
    text = '```python run raises=LookupError\n{}["key"]\n```\n```python run\n5\n```'
    _, (first, second) = run(hook, text)
    assert "KeyError: 'key'" in hook("run_blocks").output_html(first)
    assert second["text"] == "5"


def test_an_expected_error_must_occur_and_be_the_one_named(hook):
    with pytest.raises(PluginError, match="should raise KeyError, and raised nothing"):
        run(hook, "```python run raises=KeyError\n1\n```")
    with pytest.raises(PluginError, match=r"ZeroDivisionError: .* \(expected KeyError\)"):
        run(hook, "```python run raises=KeyError\n1 / 0\n```")


def test_a_dying_process_is_reported(hook):
    text = "```python run\nx = 1\n```\n\n```python run\nimport os\nos._exit(3)\n```"
    with pytest.raises(PluginError, match=r"docs/page.md, line 6: the process died .*exit 3"):
        run(hook, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python run quietly\n1\n```", "`quietly` is no option"),
        ("```python run\n--8<-- 'x.py'\n```", "cannot include a snippet"),
        ("    ```python run\n1\n    ```", "indented less than its fence"),
    ],
)
def test_what_cannot_be_run_is_refused(hook, text, message):
    with pytest.raises(PluginError, match=message):
        hook("run_blocks").find_blocks(text.split("\n"), "docs/page.md")


def test_options_of_a_code_block_are_kept(hook):
    (block,) = hook("run_blocks").find_blocks(
        page('```python run title="a b" hl_lines="1 2"\n1\n```'), "p"
    )
    assert block.options == 'title="a b" hl_lines="1 2"'


# --- Running pages ahead ----------------------------------------------------------------------


def code(*lines):
    return [SimpleNamespace(code=line) for line in lines]


def test_pages_run_side_by_side(hook):
    meeting = threading.Barrier(2, timeout=20)  # broken if one page waits for the other's end

    def run_page(blocks, where):
        meeting.wait()
        return [where]

    ahead = hook("ahead").Ahead(run_page, workers=2)
    pages = {"a.md": code("1"), "b.md": code("2")}
    ahead.begin(pages)
    assert [ahead.take(pages[where], where) for where in pages] == [["a.md"], ["b.md"]]


def test_a_page_that_measures_time_runs_while_no_other_does(hook):
    running, seen = [], {}

    def run_page(blocks, where):
        running.append(where)
        time.sleep(0.05)
        seen[where] = list(running)
        running.remove(where)

    pages = {f"{n}.md": code("1") for n in range(3)}
    clocks = ("time.perf_counter()", "from chapters.toolkit.bench.timing import compare")
    measuring = {f"m{n}.md": code("1", clock) for n, clock in enumerate(clocks)}
    ahead = hook("ahead").Ahead(run_page, workers=4)
    ahead.begin({**pages, **measuring})
    ahead.wait()
    assert set(seen) == {*pages, *measuring} and not running
    assert [seen[where] for where in measuring] == [["m0.md"], ["m1.md"]]


def test_an_error_waits_for_the_turn_of_its_page(hook):
    def run_page(blocks, where):
        if where != "good.md":
            raise PluginError(f"{where} failed")
        return ["shown"]

    pages = {"bad.md": code("1"), "good.md": code("1"), "worse.md": code("perf_counter()")}
    ahead = hook("ahead").Ahead(run_page)
    ahead.begin(pages)
    ahead.wait()
    with pytest.raises(PluginError, match=r"bad.md failed"):
        ahead.take(pages["bad.md"], "bad.md")
    assert ahead.take(pages["good.md"], "good.md") == ["shown"]
    with pytest.raises(PluginError, match=r"worse.md failed"):
        ahead.take(pages["worse.md"], "worse.md")


def test_a_page_that_is_not_as_foreseen_runs_as_it_is(hook):
    ahead = hook("ahead").Ahead(lambda blocks, where: [b.code for b in blocks])
    ahead.begin({"a.md": code("old"), "b.md": code("old")})
    assert ahead.take(code("new"), "a.md") == ["new"]
    ahead.drop()
    assert ahead.take(code("newer"), "b.md") == ["newer"]


def test_a_page_dropped_before_its_start_never_runs(hook):
    go, ran = threading.Event(), []

    def run_page(blocks, where):
        ran.append(where)
        go.wait(20)

    ahead = hook("ahead").Ahead(run_page, workers=1)
    ahead.begin({"a.md": code("1"), "b.md": code("1")})
    waiting = ahead._begun["b.md"][1]
    ahead.drop()
    go.set()
    assert waiting.cancelled() and "b.md" not in ran


def test_a_build_runs_every_page_once_and_shows_what_it_gave(hook, tmp_path):
    blocks_hook, counted = hook("run_blocks"), tmp_path / "counted.txt"
    text = (
        "---\ntitle: T\n---\n# T\n\n```python run hide\n"
        f"with open({str(counted)!r}, 'a') as out:\n    out.write('x')\nprint('shown')\n```\n"
    )
    source = tmp_path / "page.md"
    source.write_text(text, encoding="utf-8")
    file = SimpleNamespace(src_uri="page.md", abs_src_path=str(source), content_string=text)
    config = SimpleNamespace(config_file_path=str(tmp_path / "mkdocs.yml"))
    files = SimpleNamespace(documentation_pages=lambda: [file])
    try:
        blocks_hook.on_nav(None, config, files)
        body = text.split("---\n", 2)[2]
        shown = blocks_hook.on_page_markdown(body, SimpleNamespace(file=file), config, files)
    finally:
        blocks_hook.on_post_build(config)
        blocks_hook._ahead = None
        (outputs,) = blocks_hook._outputs.pop("page.md", {"": ""}).values()
    assert counted.read_text() == "x"
    assert "OUTPUT-OF-BLOCK-0-END" in shown and "shown" in outputs


# --- What a keyboard or a screen reader needs -------------------------------------------------


def test_an_empty_cell_of_a_tables_head_is_a_plain_cell(hook):
    head = '<tr><th></th><th style="text-align: right;"> </th><th>a</th></tr>'
    assert hook("reachable").without_empty_heads(head) == (
        '<tr><td></td><td style="text-align: right;"></td><th>a</th></tr>'
    )


def test_the_search_dialog_has_one_name(hook):
    named = hook("reachable").with_named_search
    from material import __file__ as theme

    search = Path(theme).parent / "templates" / "partials" / "search.html"
    page = named(search.read_text(encoding="utf-8"))
    assert 'role="dialog" aria-label="Search">' in page
    assert named(page) == page


def test_an_output_is_no_stop_of_the_tab_key_by_itself(hook):
    assert "tabindex" not in hook("run_blocks").output_html({"printed": "x", "text": "y"})


# --- Exercises --------------------------------------------------------------------------------


@pytest.fixture
def chapter(tmp_path):
    (tmp_path / "tests" / "hints").mkdir(parents=True)
    (tmp_path / "tests" / "hints" / "ch02.yml").write_text(
        '"2.1": [first, "second\\n\\nmore", third]\n', encoding="utf-8"
    )
    folder = tmp_path / "chapters" / "ch02_name"
    folder.mkdir(parents=True)
    exercise = Exercise("2.1", "write", 8, "Attach `it`", "attach", 2)
    return Chapter(2, folder, "Name", 30, (), "no", "file.py", (exercise,), tmp_path)


LESSON = (
    "# T\n\n### Exercise 2.1 · Attach `it`\n\nTask.\n\n```python\n## no heading\n```\n\n## Next\n"
)


def test_an_exercise_gets_anchor_facts_and_nested_hints_at_its_end(hook, chapter):
    lines = hook("exercises").with_exercises(LESSON, chapter).split("\n")
    assert "### Exercise 2.1 · Attach `it` { #exercise-2-1 .exercise }" in lines
    assert any("8 minutes" in line and "python -m chapters check 2.1" in line for line in lines)
    hints = [line for line in lines if line.lstrip().startswith("???")]
    assert hints == [
        '??? tip hint "Hint 1"',
        '    ??? tip hint "Hint 2"',
        '        ??? tip hint "Hint 3"',
    ]
    assert "        more" in lines and "            third" in lines
    assert lines.index("## no heading") < lines.index(hints[0]) < lines.index("## Next")


@pytest.mark.parametrize(
    ("lesson", "message"),
    [
        ("# T\n", "lists exercise 2.1 in its front matter and has no heading"),
        (LESSON + "### Exercise 2.2 · More\n", "heading for exercise 2.2, which its front matter"),
        (LESSON + "### Exercise 2.1 · Attach `it`\n", "two headings for exercise 2.1"),
        (LESSON.replace("Attach", "Detach"), "make them one"),
    ],
)
def test_headings_and_front_matter_must_agree(hook, chapter, lesson, message):
    with pytest.raises(PluginError, match=message):
        hook("exercises").with_exercises(lesson, chapter)


def test_an_exercise_without_three_hints_is_refused(hook, chapter):
    (chapter.root / "tests" / "hints" / "ch02.yml").write_text('"2.1": [one]\n', encoding="utf-8")
    with pytest.raises(PluginError, match=r"ch02.yml has 1 hints for exercise 2.1"):
        hook("exercises").with_exercises(LESSON, chapter)


# --- Links ------------------------------------------------------------------------------------


@pytest.fixture
def repository(hook, tmp_path):
    for name in (
        "docs/glossary.md",
        "docs/hooks/publish.py",
        "chapters/ch02_name/lesson.md",
        "chapters/ch02_name/lab.py",
        "chapters/toolkit/cost.py",
        "solutions/ch02_name/file.py",
        "solutions/ch02_name/test_ch02.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    return hook("repo_links").Repository(tmp_path, tmp_path / "docs")


@pytest.mark.parametrize(
    ("link", "page_link"),
    [
        ("lab.py", "lab.py"),
        ("../../docs/glossary.md#init", "../../glossary.md#init"),
        ("../toolkit/cost.py", "../../source/chapters/toolkit/cost.py.md"),
        ("../../docs/hooks/publish.py", "../../source/docs/hooks/publish.py.md"),
        ("../../solutions/ch02_name/file.py", "solution.md"),
        (
            "../../solutions/ch02_name/test_ch02.py",
            "../../source/solutions/ch02_name/test_ch02.py.md",
        ),
        ("../ch02_name/", "lesson.md"),
        ("missing.py", "missing.py"),
        ("https://example.org/lab.py", "https://example.org/lab.py"),
        ("#anchor", "#anchor"),
    ],
)
def test_repository_links_lead_to_pages(repository, link, page_link):
    folder = repository.root / "chapters" / "ch02_name"
    relinked = repository.relink(
        f"[a]({link}) `[a]({link})`", folder, "chapters/ch02_name/lesson.md"
    )
    assert relinked == f"[a]({page_link}) `[a]({link})`"


def test_docs_pages_link_chapters_as_they_lie(repository):
    text = "[a](../chapters/ch02_name/lesson.md#x)\n\n[b]: ../chapters/ch02_name/lab.py"
    assert repository.relink(text, repository.docs, "index.md") == (
        "[a](chapters/ch02_name/lesson.md#x)\n\n[b]: chapters/ch02_name/lab.py"
    )


# --- Solution page ----------------------------------------------------------------------------

SOLUTION = '''"""Summary.

More.
"""

import tvm

LIMIT = 1


# about helper
@decorator
def solved():
    a = 1
    # BEGIN exercise 2.1 (1 line): task
    return a
    # END exercise 2.1


def plain():
    return 2
'''


def test_the_reference_is_split_by_exercise_with_its_lines_marked(hook, chapter):
    parts = hook("solution_page").reference(SOLUTION, chapter)
    text = "\n".join(parts)
    assert parts[0] == "Summary.\n\nMore."
    assert "```python\nimport tvm\n\nLIMIT = 1\n```" in parts
    assert "## Exercise 2.1 · Attach `it` { #exercise-2-1 }" in parts
    marked = '```python hl_lines="4"\n@decorator\ndef solved():\n    a = 1\n    return a\n```'
    assert marked.replace("@decorator", "# about helper\n@decorator").replace("4", "5") in parts
    assert parts[-2] == "```python\ndef plain():\n    return 2\n```"
    assert "BEGIN" not in text and "END" not in text


def test_no_line_of_the_reference_is_lost(hook, chapter):
    text = "\n".join(hook("solution_page").reference(SOLUTION, chapter))
    for line in SOLUTION.split('"""', 2)[2].split("\n"):
        assert "exercise 2.1" in line or line in text


# --- Labs -------------------------------------------------------------------------------------


def test_a_page_that_is_no_executed_lab_is_refused(hook):
    with pytest.raises(PluginError, match="not built as expected"):
        hook("lab_page").slim("<p>text</p>", "chapters/ch02_name/lab.py")


def test_a_lab_keeps_code_and_output_and_loses_the_rest(hook):
    cell = (
        "<style>x</style><script src='https://cdn.example.org/mathjax.js'></script>"
        '<div class="jupyter-wrapper"><div class="jp-Cell jp-CodeCell" id="cell-id=1f">'
        '<div class="zeroclipboard-container"><clipboard-copy for="cell-1"><div>x</div>'
        '</clipboard-copy></div><div class="highlight-ipynb hl-python "><pre><span></span>'
        '<span class="n">x</span>\n</pre></div>\n<div id="cell-1" class="clipboard-copy-txt">x</div>'
        "<pre>output</pre></div></div>"
    )
    slim = hook("lab_page").slim(cell, "lab.py")
    assert slim == (
        '<div class="jupyter-wrapper"><div class="jp-Cell jp-CodeCell">'
        '<div class="language-python highlight"><pre><span></span><code><span class="n">x</span>\n'
        "</code></pre></div><pre>output</pre></div></div>"
    )


def test_an_output_of_a_lab_is_no_stop_of_the_tab_key_by_itself(hook):
    output = (
        '<div class="jp-RenderedText" data-mime-type="text/plain" tabindex="0"><pre>1</pre></div>'
    )
    cells = f'<div class="jupyter-wrapper"><div class="jp-Cell jp-CodeCell">{output}</div></div>'
    slim = hook("lab_page").slim(cells, "lab.py")
    assert "tabindex" not in slim and "<pre>1</pre>" in slim


def test_what_a_cell_prints_is_one_output_and_a_value_is_another(hook):
    kind = 'class="jp-RenderedText jp-OutputArea-output{}" data-mime-type="text/plain" tabindex="0"'
    child = '<div class="jp-OutputArea-child">\n<div {}>\n<pre>{}\n</pre>\n</div>\n</div>\n'
    printed, value = kind.format(""), kind.format(" jp-OutputArea-executeResult")
    outputs = [(value, "v"), (printed, "1"), (printed, "2"), (printed, "3"), (value, "w")]
    merged = hook("lab_page")._one_output("".join(child.format(*o) for o in outputs))
    assert merged.count("<pre>") == merged.count("</pre>") == 3
    assert "<pre>1\n2\n3\n</pre>" in merged


def test_lab_says_how_to_run_it(hook):
    shown = hook("lab_page").with_command("<h1>T</h1><p>", "chapters/ch02_name/lab.py")
    assert "<h1>T</h1><div" in shown and "python -m chapters.ch02_name.lab<" in shown


# --- Facts ------------------------------------------------------------------------------------


def test_stamp_honours_source_date_epoch(hook, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert ", 2 January 1970, " in hook("publish").stamp()


def test_facts_stand_beneath_the_title(hook, chapter):
    lesson = hook("publish").with_facts("# Title\n\nText\n", chapter)
    assert lesson.startswith(
        '# Title\n\n<div class="facts" markdown>\n\n30 minutes · needs no other'
    )
    assert lesson.endswith("</div>\n\n\nText\n")
    assert hook("publish").with_facts("Text\n", chapter).startswith("# 2 · Name\n")


def test_navigation_has_the_pages_that_exist(hook, chapter, monkeypatch):
    docs = chapter.root / "docs"
    docs.mkdir()
    for name in ("index.md", "glossary.md"):
        (docs / name).write_text("", encoding="utf-8")
    (chapter.folder / "lab.py").write_text("", encoding="utf-8")
    uri = "chapters/ch02_name/lesson.md"
    monkeypatch.setattr(hook("publish"), "_chapters", {uri: chapter})
    assert hook("publish").navigation(docs) == [
        {"Home": "index.md"},
        {"Chapters": [{"2 · Name": [{"Lesson 2": uri}, {"Lab 2": "chapters/ch02_name/lab.py"}]}]},
        {"Glossary": "glossary.md"},
    ]


def test_page_path_is_relative_to_the_repository(hook):
    config = SimpleNamespace(config_file_path=str(ROOT / "mkdocs.yml"))
    file = SimpleNamespace(abs_src_path=str(ROOT / "docs" / "index.md"), src_uri="index.md")
    assert hook("run_blocks").page_path(SimpleNamespace(file=file), config) == "docs/index.md"


def _tree(root: Path) -> Path:
    for name in ("chapters/ch07_x/pass.py", "solutions/ch07_x/pass.py", "chapters/toolkit/a.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a = 1\n", encoding="utf-8")
    return root


def test_saving_an_exercise_does_not_rebuild_the_pages_and_any_other_source_does(hook, tmp_path):
    fingerprint, root = hook("fingerprint").fingerprint, _tree(tmp_path)
    before = fingerprint(root)
    (root / "chapters/ch07_x/pass.py").write_text("a = 2  # edited\n", encoding="utf-8")
    assert fingerprint(root) == before
    for name in ("solutions/ch07_x/pass.py", "chapters/toolkit/a.py"):
        (root / name).write_text("a = 2  # edited\n", encoding="utf-8")
        assert fingerprint(root) != before
        before = fingerprint(root)


def test_blocks_are_remembered_while_serving_and_never_in_a_build(hook, tmp_path, monkeypatch):
    blocks_hook, root = hook("run_blocks"), _tree(tmp_path)
    lines = ["```python run", "import time", "time.time_ns()", "```"]
    blocks = blocks_hook.find_blocks(lines, "page.md")
    results = {}
    for serving in (True, False):
        monkeypatch.setattr(blocks_hook, "_serving", serving)
        results[serving] = [blocks_hook.run(blocks, root, "page.md") for _ in range(2)]
    assert results[True][0] == results[True][1]
    assert results[False][0] != results[False][1]
