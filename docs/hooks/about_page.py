"""Site hook: what each page says of itself to search engines and to those who link it.

docs/theme/main.html writes it into the page. Nothing is fetched from another host.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from mkdocs.plugins import event_priority

LENGTH = 155  # characters of a description that search engines show
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_MARKUP = re.compile(r"<[^>]+>")


def on_env(env, config, files):
    # written into the page: as files, a browser would wait for them before it shows anything
    scripts = [Path(config.docs_dir, path) for path in config.extra.get("polyfills", [])]
    env.globals["head_scripts"] = [path.read_text(encoding="utf-8") for path in scripts]
    return env


@event_priority(-60)  # when the page's text is complete
def on_page_content(content, page, config, files):
    page.meta.setdefault("description", describe_page(content) or config.site_description)
    return content


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
