"""Mutation tests of the checks: small faults in each exercise's reference region, which its checks must notice.

    python -m tests.course.mutants                 run what has changed: every exercise whose kept result is stale
    python -m tests.course.mutants 3 4.2           run these chapters and exercises, stale or not
    python -m tests.course.mutants 3.2 --list      show the mutants, and which are recorded as harmless; run nothing
    python -m tests.course.mutants --check         run nothing; exit with 1 if a result is stale or a chapter below 97 %

A mutant is the reference with one fault in one region: a conjunct, a disjunct or a filter dropped; a comparison or a
condition negated or shifted; a `not` dropped; a guard that never fires; a call statement or a keyword argument removed;
a constant off by one; two neighbouring arguments swapped; + and -, or * and //, exchanged; a call removed from a list,
or two neighbours of one swapped, as in a list of passes. The checks of its exercise run on it, up to the first that
fails. Then it is noticed. One that no check can notice, because it behaves as the reference does, is recorded in
tests/chNN/harmless.yml, and is not run:

    "3.2":
      - was: "if len(dims) < 2:"           # the changed lines, stripped and joined by a space
        now: "if len(dims) <= 2:"          # "" where they are removed
        why: matmul's operands have two dimensions or more
        place: 2                           # only where two mutants of the exercise read alike: which of them

Any other that passes is missed: sharpen the check. Results are kept in docs/results/checks/mutants.json, each with a
fingerprint of what it depends on: the region, the checks of the exercise with the code they share, the modules beside
them, the harmless mutants. docs/mutants.md shows them.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from chapters.runner.course import Chapter, CourseError, Exercise, read_yaml, select
from chapters.runner.engine import FINE, Examiner, checks_of_exercise
from chapters.runner.regions import BEGIN, END, read_source, regions
from docs.pages.mutants_page import KEPT, kept, score
from tests.course.faults import Source, Splice, splices
from tests.support.answers import write_answer

GOAL = 97  # per cent of the mutants that are not harmless, in every chapter


@dataclass(frozen=True)
class Mutant:
    """The reference's `text` with one fault. was, now: the lines it changes; place: which, if several read alike."""

    exercise: str
    fault: str
    was: str
    now: str
    text: str
    place: int = 1
    why: str = ""  # why it is harmless; "" if it is not recorded as harmless

    @property
    def key(self) -> tuple[str, str, int]:
        return self.was, self.now, self.place

    def __str__(self) -> str:
        nth = f" (place {self.place})" if self.place > 1 else ""
        return f"{self.exercise} {self.fault}{nth}\n  - {self.was}\n  + {self.now}"


# --- mutants --------------------------------------------------------------------------------------


def mutants(chapter: Chapter, exercise: str) -> list[Mutant]:
    """The mutants of an exercise's regions, with those in harmless.yml marked. CourseError if one there is gone."""
    text = read_source(chapter.solution)
    source = Source(text)
    places = list(_region_places(source, exercise))
    found: list[Mutant] = []
    texts = {text}
    alike: Counter = Counter()
    for splice in splices(source):
        if not any(first <= splice.start and splice.end <= last for first, last in places):
            continue
        mutant = _mutant(source, exercise, splice)
        if mutant.text in texts or not _is_python(mutant.text):
            continue
        texts.add(mutant.text)
        alike[mutant.key] += 1
        found.append(replace(mutant, place=alike[mutant.key]))
    return _with_harmless(chapter, exercise, found)


def _mutant(source: Source, exercise: str, splice: Splice) -> Mutant:
    start, end, new = splice.start, splice.end, splice.new.encode()
    first = source.bytes.rfind(b"\n", 0, start) + 1
    last = end if end > start and source.bytes[end - 1 : end] == b"\n" else -1
    last = last if last >= 0 else source.bytes.index(b"\n", end)
    was = source.bytes[first:last]
    now = source.bytes[first:start] + new + source.bytes[end:last]
    text = (source.bytes[:start] + new + source.bytes[end:]).decode()
    return Mutant(exercise, splice.fault, _in_one(was), _in_one(now), text)


def _in_one(lines: bytes) -> str:
    return " ".join(lines.decode().split())


def _region_places(source: Source, exercise: str) -> Iterator[tuple[int, int]]:
    """The first and the last byte of each region of an exercise."""
    first = None
    for number, line in enumerate(source.bytes.decode().split("\n")):
        begin, end = BEGIN.match(line), END.match(line)
        if begin and begin["id"] == exercise:
            first = source.begins[number + 1]
        elif end and end["id"] == exercise:
            yield first, source.begins[number]


def _is_python(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _with_harmless(chapter: Chapter, exercise: str, found: list[Mutant]) -> list[Mutant]:
    known = {}
    for entry in read_yaml(chapter.tests / "harmless.yml").get(exercise, []):
        if {"was", "now", "why"} - set(entry) or not entry["why"].strip():
            raise CourseError(
                f"tests/{chapter.short}/harmless.yml: {entry} must have was, now and why."
            )
        key = _in_one(entry["was"].encode()), _in_one(entry["now"].encode())
        known[(*key, int(entry.get("place", 1)))] = " ".join(entry["why"].split())
    if gone := set(known) - {mutant.key for mutant in found}:
        was, now, place = min(gone)
        raise CourseError(
            f"tests/{chapter.short}/harmless.yml: {exercise} has no mutant {place} of “{was}” → “{now}”; "
            f"`python -m tests.course.mutants {exercise} --list` shows those it has."
        )
    return [replace(mutant, why=known.get(mutant.key, "")) for mutant in found]


def fingerprint(chapter: Chapter, exercise: str) -> str:
    """Changes whenever a result of `exercise` may: see above for what it depends on."""
    text = (chapter.tests / "checks.py").read_text(encoding="utf-8")
    lines = text.split("\n")
    others = re.compile(rf"(test|observe)_(?!{exercise.replace('.', '_')}(_|$))\d+_\d+")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and others.match(node.name):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    helpers = sorted(p for p in chapter.tests.glob("*.py") if not p.name.startswith("test_"))
    parts = [
        *regions(read_source(chapter.solution))[exercise],
        *(line for line in lines if line.strip()),
        *(p.read_text(encoding="utf-8") for p in helpers if p.name != "checks.py"),
        json.dumps(read_yaml(chapter.tests / "harmless.yml").get(exercise, [])),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


# --- runs and results -----------------------------------------------------------------------------


def noticed(examiner: Examiner, chapter: Chapter, mutant: Mutant) -> str:
    """The check of its exercise that fails on a mutant; "" if they all pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_answer(Path(folder), chapter, mutant.text)
        for check in checks_of_exercise(chapter, mutant.exercise):
            if examiner.run(check, path, diagnose=False).state not in FINE:
                return check.name
    return ""


def judge(pool: ThreadPoolExecutor, idle: SimpleQueue, chapter: Chapter, exercise: str) -> dict:
    """Run the mutants of an exercise; what is kept of it. CourseError if its checks refuse the reference."""

    def run(mutant: Mutant) -> str:
        examiner = idle.get()
        try:
            return noticed(examiner, chapter, mutant)
        finally:
            idle.put(examiner)

    before = fingerprint(chapter, exercise)
    found = mutants(chapter, exercise)
    text = read_source(chapter.solution)
    if refused := run(Mutant(exercise, "is the reference", "", "", text)):
        raise CourseError(f"{refused} fails on the reference itself: mend that first.")
    run_ones = [mutant for mutant in found if not mutant.why]
    by = list(pool.map(run, run_ones))
    missed = [mutant for mutant, check in zip(run_ones, by, strict=True) if not check]
    return {
        "fingerprint": before,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "mutants": len(found),
        "noticed": len(run_ones) - len(missed),
        "harmless": [{"was": m.was, "now": m.now, "why": m.why} for m in found if m.why],
        "missed": [{"was": m.was, "now": m.now, "fault": m.fault} for m in missed],
    }


def keep(exercise: str, result: dict) -> None:
    """Write the result of one exercise; {} stands where none is known, so that branches merge."""
    results = {**kept(), exercise: result}
    ordered = {e.id: results.get(e.id, {}) for _, e in select(None)}
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(ordered, indent=1, ensure_ascii=False) + "\n"
    KEPT.write_text(text, encoding="utf-8", newline="\n")


def stale() -> list[tuple[Chapter, Exercise]]:
    """The exercises whose kept result is missing, or of other regions, checks or harmless mutants."""
    results = kept()
    return [
        (c, e)
        for c, e in select(None)
        if results.get(e.id, {}).get("fingerprint") != fingerprint(c, e.id)
    ]


def below_goal() -> dict[int, float]:
    """chapter -> its score, for the chapters below GOAL; those that were not run are left out."""
    by_chapter: dict[int, list[dict]] = {}
    for exercise, result in kept().items():
        if result:
            by_chapter.setdefault(int(exercise.split(".")[0]), []).append(result)
    scores = {number: score(results) for number, results in by_chapter.items()}
    return {number: percent for number, percent in scores.items() if percent < GOAL}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.course.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="CHAPTER|EXERCISE")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument(
        "--check", action="store_true", help="run nothing; fail if a result is stale"
    )
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    asked = parser.parse_args(arguments)
    if asked.check:
        old = [e.id for _, e in stale()]
        print(f"stale: {', '.join(old)}; run `python -m tests.course.mutants`" if old else "fresh")
        for number, percent in below_goal().items():
            print(f"chapter {number}: {percent:.1f} % noticed, of {GOAL}")
        return bool(old or below_goal())
    chosen = [pair for name in asked.names for pair in select(name)] if asked.names else stale()
    if asked.list:
        for chapter, exercise in chosen:
            for mutant in mutants(chapter, exercise.id):
                print(f"{mutant}\n  harmless: {mutant.why}" if mutant.why else mutant)
        return 0
    idle: SimpleQueue = SimpleQueue()
    examiners = [Examiner() for _ in range(asked.workers)]
    for examiner in examiners:
        idle.put(examiner)
    try:
        with ThreadPoolExecutor(asked.workers) as pool:
            for chapter, exercise in chosen:
                result = judge(pool, idle, chapter, exercise.id)
                keep(exercise.id, result)
                harmless = len(result["harmless"])
                of = result["mutants"] - harmless
                print(f"{exercise.id}: {result['noticed']} of {of} noticed, {harmless} harmless")
                for one in result["missed"]:
                    print(f"  {one['fault']}\n    - {one['was']}\n    + {one['now']}", flush=True)
    finally:
        for examiner in examiners:
            examiner.close()
    return bool(below_goal())


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CourseError as error:
        sys.exit(str(error))
