"""The glossary: terms in alphabetical order, each with a definition and a piece of IR; and the links to it.

The first use of a term on a page is a link.
"""

from __future__ import annotations

import re

import pytest

from chapters.runner.course import ROOT, chapters
from docs.pages.glossary_entry import Entry, cut, find_lines

GLOSSARY = ROOT / "docs" / "glossary.md"
PAGE = GLOSSARY.read_text(encoding="utf-8")
PARTS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
SECTIONS = dict(part.split("\n", 1) for part in PARTS)
LISTING = "def main(x):\n    with R.dataflow():\n        y = f(x)\n        z = g(y)\n    return z"


def test_terms_are_in_alphabetical_order():
    terms = list(SECTIONS)
    assert terms == sorted(terms, key=str.casefold) and len(terms) >= 35
    assert "RMSNorm" in terms, "one of the words a reader searches for"


@pytest.mark.parametrize("term", SECTIONS)
def test_term_is_defined_shown_and_placed(term):
    text, fence, code = SECTIONS[term].partition("```python run hide\n")
    sentences = re.findall(r"[.!?:](?:\s|$)", text.strip())
    assert fence and 1 <= len(sentences) <= 4, "one to four sentences, then one block"
    chapter = re.search(r"Entry\(.*,\s+(\d+),?\s*\)\n```\s*$", code, re.DOTALL)
    assert chapter, "the block ends with Entry(text, chapter)"
    assert int(chapter[1]) in [c.number for c in chapters()]


def test_a_word_that_is_nowhere_is_an_error():
    for find in (cut, find_lines):
        with pytest.raises(ValueError, match="No line"):
            find(LISTING, "R.exp")


def test_an_entry_is_short():
    assert "<code>" in Entry("x\n" * 6, 0)._repr_html_()
    for text in ("", "x\n" * 7):
        with pytest.raises(ValueError, match="1 to 6 lines"):
            Entry(text, 0)


# --- links to it ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def terms(hook):
    return hook("terms")


TERMS = {"mutator": ("mutator", "It rewrites."), "mutators": ("mutator", "It rewrites.")}
TERMS |= {"IRModule": ("irmodule", 'Functions & "types".')}


def add_links(terms, content: str) -> str:
    return terms.link_terms(content, TERMS, "../glossary.html")


def test_only_the_first_use_is_a_link(terms):
    text = add_links(terms, "<p>Mutators rewrite. A mutator visits.</p>")
    link = '<a class="term" href="../glossary.html#mutator" title="It rewrites.">Mutators</a>'
    assert text == f"<p>{link} rewrite. A mutator visits.</p>"


def test_a_definition_is_escaped(terms):
    assert 'title="Functions &amp; &quot;types&quot;."' in add_links(terms, "<p>an IRModule</p>")


@pytest.mark.parametrize(
    "content",
    [
        "<h2>The mutator</h2>",
        "<pre><span>a mutator</span></pre>",
        "<p><code>mutator</code></p>",
        '<p><a href="#x">a <em>mutator</em></a></p>',
        '<div class="run-output text"><span>mutator</span></div>',
        "<svg><text>mutator</text></svg>",
        "<p>premutator, mutator_of, mutator.py, irmodule</p>",
    ],
)
def test_what_is_no_prose_stays(terms, content):
    assert add_links(terms, content) == content


def test_prose_goes_on_behind_what_is_no_prose(terms):
    text = add_links(
        terms, "<div class='a'><h2>x<br></h2><pre>mutator</pre><p>one mutator</p></div>"
    )
    assert text.count("<a class") == 1 and "one <a" in text


def test_every_entry_of_the_glossary_is_a_term(terms):
    anchors = {anchor for anchor, _ in terms.read_terms(GLOSSARY).values()}
    unused = [term for term in SECTIONS if terms.FORMS.get(term) == ()]
    assert len(anchors) == len(SECTIONS) - len(unused)
    assert set(terms.FORMS) <= set(SECTIONS), "a form of a term that the glossary no longer has"
    assert all(definition for _, definition in terms.read_terms(GLOSSARY).values())
