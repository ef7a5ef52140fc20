"""Site hook: what programs read of a page: the site's search, search engines, those who show a link, screen readers.

The search leaves code listings out and keeps error messages; docs/js/search.js loads its index when it is opened.
docs/theme/main.html writes the description into the page, and names the search dialog for screen readers;
docs/js/keyboard.js does the rest for the keyboard, because only a browser knows what scrolls. Nothing is fetched from
another host.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from mkdocs.plugins import event_priority

# higher ranks first; a solution must not come before the lesson that it solves
BOOSTS = {
    "solution": 0.25,
    "lab": 0.5,
    "lesson": 1.5,
    "troubleshooting": 1.5,
    "setup": 1.5,
    "glossary": 0.75,
    "webgpu": 0.6,
}
ERROR = re.compile(r"\w*(?:Error|Exception|Warning)\b|\berror:|refuse[sd]?\b|cannot ")
_LISTING = re.compile(
    r'<div class="(?:language-[\w-]+ )?highlight"|<div class="[^"]*\bhighlight\b[^"]*"'
)
_PRINTED = re.compile(
    r'(<div class="run-output run-(?:printed|output|value)") data-search-exclude>(.*?<code>)(.*?)(</code></pre></div>)',
    re.DOTALL,
)
_EMPTY_HEAD = re.compile(r"<th( [^>]*)?>\s*</th>")
LENGTH = 155  # characters of a description that search engines show
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_MARKUP = re.compile(r"<[^>]+>")


def on_env(env, config, files):
    # written into the page: as files, a browser would wait for them before it shows anything
    scripts = [Path(config.docs_dir, path) for path in config.extra.get("polyfills", [])]
    env.globals["head_scripts"] = [path.read_text(encoding="utf-8") for path in scripts]
    return env


def on_page_markdown(markdown, page, config, files):
    boost = BOOSTS.get(Path(page.file.src_uri).stem)
    if boost:
        page.meta["search"] = {"boost": boost, **(page.meta.get("search") or {})}
    return markdown


@event_priority(-50)  # when the page's text is complete, and outputs are in their places
def on_page_content(content, page, config, files):
    content = mark_for_search(replace_empty_heads(content))
    page.meta.setdefault("description", describe_page(content) or config.site_description)
    return content


def replace_empty_heads(content: str) -> str:
    """The page with a plain cell for each empty `th`, which a screen reader would announce as a header without text."""
    return _EMPTY_HEAD.sub(r"<td\1></td>", content)


def mark_for_search(content: str) -> str:
    """The page with its listings marked as not to be searched, and its printed errors as to be searched."""
    content = _LISTING.sub(lambda match: f"{match[0]} data-search-exclude", content)
    return _PRINTED.sub(_unmark_errors, content)


def _unmark_errors(match: re.Match) -> str:
    if not ERROR.search(match[3]):
        return match[0]
    lines = (
        line
        if ERROR.search(line) or not line.strip()
        else f"<span data-search-exclude>{line}</span>"
        for line in match[3].split("\n")
    )
    return f"{match[1]}>{match[2]}{chr(10).join(lines)}{match[4]}"


def describe_page(content: str) -> str:
    """The first paragraphs of a page as a description, cut at a sentence or a word; "" if it has none."""
    text = ""
    for inner in _PARAGRAPH.findall(
        re.sub(r'<div class="facts".*?</div>', "", content, flags=re.DOTALL)
    ):
        text = f"{text} {' '.join(html.unescape(_MARKUP.sub('', inner)).split())}".strip()
        if len(text) >= LENGTH // 2:
            break
    if len(text) <= LENGTH:
        return text
    cut = text[:LENGTH]
    sentence = cut.rfind(". ")
    return cut[: sentence + 1] if sentence > LENGTH // 2 else cut.rpartition(" ")[0] + " …"
