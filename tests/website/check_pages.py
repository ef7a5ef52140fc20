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
from itertools import product
from pathlib import Path
from urllib.parse import unquote, urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
GRAVE = ("serious", "critical")
WIDTHS = {"desk": 1280, "phone": 390}
SCHEMES = ("light", "dark")
VIEWS = [("light", "desk"), ("dark", "phone")], [("dark", "desk"), ("light", "phone")]
# what axe-core finds with `region` is moderate, and it takes long to look for it
AXE = {"resultTypes": ["violations"], "preload": False, "rules": {"region": {"enabled": False}}}
# unfold everything, and wait until it is painted
OPEN = """() => {
  document.querySelectorAll("details").forEach((element) => (element.open = true));
  const near = document.createElement("style");
  near.textContent = "* { content-visibility: visible !important }";
  document.head.append(near);
  return new Promise((painted) => requestAnimationFrame(() => requestAnimationFrame(painted)));
}"""
# Most of axe-core's time goes into the contrast of each element, so one is enough of those that look alike: with the
# same classes, letters and colours, and within elements that are alike too. It must be in sight, else axe-core does not
# judge it; nor does axe-core judge a single sign, or text in a drawing. What need not be judged again is marked as
# SEEN; words of listings become plain text
SEEN = "data-contrast-seen"
MARK_SEEN = """(mark) => {
  const all = [...document.querySelectorAll("*")];
  all.filter((element) => element.scrollTop).forEach((element) => (element.scrollTop = 0));
  const looks = new Map();
  const edges = new Map(); // of an element -> where it and what it scrolls is cut off
  const seen = new Set();
  const alike = all.filter((element) => {
    const style = getComputedStyle(element);
    const letters = [element.tagName, element.className, style.fontSize, style.fontWeight, style.textShadow];
    const colours = [style.color, style.backgroundColor, style.backgroundImage, style.opacity];
    const look = [looks.get(element.parentElement), ...letters, ...colours].join();
    looks.set(element, look);
    const right = element.getBoundingClientRect().right;
    const edge = edges.get(element.parentElement) ?? Infinity;
    edges.set(element, style.overflowX === "visible" ? edge : Math.min(edge, right));
    const nodes = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
    const text = nodes.map((node) => node.data).join("").trim();
    if (!text || !element.checkVisibility()) return false;
    if (text.length === 1 || element.ownerSVGElement || seen.has(look)) return true;
    if (right <= edge && /[!-~]{2}/.test(text)) seen.add(look);
    return false;
  });
  for (const element of alike) {
    const plain = !element.children.length && [...element.attributes].every(({ name }) => name === "class");
    if (plain && element.matches("code span, code b")) element.replaceWith(...element.childNodes);
    else element.setAttribute(mark, "");
  }
  document.querySelectorAll("code").forEach((element) => element.normalize());
}"""
CONTRAST = f"axe.configure({{ rules: [{{ id: 'color-contrast', selector: ':not([{SEEN}])' }}] }})"
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
MAX_BYTES = 1_500_000
STAMP = "Verified on "  # on every page; docs/hooks/publish.py puts it there
TWICE = """() => {
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  return [...new Set(ids.filter((id, place) => ids.indexOf(id) !== place))];
}"""


class CannotOpen(Exception):
    """There is no browser, or no page; the message says what to do."""


class Problems:
    """What the page in a tab reports: errors of scripts, files that it loads and files that it cannot load."""

    def __init__(self, tab) -> None:
        self.begin_page()
        tab.on("pageerror", lambda error: self.found.append(f"a script failed: {error}"))
        tab.on("requestfailed", self._note_failed)
        tab.on("request", lambda request: self.requests.append(request))

    def begin_page(self) -> None:
        self.found: list[str] = []
        self.requests: list = []

    def _note_failed(self, request) -> None:
        if request in self.requests:  # and not one of the page before
            self.found.append(f"did not load {request.url}")

    def list_of_what_was_loaded(self) -> list[str]:
        """Files from another host, and the weight of all files if it is too much."""
        loaded = {request.url for request in self.requests}
        files = [url for url in loaded if url.startswith("file:")]
        foreign = [url for url in loaded if not url.startswith(("file:", "data:", "blob:"))]
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

    def find_in_view(view: tuple[str, str]) -> list[str]:
        here = [(path, by_axe) for path, *its, by_axe in planned if tuple(its) == view]
        return _find_faults_in_view(*view, site, here, executable)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(find_in_view, product(SCHEMES, WIDTHS)):
            yield from found


def _find_faults_in_view(
    scheme: str, width: str, site: Path, pages: list[tuple[Path, bool]], executable: str
) -> list[str]:
    from playwright.sync_api import sync_playwright

    screen = {"viewport": {"width": WIDTHS[width], "height": 900}, "color_scheme": scheme}
    found = []
    with (
        sync_playwright() as playwright,
        # no sandbox: most containers have none, and the pages are our own
        playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"]) as browser,
        # all in one tab: a browser starts two processes for a new one
        browser.new_page(**screen, reduced_motion="reduce") as tab,
    ):
        problems = Problems(tab)
        for path, by_axe in pages:
            problems.begin_page()
            faults = _find_faults_of_page(tab, path, problems)
            faults += _find_violations(tab) if by_axe else []
            found += [f"{get_address(path, site)} ({scheme}, {width}): {fault}" for fault in faults]
    return found


def _find_faults_of_page(tab, path: Path, problems: Problems) -> list[str]:
    tab.goto(path.as_uri())
    wide = tab.evaluate(TOO_WIDE)
    found = [f"is {wide} pixels wider than the screen"] if wide > 0 else []
    found += [f'has the id "{key}" more than once' for key in tab.evaluate(TWICE)]
    if STAMP not in tab.content():
        found.append("does not say with what it was verified")
    tab.evaluate(OPEN)
    return [*found, *problems.found, *problems.list_of_what_was_loaded()]


def _find_violations(tab) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    tab.evaluate(MARK_SEEN, SEEN)
    tab.evaluate(Axe().axe_script)
    tab.evaluate(CONTRAST)
    violations = tab.evaluate("(options) => axe.run(options)", AXE)["violations"]
    return [_describe_violation(one) for one in violations if one["impact"] in GRAVE]


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
