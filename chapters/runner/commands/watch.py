"""`python -m chapters watch [4 | 4.1]`: checks again each time a file is saved, TVM staying imported in between."""

from __future__ import annotations

import time
from pathlib import Path

from chapters.code_owner import LEARNER
from chapters.runner.commands.check import print_report, report_exercise
from chapters.runner.course import Chapter, CourseError, Exercise, select
from chapters.runner.engine import FINE, Engine
from chapters.runner.learner_file import describe_faults, keep_answers
from chapters.runner.states import states
from chapters.runner.terminal import relative

HELP = "check again each time you save"
POLL_SECONDS = 0.1
GONE_SECONDS = 5.0


def arguments(parser) -> None:
    parser.add_argument("what", nargs="?")


def run(options) -> int:
    """Check the first unsolved exercise that was asked for, now and after every save, until none is left."""
    chosen = select(options.what)
    files = {chapter.stub: chapter for chapter, _ in chosen}
    print(f"Watching {len(files)} file(s) of YOUR code. Save to check; Ctrl-C ends.", flush=True)
    with Engine(LEARNER, workers=1, spare=True) as engine:
        seen: dict = {}
        missing = 0.0  # since when
        while True:
            now = {path: _read_content(path) for path in files}
            if None in now.values():  # an editor may replace a file in two steps
                missing = missing or time.monotonic()
                if time.monotonic() - missing > GONE_SECONDS:
                    gone = ", ".join(relative(path) for path in now if now[path] is None)
                    raise CourseError(
                        f"{gone} is gone. `python -m chapters` makes it anew and offers your last copy."
                    )
                time.sleep(POLL_SECONDS)
                continue
            missing = 0.0
            if now != seen:
                keep_answers(files.values())
                for path in now:
                    if now[path] != seen.get(path) and (said := describe_faults(files[path])):
                        print(f"!! {said}")
                seen = now
                if _check_next(engine, chosen):
                    return 0
            time.sleep(POLL_SECONDS)


def _read_content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _check_next(engine: Engine, chosen: list[tuple[Chapter, Exercise]]) -> bool:
    """Check exercises in order, up to the first that is left to solve. True if none is left."""
    for chapter, exercise in chosen:
        if states(chapter)[exercise.id] in FINE:
            continue
        began = time.perf_counter()
        print_report(report_exercise(chapter, exercise, engine), set())
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
        if states(chapter)[exercise.id] not in FINE:
            return False
    print("Everything asked for that can run here passes.")
    return True
