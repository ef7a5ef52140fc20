"""Site hook: puts the output of each ```python run block beneath it, so that no output is pasted.

docs/pages/page_blocks.py says how blocks are written. docs/pages/outputs.py says where outputs come from: they are
kept, and a lesson is run if its kept output is no longer valid. A block that fails stops the build; an optional package
that is not installed stops only a strict one. No build runs a lab: mkdocs-jupyter shows its kept notebook.
"""

from __future__ import annotations

import html
import sys
import textwrap
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger

# MkDocs does not look for modules in this folder. It restores the path after each hook: those that follow in
# mkdocs.yml find the packages because this one has imported them
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.pages import outputs
from docs.pages.fences import fence_code
from docs.pages.page_blocks import Block, NotInstalled, PageError, find_blocks, read_blocks

log = get_plugin_logger("run_blocks")

_placeholders: dict[str, dict[str, str]] = {}  # page -> placeholder -> HTML
_outputs: dict[str, outputs.PageOutput | PageError] = {}  # page's file -> what it showed


@event_priority(-100)  # when the pages are settled
def on_nav(nav, config, files):
    wanted: dict[str, list[Block]] = {}
    _outputs.clear()
    for where, path in _find_sources(files, config).items():
        try:
            blocks = read_blocks(path, where)
        except PageError as error:
            _outputs[where] = error
            continue
        found = outputs.load_valid(where, blocks)
        if outputs.is_lab(where):
            # mkdocs-jupyter has wrapped the page's file, and the wrapper does not know this path
            page = files.get_file_from_path(where.removesuffix("py") + "md")
            page.abs_src_path = str(outputs.find_output_file(where))
            if not found:  # which ends a strict build
                log.warning(f"{where} has changed: run `python -m docs.pages.outputs {where}`.")
        elif found:
            _outputs[where] = found
        elif blocks:
            wanted[where] = blocks
    if wanted:
        log.info(f"{len(wanted)} pages have code whose output is not known; running them")

    def done(where: str, ran: outputs.PageOutput | PageError) -> None:
        _outputs[where] = ran  # an error is raised when the page has its turn
        if not isinstance(ran, PageError):
            outputs.save_output(where, wanted[where], ran, outputs.CACHE)

    outputs.run_all(wanted, done, log.info)
    return nav


def _find_sources(files, config) -> dict[str, Path]:
    """The files with the code of the pages, by their path in the repository; a lab's page is made from lab.py."""
    found = {}
    for file in files.documentation_pages():
        path = find_source(file, config)
        if path and path.exists():
            found[path.relative_to(_find_root(config)).as_posix()] = path
    return found


def find_source(file, config) -> Path | None:
    """The file with the code of a page; None if the page was not made from one file."""
    if file.src_uri.endswith("/lab.md"):
        return _find_root(config) / file.src_uri.replace("/lab.md", "/lab.py")
    return Path(file.abs_src_path) if file.abs_src_path else None


def _find_root(config) -> Path:
    return Path(config.config_file_path).parent


@event_priority(100)  # before other hooks add lines
def on_page_markdown(markdown, page, config, files):
    path = find_source(page.file, config)
    where = path.relative_to(_find_root(config)).as_posix() if path else page.file.src_uri
    ran = _outputs.get(where)
    if isinstance(ran, PageError) and not isinstance(ran, NotInstalled):
        raise PluginError(str(ran))
    if ran is None:
        return markdown
    lines = markdown.split("\n")
    blocks = find_blocks(lines, where)
    if isinstance(ran, NotInstalled):  # the rest of the site is of use without it
        log.warning(str(ran))  # which ends a strict build
        ran = outputs.PageOutput([[{"printed": str(ran)}] for _ in blocks], "", [])
    placed = _placeholders[page.file.src_uri] = {}
    outputs_of_blocks = enumerate(zip(blocks, ran.outputs, strict=True))
    for number, (block, output) in reversed(list(outputs_of_blocks)):
        new = [] if block.hide else ["", fence_code(block.code)]
        if made := render_output(output, ran.made if block.mark else ""):
            placeholder = f"OUTPUT-OF-BLOCK-{number}-END"
            placed[placeholder] = made
            new += ["", placeholder]
        text = textwrap.indent("\n".join([*new, ""]), block.fence.indent)
        lines[block.fence.first : block.fence.last + 1] = text.split("\n")
    return "\n".join(lines)


def on_page_content(content, page, config, files):
    for placeholder, output in _placeholders.pop(page.file.src_uri, {}).items():
        paragraph = f"<p>{placeholder}</p>"
        if content.count(paragraph) != 1:
            raise PluginError(
                f"{page.file.src_uri}: the output of a `python run` block has no place on the page; indent the block "
                "like the text of the list or box that contains it."
            )
        content = content.replace(paragraph, output)
    return content


def render_output(output: outputs.Output, made: str = "") -> str:
    """The output of a block as HTML, "" if it has none. made: where and when, if it may differ elsewhere."""
    parts = []
    for part in output:
        for kind, value in part.items():
            if kind == "html":
                note = f"<p><small>{html.escape(made)}</small></p>" if made else ""
                parts.append(f'<div class="run-value" data-search-exclude>{value}{note}</div>')
            elif kind == "error":
                parts.append(_render_text(outputs.format_error(value), "error", ""))
            else:
                caption = "output" if kind == "printed" else "value"
                parts.append(_render_text(value.rstrip(), caption, made))
    return "".join(parts)


def _render_text(text: str, caption: str, made: str) -> str:
    kind, note = f"run-{caption}", f", {html.escape(made)}" if made else ""
    excluded = (
        "" if caption == "error" else " data-search-exclude"
    )  # readers search for error messages
    return (
        f'<div class="run-output {kind}"{excluded}><span class="run-caption">{caption}{note}</span>'
        f'<pre class="no-copy"><code>{html.escape(text, quote=False)}</code></pre></div>'
    )
