"""The link checker finds each kind of fault when it is planted, and nothing in a page without fault."""

import pytest

from tests.site.check_links import MAX_BYTES, faults, main

GOOD = """<!doctype html><html><head><link rel="stylesheet" href="../style.css">
<link rel="canonical" href="https://example.org/a/"></head><body>
<h1 id="top">A</h1><a href="#top">here</a> <a href="../b.html#part">b</a> <a href="../">home</a>
<a href="https://example.org/elsewhere">out</a> <a href="mailto:x@example.org">mail</a>
<img src="data:image/png;base64,AA=="> <img src="pic%20one.svg"> Verified on TVM</body></html>"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(GOOD, encoding="utf-8")
    (tmp_path / "a" / "pic one.svg").write_text("<svg/>", encoding="utf-8")
    (tmp_path / "index.html").write_text('<a href="a/">a</a> Verified on TVM', encoding="utf-8")
    (tmp_path / "b.html").write_text('<p id="part">Verified on TVM</p>', encoding="utf-8")
    (tmp_path / "style.css").write_text("a{background:url(b.html)}", encoding="utf-8")
    return tmp_path


def plant(site, extra):
    page = site / "a" / "index.html"
    page.write_text(GOOD.replace("</body>", f"{extra}</body>"), encoding="utf-8")


def test_a_good_site_has_no_fault(site, capsys):
    assert faults(site) == []
    assert main([str(site)]) == 0
    assert capsys.readouterr().out == "no fault found\n"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ('<a href="c.html">x</a>', "links to c.html, which is not in the site"),
        ('<a href="../../etc/x.html">x</a>', "which is not in the site"),
        ('<a href="#none">x</a>', "links to #none, and that page has no such anchor"),
        ('<a href="../b.html#none">x</a>', "that page has no such anchor"),
        ('<p id="top"></p>', 'id "top" occurs 2 times'),
        ('<script src="https://cdn.example.org/x.js"></script>', "from another host"),
        ('<script src="//cdn.example.org/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="https://fonts.example.org/f.css">', "from another host"),
        ('<link rel="preconnect" href="https://fonts.example.org">', "from another host"),
        ('<img src="https://example.org/x.png">', "from another host"),
        ('<img src="b.png">', "loads b.png, which is not in the site"),
        ('<img src="pic%20one.svg" srcset="big.png 2x">', "loads big.png"),
        ('<p style="background:url(https://example.org/x.png)">', "from another host"),
        ("<style>@import 'https://example.org/x.css';</style>", "from another host"),
        ("<style>p{src:url(font.woff2)}</style>", "loads font.woff2"),
        ("x" * MAX_BYTES, "the limit is 1,500,000"),
    ],
)
def test_each_fault_is_found(site, capsys, extra, message):
    plant(site, extra)
    found = faults(site)
    assert len(found) == 1 and message in found[0] and found[0].startswith("a/index.html: ")
    assert main([str(site)]) == 1
    assert capsys.readouterr().out.splitlines() == found


def test_a_page_weighs_what_it_loads(site):
    (site / "a" / "pic one.svg").write_text("x" * MAX_BYTES, encoding="utf-8")
    found = faults(site)
    assert len(found) == 1 and "with what it loads; the limit is 1,500,000" in found[0]


def test_a_page_says_what_it_was_verified_on(site):
    page = site / "b.html"
    page.write_text('<p id="part"></p>', encoding="utf-8")
    assert faults(site) == ["b.html: does not say what it was verified on"]


def test_style_sheets_are_read_too(site):
    (site / "style.css").write_text("@import url(https://example.org/x.css);", encoding="utf-8")
    assert faults(site) == ["style.css: loads https://example.org/x.css from another host"]


def test_an_empty_folder_is_no_site(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "build the site first" in capsys.readouterr().out


def test_usage_is_shown_without_an_argument(capsys):
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().out
