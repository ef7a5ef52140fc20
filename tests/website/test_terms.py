"""The links from the first use of a term to the glossary."""

from __future__ import annotations

import re

import pytest

from chapters.runner.course import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"


@pytest.fixture(scope="module")
def terms(hook):
    return hook("terms")


TERMS = {"mutator": ("mutator", "It rewrites."), "mutators": ("mutator", "It rewrites.")}
TERMS |= {"IRModule": ("irmodule", 'Functions & "types".')}


def linked(terms, content: str) -> str:
    return terms.link_terms(content, TERMS, "../glossary.html")


def test_only_the_first_use_is_a_link(terms):
    text = linked(terms, "<p>Mutators rewrite. A mutator visits.</p>")
    link = '<a class="term" href="../glossary.html#mutator" title="It rewrites.">Mutators</a>'
    assert text == f"<p>{link} rewrite. A mutator visits.</p>"


def test_a_definition_is_escaped(terms):
    assert 'title="Functions &amp; &quot;types&quot;."' in linked(terms, "<p>an IRModule</p>")


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
    assert linked(terms, content) == content


def test_prose_goes_on_behind_what_is_no_prose(terms):
    text = linked(terms, "<div class='a'><h2>x<br></h2><pre>mutator</pre><p>one mutator</p></div>")
    assert text.count("<a class") == 1 and "one <a" in text


def test_every_entry_of_the_glossary_is_a_term(terms):
    headings = re.findall(r"^## (.+)$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    anchors = {anchor for anchor, _ in terms.read_terms(GLOSSARY).values()}
    unused = [term for term in headings if terms.FORMS.get(term) == ()]
    assert len(anchors) == len(headings) - len(unused)
    assert set(terms.FORMS) <= set(headings), "a form of a term that the glossary no longer has"
    assert all(definition for _, definition in terms.read_terms(GLOSSARY).values())
