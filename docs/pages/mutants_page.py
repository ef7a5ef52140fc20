"""The kept results of `python -m tests.course.mutants`, and the tables in which a page shows them."""

from __future__ import annotations

import html
import json

from chapters.kit.draw.table import Html, Table
from chapters.runner.course import ROOT, chapters
from docs.pages.course_map import chapter_link

KEPT = ROOT / "docs" / "results" / "checks" / "mutants.json"


def kept() -> dict[str, dict]:
    """exercise -> its kept result."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def score(results: list[dict]) -> float:
    """The per cent of the mutants noticed, of those that are not harmless; 100 if all are."""
    told = sum(r["noticed"] for r in results)
    missed = sum(len(r["missed"]) for r in results)
    return 100 * told / (told + missed) if told + missed else 100.0


def by_chapter() -> Table:
    """One row per chapter: mutants, how many are harmless, how many of the others are noticed."""
    results, rows = kept(), []
    for chapter in chapters():
        mine = [results[e.id] for e in chapter.exercises if results.get(e.id)]
        harmless = sum(len(r["harmless"]) for r in mine)
        made, noticed = (sum(r[name] for r in mine) for name in ("mutants", "noticed"))
        told = f"{noticed} of {made - harmless}: {score(mine):.1f} %"
        rows.append((chapter_link(chapter.number), made, harmless, told))
    return Table(("Chapter", "Mutants", "Harmless", "Noticed of the others"), rows)


def by_exercise() -> Table:
    """One row per exercise: its score, its harmless mutants with the reasons, and those that no check notices."""
    results, rows = kept(), []
    for chapter in chapters():
        for exercise in chapter.exercises:
            if result := results.get(exercise.id):
                of = result["mutants"] - len(result["harmless"])
                told = f"{result['noticed']} of {of}"
                remarks = _items(result["harmless"]) + _items(result["missed"])
                rows.append((f"{exercise.id} {exercise.title}", told, Html(remarks)))
            else:
                rows.append((f"{exercise.id} {exercise.title}", "not run", ""))
    return Table(("Exercise", "Noticed", "Harmless, and missed"), rows)


def _items(mutants: list[dict]) -> str:
    """A list of mutants; each folded, since a line of code is long."""
    if not mutants:
        return ""
    items = "".join(
        f"<li>{_code(m['was'])} → {_code(m['now']) if m['now'] else 'removed'}: {_why(m)}</li>"
        for m in mutants
    )
    word = "harmless" if "why" in mutants[0] else "missed"
    return f"<details><summary>{len(mutants)} {word}</summary><ul>{items}</ul></details>"


def _why(mutant: dict) -> str:
    return html.escape(mutant.get("why") or f"no check notices that it {mutant['fault']}")


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"
