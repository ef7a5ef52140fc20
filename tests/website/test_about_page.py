"""What pages say of themselves: titles and descriptions; and that they are light, and can be printed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("material")


def test_a_description_is_the_first_prose_cut_at_a_word(hook):
    described = hook("machine_readable").describe_page
    page = f"<div class='run'>x</div><p>One <b>two</b> &amp; three.</p><p>{'word ' * 60}</p>"
    assert described(page).startswith("One two & three. word") and described(page).endswith(
        "word …"
    )
    assert len(described(page)) <= 160 and described("<h1>x</h1>") == ""


def test_every_page_describes_itself_and_has_a_picture(site):
    seen = {}
    for path in site.rglob("*.html"):
        if "source" in path.parts or path.name == "404.html":
            continue
        text = path.read_text(encoding="utf-8")
        assert "--8" not in re.sub(r"<[^>]+>", "", text), (
            f"{path}: an include that was not expanded"
        )
        title = re.search(r"<title>(.*?)</title>", text)[1]
        assert re.search(r'<meta name="description" content="[^"]{20,}', text), path
        card = re.search(r'<meta property="og:image" content="([^"]+)"', text)[1]
        assert (path.parent / card).is_file()
        assert seen.setdefault(title, path) == path, f"{path} and {seen[title]} have one title"
    assert len(seen) > 40


def test_no_page_is_heavy_before_the_search(site):
    assert not [p.name for p in site.rglob("*.html") if p.stat().st_size > 400_000]


def test_a_page_is_printed_in_the_light_scheme_whole_and_with_its_answers(chromium, site):
    page = chromium.new_page(color_scheme="dark", viewport={"width": 718, "height": 1000})
    page.goto((site / "chapters/ch05_schedules_and_their_limits/index.html").as_uri())
    scheme = "document.body.dataset.mdColorScheme"
    assert page.evaluate(scheme) == "slate"
    page.emulate_media(media="print")
    page.wait_for_function(f"{scheme} === 'default'")
    cut = """[...document.querySelectorAll(".md-typeset__scrollwrap, pre > code")].filter(
        (element) => element.clientWidth && element.scrollWidth > element.clientWidth + 1).length"""
    assert page.evaluate(cut) == 0
    answers = "details:is(.success, .question)"
    assert page.locator(f"{answers}:not([open])").count() == 0
    page.emulate_media(media="screen")
    page.wait_for_function(f"{scheme} === 'slate'")
    assert page.locator(f"{answers}[open]").count() == 0
    page.close()
