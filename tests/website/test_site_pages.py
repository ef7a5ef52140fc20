"""The browser check finds each kind of planted fault, and none in a page without faults.

The tests need the extra `dev` and a browser, and are skipped without them; .ci/run runs the check itself.
"""

import pytest

from tests.website.check_pages import CannotOpen, browser_path, faults, main, pages_of

pytest.importorskip("axe_playwright_python", reason='pip install -e ".[dev]"')
try:
    browser_path()
except CannotOpen as missing:
    pytest.skip(str(missing), allow_module_level=True)

GOOD = """<!doctype html><html lang="en"><head><title>A page</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="style.css">
</head><body><main><h1>A page</h1><p>Text. Verified on TVM.</p><!-- here --></main></body></html>"""

PALE = "<p style='color:#bbb'>pale</p>"
# words that look alike are looked at once, and a word that is not alone in its kind is still looked at
PALE_WORD = "<span class='a'>dark</span> <span class='b'>pale</span> <span class='b'>pale</span>"


@pytest.fixture
def site(tmp_path):
    (tmp_path / "index.html").write_text(GOOD, encoding="utf-8")
    (tmp_path / "404.html").write_text("<script src='/no.js'></script>", encoding="utf-8")
    style = "body{background:#fff;color:#222}.b{color:#bbb}@media(prefers-color-scheme:dark){.d{color:#ddd}}"
    (tmp_path / "style.css").write_text(style, encoding="utf-8")
    heavy = f"<svg xmlns='http://www.w3.org/2000/svg'>{' ' * 1_600_000}</svg>"
    (tmp_path / "heavy.svg").write_text(heavy)
    return tmp_path


def test_a_page_that_loads_from_elsewhere_or_says_nothing_of_its_making_is_found(site):
    page = GOOD.replace("<!-- here -->", "<img alt='' src='http://127.0.0.1:9/x.png'>")
    (site / "index.html").write_text(page.replace("Verified on TVM", ""), encoding="utf-8")
    found = " ".join(faults(site))
    assert "loads http://127.0.0.1:9/x.png from another host" in found
    assert "does not say with what it was verified" in found


def test_a_good_page_has_no_fault_in_any_view(site, capsys):
    assert main([str(site)]) == 0
    assert capsys.readouterr().out == "no fault found\n"


@pytest.mark.parametrize(
    ("extra", "message", "views"),
    [
        (PALE, "color-contrast, 1 times", 4),
        ("<p class='d'>pale in the dark</p>", "color-contrast", 2),
        (f"<details><summary>x</summary>{PALE}</details>", "color-contrast", 4),
        (f"<pre><code>{PALE_WORD}</code></pre>", "color-contrast, 1 times", 4),
        ("<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>", "image-alt", 4),
        ("<script>null.x</script>", "a script failed", 4),
        ("<script src='none.js'></script>", "did not load file:", 4),
        ("<p style='width:600px'>wide</p>", "pixels wider than the screen", 2),
        ("<p id='a'>x</p><p id='a'>y</p>", 'the id "a" more than once', 4),
        ("<img alt='' src='heavy.svg'>", "weighs 1,6", 4),
    ],
)
def test_each_fault_is_found(site, extra, message, views):
    page = GOOD.replace("<!-- here -->", extra)
    (site / "index.html").write_text(page, encoding="utf-8")
    found = list(faults(site))
    assert len(found) == views and all(message in fault for fault in found), found


def test_pages_are_chosen_by_a_part_of_their_address(site, capsys):
    assert [p.name for p in pages_of(site, ["ind"])] == ["index.html"]
    assert main([str(site), "none"]) == 2
    assert "build the site first" in capsys.readouterr().out


def test_usage_is_shown_without_an_argument(capsys):
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().out
