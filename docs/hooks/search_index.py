"""Site hook: an index of the search that is small, and whose first hits are the pages a reader wants.

Code listings are left out, error messages are kept. Of each section the index holds the title, the first words to show,
and every other word once: the search looks for words, not for sentences. docs/js/search.js loads the index late.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path

import course_path  # noqa: F401  (before the course is imported)
from mkdocs.plugins import event_priority

MAX_BYTES = 300_000
ROOM = 0.95  # of MAX_BYTES is filled
HEADS = (160, 120, 90, 60, 30, 0)  # characters to show of a section; as many as fit into the index
ERROR_LENGTH = 160  # characters of an error message that are kept
COMMON = 0.12  # words in more sections than this share find nothing; they stay in titles and in what is shown
# higher ranks first; a solution must not come before the lesson that it solves
BOOSTS = {
    "solution": 0.25,
    "lab": 0.5,
    "lesson": 1.5,
    "troubleshooting": 1.5,
    "setup": 1.5,
    "glossary": 0.75,
    "webgpu": 0.6,
}
WHOLE = ("solution", "lab")  # kinds of pages with one entry, not one per section
# mkdocs.yml gives the browser the same: punctuation, snake_case, and the humps of CamelCase
SEPARATOR = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
ERROR = re.compile(r"\w*(?:Error|Exception|Warning)\b|\berror:|refuse[sd]?\b|cannot ")
SMALL_WORDS = """
a about after all also an and any are as at be because been but by can cannot could did do does either else
every for from get had has have how however if in into is it its just least let like may might most must my
neither no nor not of off often on only or other our own rather said say says should since so some than that
the their them then there these they this to too us was we were what when where which while who whom why will
with would yet you your
"""
STOP = frozenset(SMALL_WORDS.split())
_SHOWN = re.compile(r"<pre>.*?</pre>", re.DOTALL)
_LISTING = re.compile(
    r'<div class="(?:language-[\w-]+ )?highlight"|<div class="[^"]*\bhighlight\b[^"]*"'
)
_PRINTED = re.compile(
    r'(<div class="run-output run-(?:printed|output|value)") data-search-exclude>(.*?<code>)(.*?)(</code></pre></div>)',
    re.DOTALL,
)


def kind(uri: str) -> str:
    """What the page is: "lesson", "lab", "solution", or its name."""
    return Path(uri).stem


def on_page_markdown(markdown, page, config, files):
    boost = BOOSTS.get(kind(page.file.src_uri))
    if boost:
        page.meta["search"] = {"boost": boost, **(page.meta.get("search") or {})}
    return markdown


@event_priority(-50)  # when outputs are in their places
def on_page_content(content, page, config, files):
    return for_search(content)


def for_search(content: str) -> str:
    """The page with its listings marked as not to be searched, and its printed errors as to be searched."""
    content = _LISTING.sub(lambda match: f"{match[0]} data-search-exclude", content)
    return _PRINTED.sub(_with_errors, content)


def _with_errors(match: re.Match) -> str:
    if not ERROR.search(match[3]):
        return match[0]
    lines = (
        line
        if ERROR.search(line) or not line.strip()
        else f"<span data-search-exclude>{line}</span>"
        for line in match[3].split("\n")
    )
    return f"{match[1]}>{match[2]}{chr(10).join(lines)}{match[4]}"


@event_priority(
    -50
)  # after the search plugin has written the index, before the offline plugin copies it
def on_post_build(config):
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["docs"] = smaller(index["docs"])
    path.write_text(_written(index), encoding="utf-8")


def smaller(docs: list[dict]) -> list[dict]:
    """The same sections with less text: within MAX_BYTES, with as much to show of each as fits."""
    sections = [{**doc, **_errors_apart(doc["text"])} for doc in _merged(docs)]
    common = _common(sections)
    for head in HEADS:
        made = [_shortened(one, head, common) for one in sections]
        if len(_written({"docs": made}).encode()) <= ROOM * MAX_BYTES:
            break
    return made


def _written(index: dict) -> str:
    return json.dumps(index, separators=(",", ":"), ensure_ascii=False)


def _merged(docs: list[dict]) -> list[dict]:
    """One entry per solution and per lab, one per section of all other pages."""
    found: dict[str, dict] = {}
    for doc in docs:
        page = doc["location"].partition("#")[0]
        if kind(page) not in WHOLE:
            found[doc["location"]] = doc
        elif page in found:
            found[page]["text"] += f" <p>{doc['title']}</p> {doc['text']}"
        else:
            found[page] = {**doc, "location": page}
    return list(found.values())


def _errors_apart(text: str) -> dict:
    """The section's text, and apart from it the errors that it shows."""
    errors = dict.fromkeys(
        line.strip() for found in _SHOWN.findall(text) for line in plain_lines(found)
    )
    return {"text": plain(_SHOWN.sub(" ", text)), "errors": [line for line in errors if line]}


def plain_lines(text: str) -> list[str]:
    return html.unescape(re.sub(r"<[^>]+>", "", text)).split("\n")


def plain(text: str) -> str:
    """The text without markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def words(text: str) -> list[str]:
    """The words of `text` as the search splits them, each once."""
    return list(dict.fromkeys(word.lower() for word in SEPARATOR.split(text) if word))


def _common(sections: list[dict]) -> set[str]:
    counted = Counter(word for one in sections for word in words(one["text"]))
    return {word for word, count in counted.items() if count > COMMON * len(sections)}


def _shortened(section: dict, head: int, common: set[str]) -> dict:
    """The entry of a section: `head` characters to show, its errors, and its other words in a hidden paragraph."""
    text = section["text"]
    shown = text if len(text) <= head else text[:head].rpartition(" ")[0] + " …"
    parts = [shown, *(line[:ERROR_LENGTH] for line in section["errors"])]
    known = {*words(" ".join(parts)), *words(plain(section["title"])), *STOP, *common}
    rest = [w for w in words(text) if w not in known and len(w) > 1 and not w.isdigit()]
    # the search shows the paragraphs in which it finds a word; the last one is in no readable order
    made = "".join(f"<p>{html.escape(part, quote=False)}</p>" for part in parts if part)
    entry = {key: value for key, value in section.items() if key != "errors"}
    return {**entry, "text": f"{made}<p hidden>{' '.join(rest)}</p>"}
