"""The browser check finds each kind of injected fault, and none in a page without faults.

The tests need the extra `dev` and a browser, and are skipped without them; .ci/run runs the check itself.
"""

from itertools import pairwise

import pytest

from tests.website import check_pages
from tests.website.check_pages import (
    CannotOpen,
    find_browser,
    find_faults,
    plan_views,
    select_pages,
)

pytest.importorskip("axe_playwright_python", reason='pip install -e ".[dev]"')
try:
    find_browser()
except CannotOpen as missing:
    pytest.skip(str(missing), allow_module_level=True)

GOOD = """<!doctype html><html lang="en"><head><title>A page</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="style.css">
</head><body><main><h1>A page</h1><p>Text. Verified on TVM.</p><!-- here --></main></body></html>"""

PALE = "<p style='color:#bbb'>pale</p>"
# words that look alike are looked at once, and a word that is not alone in its kind is still looked at
PALE_WORD = "<span class='a'>dark</span> <span class='b'>pale</span> <span class='b'>pale</span>"


FOREIGN = "<img alt='' src='http://127.0.0.1:9/x.png'>"
# what is put into the good page -> (in how many of the four views there is a fault, what it says)
FAULTS = {
    PALE: (4, "color-contrast, 1 times"),
    "<p class='d'>pale in the dark</p>": (2, "color-contrast"),
    f"<details><summary>x</summary>{PALE}</details>": (4, "color-contrast"),
    f"<pre><code>{PALE_WORD}</code></pre>": (4, "color-contrast, 1 times"),
    f"<ul>{'<li class=b>pale' * 3}</ul>": (4, "color-contrast, 1 times"),
    f"<pre tabindex=0 style='overflow:auto'><code>{'dark ' * 400}{PALE_WORD}\n{PALE_WORD}</code></pre>": (
        4,
        "color-contrast",
    ),
    "<p class='n'>pale on a phone</p>": (2, "color-contrast"),
    "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>": (4, "image-alt"),
    "<script>null.x</script>": (4, "a script failed"),
    "<script src='none.js'></script>": (4, "did not load file:"),
    "<p style='width:600px'>wide</p>": (2, "pixels wider than the screen"),
    "<p id='a'>x</p><p id='a'>y</p>": (4, 'the id "a" more than once'),
    "<img alt='' src='heavy.svg'>": (4, "weighs 1,6"),
}


def make_page(extra: str) -> str:
    return GOOD.replace("<!-- here -->", extra)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    style = "body{background:#fff;color:#222}.b{color:#bbb}@media(prefers-color-scheme:dark){.d{color:#ddd}}"
    style += "@media(max-width:500px){.n{color:#ddd}}"
    texts = {
        "index.html": GOOD,
        "404.html": "<script src='/no.js'></script>",
        "foreign.html": make_page(FOREIGN).replace("Verified on TVM", ""),
        "style.css": style,
        "heavy.svg": f"<svg xmlns='http://www.w3.org/2000/svg'>{' ' * 1_600_000}</svg>",
        **{f"fault{n}.html": make_page(extra) for n, extra in enumerate(FAULTS)},
    }
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def found(site):
    """All faults in all views: a browser takes longer to start than to look at every page."""
    return list(find_faults(site, [""]))


def test_a_page_that_loads_from_elsewhere_or_says_nothing_of_its_making_is_found(found):
    said = " ".join(fault for fault in found if fault.startswith("foreign.html"))
    assert "loads http://127.0.0.1:9/x.png from another host" in said
    assert "does not say with what it was verified" in said


def test_a_good_page_has_no_fault_in_any_view(found):
    assert not [fault for fault in found if fault.startswith(("index.html", "404.html"))]


@pytest.mark.parametrize(
    ("faults", "code", "said"), [([], 0, "no fault found\n"), (["x: y"], 1, "x: y\n1 faults\n")]
)
def test_faults_are_printed_and_counted(site, monkeypatch, capsys, faults, code, said):
    monkeypatch.setattr(check_pages, "find_faults", lambda *_: iter(faults))
    assert check_pages.main([str(site)]) == code
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(("number", "extra"), list(enumerate(FAULTS)))
def test_each_fault_is_found(found, number, extra):
    views, message = FAULTS[extra]
    here = [fault for fault in found if fault.startswith(f"fault{number}.html")]
    assert len(here) == views and all(message in fault for fault in here), here


def test_neighbours_share_the_four_views(site):
    """Each page is seen in two of them, and by axe-core in one; four neighbours are in all four by axe-core."""
    pages = select_pages(site, [])
    views = plan_views(pages, all_four=False)
    four = sorted((scheme, width) for scheme in ("dark", "light") for width in ("desk", "phone"))
    for pair in pairwise(pages):
        assert sorted(view[1:3] for view in views if view[0] in pair) == four
    by_axe = [view for view in views if view[3]]
    assert [view[0] for view in by_axe] == pages
    assert all(sorted(v[1:3] for v in by_axe[at : at + 4]) == four for at in range(len(pages) - 3))
    assert sorted(plan_views(pages[:1], all_four=True)) == [(pages[0], *v, True) for v in four]


def test_pages_are_chosen_by_a_part_of_their_address(site, capsys):
    assert [p.name for p in select_pages(site, ["ind"])] == ["index.html"]
    assert check_pages.main([str(site), "none"]) == 2
    assert "build the site first" in capsys.readouterr().out
