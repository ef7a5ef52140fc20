"""The search of the built site, as a reader uses it: the theme's own worker in Chromium, and the first hits."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from urllib.parse import urlsplit

import pytest

pytest.importorskip("material")


@pytest.fixture(scope="module")
def served(site):
    """The address of the site on a server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def page(chromium, served):
    page = chromium.new_page()
    page.goto(f"{served}index.html")
    yield page
    page.close()


def find_hits(page, query: str) -> list[str]:
    """The addresses of the pages found, best first."""
    box = page.locator(".md-search__input")
    box.click()
    for text in ("zzzz", query):  # first one that finds nothing, so that no older hits are read
        box.fill(text)
        page.keyboard.press("End")
        found = page.locator(".md-search-result__item")
        if text == "zzzz":
            page.wait_for_function("!document.querySelector('.md-search-result__item')")
        else:
            found.first.wait_for(timeout=20_000)
    links = page.locator(".md-search-result__item > a:first-child").all()
    return [urlsplit(link.get_attribute("href")).path.removeprefix("/") for link in links]


def lesson_prefix(number: int) -> str:
    return f"chapters/ch{number:02}_"


def test_the_index_is_without_listings(site):
    index = site / "search" / "search_index.json"
    assert index.stat().st_size <= 1_000_000
    assert "def may_fuse(" not in index.read_text(encoding="utf-8")


def test_the_index_is_loaded_when_the_search_is_opened(chromium, served):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{served}setup.html", wait_until="networkidle")
    assert not [url for url in asked if "search_index" in url]
    with page.expect_response("**/search_index.json"):
        page.keyboard.press("/")
    page.close()


def test_from_disk_too_the_index_is_loaded_when_the_search_is_opened(chromium, site):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "setup.html").as_uri(), wait_until="networkidle")
    assert not [url for url in asked if "search_index" in url]
    page.keyboard.press("/")
    page.locator(".md-search__input").fill("glossary")
    page.keyboard.press("End")
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    assert [url for url in asked if url.endswith("search/search_index.js")]
    page.close()


def test_run_on_a_gpu_finds_setup_and_chapter_8(page):
    first, second, *_ = find_hits(page, "run on a GPU")
    assert {first.partition("/")[0], second[:14]} == {"setup.html", lesson_prefix(8)}


def test_an_error_message_finds_its_page_and_troubleshooting(page):
    found = find_hits(page, "AttributeError: 'TupleType' object has no attribute 'dtype'")
    assert "troubleshooting.html" in found[:3]
    assert any(address.startswith(lesson_prefix(3)) for address in found[:3])


@pytest.mark.parametrize("query", ["StructInfo", "struct_info"])
def test_an_old_name_finds_the_table_of_renames(page, query):
    assert find_hits(page, query)[0] == "troubleshooting.html"
    anchors = page.locator(".md-search-result__item").first.locator("a").all()
    assert anchors[1].get_attribute("href").endswith("#renamed")


def test_lessons_come_before_labs_and_solutions(page):
    kinds = [
        address.rpartition("/")[2]
        for address in find_hits(page, "FuseTransposeMatmul")
        if lesson_prefix(3) in address
    ]
    assert kinds[0] == "index.html" and "solution.html" not in kinds[:2]


def test_solutions_say_of_which_chapter(site):
    docs = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = [doc["title"] for doc in docs if doc["location"].endswith("solution.html")]
    assert "Solution 6" in titles and len(set(titles)) == len(titles)
