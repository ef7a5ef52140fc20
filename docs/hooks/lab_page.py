"""Site hook: makes a lab, executed by mkdocs-jupyter, look and weigh like the other pages.

mkdocs-jupyter puts JupyterLab's style sheet, MathJax, RequireJS and Mermaid (from other hosts) into every page. All of
that is taken out here, code cells become the theme's own code blocks, and links to files become links to pages.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.utils import get_relative_url
from notebook import links
from repo_links import Repository

log = get_plugin_logger("lab_page")

_WRAPPER = '<div class="jupyter-wrapper">'
_STYLE_OR_SCRIPT = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)
_INPUT = re.compile(
    r'<div class="highlight-ipynb hl-(?P<lang>[\w+-]+)\s*">\s*<pre>(?P<code>.*?)</pre>\s*</div>\s*'
    r'<div [^>]*class="clipboard-copy-txt"[^>]*>.*?</div>',
    re.DOTALL,
)
_COPY = re.compile(r'<div class="zeroclipboard-container">.*?</clipboard-copy>\s*</div>', re.DOTALL)
_PROMPT = re.compile(r'<div class="jp-(?:InputPrompt|OutputPrompt)[^"]*">[^<]*</div>')
_CELL_ID = re.compile(r' id="cell-id=[^"]*"')  # random: it would differ in every build
# keyboard.js makes a stop of what scrolls, and only of that
_FOCUS = re.compile(r'(<div class="jp-[^>]*?) tabindex="0"')
# a cell's prints may arrive in several messages: a printed output up to where the next one begins
_PRINTED = r'<div class="jp-RenderedText jp-OutputArea-output" data-mime-type="text/plain"[^>]*>'
_SPLIT_OUTPUT = re.compile(
    rf"({_PRINTED}\s*<pre>(?:(?!</pre>).)*)</pre>\s*</div>\s*</div>\s*"
    rf'<div class="jp-OutputArea-child">\s*{_PRINTED}\s*<pre>',
    re.DOTALL,
)
_COLLAPSER = re.compile(r'<div class="jp-Collapser[^"]*"[^>]*>\s*</div>')
_HREF = re.compile(r'(<a\b[^>]*?href=")([^"#][^"#]*)(#[^"]*)?(")')
_OUTSIDE = re.compile(r"(?:src|href)=\"https?://[^\"]+\.(?:js|css)\b")


@event_priority(50)
def on_page_content(content, page, config, files):
    if not page.file.src_uri.endswith("/lab.py"):
        return content
    name = page.file.src_uri
    number = int(re.search(r"/ch(\d+)_", name)[1])
    page.meta["title"] = page.title
    page.title = (
        f"Lab {number}"  # the plugin has put the lab's heading where the navigation's name was
    )
    buttons = links(Path(name).parent.name, config.repo_url)
    return relinked(with_command(slim(content, name), name, buttons), page, config, files)


def slim(content: str, name: str) -> str:
    """The cells of an executed lab as plain, light HTML. Raises PluginError if it is no such page."""
    _, wrapper, cells = content.partition(_WRAPPER)
    if not wrapper or "jp-CodeCell" not in cells:
        raise PluginError(
            f"{name}: the page made by mkdocs-jupyter is not built as expected; check its version "
            "against pyproject.toml and adapt docs/hooks/lab_page.py."
        )
    cells = _COLLAPSER.sub("", _PROMPT.sub("", _COPY.sub("", cells)))
    cells = _FOCUS.sub(r"\1", _CELL_ID.sub("", cells))
    cells = _one_output(cells)
    cells = _INPUT.sub(_code_block, cells)
    cells = _STYLE_OR_SCRIPT.sub("", cells)
    if "clipboard-copy" in cells or _OUTSIDE.search(cells):
        raise PluginError(
            f"{name}: something of JupyterLab's page is left; see docs/hooks/lab_page.py."
        )
    return wrapper + cells


def _one_output(cells: str) -> str:
    """Consecutive printed outputs of a cell as one; a value shown in between stays apart."""
    count = 1
    while count:
        cells, count = _SPLIT_OUTPUT.subn(r"\1", cells)
    return cells


def with_command(content: str, name: str, buttons: str = "") -> str:
    """The page with a line under its title that says what it is and how to run it, and `buttons` beneath."""
    module = name.removesuffix(".py").replace("/", ".")
    line = (
        '<div class="facts"><p>This page is <code>lab.py</code>, run while the site was built. '
        f"Run it yourself: <code>python -m {module}</code></p>{buttons}</div>"
    )
    found = content.partition("</h1>")
    return "".join([found[0], found[1], line, found[2]]) if found[1] else line + content


def _code_block(match: re.Match) -> str:
    code = match["code"].removeprefix("<span></span>").strip("\n")
    block = f"<pre><span></span><code>{code}\n</code></pre>"
    return f'<div class="language-{match["lang"]} highlight">{block}</div>'


def relinked(content: str, page, config, files) -> str:
    """`content` with links to files of the repository pointed at their pages."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    repository, folder = Repository(root, docs), Path(page.file.abs_src_path).parent

    def point(match: re.Match) -> str:
        target = html.unescape(match[2])
        if re.match(r"[a-z][a-z0-9+.-]*:|/", target):
            return match[0]
        uri = repository.uri(folder / target)
        file = files.get_file_from_path(
            uri or posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        )
        if file is None:
            log.warning(f"{page.file.src_uri} links to {target}, which is no page of the site.")
            return match[0]
        url = get_relative_url(file.url, page.file.url)
        return f"{match[1]}{html.escape(url)}{match[3] or ''}{match[4]}"

    return _HREF.sub(point, content)
