"""Opens each page of the built site from disk, as a reader does, and reports what a browser finds.

    python -m tests.website.check_pages site/ [part of an address …]

Each page is seen in light and in dark, at the width of a desk and of a phone: in two views, which take turns from page
to page, so that what all pages share is seen in all four. In one of the two, axe-core looks at it, which takes most of
the time. A page that is named is itself seen in all four, by axe-core too. It has a fault if axe-core (accessibility)
finds something serious, a script fails, a file does not load or comes from another host, it is wider than the screen,
an id occurs twice, it weighs more than MAX_BYTES with all that it loads, or it does not say which versions it was
verified with. It prints one line per fault; the exit code is 1 if there is one. It needs `pip install -e ".[dev]"` and
a Chromium or Chrome; CHROMIUM names one that is not on the path.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
GRAVE = ("serious", "critical")
WIDTHS = {"desk": 1280, "phone": 390}
SCHEMES = ("light", "dark")
VIEWS = [("light", "desk"), ("dark", "phone")], [("dark", "desk"), ("light", "phone")]
AXE = {"resultTypes": ["violations"], "preload": False}
# unfold everything, and wait until it is painted. Of the words of listings that are coloured alike one is enough: the
# others become plain text, since most of the time goes into the contrast of each element
OPEN = """() => {
  document.querySelectorAll("details").forEach((element) => (element.open = true));
  const near = document.createElement("style");
  near.textContent = "* { content-visibility: visible !important }";
  document.head.append(near);
  const known = new Map();
  const looks = (element) => {
    if (!element) return "";
    if (!known.has(element)) known.set(element, looks(element.parentElement) + element.tagName + element.className);
    return known.get(element);
  };
  const seen = new Set();
  const alike = [...document.querySelectorAll("code span[class], code b")].filter((word) => {
    const plain = !word.children.length && [...word.attributes].every(({ name }) => name === "class");
    return plain && word.checkVisibility() && (seen.has(looks(word)) || !seen.add(looks(word)));
  });
  for (const word of alike) word.replaceWith(word.textContent);
  return new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)));
}"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MAX_BYTES = 1_500_000
STAMP = "Verified on "  # on every page; docs/hooks/publish.py puts it there
TWICE = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  return [...new Set(ids.filter((id, place) => ids.indexOf(id) !== place))];
}"""


class CannotOpen(Exception):
    """There is no browser, or no page; the message says what to do."""


@dataclass
class Problems:
    """What one open page reported: errors of scripts, files that it loaded and files that it could not load."""

    found: list[str]
    loaded: set[str] = field(default_factory=set)

    def watch(self, page) -> None:
        page.on("pageerror", lambda error: self.found.append(f"a script failed: {error}"))
        page.on("requestfailed", lambda request: self.found.append(f"did not load {request.url}"))
        page.on("request", lambda request: self.loaded.add(request.url))

    def of_what_was_loaded(self) -> list[str]:
        """Files from another host, and the weight of all files if it is too much."""
        files = [url for url in self.loaded if url.startswith("file:")]
        foreign = [url for url in self.loaded if not url.startswith(("file:", "data:", "blob:"))]
        paths = {Path(unquote(urlsplit(url).path)) for url in files}
        # the search index comes once, for all pages
        own = (path for path in paths if path.exists() and path.stem != "search_index")
        weight = sum(path.stat().st_size for path in own)
        heavy = [f"weighs {weight:,} bytes with what it loads"] if weight > MAX_BYTES else []
        return [*(f"loads {url} from another host" for url in foreign), *heavy]


def find_browser() -> str:
    """The browser to use. Raises CannotOpen if there is none."""
    named = os.environ.get("CHROMIUM", "")
    found = next(filter(None, map(shutil.which, (named, *BROWSERS))), None)
    if not found:
        raise CannotOpen(
            "There is no Chromium or Chrome here. Install one (Debian: apt-get install chromium), "
            "or name it in CHROMIUM."
        )
    return found


def select_pages(site: Path, parts: list[str]) -> list[Path]:
    """The pages of `site`, or those whose address contains one of `parts`. Raises CannotOpen if there is none."""
    # a server shows 404.html at any address, so what it loads has addresses that only a server knows
    pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    chosen = [p for p in pages if not parts or any(part in get_address(p, site) for part in parts)]
    if not chosen:
        raise CannotOpen(f"{site} holds no such HTML page; build the site first: mkdocs build")
    return chosen


def get_address(path: Path, site: Path) -> str:
    return path.relative_to(site).as_posix()


def plan_views(pages: list[Path], all_four: bool) -> list[tuple[Path, str, str, bool]]:
    """(page, scheme, width, whether axe-core looks at it) of each view."""
    return [
        (path, *view, all_four or turn == number // 2 % 2)
        for number, path in enumerate(pages)
        for turn, view in enumerate(VIEWS[0] + VIEWS[1] if all_four else VIEWS[number % 2])
    ]


def find_faults(site: Path, parts: list[str] | None = None) -> Iterator[str]:
    """The faults of each page, each a line that begins with the page's address. parts: see `select_pages`.

    Raises CannotOpen without a browser or a page, and ImportError without what the extra `dev` installs.
    """
    import axe_playwright_python  # noqa: F401 — a missing package is reported before a thread starts
    import playwright  # noqa: F401

    site = site.resolve()
    pages, executable = select_pages(site, parts or []), find_browser()
    planned = plan_views(pages, all_four=bool(parts))

    def in_scheme(scheme: str) -> list[str]:
        views = [(path, width, by_axe) for path, its, width, by_axe in planned if its == scheme]
        return _find_faults_in_scheme(scheme, site, views, executable)

    with ThreadPoolExecutor() as pool:
        for found in pool.map(in_scheme, SCHEMES):
            yield from found


def _find_faults_in_scheme(
    scheme: str, site: Path, views: list[tuple[Path, str, bool]], executable: str
) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    found = []
    with (
        sync_playwright() as playwright,
        # no sandbox: most containers have none, and the pages are our own
        playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"]) as browser,
    ):
        for width, pixels in WIDTHS.items():
            screen = {"viewport": {"width": pixels, "height": 900}, "color_scheme": scheme}
            context = browser.new_context(**screen, reduced_motion="reduce")
            for path, its_width, by_axe in views:
                if its_width == width:
                    view = f"{get_address(path, site)} ({scheme}, {width})"
                    axe = Axe() if by_axe else None
                    found += [
                        f"{view}: {fault}" for fault in _find_faults_of_page(context, path, axe)
                    ]
            context.close()
    return found


def _find_faults_of_page(context, path: Path, axe) -> list[str]:
    page = context.new_page()
    problems = Problems([])
    problems.watch(page)
    page.goto(path.as_uri())
    wide = page.evaluate(TOO_WIDE)
    if wide > 0:
        problems.found.append(f"is {wide} pixels wider than the screen")
    problems.found += [f'has the id "{key}" more than once' for key in page.evaluate(TWICE)]
    if STAMP not in page.content():
        problems.found.append("does not say with what it was verified")
    page.evaluate(OPEN)
    # before axe, which fetches style sheets itself: that is refused on file://
    found = [*problems.found, *problems.of_what_was_loaded()]
    violations = axe.run(page, options=AXE).response["violations"] if axe else []
    page.close()
    return [*found, *(_describe_violation(one) for one in violations if one["impact"] in GRAVE)]


def _describe_violation(violation: dict) -> str:
    """One finding as a line: which rule, how often, and the first place."""
    nodes = violation["nodes"]
    reasons = " ".join(nodes[0].get("failureSummary", "").split())
    where = nodes[0]["html"][:160].replace("\n", " ")
    return f"{violation['id']}, {len(nodes)} times, first at {where} — {reasons}"


def main(arguments: list[str]) -> int:
    """Print the faults of the site named on the command line; 0 if there is none, 1 if there are."""
    parser = argparse.ArgumentParser(prog="python -m tests.website.check_pages")
    parser.add_argument("site", type=Path)
    parser.add_argument("parts", nargs="*", metavar="part of an address")
    options, count = parser.parse_args(arguments), 0
    try:
        for fault in find_faults(options.site, options.parts):
            count += 1
            print(fault, flush=True)
    except CannotOpen as error:
        print(error)
        return 2
    except ImportError as error:
        print(f'{error.name} is not installed: pip install -e ".[dev]"')
        return 2
    print("no fault found" if not count else f"{count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
