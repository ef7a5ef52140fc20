"""The links from the first use of a term to the glossary."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("terms", ROOT / "docs" / "hooks" / "terms.py")
    module = sys.modules.setdefault("terms", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


TERMS = {"mutator": ("mutator", "It rewrites."), "mutators": ("mutator", "It rewrites.")}
TERMS |= {"IRModule": ("irmodule", 'Functions & "types".')}


def linked(hook, content: str) -> str:
    return hook.with_terms(content, TERMS, "../glossary.html")


def test_only_the_first_use_is_a_link(hook):
    text = linked(hook, "<p>Mutators rewrite. A mutator visits.</p>")
    link = '<a class="term" href="../glossary.html#mutator" title="It rewrites.">Mutators</a>'
    assert text == f"<p>{link} rewrite. A mutator visits.</p>"


def test_a_definition_is_escaped(hook):
    assert 'title="Functions &amp; &quot;types&quot;."' in linked(hook, "<p>an IRModule</p>")


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
def test_what_is_no_prose_stays(hook, content):
    assert linked(hook, content) == content


def test_prose_goes_on_behind_what_is_no_prose(hook):
    text = linked(hook, "<div class='a'><h2>x<br></h2><pre>mutator</pre><p>one mutator</p></div>")
    assert text.count("<a class") == 1 and "one <a" in text


def test_every_entry_of_the_glossary_is_a_term(hook):
    headings = re.findall(r"^## (.+)$", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    anchors = {anchor for anchor, _ in hook.terms_of(GLOSSARY).values()}
    unused = [term for term in headings if hook.FORMS.get(term) == ()]
    assert len(anchors) == len(headings) - len(unused)
    assert set(hook.FORMS) <= set(headings), "a form of a term that the glossary no longer has"
    assert all(definition for _, definition in hook.terms_of(GLOSSARY).values())
