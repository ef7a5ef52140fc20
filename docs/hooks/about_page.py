"""Site hook: what each page says of itself to search engines and to those who link it, and a 404 page for any folder.

docs/theme/main.html writes it into the page. Nothing is fetched from another host.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin, urlsplit

import course_path  # noqa: F401  (before the course is imported)
from mkdocs.plugins import event_priority
from mkdocs.utils import get_relative_url

from docs.pages.card import card

FOLDER = "images/cards"
LENGTH = 155  # characters of a description that search engines show
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_MARKUP = re.compile(r"<[^>]+>")
TOP = (
    "chapters",
    "source",
    "images",
    "search",
    "assets",
    "js",
    "styles",
    "results",
)  # folders of the site

# the site's root: the address it is published at, what precedes one of its folders, or the first folder with a sitemap
FIND_ROOT = """(known, folders) => {
  const at = location.pathname, inner = at.match(`^(.*?/)(?:${folders})/`);
  const asks = (folder) => {
    const request = new XMLHttpRequest();
    request.open("HEAD", `${folder}sitemap.xml`, false);
    try { request.send() } catch { return false }
    return request.status === 200;
  };
  const above = [...at].flatMap((letter, n) => (letter === "/" ? [at.slice(0, n + 1)] : [])).reverse();
  const base = document.createElement("base");
  base.href = known && at.startsWith(known) ? known : inner ? inner[1] : above.find(asks) || above[0];
  document.head.append(base);
}"""

_cards: dict[str, bytes] = {}


def on_env(env, config, files):
    # written into the page: as files, a browser would wait for them before it shows anything
    scripts = [Path(config.docs_dir, path) for path in config.extra.get("polyfills", [])]
    env.globals["head_scripts"] = [path.read_text(encoding="utf-8") for path in scripts]
    return env


@event_priority(-60)  # when the page's text is complete
def on_page_content(content, page, config, files):
    page.meta.setdefault("description", described(content) or config.site_description)
    return content


def described(content: str) -> str:
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


def on_page_context(context, page, config, nav):
    title = str(page.meta.get("title") or page.title or "")
    whole = page.meta.get("full_title") or f"{_MARKUP.sub('', title)} · {config.site_name}"
    name = f"{FOLDER}/{card_name(page.url)}"
    if page.file.src_uri.startswith("source/"):  # a listing is not what one links
        name = f"{FOLDER}/index.png"
    elif page.is_homepage:
        _cards[name] = card(
            "Write the fusion passes of a language-model compiler", page.meta["description"]
        )
    else:
        _cards[name] = card(html.unescape(_MARKUP.sub("", title)), page.meta["description"])
    address = (
        urljoin(config.site_url, name) if config.site_url else get_relative_url(name, page.url)
    )
    context["about"] = {"title": html.unescape(whole), "card": address}
    return context


def card_name(url: str) -> str:
    path = PurePosixPath(url)
    folder = path.parent.name
    return f"{folder}-{path.stem}.png" if folder else f"{path.stem or 'index'}.png"


def on_post_build(config):
    folder = Path(config.site_dir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in _cards.items():
        Path(config.site_dir, name).write_bytes(image)
    _cards.clear()


def on_post_template(output_content, template_name, config):
    return (
        anywhere(output_content, config.site_url) if template_name == "404.html" else output_content
    )


def anywhere(page: str, site_url: str | None) -> str:
    """The 404 page with relative addresses. A server shows it at any address, so a script finds the site's root."""
    known = urlsplit(site_url).path if site_url else "/"
    page = re.sub(rf'((?:href|src)="){re.escape(known)}(?!/)', r"\1./", page)
    page = re.sub(r'((?:href|src)="\./)\.?"', r'\1index.html"', page)
    page = page.replace(f'new URL("{known}",location)', "new URL(document.baseURI)")
    page = page.replace(f'"{known}assets/', '"assets/')
    find = f"<script>({FIND_ROOT})({json.dumps(known if site_url else '')},{json.dumps('|'.join(TOP))})</script>"
    tell = (
        "<script>{const all=document.getElementById('__config'),one=JSON.parse(all.textContent);"
        "one.base=document.baseURI;all.textContent=JSON.stringify(one)}</script>"
    )
    page = re.sub(r"<head>", lambda _: f"<head>{find}", page, count=1)
    return re.sub(
        r'(<script id="__config".*?</script>)',
        lambda m: m[1] + tell,
        page,
        count=1,
        flags=re.DOTALL,
    )
