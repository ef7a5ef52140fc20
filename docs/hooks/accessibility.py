"""Site hook: what a keyboard or a screen reader needs and neither Markdown nor the theme provides.

docs/theme/main.html names the search dialog; docs/js/keyboard.js does the rest, because only a browser knows what
scrolls.
"""

from __future__ import annotations

import re

from mkdocs.plugins import event_priority

_EMPTY_HEAD = re.compile(r"<th( [^>]*)?>\s*</th>")


@event_priority(-50)  # after every part of the page is in it
def on_page_content(content, page, config, files):
    return replace_empty_heads(content)


def replace_empty_heads(content: str) -> str:
    """The page with a plain cell for each empty `th`, which a screen reader would announce as a header without text."""
    return _EMPTY_HEAD.sub(r"<td\1></td>", content)
