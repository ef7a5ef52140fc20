"""Walks the built site and reports what a reader would stumble over.

    python -m tests.site.check_links site/

Every internal link and anchor must lead somewhere, ids must be unique on a page, nothing may be loaded from another
host, a page with all it loads may not weigh more than 1.5 MB, and it says with what it was verified. One line a fault;
exit code 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_BYTES = 1_500_000
STAMP = "Verified on "  # on every page; docs/hooks/publish.py puts it there
_LOADING = {  # tag -> the attribute whose address the browser fetches by itself
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
_LOADING_LINKS = {"stylesheet", "preload", "modulepreload", "icon", "prefetch", "preconnect"}
_CSS_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)['\"]?\s*\)|@import\s+['\"]([^'\"]+)['\"]")


@dataclass
class Page(HTMLParser):
    """What one HTML file contains: its ids, where it links and what it loads."""

    ids: Counter = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    stamped: bool = False
    _in_style: bool = False

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if values.get("id"):
            self.ids[values["id"]] += 1
        if tag == "a" and values.get("name") and values["name"] != values.get("id"):
            self.ids[values["name"]] += 1
        if tag in ("a", "area") and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and "href" in values:
            loading = _LOADING_LINKS & set(values.get("rel", "").split())
            (self.loads if loading else self.links).append(values["href"])
        if values.get(_LOADING.get(tag, "")):
            self.loads.append(values[_LOADING[tag]])
        if "srcset" in values:
            self.loads += [part.split()[0] for part in values["srcset"].split(",") if part.strip()]
        self.loads += addresses_in_css(values.get("style", ""))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        self.stamped = self.stamped or STAMP in data
        if self._in_style:
            self.loads += addresses_in_css(data)


def addresses_in_css(css: str) -> list[str]:
    """What a style sheet fetches, images within it (data:) left out."""
    found = [url or imported for url, imported in _CSS_URL.findall(css)]
    return [address for address in found if not address.startswith(("data:", "#"))]


def faults(site: Path) -> list[str]:
    """All faults of the site in the folder `site`, each a line that begins with the page.

    Raises FileNotFoundError if there is no page in the folder.
    """
    site = site.resolve()
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        raise FileNotFoundError(f"{site} holds no HTML page; build the site first: mkdocs build")
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        size = weight(path, page, site)
        if size > MAX_BYTES:
            found.append(
                f"{name}: weighs {size:,} bytes with what it loads; the limit is {MAX_BYTES:,}"
            )
        if not page.stamped:
            found.append(f"{name}: does not say what it was verified on")
        found += [f'{name}: id "{key}" occurs {n} times' for key, n in page.ids.items() if n > 1]
        for address in dict.fromkeys(page.loads):
            found += _load_fault(name, address, path, site)
        for address in dict.fromkeys(page.links):
            found += _link_fault(name, address, path, site, pages)
    for sheet in sorted(site.rglob("*.css")):
        name = sheet.relative_to(site).as_posix()
        for address in addresses_in_css(sheet.read_text(encoding="utf-8")):
            found += _load_fault(name, address, sheet, site)
    return found


def read(path: Path) -> Page:
    """The parsed page at `path`."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def weight(path: Path, page: Page, site: Path) -> int:
    """The bytes of a page and of each file that it loads, each once."""
    loaded = {_target(urlsplit(address).path, path, site) for address in page.loads}
    return sum(file.stat().st_size for file in {path, *filter(None, loaded)})


def _load_fault(name: str, address: str, path: Path, site: Path) -> list[str]:
    parts = urlsplit(address)
    if parts.netloc:
        return [f"{name}: loads {address} from another host"]
    if parts.scheme or not parts.path:
        return []
    if not _target(parts.path, path, site):
        return [f"{name}: loads {address}, which is not in the site"]
    return []


def _link_fault(
    name: str, address: str, path: Path, site: Path, pages: dict[Path, Page]
) -> list[str]:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return []
    target = _target(parts.path, path, site) if parts.path else path
    if target is None:
        return [f"{name}: links to {address}, which is not in the site"]
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return [f"{name}: links to {address}, and that page has no such anchor"]
    return []


def _target(address: str, path: Path, site: Path) -> Path | None:
    """The file that `address`, found in `path`, leads to; None if there is none within the site."""
    address = unquote(address)
    base = site if address.startswith("/") else path.parent
    target = (base / address.lstrip("/")).resolve()
    if target.is_dir():
        target /= "index.html"
    return target if target.is_file() and target.is_relative_to(site) else None


def main(arguments: list[str]) -> int:
    """Print the faults of the site named on the command line; 0 if there is none, 1 if there are."""
    if len(arguments) != 1:
        print("usage: python -m tests.site.check_links site/")
        return 2
    try:
        found = faults(Path(arguments[0]))
    except FileNotFoundError as error:
        print(error)
        return 2
    print("\n".join(found) if found else "no fault found")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
