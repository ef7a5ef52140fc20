"""Mutation tests of the checks: small faults in each exercise's reference region, which its checks must notice.

    python -m tests.course.mutants                 run every exercise: hours, so a workflow does it every week
    python -m tests.course.mutants 3 4.1           run these chapters and exercises
    python -m tests.course.mutants 3.2 --list      show the mutants, and which are recorded as equivalent; run nothing

A mutant is the reference with one fault in one region: a conjunct, a disjunct or a filter dropped; a comparison or a
condition negated or shifted; a `not` dropped; a guard that never fires; a call statement or a keyword argument removed;
a constant off by one; two neighbouring arguments swapped; + and -, or * and //, exchanged; a call removed from a list,
or two neighbours of one swapped, as in a list of passes. The checks of its exercise run on it, up to the first that
fails, which kills it. One that no check can kill, because it behaves as the reference does, is an equivalent mutant. It
is recorded beside the reference, in solutions/chNN_…/equivalent_mutants.yml, and is not run:

    "3.2":
      - was: "if len(dims) < 2:"           # the changed lines, stripped and joined by a space
        now: "if len(dims) <= 2:"          # "" where they are removed
        why: matmul's operands have two dimensions or more
        place: 2                           # only where two mutants of the exercise read alike: which of them

Any other that passes survives: sharpen the check. Exit status 1 if a chapter's checks kill less than GOAL per cent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from chapters.runner.course import Chapter, CourseError, read_yaml, select
from chapters.runner.engine import FINE, Examiner, checks_of_exercise
from chapters.runner.regions import BEGIN, END, read_source
from tests.course.faults import Source, Splice, find_splices
from tests.support.answers import write_answer

GOAL = 97  # per cent of the mutants that are not equivalent, in every chapter
EQUIVALENT = "equivalent_mutants.yml"


@dataclass(frozen=True)
class Mutant:
    """The reference's `text` with one fault. was, now: the lines it changes; place: which, if several read alike."""

    exercise: str
    fault: str
    was: str
    now: str
    text: str
    place: int = 1
    why: str = ""  # why it is equivalent; "" if it is not recorded as that

    @property
    def key(self) -> tuple[str, str, int]:
        return self.was, self.now, self.place

    def __str__(self) -> str:
        nth = f" (place {self.place})" if self.place > 1 else ""
        return f"{self.exercise} {self.fault}{nth}\n  - {self.was}\n  + {self.now}"


# --- mutants --------------------------------------------------------------------------------------


def make_mutants(chapter: Chapter, exercise: str) -> list[Mutant]:
    """The mutants of an exercise's regions, equivalent ones marked. CourseError if one that is recorded is gone."""
    text = read_source(chapter.solution)
    source = Source(text)
    places = list(_find_regions(source, exercise))
    found: list[Mutant] = []
    texts = {text}
    alike: Counter = Counter()
    for splice in find_splices(source):
        if not any(first <= splice.start and splice.end <= last for first, last in places):
            continue
        mutant = _make_mutant(source, exercise, splice)
        if mutant.text in texts or not _is_python(mutant.text):
            continue
        texts.add(mutant.text)
        alike[mutant.key] += 1
        found.append(replace(mutant, place=alike[mutant.key]))
    return _mark_equivalent(chapter, exercise, found)


def _make_mutant(source: Source, exercise: str, splice: Splice) -> Mutant:
    start, end, new = splice.start, splice.end, splice.new.encode()
    first = source.bytes.rfind(b"\n", 0, start) + 1
    last = end if end > start and source.bytes[end - 1 : end] == b"\n" else -1
    last = last if last >= 0 else source.bytes.index(b"\n", end)
    was = source.bytes[first:last]
    now = source.bytes[first:start] + new + source.bytes[end:last]
    text = (source.bytes[:start] + new + source.bytes[end:]).decode()
    return Mutant(exercise, splice.fault, _join_lines(was), _join_lines(now), text)


def _join_lines(lines: bytes) -> str:
    return " ".join(lines.decode().split())


def _find_regions(source: Source, exercise: str) -> Iterator[tuple[int, int]]:
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


def _mark_equivalent(chapter: Chapter, exercise: str, found: list[Mutant]) -> list[Mutant]:
    known = {}
    path = chapter.solution_folder / EQUIVALENT
    for entry in read_yaml(path).get(exercise, []):
        if {"was", "now", "why"} - set(entry) or not entry["why"].strip():
            raise CourseError(f"{path}: {entry} must have was, now and why.")
        key = _join_lines(entry["was"].encode()), _join_lines(entry["now"].encode())
        known[(*key, int(entry.get("place", 1)))] = " ".join(entry["why"].split())
    if gone := set(known) - {mutant.key for mutant in found}:
        was, now, place = min(gone)
        raise CourseError(
            f"{path}: {exercise} has no mutant {place} of “{was}” → “{now}”; "
            f"`python -m tests.course.mutants {exercise} --list` shows those it has."
        )
    return [replace(mutant, why=known.get(mutant.key, "")) for mutant in found]


# --- runs -----------------------------------------------------------------------------------------


def find_killer(examiner: Examiner, chapter: Chapter, mutant: Mutant) -> str:
    """The check of its exercise that fails on a mutant; "" if they all pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_answer(Path(folder), chapter, mutant.text)
        for check in checks_of_exercise(chapter, mutant.exercise):
            if examiner.run(check, path, diagnose=False).state not in FINE:
                return check.name
    return ""


def find_survivors(
    pool: ThreadPoolExecutor, idle: SimpleQueue, chapter: Chapter, exercise: str
) -> tuple[list[Mutant], list[Mutant]]:
    """(the mutants of an exercise that are not equivalent, those that survive). CourseError if the reference fails."""

    def run(mutant: Mutant) -> str:
        examiner = idle.get()
        try:
            return find_killer(examiner, chapter, mutant)
        finally:
            idle.put(examiner)

    if refused := run(Mutant(exercise, "", "", "", read_source(chapter.solution))):
        raise CourseError(f"{refused} fails on the reference itself: mend that first.")
    ran = [mutant for mutant in make_mutants(chapter, exercise) if not mutant.why]
    by = list(pool.map(run, ran))
    return ran, [mutant for mutant, check in zip(ran, by, strict=True) if not check]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.course.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="CHAPTER|EXERCISE")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    asked = parser.parse_args(arguments)
    chosen = [pair for name in asked.names or [None] for pair in select(name)]
    if asked.list:
        for chapter, exercise in chosen:
            for mutant in make_mutants(chapter, exercise.id):
                print(f"{mutant}\n  equivalent: {mutant.why}" if mutant.why else mutant)
        return 0
    ran, survived = Counter(), Counter()  # by chapter
    with ExitStack() as examiners, ThreadPoolExecutor(asked.workers) as pool:
        idle: SimpleQueue = SimpleQueue()
        for _ in range(asked.workers):
            idle.put(examiners.enter_context(Examiner()))
        for chapter, exercise in chosen:
            all_of_it, survivors = find_survivors(pool, idle, chapter, exercise.id)
            ran[chapter.number] += len(all_of_it)
            survived[chapter.number] += len(survivors)
            summary = f"{len(survivors)} of {len(all_of_it)} survive"
            print(f"{exercise.id}: {summary if all_of_it else 'has no mutants'}", flush=True)
            for mutant in survivors:
                print(f"  {mutant}", flush=True)
    killed = {n: 100 * (1 - survived[n] / count) for n, count in ran.items() if count}
    for number, percent in killed.items():
        print(f"chapter {number}: {percent:.1f} % of {ran[number]} killed")
    return int(any(percent < GOAL for percent in killed.values()))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CourseError as error:
        sys.exit(str(error))
