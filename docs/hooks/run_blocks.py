"""Site hook: runs the ```python run blocks of a page and shows what they print, so that no output is pasted.

    ```python run                 run, show the code and what it gave
    ```python run hide            run, show only what it gave
    ```python run raises=KeyError the block must raise this error; its last line is shown

All blocks of a page run in one process, in order; pages run side by side, ahead of their rendering (ahead.py). A
block that fails, fails the build.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ahead import Ahead, measures
from fences import Fence, fenced, fences
from fingerprint import fingerprint
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.utils.meta import get_data

log = get_plugin_logger("run_blocks")

RUNNER = Path(__file__).with_name("run_page.py")
SECONDS = 600
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OPTION = re.compile(r"""^(?:\w+=(?:"[^"]*"|'[^']*'|\S+))$""")

_serving = False  # only then are results remembered: a build always runs everything
_outputs: dict[str, dict[str, str]] = {}  # page -> placeholder -> HTML
_ahead: Ahead | None = None  # of the build in progress, from on_nav on


@dataclass(frozen=True)
class Block:
    """One block to run: `line` is that of its first line of code, in the page's file."""

    fence: Fence
    code: str
    line: int
    hide: bool
    raises: str
    options: str


def on_startup(command: str, dirty: bool) -> None:
    global _serving
    _serving = command == "serve"


@event_priority(-100)  # when the pages are settled
def on_nav(nav, config, files):
    global _ahead
    root = Path(config.config_file_path).parent
    pages = {}
    for file in files.documentation_pages():
        if not file.src_uri.endswith(".md"):
            continue
        where = file_path(file, config)
        try:
            blocks = _blocks_of(get_data(file.content_string)[0], file, where)
        except PluginError:
            continue  # said when the page has its turn
        if blocks:
            pages[where] = blocks
    _ahead = Ahead(lambda blocks, where: run(blocks, root, where))
    _ahead.begin(pages)
    return nav


def on_post_build(config):
    _stop()


def on_build_error(error):
    _stop()


def _stop() -> None:
    if _ahead:
        _ahead.drop()


@event_priority(100)  # before other hooks add lines, so that line numbers are those of the file
def on_page_markdown(markdown, page, config, files):
    if not page.file.src_uri.endswith(".md"):
        if _ahead and measures(markdown):
            _ahead.wait()  # a lab that measures time, which is about to run
        return markdown
    lines = markdown.split("\n")
    where = page_path(page, config)
    blocks = _blocks_of(markdown, page.file, where)
    if not blocks:
        return markdown
    results = _ahead.take(blocks, where)
    outputs = _outputs[page.file.src_uri] = {}
    for number, (block, result) in reversed(list(enumerate(zip(blocks, results, strict=True)))):
        placeholder = f"OUTPUT-OF-BLOCK-{number}-END"
        outputs[placeholder] = output_html(result)
        source = (
            [] if block.hide else fenced(block.code, f"python {block.options}".strip()).split("\n")
        )
        new = ["", *source, "", placeholder if outputs[placeholder] else "", ""]
        lines[block.fence.first : block.fence.last + 1] = [
            (block.fence.indent + line).rstrip() for line in new
        ]
    return "\n".join(lines)


def on_page_content(content, page, config, files):
    for placeholder, output in _outputs.pop(page.file.src_uri, {}).items():
        if not output:
            continue
        paragraph = f"<p>{placeholder}</p>"
        if content.count(paragraph) != 1:
            raise PluginError(
                f"{page_path(page, config)}: the output of a `python run` block has no place on the "
                "page; indent the block like the text of the list or box it stands in."
            )
        content = content.replace(paragraph, output)
    return content


def _blocks_of(markdown: str, file, where: str) -> list[Block]:
    lines = markdown.split("\n")
    return find_blocks(lines, where, _lines_above(file, lines))


def find_blocks(lines: list[str], where: str, above: int = 0) -> list[Block]:
    """The blocks to run among `lines` of a page; `above` lines of its file stand before them.

    Raises PluginError for an unknown option, a snippet inclusion or code that leaves its indentation.
    """
    return [
        _block(fence, where, above)
        for fence in fences(lines)
        if fence.info.split()[:2] == ["python", "run"]
    ]


def _block(fence: Fence, where: str, above: int) -> Block:
    line = fence.first + above + 2
    at = f"{where}, line {line - 1}"
    hide, raises, options = False, "", []
    for word in re.findall(r"""\w+=(?:"[^"]*"|'[^']*')|\S+""", fence.info)[2:]:
        if word == "hide":
            hide = True
        elif word.startswith("raises="):
            raises = word.removeprefix("raises=")
        elif _OPTION.match(word):
            options.append(word)
        else:
            raise PluginError(
                f"{at}: `{word}` is no option of a `python run` block; there are `hide`, "
                '`raises=ErrorName` and those of a code block, as in title="...".'
            )
    code = []
    for text in fence.body:
        if text.strip() and not text.startswith(fence.indent):
            raise PluginError(f"{at}: the block's code is indented less than its fence: {text!r}.")
        if text.lstrip().startswith("--8<--"):
            raise PluginError(
                f"{at}: a `python run` block cannot include a snippet; import the function instead."
            )
        code.append(text[len(fence.indent) :])
    return Block(fence, "\n".join(code), line, hide, raises, " ".join(options))


def run(blocks: list[Block], root: Path, where: str) -> list[dict]:
    """Run `blocks` in a new process from `root`: for each {"printed", "html" or "text", "error"}.

    Raises PluginError naming the page, the block and the error if one fails or does not raise as told.
    """
    remembered = None
    if _serving:
        key = fingerprint(root, where, *(f"{b.line} {b.raises} {b.code}" for b in blocks))
        remembered = root / ".cache" / "blocks" / f"{key}.json"
        if remembered.exists():
            return json.loads(remembered.read_text(encoding="utf-8"))
    log.info(f"Running the blocks of {where}")
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        results = _run_in(Path(folder), blocks, root, where)
    _check(blocks, results, where)
    if remembered:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(json.dumps(results), encoding="utf-8")
    return results


def _run_in(folder: Path, blocks: list[Block], root: Path, where: str) -> list[dict]:
    order, printed = folder / "order.json", folder / "printed.txt"
    plan = {
        "root": str(root),
        "name": re.sub(r"\W", "_", where.removesuffix(".md")),
        "blocks": [{"code": b.code, "line": b.line, "raises": b.raises} for b in blocks],
    }
    order.write_text(json.dumps(plan), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "PYTHONUTF8": "1"}
    with printed.open("wb") as out:
        try:
            done = subprocess.run(
                [sys.executable, str(RUNNER), str(order)],
                cwd=root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PluginError(f"{where}: its blocks ran longer than {SECONDS} s.") from None
    found = folder / "results.json"
    results = json.loads(found.read_text(encoding="utf-8")) if found.exists() else []
    if done.returncode != 0:
        block = blocks[min(len(results), len(blocks) - 1)]
        tail = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise PluginError(
            f"{where}, line {block.line}: the process died in this block (exit {done.returncode})"
            f"{': ' + tail[0] if tail else '.'}"
        )
    text, start = printed.read_bytes(), 0
    for result in results:
        result["printed"] = text[start : result["printed_to"]].decode("utf-8", "replace")
        start = result["printed_to"]
    return results


def _check(blocks: list[Block], results: list[dict], where: str) -> None:
    for block, result in zip(blocks, results, strict=False):
        error = result.get("error")
        first = next((line for line in block.code.split("\n") if line.strip()), "")
        at = f"{where}, line {(error and error['line']) or block.line}, in the block `{first.strip()}`"
        if error and block.raises not in error["names"]:
            wanted = f" (expected {block.raises})" if block.raises else ""
            raise PluginError(f"{at}: {error_text(error)}{wanted}")
        if block.raises and not error:
            raise PluginError(f"{at}: should raise {block.raises}, and raised nothing.")


def error_text(error: dict) -> str:
    """The last line of an error; of a long message also the first, which names the error."""
    lines = error["lines"]
    if error["names"][0] in ("SyntaxError", "IndentationError") or len(lines) == 1:
        return lines[-1]
    return "\n".join([lines[0], *(["…"] if len(lines) > 2 else []), lines[-1]])


def output_html(result: dict) -> str:
    """What a block gave, as HTML; empty if it gave nothing."""
    printed = _ANSI.sub("", result.get("printed", "")).rstrip()
    parts = []
    if printed:
        parts.append(_text_html(printed, "output"))
    if "text" in result:
        parts.append(_text_html(_ANSI.sub("", result["text"]), "value"))
    if "html" in result:
        parts.append(f'<div class="run-value" data-search-exclude>{result["html"]}</div>')
    if "error" in result:
        parts.append(_text_html(error_text(result["error"]), "error"))
    return "".join(parts)


def _text_html(text: str, caption: str) -> str:
    shown = html.escape(text, quote=False)
    return (
        f'<div class="run-output run-{caption}" data-search-exclude><span class="run-caption">{caption}</span>'
        f'<pre class="no-copy"><code>{shown}</code></pre></div>'
    )


def page_path(page, config) -> str:
    """The page's file as an author knows it, relative to the repository."""
    return file_path(page.file, config)


def file_path(file, config) -> str:
    """The file of a page as an author knows it, relative to the repository."""
    source = file.abs_src_path
    if not source:
        return file.src_uri
    root = Path(config.config_file_path).parent
    path = Path(source)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _lines_above(file, lines: list[str]) -> int:
    source = file.abs_src_path
    if not source:
        return 0
    return max(0, len(Path(source).read_text(encoding="utf-8").split("\n")) - len(lines))
