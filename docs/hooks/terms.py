"""Site hook: the first use of a glossary term on a page links to the glossary, with the definition as its tooltip.

A term is a heading of docs/glossary.md, and its definition is the paragraph beneath. Headings, code, links and
drawings stay as they are.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

import markdown as plain_markdown
from markdown.extensions.toc import slugify
from mkdocs.plugins import event_priority
from mkdocs.utils import get_relative_url

GLOSSARY = "glossary.md"
# Terms that a page writes in another way, or whose plain word means something else too often. The rest are looked for
# as they are, with a small first letter, and in the plural.
FORMS = {
    "Alias": (),
    "Arithmetic intensity": ("arithmetic intensity",),
    "Attach pass": ("attach pass", "attach passes"),
    "Binding": ("binding", "bindings"),
    "Buffer": (),
    "Coalescing": ("coalescing", "coalesced"),
    "Decode": ("decode step", "decode steps"),
    "Dequantize": ("dequantize", "dequantized", "dequantization"),
    "Init": (),
    "Kernel": (),
    "Latency": ("latency", "latencies"),
    "Legalize": ("legalize", "legalized", "legalization"),
    "Pass": ("compiler pass", "compiler passes"),
    "Pattern": (),
    "Quasi-affine": ("quasi-affine",),
    "Reassociation": ("reassociate", "reassociated", "reassociation"),
    "Schedule": ("schedule primitive", "schedule primitives"),
    "Spill": ("spill", "spills", "spilled"),
    "Storage": (),
    "Target": ("compilation target",),
    "Tensorize": ("tensorize", "tensorized"),
    "TE": ("tensor expression", "tensor expressions"),
    "TIR, PrimFunc": ("PrimFunc", "PrimFuncs"),
    "Trace": (),
    "View": (),
    "Virtual machine (VM)": ("virtual machine",),
    "Well-formed": ("well-formed",),
}
_ENTRY = re.compile(r"^## (?P<term>.+?)\n+(?P<text>[^\n`#].*?)\n\n", re.MULTILINE | re.DOTALL)
_TAG = re.compile(r"(<[^>]*>)")
_NAME = re.compile(r"</?([a-zA-Z0-9]+)")
CLOSED = {f"h{level}" for level in range(1, 7)} | {"a", "button", "code", "figure", "kbd", "pre"}
CLOSED |= {"script", "style", "summary", "svg"}
VOID = frozenset(["br", "hr", "img", "input", "link", "meta", "source", "wbr", "col"])
# beneath these nothing is prose: what code printed, the facts of a page
DRAWN = ('class="run-', 'class="facts', 'class="highlight')


@event_priority(-40)  # when the outputs are in the page
def on_page_content(content, page, config, files):
    uri = page.file.src_uri
    glossary = files.get_file_from_path(GLOSSARY)
    if (
        glossary is None
        or uri == GLOSSARY
        or uri.startswith("source/")
        or uri.endswith("solution.md")
    ):
        return content
    terms = read_terms(Path(config.docs_dir) / GLOSSARY)
    return link_terms(content, terms, get_relative_url(glossary.url, page.url))


@cache
def read_terms(path: Path) -> dict[str, tuple[str, str]]:
    """{form of a term: (the anchor of its entry, its definition as plain text)} of the glossary at `path`."""
    found = {}
    for entry in _ENTRY.finditer(path.read_text(encoding="utf-8")):
        term = entry["term"]
        text = re.sub(r"<[^>]+>", "", plain_markdown.markdown(" ".join(entry["text"].split())))
        anchor = slugify(term, "-")
        for form in FORMS.get(term, list_forms(term)):
            found[form] = anchor, html.unescape(text)
    return found


def list_forms(term: str) -> tuple[str, ...]:
    """How prose writes a term: as it is, and in the plural; a word that begins a sentence has a capital there."""
    plain = term.split()[0][1:].islower()
    word = term[0].lower() + term[1:] if plain else term
    return word, f"{word}s"


def link_terms(content: str, terms: dict[str, tuple[str, str]], glossary: str) -> str:
    """A page with a link at the first use of each term, in prose alone. glossary: the address of that page."""
    words = "|".join(re.escape(form) for form in sorted(terms, key=len, reverse=True))
    word = re.compile(rf"(?<![\w.`-])(?:{words})(?![\w`(-]|\.\w)", re.IGNORECASE)
    seen: set[str] = set()
    closed: list[str] = []  # the open elements, from the first whose text is not prose

    def linked(match: re.Match) -> str:
        text = match[0]
        known = terms.get(text) or terms.get(text[0].lower() + text[1:])
        if known is None or known[0] in seen:
            return text
        anchor, definition = known
        seen.add(anchor)
        title = html.escape(definition, quote=True)
        return f'<a class="term" href="{glossary}#{anchor}" title="{title}">{text}</a>'

    parts = _TAG.split(content)
    for at, part in enumerate(parts):
        if not part.startswith("<"):
            if not closed:
                parts[at] = word.sub(linked, part)
            continue
        name = _NAME.match(part)
        if name is None or name[1].lower() in VOID or part.endswith("/>"):
            continue
        if part.startswith("</"):
            if closed and closed[-1] == name[1].lower():
                closed.pop()
        elif closed or name[1].lower() in CLOSED or any(mark in part for mark in DRAWN):
            closed.append(name[1].lower())
    return "".join(parts)
