"""Site hook: what the search looks through, and which pages come first.

Code listings are left out, error messages are kept. docs/js/search.js loads the index when the search is opened.
"""

from __future__ import annotations

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


def on_page_markdown(markdown, page, config, files):
    boost = BOOSTS.get(Path(page.file.src_uri).stem)
    if boost:
        page.meta["search"] = {"boost": boost, **(page.meta.get("search") or {})}
    return markdown


@event_priority(-50)  # when outputs are in their places
def on_page_content(content, page, config, files):
    return mark_for_search(content)


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
